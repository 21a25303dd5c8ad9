"""B18 as corrected by L10: a turn with a bug in it ends its own run, and nothing else.

Whatever a turn does wrong, four things hold: its run ends as errored, once, on the stream and in the
journal; its traceback is logged, once; runs of other sessions do not notice; the next run of the same
session begins. A bug that shows only while the run is being cancelled leaves it cancelled (A19); one that
hides the cancellation does not.
"""

import pytest
import trio
from attrs import define
from trio.testing import wait_all_tasks_blocked

from crush_trio.errors import CancelSwallowed, RunReentered
from crush_trio.events import Fact
from crush_trio.runtime.outcome import Completion
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.turns import Pause, ScriptedTurns
from crush_trio.testing.server.workspace import open_test_workspace
from crush_trio.wire.events import ConfigChanged, EventType, PayloadType
from crush_trio.wire.runs import RunState

# ── Bugs that need nobody's help ───────────────────────────────────────────────────────────────


async def raises(run):
    await trio.lowlevel.checkpoint()
    raise ValueError("a bug")


async def raises_without_a_checkpoint(run):
    raise ValueError("a bug")


async def raises_a_group(run):
    await trio.lowlevel.checkpoint()
    raise ExceptionGroup("two bugs", [ValueError("one"), KeyError("two")])


async def enters_again(run):
    async with run.accepted.enter():
        pytest.fail("nobody can enter a run twice")


async def returns_a_number(run):
    await trio.lowlevel.checkpoint()
    return 42


async def returns_a_text_that_is_none(run):
    await trio.lowlevel.checkpoint()
    return Completion(text=None)


async def returns_a_notice_that_is_no_event(run):
    await trio.lowlevel.checkpoint()
    return Completion(text="fine", notices=("not an event",))


async def returns_a_notice_without_json(run):
    await trio.lowlevel.checkpoint()
    entity = ConfigChanged(workspace_id=object())
    notice = Fact(payload_type=PayloadType.CONFIG_CHANGED, change=EventType.UPDATED, entity=entity)
    return Completion(text="fine", notices=(notice,))


async def cannot_say_what_it_said(run):
    run.partial = lambda: 1 / 0
    await trio.lowlevel.checkpoint()
    raise ValueError("a bug")


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


async def raises_something_without_text(run):
    await trio.lowlevel.checkpoint()
    raise Unprintable


async def gives_up_with_an_empty_message(run):
    await trio.lowlevel.checkpoint()
    raise ValueError


def is_not_async(run):
    return "never awaited"


BUGS = [
    raises,
    raises_without_a_checkpoint,
    raises_a_group,
    raises_something_without_text,
    gives_up_with_an_empty_message,
    enters_again,
    returns_a_number,
    returns_a_text_that_is_none,
    returns_a_notice_that_is_no_event,
    returns_a_notice_without_json,
    cannot_say_what_it_said,
    is_not_async,
]

# ── Bugs that show when the run is cancelled ───────────────────────────────────────────────────


async def swallows_its_cancellation(run):
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        return Completion(text="as if nothing had happened")


async def raises_while_it_is_cancelled(run):
    try:
        await trio.sleep_forever()
    finally:
        raise ValueError("a bug")


async def raises_in_a_child_while_it_is_cancelled(run):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(raises_while_it_is_cancelled, run)
        await trio.sleep_forever()


async def cannot_say_what_it_said_when_cancelled(run):
    run.partial = lambda: 1 / 0
    await trio.sleep_forever()


BUGS_UNDER_CANCELLATION = [
    swallows_its_cancellation,
    raises_while_it_is_cancelled,
    raises_in_a_child_while_it_is_cancelled,
    cannot_say_what_it_said_when_cancelled,
]


@define(eq=False)
class OneBrokenTurn:
    """Plays *broken* for the prompt `bug`, and *others* for everything else."""

    broken: object
    others: ScriptedTurns

    def __call__(self, run):
        return (self.broken if run.prompt == "bug" else self.others)(run)


