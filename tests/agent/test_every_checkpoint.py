"""A disturbance at every checkpoint of a whole turn: of its run, its tools, its task, its title.

First the turn is played in peace and its checkpoints are counted, over all of its tasks. Then it is
played again for each of them, in the same order of steps, with something going wrong there: the
session is cancelled, an exception comes out of the blue, the workspace closes, or everything around
it is cancelled. Whatever it is, every promise is kept and the next prompt works.
"""

from functools import cache

import pytest
import trio
import trio.abc
from attrs import define, field, frozen
from trio.testing import MockClock

from crush_trio.agent.journal import StoreJournal
from crush_trio.runtime.tasks import awaited_frames
from crush_trio.store.memory import MemoryStore
from crush_trio.testing.checkpoints import Call, CheckpointFaults, Fault, Raise
from crush_trio.testing.schedule import seeded
from crush_trio.wire.native import RunState
from tests.agent.whole_turn import Played, check_kept, play

CANCELLED = RunState.CANCELLED
COMPLETED = RunState.COMPLETED
ERRORED = RunState.ERRORED
FOLDED = RunState.FOLDED

RUN, ABSORBED, DELEGATED = ("prompt", "r"), ("prompt", None), ("task", None)

SHARES = 8
"""How many tests share the checkpoints of one disturbance, so that several cores can."""

pytestmark = pytest.mark.item("A13", "A19", "A20", "A33", "B1", "B18", "D15", "D16", "D17", "D20")


# ── Checkpoints, over all tasks of a turn ───────────────────────────────────────────────────────


@frozen
class Place:
    """Where a checkpoint is: in which task, at which line, and in the midst of what."""

    task: str
    line: str
    committing: bool
    ending: bool

    @property
    def may_raise(self):
        """Whether an exception may appear here.

        Not in a commit: what a store refuses, it has not stored. Not in the writer of a message,
        which waits for nothing but the store and its own orders.
        """
        return not (self.committing or self.task.startswith("writer"))


def place_now(coro):
    frames = list(awaited_frames(coro))
    codes = {frame.f_code for frame in frames}
    ours = [f for f in frames if not f.f_globals["__name__"].startswith(("trio.", "contextlib"))]
    return Place(
        task=trio.lowlevel.current_task().name,
        line=f"{ours[-1].f_code.co_qualname}:{ours[-1].f_lineno}",
        committing=MemoryStore.commit.__code__ in codes,
        ending=StoreJournal.end.__code__ in codes,
    )


@define(eq=False)
class Surveyed(CheckpointFaults):
    """Notes where each checkpoint is that it meets."""

    places: list[Place] = field(factory=list, init=False)

    def _meet(self, coro, message):
        self.places.append(place_now(coro))
        return super()._meet(coro, message)


@define(eq=False)
class Driver(trio.abc.Instrument):
    """Has every task of the turn driven: the runs, the title, the writers, and what they start."""

    faults: CheckpointFaults
    played: Played | None = field(default=None, init=False)
    _driven: set = field(factory=set, init=False)

    def task_spawned(self, task):
        if self.played is not None and self.played.outcome is None and self._belongs(task):
            self._driven.add(task)
            task.coro = self.faults.drive(task.coro)

    def task_exited(self, task):
        self._driven.discard(task)

    def _belongs(self, task):
        parent = task.parent_nursery.parent_task
        return task.name.startswith(("run ", "title", "writer of ")) or parent in self._driven

    @property
    def left(self):
        """The names of the tasks that have not ended."""
        return [task.name for task in self._driven]


def played_under(faults, check=check_kept, surroundings=None):
    """Play the turn under *faults*, have it checked, and return it."""
    driver = Driver(faults)

    def begin(played):
        driver.played = played

    async def main():
        with trio.CancelScope() if surroundings is None else surroundings:
            await play(begin)
        assert driver.left == []
        await check(driver.played)
        return driver.played

    with seeded(0):
        return trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[driver])
