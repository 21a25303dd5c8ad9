"""Each commit of a turn in turn fails, hangs, or lands and is not answered for a long time.

Whichever it is, the run ends once: as errored if a write failed, and as completed if one only took
long. What readers are told is what is stored, and the next prompt works.
"""

from functools import cache, partial

import pytest
import trio
from attrs import field, frozen
from trio.testing import MockClock

from crush_trio.errors import AcceptanceNotStored
from crush_trio.events.facts import MessageChange
from crush_trio.providers.base import Finished, Usage
from crush_trio.store.changes import (
    MessageCreated,
    PartPut,
    RunEnded,
    SessionCreated,
    TextAppended,
    UsageAdded,
)
from crush_trio.store.errors import DiskFull
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.testing.explore.schedule import seeded
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Say
from crush_trio.testing.server.agent import ScriptedTool, open_test_agent
from crush_trio.testing.server.faults import Moment
from crush_trio.testing.server.faulty_store import FaultyStore, StoreFault
from crush_trio.tools.base import ToolResult
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import FinishReason, Role, ToolResultPart
from crush_trio.wire.runs import RunKind, RunState
from crush_trio.wire.views import Session
from tests.agent.durable import check_complete, finish_of, parts_of, text_of, told
from tests.agent.whole_turn import (
    FULL,
    SUMMARY,
    WHOLE,
    Hands,
    check_settled,
    continues,
    new_store,
    nothing,
    play,
    scripted_model,
    sessions_of,
)


@frozen(kw_only=True, eq=False)
class OneCommit(StoreFault):
    """Strikes the commit with one number, whatever is in it."""

    store: FaultyStore
    number: int
    times: int = field(default=1, init=False)

    def concerns(self, changes):
        commits = self.store.commits
        return len(commits) > self.number and commits[self.number] is changes


FAULTS = {
    "fails": {"error": DiskFull},
    "hangs": {},
    "lands unheard": {"moment": Moment.AFTER},
}


def run_on(scenario, check, begin=nothing, **options):
    """Play *scenario* on a store with faults, have it checked, and return it with its store."""

    async def main():
        store = FaultyStore(await new_store(), **options)

        def begun(played):
            store.commits.clear()
            begin(played)

        def then(played):
            played.commits = len(store.commits)
            store.heal()

        played = await play(scenario, begun, then=then, store=store)
        await check(played)
        return played

    with seeded(0):
        return trio.run(main, clock=MockClock(autojump_threshold=0))


@cache
def commits_of(scenario):
    """Return how many commits a scenario takes that nothing disturbs."""
    return run_on(scenario, check_settled).commits


# ── What holds, whatever the store did ──────────────────────────────────────────────────────────


async def check_true(played):
    """Every run has one ending, and no event claims what is not stored; now, or after a restart."""
    recorder, store = played.bench.recorder, played.bench.store
    assert set(recorder.endings_per_run.values()) == {1}
    for view in recorder.endings:
        stored = (await store.run(view.id)).view
        assert stored == view, "the stream and the disk say different things"
    changes = [event for event in recorder.events if isinstance(event, MessageChange)]
    deleted = {each.message_id for each in changes if each.change is EventType.DELETED}
    for event in changes:
        if event.message_id not in deleted:
            await check_claim(store, event.message)
    await check_mended(played)


async def check_claim(store, claimed):
    stored = (await store.message(claimed.id)).message
    assert text_of(stored).startswith(text_of(claimed))
    assert len(stored.parts) >= len(claimed.parts)


async def check_mended(played):
    """After the next start every turn is complete, and every ending that was announced is kept."""
    again = played.bench.store.inner.reopened("again")
    tools, model = Hands().tools(), scripted_model(played.scenario)
    async with open_test_agent(model, tools, store=again) as bench:
        recovered = {view.id for view in bench.workspace.recovery.ended}
    runs = await check_complete(again, *await sessions_of(again), besides=continues)
    assert not recovered
    for view in played.bench.recorder.endings:
        assert runs[view.id].state is view.state


# ── Tests ───────────────────────────────────────────────────────────────────────────────────────


SCENARIOS = [WHOLE, SUMMARY, FULL]