def tracebacks(caplog):
    return [record for record in caplog.records if record.exc_info]


@pytest.mark.item("B18")
@pytest.mark.parametrize("bug", BUGS + BUGS_UNDER_CANCELLATION, ids=lambda bug: bug.__name__)
async def test_a_bug_ends_its_own_run_as_errored_and_touches_no_other(bug, caplog):
    gate = Gate()
    turns = OneBrokenTurn(bug, ScriptedTurns({"sibling": [Pause(gate)]}))
    async with open_test_workspace(turns) as bench:
        sibling = bench.accept("sibling", "other")
        broken = bench.accept("bug", run_id="mine")
        await wait_all_tasks_blocked()
        follower = bench.accept("next", run_id="next")
        await wait_all_tasks_blocked()
        if bug in BUGS_UNDER_CANCELLATION:
            bench.workspace.cancel_run(broken.id)
        cancelled = bug in BUGS_UNDER_CANCELLATION and bug is not swallows_its_cancellation
        ended = RunState.CANCELLED if cancelled else RunState.ERRORED
        assert (await broken.wait()).state is ended
        assert (await follower.wait()).state is RunState.COMPLETED
        assert sibling.state is RunState.ACTIVE
        gate.open()
        assert (await sibling.wait()).state is RunState.COMPLETED
        assert bench.recorder.endings_per_run == {broken.id: 1, follower.id: 1, sibling.id: 1}
        errors = [(error.run_id, bool(error.error)) for error in bench.recorder.errors]
        assert errors == ([] if cancelled else [("mine", True)])
        assert bench.transcript.rows[broken.id] is ended
        assert bench.workspace.runs == ()
    assert [record.run_id for record in tracebacks(caplog)] == [broken.id]


@pytest.mark.item("B18")
@pytest.mark.parametrize("surroundings", ["closes", "is cancelled from outside"])
async def test_a_child_that_raises_while_the_workspace_ends_spoils_its_own_run_only(
    surroundings, caplog
):
    turns = OneBrokenTurn(raises_in_a_child_while_it_is_cancelled, ScriptedTurns())
    turns.others.scripts = {"sibling": [Pause(Gate("never opened"))]}
    with trio.CancelScope() as outside:
        async with open_test_workspace(turns) as bench:
            broken = bench.accept("bug")
            sibling = bench.accept("sibling", "other")
            await wait_all_tasks_blocked()
            if surroundings != "closes":
                outside.cancel()
    assert broken.outcome.state is RunState.CANCELLED
    assert sibling.outcome.state is RunState.CANCELLED
    assert bench.recorder.endings_per_run == {broken.id: 1, sibling.id: 1}
    assert [record.run_id for record in tracebacks(caplog)] == [broken.id]


@pytest.mark.item("B18")
@pytest.mark.parametrize(
    ("bug", "says"),
    [
        (enters_again, RunReentered.message),
        (swallows_its_cancellation, CancelSwallowed.message),
        (raises_a_group, "2 sub-exceptions"),
        (gives_up_with_an_empty_message, "ValueError"),
    ],
    ids=lambda value: getattr(value, "__name__", "says"),
)
async def test_the_ending_says_what_the_bug_was(bug, says):
    async with open_test_workspace(OneBrokenTurn(bug, ScriptedTurns())) as bench:
        broken = bench.accept("bug")
        await wait_all_tasks_blocked()
        bench.cancel()
        assert says in (await broken.wait()).error


async def test_a_turn_that_was_past_its_last_checkpoint_when_the_cancel_came_is_completed():
    async def turn(run):
        await trio.lowlevel.checkpoint()
        run.accepted.cancel()
        return Completion(text="whole")

    async with open_test_workspace(turn) as bench:
        outcome = await bench.accept("hi").wait()
        assert (outcome.state, outcome.text) == (RunState.COMPLETED, "whole")
