"""What a workload is given: two servers to measure by turns, a model, and a share of the time."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import trio
from attrs import define, field

from benchmarks.driver.provider import Provider
from benchmarks.driver.stage import Prepare, Stage, open_stage
from benchmarks.driver.targets import Started, Target
from benchmarks.figures import Notes

BUDGET: Final = 465.0
"""Seconds for everything, so that one command is over within eight minutes."""


@define(eq=False)
class Bench:
    """One run of the benchmarks."""

    target: Target
    baseline: Target | None
    provider: Provider
    quick: bool = False
    budget: float = BUDGET
    left_out: list[str] = field(factory=list, init=False)
    """What there was no time for, or no way to do."""
    _began: float = field(factory=trio.current_time, init=False)

    @property
    def rounds(self) -> int:
        """How often each thing is measured; odd, so that a median is a measured value."""
        return 1 if self.quick else 3

    @property
    def targets(self) -> tuple[Target, ...]:
        """The servers to measure, the one that it is about first."""
        return (self.target,) if self.baseline is None else (self.target, self.baseline)

    @property
    def is_started(self) -> bool:
        """Whether the target is started for each workload, and so begins anew with each."""
        return isinstance(self.target, Started)

    def size(self, full: int, quick: int) -> int:
        """Return how many of something to do."""
        return quick if self.quick else full

    def has_time(self, seconds: float, what: str) -> bool:
        """Whether there are *seconds* left for *what*, which can be left out; notes it if it is."""
        if trio.current_time() - self._began + seconds <= self.budget:
            return True
        self.left_out.append(f"{what}: no time left")
        return False

    def notes(self, workload: str) -> Notes:
        """Return a place for the values of a workload."""
        return Notes(workload, self.target.name)

    @asynccontextmanager
    async def stages(self) -> AsyncIterator[tuple[Stage, ...]]:
        """Have every server ready, side by side; those that are not asked anything cost nothing."""
        async with AsyncExitStack() as stack:
            yield tuple(
                [
                    await stack.enter_async_context(open_stage(target, self.provider))
                    for target in self.targets
                ]
            )

    @asynccontextmanager
    async def alone(self, prepare: Prepare | None = None) -> AsyncIterator[Stage]:
        """Have the target ready, for what it is compared with itself."""
        async with open_stage(self.target, self.provider, prepare) as stage:
            yield stage