@pytest.mark.explored
@pytest.mark.item("A22", "B1", "D8")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("kind", FAULTS)
def test_whichever_commit_goes_wrong_every_run_ends_once_and_no_event_lies(kind, scenario):
    assert commits_of(scenario) > 5
    for number in range(commits_of(scenario)):
        try:
            played = run_on(scenario, check_true, partial(spoil, kind, number))
        except BaseException as exc:
            exc.add_note(f"commit {number} {kind}")
            raise
        states = {name: view.state for name, view in played.endings.items()}
        allowed = {RunState.COMPLETED, RunState.ERRORED if kind == "fails" else None, None}
        assert states.get("run") in allowed, "a slow store made a run fail"
        assert played.run.outcome is not None or number == 0, "only an acceptance may be refused"


def spoil(kind, number, played):
    store = played.bench.store
    store.spoil(OneCommit(store=store, number=number, **FAULTS[kind]))
    played.bench.workspace.runs.services.start_soon(heal, store)


async def heal(store):
    """Let a write go on that hangs, after longer than all limits together."""
    await trio.sleep(OUTAGE)
    store.heal()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_slow_store_makes_a_turn_slow_and_nothing_else(scenario):
    async def check(played):
        await check_settled(played)
        assert played.endings["run"].state is RunState.COMPLETED
        view = played.run.view
        assert view.ended_at - view.accepted_at >= 4 * LATENCY

    run_on(scenario, check, latency=LATENCY)


LATENCY = 2.0
"""Seconds that a slow commit takes."""

OUTAGE = 100.0
"""Seconds for which a write hangs."""


@pytest.mark.explored
@pytest.mark.item("A13", "A33", "B1")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_cancel_that_meets_a_slow_commit_waits_for_it_and_leaves_nothing_undone(scenario):
    async def cancel(played, seconds):
        await trio.sleep(seconds)
        played.bench.cancel()

    def begin(seconds, played):
        played.bench.workspace.runs.services.start_soon(cancel, played, seconds)

    for seconds in range(1, 60, 3):
        played = run_on(scenario, check_settled, partial(begin, seconds), latency=LATENCY)
        states = {view.state for view in played.endings.values()}
        assert states <= {RunState.CANCELLED, RunState.COMPLETED, RunState.FOLDED}
        assert played.bench.recorder.errors == []


@pytest.mark.explored
@pytest.mark.item("A19")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_cancel_in_the_moment_in_which_a_commit_fails_is_never_an_error(scenario):
    def begin(number, played):
        def fail():
            played.bench.cancel()
            return DiskFull()

        store = played.bench.store
        store.spoil(OneCommit(store=store, number=number, error=fail))

    cancelled = 0
    for number in range(1, commits_of(scenario)):
        played = run_on(scenario, check_true, partial(begin, number))
        # A task is told by its run, a moment later; its own failure is a failure until then.
        views = [view for view in played.endings.values() if view.kind is not RunKind.TASK]
        states = {view.state for view in views}
        assert states <= {RunState.CANCELLED, RunState.COMPLETED, RunState.FOLDED}, number
        cancelled += RunState.CANCELLED in states
    assert cancelled


# ── What the record has in the end ──────────────────────────────────────────────────────────────


async def test_readers_are_told_of_a_record_that_was_stored_at_the_second_attempt():
    store = FaultyStore(await new_store(), [StoreFault(of=(RunEnded,), error=DiskFull, times=1)])
    async with open_test_agent(ScriptedProvider([[Say("done")]]), store=store) as bench:
        await bench.accept("go").wait()
        [_, answer] = await bench.messages()
        assert told(bench.recorder.messages[answer.id]) == told(answer)


async def test_a_result_that_could_not_be_stored_is_stored_with_the_ending():
    fault = StoreFault(
        of=(MessageCreated,),
        error=DiskFull,
        times=1,
        wanted=lambda change: change.message.role is Role.TOOL,
    )
    store = FaultyStore(await new_store(), [fault])
    model = ScriptedProvider([[CallTool("look")], [Say("second")]])
    tool = ScriptedTool("look", lambda _: ToolResult(content="seen"))
    async with open_test_agent(model, [tool], store=store) as bench:
        assert (await bench.accept("one").wait()).state is RunState.ERRORED
        assert (await bench.accept("two").wait()).state is RunState.COMPLETED
        roles = [message.role for message in await bench.messages()]
        assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER, Role.ASSISTANT]
        results = [p for m in await bench.messages() for p in parts_of(m, ToolResultPart)]
        assert [part.content for part in results] == ["seen"]


