"""Native readers see a call finished, then its result, then the finish of the answer (D17).

Also if the run was cancelled while the model wrote the arguments, after a crash, and for a reader that
resumes after a restart. In crush form the answer is published once, after the results (8.16 of the wire).
"""

import orjson
import pytest
import trio
import trio.testing

from crush_trio.agent.record.transcript import Remainder
from crush_trio.clock import CountingIds
from crush_trio.events.facts import Fact, Position
from crush_trio.events.frames import Form
from crush_trio.events.log import Window
from crush_trio.runtime.outcome import Outcome
from crush_trio.testing.explore.explorer import explore
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import Say
from crush_trio.testing.server.agent import open_test_agent
from crush_trio.testing.server.client import Replica
from crush_trio.wire.codec import encode
from crush_trio.wire.events import PayloadType
from tests.agent.durable import (
    END,
    S,
    Turns,
    answer,
    check_complete,
    completion,
    entries_of,
    give_result,
    memory,
    open_bench,
    open_desk,
    told,
)
from tests.agent.record.test_recovery import STEPS, crashed
from tests.store.stores import call, text

PACKED = Window(fresh=0)


def parts(message, kind):
    return [part["data"] for part in message["parts"] if part["type"] == kind]


class OrderedReplica(Replica):
    """A client that checks, after each frame, that new results are of calls in an open answer."""

    def feed(self, data):
        for frame in data.split(b"\n\n")[:-1]:
            before = set(self.results())
            super().feed(frame + b"\n\n")
            for call_id in self.results() - before:
                (asking,) = [m for m in self.messages.values() if call_id in calls_of(m)]
                assert calls_of(asking)[call_id].get("finished"), "the result came before the call"
                assert not parts(asking, "finish"), "the finish came before the result"

    def results(self):
        messages = self.messages.values()
        return {r["tool_call_id"] for m in messages for r in parts(m, "tool_result")}

    def check_all(self):
        """Raise unless every call has a result and every message is finished."""
        calls = {each for m in self.messages.values() for each in calls_of(m)}
        assert self.results() == calls
        assert all(parts(m, "finish") for m in self.messages.values())
        return calls


def calls_of(message):
    return {call["id"]: call for call in parts(message, "tool_call")}


def native(entries):
    return [entry.frame(Form.NATIVE) for entry in entries]


def crush_messages(entries):
    """Return the messages that a crush reader gets which reads after each step."""
    frames = [e.frame(Form.CRUSH) for e in entries if not e.superseded]
    changes = [orjson.loads(frame[6:]) for frame in frames if frame]
    return [c["payload"]["payload"] for c in changes if c["type"] == "message"]


# ── A cancel while the arguments are written ────────────────────────────────────────────────────


async def half_a_call(run, transcript):
    """Say something, answer one call, and begin another."""
    opened = await answer(run, transcript)
    opened.append_text("let me see")
    await opened.put_tool_call(call("done", finished=True))
    await give_result(run, transcript, "done")
    await opened.put_tool_call(call("half", input='{"pa'))
    opened.append_text(", and")
    await trio.sleep_forever()


async def cancel_half_a_call(bench):
    run = bench.accept("go")
    await trio.testing.wait_all_tasks_blocked()
    bench.cancel()
    await run.wait()


@pytest.mark.item("D16", "D17")
@pytest.mark.parametrize("window", [None, PACKED], ids=["fresh", "packed"])
async def test_a_cancelled_call_is_finished_then_answered_then_the_answer_finishes(window):
    async with open_bench(Turns(default=half_a_call), window=window) as bench:
        await cancel_half_a_call(bench)
        entries = entries_of(bench.events)
        await check_complete(bench.store)
    replica = OrderedReplica()
    for frame in native(entries):
        replica.feed(frame)
    assert replica.check_all() == {"done", "half"}
    *_, result, finished = crush_messages(entries)
    assert (result["role"], finished["role"]) == ("tool", "assistant")
    for message in crush_messages(entries)[:-1]:
        half = calls_of(message).get("half")
        assert half is None or not half.get("finished"), "the crush form has the answer once"


async def called_and_cancelled():
    """Cancel a run anywhere in a turn with a streamed call; return what the stream shows of it."""

    async def turn(run, transcript):
        opened = await answer(run, transcript)
        opened.append_text("so")
        await opened.put_tool_call(call("c", input='{"pa'))
        await opened.put_tool_call(call("c", input='{"path":"x"}', finished=True))
        await give_result(run, transcript, "c")
        await opened.finish(END)
        return completion(opened)

    async with open_bench(Turns(default=turn)) as bench:
        run = bench.accept("go")

        async def cancel():
            for _ in range(4):
                await trio.lowlevel.checkpoint()
            bench.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel)
        outcome = await run.wait()
        replica = OrderedReplica()
        for frame in native(entries_of(bench.events)):
            replica.feed(frame)
        calls = replica.check_all()
        before = [m for m in crush_messages(entries_of(bench.events)) if m["role"] == "assistant"]
        assert sum(bool(parts(m, "finish")) for m in before) == 1
        assert calls <= {"c"}
        inputs = [c["input"] for m in replica.messages.values() for c in calls_of(m).values()]
        return outcome.state.value, *inputs


