"""After a crash: every accepted run has one ending, its prompt once, and a turn that lacks nothing.

The first part makes a store as a crash at a given point leaves it, change by change. The second
plays a whole scenario, takes the store as it is before every single write, and recovers each.
"""

import pytest
import trio
import trio.testing
from attrs import evolve, frozen

from crush_trio.agent.record.unfinished_turn import TOOL_FAILED
from crush_trio.events.facts import RunChange
from crush_trio.runtime.outcome import INTERRUPTED_BY_RESTART
from crush_trio.store.changes import (
    MessageFinished,
    PartPut,
    RunEnded,
    RunMoved,
    TextAppended,
)
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing import Gate
from crush_trio.testing.server.faulty_store import FaultyStore, StoreFault
from crush_trio.wire.messages import FinishReason, Role, ToolResultPart
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunKind, RunState
from tests.agent.durable import (
    END,
    S,
    Turns,
    all_events,
    answer,
    check_complete,
    completion,
    endings,
    finish_of,
    give_result,
    memory,
    message_events,
    open_bench,
    parts_of,
    roles,
    text_of,
    told,
)
from tests.store.stores import STOP, call, message, run, text, thought

settle = trio.testing.wait_all_tasks_blocked


def prompted(run_id, content="hello", turn=None):
    """The prompt of a run, in its own turn or in that of another."""
    return [message(run_id, text(content), STOP, role=Role.USER, run_id=turn or run_id)]


def put(index, part, identity="a"):
    return PartPut(message_id=identity, index=index, part=part, at=100)


def appended(index, content, identity="a"):
    return TextAppended(message_id=identity, index=index, text=content, at=100)


def result(call_id, identity):
    part = ToolResultPart(tool_call_id=call_id, name="bash", content="seen")
    return message(identity, part, STOP, role=Role.TOOL, run_id="r")


async def crashed(*changes):
    """Return a store as the next start finds it after a crash that came after *changes*."""
    store = await memory()
    for change in changes:
        await store.commit(*(change if isinstance(change, list) else [change]))
    return store.reopened("b2")


STEPS = {
    "accepted": [run()],
    "active": [RunMoved(id="r", state=RunState.ACTIVE, at=100)],
    "prompt recorded": prompted("r"),
    "answer created": [message("a", run_id="r")],
    "thinking": [put(0, thought()), appended(0, "hm")],
    "streaming": [put(1, text()), appended(1, "half a sen")],
    "tool called": [put(2, call("one", input='{"a"'))],
    "call complete": [put(2, call("one", input='{"a":1}', finished=True))],
    "tool answered": [result("one", "t")],
    "called again": [put(3, call("two"))],
    "answer finished": [put(4, END), MessageFinished(message_id="a", at=100)],
}


@pytest.mark.item("D15", "D16", "D17")
@pytest.mark.parametrize("last", STEPS)
async def test_a_run_is_ended_wherever_the_crash_came(last):
    steps = list(STEPS)[: list(STEPS).index(last) + 1]
    store = await crashed(*(STEPS[step] for step in steps))
    async with open_bench(store=store) as bench:
        (view,) = bench.workspace.recovery.ended
        assert (view.id, view.state, view.error) == (
            "r",
            RunState.INTERRUPTED,
            INTERRUPTED_BY_RESTART,
        )
        assert await bench.stored(view) == view
        assert bench.endings() == [view]
        if last != "answer finished":
            await check_complete(store)
        messages = await bench.messages()
        assert roles(messages)[:2] == [Role.USER, Role.ASSISTANT]
        assert text_of(messages[0]) == "hello"
        reply = messages[1]
        assert view.message_id == reply.id
        finish = finish_of(reply)
        if last == "answer finished":
            assert finish == END
        else:
            assert (finish.reason, finish.details) == (FinishReason.ERROR, INTERRUPTED_BY_RESTART)
        if "streaming" in steps:
            assert text_of(reply) == "half a sen"
        for stored in messages[:2]:
            for event in message_events(bench.events, stored.id)[-1:]:
                assert told(event.message) == told(stored)


