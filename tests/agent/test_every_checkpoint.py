"""A disturbance at every checkpoint of a turn: of its run, its tools, its task, its title.

First a scenario is played in peace and its checkpoints are counted, over all of its tasks. Then it is
played again for each of them, in the same order of steps, with something going wrong there: the
session is cancelled, the workspace closes, everything around it is cancelled, or an exception comes
out of the blue. Whatever it is, every promise is kept and the next prompt works.
"""

from functools import cache

import pytest
import trio
import trio.abc
from attrs import define, field, frozen
from trio.testing import MockClock

from crush_trio.agent.turn.subagent import AgentTool
from crush_trio.runtime.ending import wait_stored
from crush_trio.runtime.tasks import awaited_frames
from crush_trio.store.commit import Commit
from crush_trio.testing.explore.checkpoints import Call, CheckpointFaults, Fault, Raise
from crush_trio.testing.explore.schedule import seeded
from crush_trio.wire.runs import RunState
from tests.agent.whole_turn import FULL, SUMMARY, WHOLE, Played, check_kept, play

CANCELLED = RunState.CANCELLED
COMPLETED = RunState.COMPLETED
ERRORED = RunState.ERRORED
FOLDED = RunState.FOLDED

pytestmark = pytest.mark.item(
    "A13", "A19", "A20", "A33", "B1", "B18", "D15", "D16", "D17", "D19", "D20", "D32"
)


# ── Checkpoints, over all tasks of a scenario ───────────────────────────────────────────────────


@frozen
class Place:
    """Where a checkpoint is: in which tasks, at which line, and in the midst of what."""

    tasks: tuple[str, ...]
    line: str
    committing: bool
    ending: bool
    charging: bool

    @property
    def titling(self):
        """Whether a title is being made here: what goes wrong with it is nobody's failure."""
        return self.tasks[0] == "title"

    @property
    def may_raise(self):
        """Whether an exception may appear here.

        Not in a commit: what a store refuses, it has not stored. Not in the writer of a message,
        which waits for nothing but the store and its own orders. Not in the first step of a title,
        which calls nothing, nor where a cost is added up, since errors are forgiven there (D33).
        """
        writing = self.committing or self.tasks[0].startswith("writer")
        return not (writing or self.charging or self.line.startswith("Titles._give"))


@define(eq=False)
class Surveyed(CheckpointFaults):
    """Notes where each checkpoint is that it meets."""

    driver: "Driver" = field(init=False)
    places: list[Place] = field(factory=list, init=False)

    def _meet(self, coro, message):
        frames = list(awaited_frames(coro))
        codes = {frame.f_code for frame in frames}
        ours = [f for f in frames if f.f_globals["__name__"].startswith(("crush_trio", "tests"))]
        self.places.append(
            Place(
                tasks=self.driver.path_of(trio.lowlevel.current_task()),
                line=f"{ours[-1].f_code.co_qualname}:{ours[-1].f_lineno}",
                committing=bool(codes & {Commit.wait.__code__, Commit.known_within.__code__}),
                ending=wait_stored.__code__ in codes,
                charging=AgentTool._charge.__code__ in codes,
            )
        )
        return super()._meet(coro, message)


@define(eq=False)
class Driver(trio.abc.Instrument):
    """Has every task of a scenario driven: runs, titles, writers, and what they start in turn."""

    faults: CheckpointFaults
    played: Played | None = field(default=None, init=False)
    _driven: set = field(factory=set, init=False)

    def begin(self, played):
        self.played = played

    def task_spawned(self, task):
        if self.played is not None and not self.played.over and self._belongs(task):
            self._driven.add(task)
            task.coro = self.faults.drive(task.coro)

    def task_exited(self, task):
        self._driven.discard(task)

    def _belongs(self, task):
        parent = task.parent_nursery.parent_task
        return task.name.startswith(("run ", "title", "writer of ")) or parent in self._driven

    def path_of(self, task):
        """The names of a driven task and of those above it, the topmost first."""
        names = []
        while task in self._driven:
            names.insert(0, task.name)
            task = task.parent_nursery.parent_task
        return tuple(names)

    @property
    def left(self):
        """The driven tasks that have not ended."""
        return [task.name for task in self._driven]


