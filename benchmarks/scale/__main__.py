"""`python -m benchmarks.scale`: what a cluster carries, computed from measured constants.

python -m benchmarks.scale                    print the tables of docs/scale.md
python -m benchmarks.scale --measure          measure the constants first and keep them; two minutes
python -m benchmarks.scale --measure --page   the same, and the tables into the page
"""

import argparse
import sys
from collections.abc import Sequence

import trio

from benchmarks.scale.constants import Constants
from benchmarks.scale.measure import measure
from benchmarks.scale.tables import PAGE, page, section


def main(argv: Sequence[str] | None = None) -> int:
    """Measure if asked to, and print the tables."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.scale",
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--measure", action="store_true", help="measure the constants again")
    parser.add_argument("--page", action="store_true", help="put the tables into docs/scale.md")
    options = parser.parse_args(argv)
    if options.measure:
        trio.run(measure).save()
    found = Constants.load()
    print(section(found))
    if options.page:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page(found, text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
