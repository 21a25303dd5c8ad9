"""`Bench`: what a workload gets: two servers to measure in alternation, a model, and the time budget."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import trio
from attrs import define, field

from benchmarks.driver.provider import Provider
from benchmarks.driver.stage import Prepare, Stage, open_stage
from benchmarks.driver.targets import Started, Target
from benchmarks.figures import Notes

BUDGET: Final = 580.0
"""Seconds for all workloads, so that one command takes less than ten minutes."""


@define(eq=False)
class Bench:
    """One run of the benchmarks."""

    target: Target
    baseline: Target | None
    provider: Provider
    quick: bool = False
    budget: float = BUDGET
    left_out: list[str] = field(factory=list, init=False)
    """What was left out: no time, or not possible with this target."""
    _began: float = field(factory=trio.current_time, init=False)

    @property
    def rounds(self) -> int:
        """How often everything is measured; odd, so that a median is a measured value."""
        return 1 if self.quick else 3

    @property
    def targets(self) -> tuple[Target, ...]:
        """The servers to measure, the target first."""
        return (self.target,) if self.baseline is None else (self.target, self.baseline)

    @property
    def is_started(self) -> bool:
        """Whether the target is started anew for each workload."""
        return isinstance(self.target, Started)

    def size(self, full: int, quick: int) -> int:
        """Return *full*, or *quick* in a quick run."""
        return quick if self.quick else full

    def has_time(self, seconds: float, what: str) -> bool:
        """Whether *seconds* are left for *what*; if not, note that it is left out."""
        if trio.current_time() - self._began + seconds <= self.budget:
            return True
        self.left_out.append(f"{what}: no time left")
        return False

    def notes(self, workload: str) -> Notes:
        """Return an object that collects the values of a workload."""
        return Notes(workload, self.target.name)

    @asynccontextmanager
    async def stages(self) -> AsyncIterator[tuple[Stage, ...]]:
        """Open a stage for every server at the same time; an idle server costs nothing."""
        async with AsyncExitStack() as stack:
            yield tuple(
                [
                    await stack.enter_async_context(open_stage(target, self.provider))
                    for target in self.targets
                ]
            )

    @asynccontextmanager
    async def alone(self, prepare: Prepare | None = None) -> AsyncIterator[Stage]:
        """Open a stage for the target only, to compare it with itself."""
        async with open_stage(self.target, self.provider, prepare) as stage:
            yield stage