def play_driven(driver, scenario, check, surroundings=None):
    """Play *scenario* with its tasks driven, have it checked, and return it."""

    async def main():
        with trio.CancelScope() if surroundings is None else surroundings:
            await play(scenario, driver.begin)
        assert driver.left == []
        await check(driver.played)
        return driver.played

    with seeded(0):
        return trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[driver])


@cache
def survey(scenario):
    """Return the checkpoints of a scenario that nothing disturbs, and how its runs ended."""
    faults = Surveyed()
    faults.driver = Driver(faults)
    played = play_driven(faults.driver, scenario, check_kept)
    return faults.places, {name: view.state for name, view in played.endings.items()}


def parts_of(scenario, number):
    """Return the parameters for *number* tests that share the checkpoints of a scenario."""
    return [pytest.param(scenario, n, number, id=f"{scenario.name} {n}") for n in range(number)]


SHARES = [*parts_of(WHOLE, 4), *parts_of(SUMMARY, 1), *parts_of(FULL, 2)]


def checkpoints(scenario, share, shares, wanted=lambda _place: True):
    """Return one share of the checkpoints of a scenario, with their places."""
    places = list(enumerate(survey(scenario)[0]))
    return [(at, place) for at, place in places[share::shares] if wanted(place)]


def disturb(scenario, at, place, act, check=check_kept):
    """Play *scenario* with *act* happening at one checkpoint; return it and whether that happened."""
    surroundings = trio.CancelScope()
    fault = Fault(at, act if isinstance(act, Raise) else Call(lambda: act(driver, surroundings)))
    driver = Driver(CheckpointFaults([fault]))
    try:
        return play_driven(driver, scenario, check, surroundings), fault.fired
    except BaseException as exc:
        exc.add_note(f"disturbed at checkpoint {at} of {scenario.name}: {place}")
        raise


# ── Tests ───────────────────────────────────────────────────────────────────────────────────────


def test_the_whole_turn_has_everything():
    places, states = survey(WHOLE)
    assert states == {"run": COMPLETED, "task": COMPLETED, "folded": FOLDED}
    tasks = {name.partition(" of ")[0] for place in places for name in place.tasks}
    tools = {"tool a", "tool b", "tool w", "tool agent", "tool view"}
    assert tasks >= {"title", "silence watch", "writer", *tools}
    assert len(places) > 150


@pytest.mark.parametrize("scenario", [SUMMARY, FULL], ids=lambda scenario: scenario.name)
def test_the_other_scenarios_end_with_a_summary(scenario):
    places, states = survey(scenario)
    assert states == {"run": COMPLETED}
    assert len(places) >= 20


def cancel(driver, _surroundings):
    driver.played.bench.cancel()


def close(driver, _surroundings):
    driver.played.bench.workspace.runs.close()


def cancel_surroundings(_driver, surroundings):
    surroundings.cancel()


@pytest.mark.explored
@pytest.mark.parametrize(("scenario", "share", "shares"), SHARES)
@pytest.mark.parametrize(
    "act", [cancel, close, pytest.param(cancel_surroundings, marks=pytest.mark.long)]
)
def test_a_stop_at_any_checkpoint_stops_everything_and_is_no_error(act, scenario, share, shares):
    for at, place in checkpoints(scenario, share, shares):
        played, fired = disturb(scenario, at, place, act)
        assert fired
        states = {name: view.state for name, view in played.endings.items()}
        assert set(states.values()) <= {CANCELLED, COMPLETED, FOLDED}, (at, place)
        assert played.bench.recorder.errors == [], (at, place)
        if states["run"] is COMPLETED and act is not cancel_surroundings:
            assert place.ending or place.committing, "the run had not ended by then"


@pytest.mark.explored
@pytest.mark.parametrize(("scenario", "share", "shares"), SHARES)
def test_an_exception_at_any_checkpoint_ends_one_run(scenario, share, shares):
    for at, place in checkpoints(scenario, share, shares, lambda place: place.may_raise):
        blue = Raise(RuntimeError("out of the blue"))
        played, fired = disturb(scenario, at, place, blue)
        failed = [view for view in played.endings.values() if view.state is ERRORED]
        assert len(failed) in ({0} if place.titling else {int(fired)}), (at, place)
        assert all("out of the blue" in view.error for view in failed)
