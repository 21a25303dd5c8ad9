"""`python -m benchmarks.guard`: fail if a promise about what a person waits for is missed by half.

A few short workloads, each alternating with the baseline in one run, so that a slow or busy machine slows
both. Only ratios count. What misses its limit is measured again, three times at most: a change that makes
a prompt slower misses it each time, a busy moment does not. Run it alone: what runs beside it takes turns
with the two servers and not with each alike.
"""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final

import trio

from benchmarks.bench import Bench
from benchmarks.driver.provider import open_provider
from benchmarks.figures import Figure
from benchmarks.report import cells
from benchmarks.workloads import accept, paced, sessions, turn

WORKLOADS: Final[Sequence[ModuleType]] = (accept, turn, sessions, paced)
TRIES: Final = 3
ROUNDS: Final = 3
SLACK: Final = 1.5
"""How many times its limit a figure may be before it is a failure here."""

NOT_MET: Final = {
    f"{accept.ALONE}, p50": 2.6,
    f"{accept.TOGETHER}, p50": 2.6,
    turn.ASKED: 2.6,
    turn.ENDED: 2.6,
    sessions.CREATED: 1.9,
    paced.CPU.format(paced.FEW): 1.2,
}
"""The ratios of promises that are not met yet: the limit is what is reached, so that it gets no worse."""

TIME_LIMIT: Final = 180.0
"""Seconds after which something hangs."""


def allowed(figure: Figure) -> float | None:
    """Return the ratio from which on a figure is a failure; None if nothing is promised about its ratio."""
    if figure.promise is None or not figure.promise.of_ratio:
        return None
    return SLACK * max(figure.promise.limit, NOT_MET.get(figure.name, 0.0))


def misses(figures: Sequence[Figure]) -> list[Figure]:
    """Return the figures that are above what is allowed."""
    return [
        figure
        for figure in figures
        if (limit := allowed(figure)) is not None
        and figure.ratio is not None
        and figure.ratio > limit
    ]


async def missed_each_time(workload: ModuleType) -> list[Figure]:
    """Return what a workload has missed in every try; stop at the first try without a miss."""
    names: set[str] | None = None
    missed: list[Figure] = []
    for _ in range(TRIES):
        async with open_provider() as provider:
            figures = await workload.measure(Bench(provider, quick=True, rounds=ROUNDS))
        for figure in figures:
            if (limit := allowed(figure)) is not None:
                _, ours, theirs, ratio, *_ = cells(figure)
                print(
                    f"{figure.name}: {ours} / {theirs} = {ratio}; allowed {limit:.2f}", flush=True
                )
        missed = [each for each in misses(figures) if names is None or each.name in names]
        names = {each.name for each in missed}
        if not names:
            break
    return missed


async def guard() -> list[Figure]:
    """Measure everything; return what was missed in every try."""
    with trio.fail_after(TIME_LIMIT):
        return [figure for each in WORKLOADS for figure in await missed_each_time(each)]


def main() -> int:
    """Return 1 if a promise was missed by half in every try."""
    missed = trio.run(guard)
    for figure in missed:
        print(f"too slow in {TRIES} tries: {figure.name}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
