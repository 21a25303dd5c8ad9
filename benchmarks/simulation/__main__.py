"""`python -m benchmarks.simulation`: play seeds, print the counts, exit with 1 if a promise was broken.

With `--seed N` it plays that one and prints what happened, line by line.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from benchmarks.simulation.bugs import BUGS
from benchmarks.simulation.world import Played, play

CHUNK = 50
"""Seeds that a process plays before it reports."""


def main() -> int:
    """Play one seed and tell what happened, or many and count it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one and print its trace")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many to play (10000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (the cores)")
    parser.add_argument("--bug", default="", choices=BUGS, help="with this bug planted")
    given = parser.parse_args()
    if given.seed is not None:
        played = play(given.seed, given.bug)
        print(played.trace)
        print(f"\nBROKEN {played.broken}" if played.broken else "\nevery promise was kept")
        return 1 if played.broken else 0
    return play_many(range(given.first, given.first + given.seeds), given.jobs, given.bug)


def play_many(seeds: range, jobs: int, bug: str) -> int:
    """Play seeds in several processes; print the broken ones as they come, and all counts at the end."""
    began, counts, done, broken = time.monotonic(), Counter[str](), 0, 0
    with ProcessPoolExecutor(jobs) as pool:
        for results in pool.map(play_chunk, chunks(seeds), [bug] * len(seeds)):
            for played in results:
                counts += played.counts
                done += 1
                if played.broken:
                    broken += 1
                    print(report(played, bug), file=sys.stderr, flush=True)
            if done % 1000 == 0:
                print(f"{done} of {len(seeds)} seeds", flush=True)
    print(table(counts))
    print(f"{done} seeds in {time.monotonic() - began:.0f} s, {broken} of them broke a promise")
    return 1 if broken else 0


def chunks(seeds: range) -> Iterator[range]:
    """Return the seeds in pieces."""
    for first in range(0, len(seeds), CHUNK):
        yield seeds[first : first + CHUNK]


def play_chunk(seeds: range, bug: str) -> list[Played]:
    """Play some seeds, in a process of their own."""
    return [play(seed, bug) for seed in seeds]


def report(played: Played, bug: str = "") -> str:
    """Return what was broken, and the command that shows how."""
    planted = f" --bug '{bug}'" if bug else ""
    return (
        f"BROKEN {played.broken}\n"
        f"  replay: python -m benchmarks.simulation --seed {played.seed}{planted}"
    )


def table(counts: Counter[str]) -> str:
    """Return the counts, one in each line."""
    return "\n".join(f"{counts[name]:>10}  {name}" for name in sorted(counts))


if __name__ == "__main__":
    sys.exit(main())