async def test_calls_without_a_result_are_answered_with_an_error_and_the_others_left_alone():
    store = await crashed(*STEPS.values())
    async with open_bench(store=store) as bench:
        results = [p for m in await bench.messages() for p in parts_of(m, ToolResultPart)]
        assert [(r.tool_call_id, r.content, r.is_error) for r in results] == [
            ("one", "seen", False),
            ("two", TOOL_FAILED, True),
        ]


async def test_a_prompt_that_was_not_written_is_written_with_its_attachments():
    files = (Attachment(file_path="/a", file_name="a", mime_type="text/plain", content=b"x"),)
    store = await crashed(run(attachments=files))
    async with open_bench(store=store) as bench:
        question, _closing = await bench.messages()
        assert [part.kind for part in question.parts] == ["text", "binary", "finish"]
        assert (await bench.store.run("r")).prompt_message_id == question.id


async def test_a_run_that_waited_behind_another_gets_a_turn_of_its_own():
    store = await crashed(
        run("r"),
        prompted("r"),
        message("a", run_id="r"),
        run("q", seq=2, run_id="Q", prompt="queued"),
    )
    async with open_bench(store=store) as bench:
        assert [view.id for view in bench.workspace.recovery.ended] == ["r", "q"]
        messages = await bench.messages()
        assert roles(messages) == [Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT]
        assert [text_of(m) for m in messages[::2]] == ["hello", "queued"]
        assert [v.message_id for v in bench.workspace.recovery.ended] == ["a", messages[3].id]
        await check_complete(store)


async def test_an_answer_after_the_run_that_is_not_its_own_is_not_taken_for_it():
    """A queued run was cancelled while the first one streamed: its record stands after the answer."""
    other = run("q", seq=2, prompt="queued")
    ended = RunEnded(run=evolve(other.run, state=RunState.CANCELLED, ended_at=100))
    record = [*prompted("q"), message("closing", END, run_id="q"), ended]
    store = await crashed(run("r"), prompted("r"), message("a", run_id="r"), other, record)
    async with open_bench(store=store) as bench:
        (view,) = bench.workspace.recovery.ended
        assert view.message_id == "a"


async def test_a_prompt_that_was_folded_stays_in_the_turn_it_is_in():
    folded = run("f", seq=2, prompt="more")
    view = evolve(folded.run, state=RunState.FOLDED, folded_into="r")
    store = await crashed(
        run("r"),
        prompted("r"),
        folded,
        [*prompted("f", "more", turn="r"), RunEnded(run=view)],
        message("a", run_id="r"),
    )
    async with open_bench(store=store) as bench:
        assert roles(await bench.messages()) == [Role.USER, Role.USER, Role.ASSISTANT]
        assert [view.id for view in bench.endings()] == ["r"]
        await check_complete(store)


def flagged(created):
    return evolve(created, message=evolve(created.message, is_summary_message=True))


@pytest.mark.parametrize("begun", [False, True])
async def test_a_summary_that_was_cut_short_is_finished_and_has_no_prompt(begun):
    earlier = run("e")
    ended = RunEnded(run=evolve(earlier.run, state=RunState.COMPLETED))
    summary = run("r", seq=2, prompt="")
    summary = evolve(summary, run=evolve(summary.run, kind=RunKind.SUMMARIZE))
    begin = [flagged(message("summary", run_id="r"))] if begun else []
    store = await crashed(earlier, prompted("e"), message("old", END), ended, summary, begin)
    async with open_bench(store=store) as bench:
        (view,) = bench.workspace.recovery.ended
        assert (view.state, bench.endings()) == (RunState.INTERRUPTED, [view])
        question, old, *new = await bench.messages()
        assert (question.role, old.id, finish_of(old)) == (Role.USER, "old", END)
        assert view.message_id != "old", "the answer of an earlier run"
        assert [finish_of(summary).reason for summary in new] in ([], [FinishReason.ERROR])
        assert len(new) >= begun


