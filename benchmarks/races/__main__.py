"""`python -m benchmarks.races`: run every strategy on every seeded bug, and write the table.

python -m benchmarks.races                       print the table
python -m benchmarks.races --page docs/races.md  and write it into the page
"""

import argparse
from pathlib import Path

from benchmarks import report
from benchmarks.races import table


def main() -> None:
    """Parse the arguments, measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", type=Path, help="the page into which the table is written")
    options = parser.parse_args()
    section = f"{table.page(table.measure())}\n{table.about()}"
    print(section)
    if options.page is not None:
        text = options.page.read_text(encoding="utf-8")
        options.page.write_text(report.replaced(text, section), encoding="utf-8")


if __name__ == "__main__":
    main()
