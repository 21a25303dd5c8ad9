"""`python -m benchmarks.chaos`: play rounds of faults, print the counts, exit with 1 if a promise was broken."""

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from benchmarks.chaos.counts import table
from benchmarks.chaos.rounds import Play
from benchmarks.chaos.scenarios import SCENARIOS


def main() -> int:
    """Play every scenario that is named, by default all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []], help="by default all")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of each scenario (60)")
    parser.add_argument("--seed", type=int, help="repeat the random choices of an earlier run")
    parser.add_argument("--at-once", type=int, default=2, help="scenarios at the same time (2)")
    parser.add_argument("--folder", type=Path, help="where to keep logs")
    parser.add_argument("--keep", action="store_true", help="keep them in any case")
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="crush-chaos-", dir=given.folder))
    names = given.scenarios or list(SCENARIOS)
    print(f"seed {seed}, {given.rounds} rounds of each of {names}, logs in {folder}", flush=True)
    plays = [
        Play(name, seed, given.rounds, folder / name, lambda text: print(text, flush=True))
        for name in names
    ]
    trio.run(play_all, plays, given.at_once)
    print(table({play.name: play.counts for play in plays}))
    broken = [play.broken for play in plays if play.broken]
    for text in broken:
        print(f"BROKEN {text}", file=sys.stderr)
    if broken:
        print(f"\nSeed {seed}; the logs of the nodes are in {folder}", file=sys.stderr)
        return 1
    if not given.keep:
        shutil.rmtree(folder)
    return 0


async def play_all(plays: Sequence[Play], at_once: int) -> None:
    """Play scenarios, so many at the same time."""
    limit = trio.CapacityLimiter(at_once)

    async def play(each: Play) -> None:
        async with limit:
            await each.run()

    async with trio.open_nursery() as nursery:
        for each in plays:
            nursery.start_soon(play, each)


if __name__ == "__main__":
    sys.exit(main())