async def test_a_run_whose_session_is_gone_is_ended_and_nothing_else():
    store = await crashed(run(session="nowhere"))
    async with open_bench(store=store) as bench:
        (view,) = bench.workspace.recovery.ended
        assert view.state is RunState.INTERRUPTED
        assert [type(event) for event in all_events(bench.events)] == [RunChange]
        assert await bench.messages("nowhere") == []


@pytest.mark.item("B1")
async def test_a_record_that_no_store_can_complete_keeps_no_workspace_from_opening(caplog):
    store = await crashed(run(), prompted("r"), [message("a", run_id="r")])
    faults = [StoreFault(of=(PartPut,), error=OverflowError)]
    async with open_bench(store=store, faults=faults) as bench:
        (view,) = bench.workspace.recovery.ended
        assert view.state is RunState.INTERRUPTED
        assert (await bench.store.run("r")).view == view
        assert [type(event) for event in all_events(bench.events)] == [RunChange]
        assert "record_not_stored" in [getattr(r, "code", "") for r in caplog.records]


async def test_what_had_ended_is_left_as_it_is():
    ended = RunEnded(run=evolve(run().run, state=RunState.COMPLETED, ended_at=100))
    store = await crashed(run(), prompted("r"), [message("a", END), ended])
    before = await store.messages(S)
    async with open_bench(store=store) as bench:
        assert bench.workspace.recovery.ended == []
        assert all_events(bench.events) == ()
        assert await bench.messages() == before


async def test_the_runs_of_this_start_are_no_orphans():
    gate = Gate()

    async def wait(_run, _transcript):
        await gate.wait()

    async with open_bench(Turns(default=wait)) as bench:
        bench.accept("hello")
        await gate.reached()
        assert await bench.store.orphans() == []


async def test_recovery_reads_and_writes_a_hundred_runs_at_a_time():
    reads = []

    class Counting(MemoryStore):
        async def run_messages(self, run_ids):
            reads.append(len(run_ids))
            return await super().run_messages(run_ids)

        async def messages(self, *_about):
            raise AssertionError("a whole session was read")

    crash = await crashed([run(f"r{n}", seq=n) for n in range(250)])
    store = FaultyStore(Counting("b2", crash._kept))
    async with open_bench(store=store) as bench:
        assert len(bench.workspace.recovery.ended) == 250
        assert reads == [100, 100, 50]
        ends = [sum(isinstance(each, RunEnded) for each in commit) for commit in store.commits]
        assert [count for count in ends if count] == [100, 100, 50]


async def test_a_second_recovery_finds_nothing_to_do():
    store = await crashed(*STEPS.values(), run("q", seq=2))
    async with open_bench(store=store):
        before = await store.messages(S)
    again = store.reopened("b3")
    async with open_bench(store=again) as bench:
        assert bench.workspace.recovery.ended == []
        assert await again.messages(S) == before


# ── Killed at every write ───────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Moment:
    """What a kill before one write leaves, and what clients and readers had been told by then."""

    store: MemoryStore
    accepted: tuple
    events: tuple


class Film:
    """The moments of a scenario, one before each write."""

    def __init__(self):
        self.moments = []
        self.accepted = []

    def attach(self, bench):
        self._bench = bench
        bench.store.watch = lambda _changes: self.shoot()

    def shoot(self):
        self.moments.append(
            Moment(
                store=self._bench.store.inner.reopened("b2"),
                accepted=tuple(self.accepted),
                events=all_events(self._bench.events),
            )
        )

    async def submit(self, text, run_id=None):
        """Accept a prompt and note when its caller is told so."""
        token = self._bench.accept(text, run_id=run_id)
        await token.journaled()
        self.accepted.append(token.id)
        return token