# ── What no store can hold ──────────────────────────────────────────────────────────────────────


UNSTORABLE = {
    "tool result": StoreFault(
        of=(MessageCreated,),
        error=OverflowError,
        wanted=lambda change: any(
            part.content == "seen" for part in parts_of(change.message, ToolResultPart)
        ),
    ),
    "answer": StoreFault(of=(TextAppended,), error=OverflowError),
    "last message": StoreFault(
        of=(PartPut,),
        error=OverflowError,
        wanted=lambda change: getattr(change.part, "reason", None) is FinishReason.END_TURN,
    ),
    "usage": StoreFault(of=(UsageAdded,), error=OverflowError),
    "run row": StoreFault(
        of=(RunEnded,),
        error=OverflowError,
        wanted=lambda change: change.run.state is RunState.COMPLETED,
    ),
}


@pytest.mark.item("B1", "B5")
@pytest.mark.parametrize("write", UNSTORABLE)
async def test_a_run_with_a_write_that_no_store_can_hold_ends_as_errored_on_stream_and_disk(
    write, caplog
):
    store = FaultyStore(await new_store(), [UNSTORABLE[write]])
    model = ScriptedProvider([[CallTool("look")], [Say("done")], [Say("next")]])
    tool = ScriptedTool("look", lambda _: ToolResult(content="seen"))
    async with open_test_agent(model, [tool], store=store) as bench:
        run = bench.accept("go")
        assert (await run.wait()).state is RunState.ERRORED
        assert store.struck
        [view] = bench.recorder.endings
        assert view == (await store.run(run.id)).view
        assert "record_not_stored" in view.error
        assert "record_not_stored" in [getattr(r, "code", "") for r in caplog.records]
        messages = await bench.messages()
        assert all(finish_of(message) is not None for message in messages)
        store.heal()
        assert (await bench.accept("on").wait()).state is RunState.COMPLETED
    await check_complete(store.inner, "s")


async def test_a_prompt_that_no_store_can_hold_is_not_accepted_and_has_no_ending():
    store = FaultyStore(await new_store(), [StoreFault(of=(MessageCreated,), error=OverflowError)])
    async with open_test_agent(ScriptedProvider([]), store=store) as bench:
        with pytest.raises(AcceptanceNotStored):
            await bench.accept("go").journaled()
        assert bench.recorder.endings == []
        assert await bench.messages() == []


async def test_a_run_whose_row_can_never_be_written_is_an_interruption_here_and_after_a_restart():
    store = FaultyStore(await new_store(), [StoreFault(of=(RunEnded,), error=OverflowError)])
    async with open_test_agent(ScriptedProvider([[Say("done")]]), store=store) as bench:
        run = bench.accept("go")
        assert (await run.wait()).state is RunState.INTERRUPTED
        assert set(bench.recorder.endings_per_run.values()) == {1}
    again = store.inner.reopened("again")
    async with open_test_agent(ScriptedProvider([]), store=again):
        assert (await again.run(run.id)).view.state is RunState.INTERRUPTED


@pytest.mark.real_clock
async def test_a_number_that_sqlite_cannot_store_makes_the_run_an_error(tmp_path):
    """A provider may claim any number of tokens."""
    usage = Usage(input_tokens=2**70, output_tokens=1)
    model = ScriptedProvider([[Say("done"), Finished(reason=FinishReason.END_TURN, usage=usage)]])
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(SessionCreated(session=Session(id=SessionId("s"), title="t")))
        async with open_test_agent(model, store=store) as bench:
            run = bench.accept("go")
            outcome = await run.wait()
            assert (outcome.state, outcome.title) == (RunState.ERRORED, "Answer not stored")
            assert (await store.run(run.id)).view == run.view
