"""`Bench`: what a workload gets: the servers to measure in alternation, a model, and the time budget."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import trio
from attrs import define, field

from benchmarks.driver import targets
from benchmarks.driver.provider import Provider
from benchmarks.driver.stage import Prepare, Stage, open_stage
from benchmarks.driver.targets import Running, Started
from benchmarks.figures import Notes

BUDGET: Final = 580.0
"""Seconds for all workloads, so that one command takes less than ten minutes."""

ROUNDS: Final = 3


@define(eq=False)
class Bench:
    """One run of the benchmarks."""

    provider: Provider
    own: Started = field(factory=targets.own_server, kw_only=True)
    """This project's server."""
    baseline: Started | None = field(factory=targets.baseline, kw_only=True)
    other: Running | None = field(default=None, kw_only=True)
    """A third server, which runs already."""
    quick: bool = field(default=False, kw_only=True)
    rounds: int = field(default=ROUNDS, kw_only=True)
    """How often everything is measured; odd, so that a median is a measured value."""
    budget: float = field(default=BUDGET, kw_only=True)
    left_out: list[str] = field(factory=list, init=False)
    """What was left out: no time, or not possible with a server."""
    _began: float = field(factory=trio.current_time, init=False)

    @property
    def servers(self) -> tuple[Started | Running, ...]:
        """The servers to measure, this project's first."""
        return tuple(each for each in (self.own, self.baseline, self.other) if each is not None)

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
        return Notes(
            workload,
            own=self.own.name,
            baseline="" if self.baseline is None else self.baseline.name,
            other="" if self.other is None else self.other.name,
        )

    @asynccontextmanager
    async def stages(self) -> AsyncIterator[tuple[Stage, ...]]:
        """Open a stage for every server at the same time; an idle server costs nothing."""
        async with AsyncExitStack() as stack:
            yield tuple(
                [
                    await stack.enter_async_context(open_stage(server, self.provider))
                    for server in self.servers
                ]
            )

    @asynccontextmanager
    async def alone(self, prepare: Prepare | None = None) -> AsyncIterator[Stage]:
        """Open a stage for this project's server only, to compare it with itself."""
        async with open_stage(self.own, self.provider, prepare) as stage:
            yield stage