async def play(film):
    """Two turns with tools; a prompt is folded into the first, the second is cancelled.

    A third run is cancelled while it waits.
    """
    first, second = Gate(), Gate()

    async def work(current, transcript):
        opened = await answer(current, transcript)
        opened.append_reasoning("hm")
        await opened.close_reasoning()
        opened.append_text("let me ")
        await trio.sleep(0.01)
        opened.append_text("see")
        await opened.put_tool_call(call("look", finished=True))
        await first.wait()
        await give_result(current, transcript, "look")
        await opened.finish(END)
        await current.fold()
        opened = await answer(current, transcript, "second")
        opened.append_text("there")
        opened.seal(END)
        return completion(opened)

    async def long(current, transcript):
        opened = await answer(current, transcript)
        opened.append_text("on it")
        await opened.put_tool_call(call("run", input='{"a":1}', finished=True))
        await opened.put_tool_call(call("next", input='{"b'))
        opened.append_text("…")
        await second.wait()

    async with open_bench(Turns({"work": work, "long": long})) as bench:
        film.attach(bench)
        tokens = [await film.submit("work", "A")]
        await first.reached()
        tokens += [await film.submit("more"), await film.submit("long", "B")]
        tokens.append(await film.submit("dropped", "C"))
        await settle()
        bench.workspace.runs.cancel_run("C")
        first.open()
        await second.reached()
        bench.cancel()
        states = [(await token.wait()).state for token in tokens]
        film.shoot()
    return states


async def recover_and_check(moment, store):
    """Open what is left, and compare it with what was told."""
    async with open_bench(store=store) as bench:
        runs = await check_complete(store)
        assert set(moment.accepted) <= set(runs), "an accepted run is lost"
        announced = endings_in(moment.events)
        for view in announced:
            assert runs[view.id] == view, "an ending that was announced is stored differently"
        recovered = [view.id for view in bench.workspace.recovery.ended]
        assert [view.id for view in endings(bench.events)] == recovered
        assert not set(recovered) & {view.id for view in announced}, "ended twice"
        for event in moment.events:
            if hasattr(event, "message"):
                stored = (await store.message(event.message_id)).message
                assert text_of(stored).startswith(text_of(event.message))
        return [(m.role, text_of(m), finish_of(m).reason) for m in await store.messages(S)]


def endings_in(events):
    return [event.run for event in events if hasattr(event, "run") and event.terminal]


@pytest.mark.parametrize("seed", range(10))
async def test_a_kill_before_any_write_loses_nothing(seed):
    film = Film()
    states = await play(film)
    assert states == [
        RunState.COMPLETED,
        RunState.FOLDED,
        RunState.CANCELLED,
        RunState.CANCELLED,
    ]
    assert len(film.moments) > 25
    results = [await recover_and_check(each, each.store.reopened("b3")) for each in film.moments]
    assert len({tuple(result) for result in results}) > 10
    assert results[-1] == results[-2]


@pytest.mark.heavy
async def test_a_kill_during_recovery_leaves_the_rest_for_the_next_start():
    film = Film()
    await play(film)
    cut_short = 0
    for moment in film.moments:
        left = []
        store = FaultyStore(moment.store.reopened("b3"))
        store.watch = lambda _changes, store=store, left=left: left.append(
            store.inner.reopened("b4")
        )
        expected = await recover_and_check(moment, store)
        for halfway in left:
            assert await recover_halfway(moment, halfway) == expected
            cut_short += 1
    assert cut_short > 20


async def recover_halfway(moment, store):
    """Recover what a recovery that was killed has left; some of the runs may have their endings."""
    async with open_bench(store=store) as bench:
        await check_complete(store)
        announced = {view.id for view in endings_in(moment.events)}
        assert not announced & {view.id for view in bench.workspace.recovery.ended}
        return [(m.role, text_of(m), finish_of(m).reason) for m in await store.messages(S)]
