"""`python -m benchmarks.soak`: soak a server, print the counts, exit with 1 if a promise was broken."""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

import trio

from benchmarks.soak.soak import Soak


def main() -> int:
    """Soak once."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to run (10)")
    parser.add_argument("--seed", type=int, help="repeat the random choices of an earlier soak")
    parser.add_argument("--folder", type=Path, help="where to keep logs and databases")
    parser.add_argument("--keep", action="store_true", help="keep them in any case")
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="crush-soak-", dir=given.folder))
    print(f"seed {seed}, {given.minutes:g} minutes, evidence in {folder}", flush=True)
    soak = Soak(seed, given.minutes * 60, folder, say=lambda text: print(text, flush=True))
    trio.run(soak.run)
    print(soak.counts.table(len(soak.violations)))
    if soak.violations:
        print(f"\nBROKEN, seed {seed}; logs and databases are in {folder}", file=sys.stderr)
        for violation in soak.violations[:5]:
            print(f"  {violation}", file=sys.stderr)
        return 1
    if not given.keep:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