@pytest.mark.heavy
@pytest.mark.item("D17")
def test_the_order_holds_wherever_the_cancel_comes(report_exploration):
    found = explore(called_and_cancelled, deviations=1)
    report_exploration(found)
    assert found.exhaustive
    assert set(found.outcomes) >= {("cancelled",), ("cancelled", "{}")}


@pytest.mark.item("D17")
async def test_what_is_stored_of_a_record_that_cannot_be_stored_has_the_order_too():
    async with open_desk() as desk:
        opened = await desk.create("m", text("so"))
        await opened.put_tool_call(call("half", input='{"pa'))
        turn = desk.turn
        at, ids = 7, CountingIds("end")
        turn.close(Outcome.errored("broken"), at, ids, Remainder())
        shorter = Remainder()
        turn.close_stored(Outcome.errored("broken"), at, ids, shorter)
        for event in shorter.events:
            desk.events.publish(event)
        replica = OrderedReplica()
        for frame in native(entries_of(desk.events)):
            replica.feed(frame)
        assert replica.check_all() == {"half"}


# ── After a crash ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D17")
@pytest.mark.parametrize("last", ["tool called", "call complete", "called again"])
async def test_recovery_keeps_the_order(last):
    steps = list(STEPS)[: list(STEPS).index(last) + 1]
    store = await crashed(*(STEPS[step] for step in steps))
    known = await store.messages(S)
    async with open_bench(store=store) as bench:
        entries = entries_of(bench.events)
    replica = OrderedReplica()
    replica.messages = {m["id"]: m for m in map(as_json, known)}
    for frame in native(entries):
        replica.feed(frame)
    assert replica.check_all() == {"one"} | ({"two"} if last == "called again" else set())
    assert [m["role"] for m in crush_messages(entries)] == ["tool", "assistant"]


def as_json(message):
    return orjson.loads(encode(message))


# ── After a restart ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D17")
async def test_a_reader_that_resumes_after_a_restart_sees_the_same_order():
    store = await memory()
    async with open_bench(Turns(default=half_a_call), store=store) as bench:
        await cancel_half_a_call(bench)
        before = native(entries_of(bench.events))
        stored = {m.id: told(m) for m in await bench.messages()}
    async with open_bench(store=store.reopened("b2")) as bench:
        for cut in range(len(before) + 1):
            replica = OrderedReplica()
            replica.feed(b"".join(before[:cut]))
            reader = await bench.new_reader(Form.NATIVE, Position(boot="b1", seq=cut))
            while (batch := await reader.missed()) is not None:
                replica.feed(batch.encode(Form.NATIVE))
            assert replica.check_all() == {"done", "half"}
            assert set(replica.messages) == set(stored)
            assert replica.resyncs == 0


async def test_a_crush_reader_gets_each_message_of_an_earlier_start_once():
    store = await memory()
    async with open_bench(Turns(default=half_a_call), store=store) as bench:
        await cancel_half_a_call(bench)
    async with open_bench(store=store.reopened("b2")) as bench:
        reader = await bench.new_reader(Form.CRUSH, Position(boot="b1", seq=0))
        batch = await reader.missed()
        ids = [message["id"] for message in crush_messages(batch.entries)]
        assert sorted(ids) == sorted(set(ids))
        assert all(parts(message, "finish") for message in crush_messages(batch.entries))


# ── Busy sessions ───────────────────────────────────────────────────────────────────────────────


def sessions(entries, form):
    frames = [
        e.frame(form).partition(b"data: ")[2]
        for e in entries
        if not e.merged and is_session(e.event)
    ]
    trees = [orjson.loads(frame) for frame in frames]
    return [(tree if form is Form.NATIVE else tree["payload"])["payload"] for tree in trees]


def is_session(event):
    return isinstance(event, Fact) and event.payload_type is PayloadType.SESSION


@pytest.mark.item("E17")
async def test_a_session_is_busy_in_native_events_while_a_run_is_active():
    model = ScriptedProvider([[Say("done")]] * 2)
    async with open_test_agent(model, titles=True) as bench:
        await bench.accept("go").wait()
        await trio.testing.wait_all_tasks_blocked()
        entries = entries_of(bench.events)
    shown, crush = sessions(entries, Form.NATIVE), sessions(entries, Form.CRUSH)
    assert [session["is_busy"] for session in shown] == [True, False], "usage; the title, later"
    assert crush == [{**session, "is_busy": False} for session in shown]
    for entry in entries:
        entry.pack()
    assert (sessions(entries, Form.NATIVE), sessions(entries, Form.CRUSH)) == (shown, crush)
