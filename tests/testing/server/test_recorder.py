"""`Recorder`: it waits for what is to come, remembers what was, and answers questions about it."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.events import EventLog, GrowingMessage, MessageChange, RunChange, open_event_log
from crush_trio.events.facts import agent_error
from crush_trio.events.log import Window
from crush_trio.testing.server.workspace import Recorder
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Message, Role, TextPart
from crush_trio.wire.runs import RunState, RunView

S = SessionId("s")


def change(state, name="r", run_id=None):
    """A run in a new state."""
    view = RunView(id=RunId(name), session_id=S, state=state, run_id=run_id)
    return RunChange(run=view)


def said(text, name="m"):
    """A message that says *text* so far."""
    growing = GrowingMessage(Message(id=MessageId(name), role=Role.ASSISTANT, session_id=S))
    growing.append_text(text)
    return MessageChange(change=EventType.UPDATED, view=growing.view(), plain=True)


# ── Reading ────────────────────────────────────────────────────────────────────────────────────


def test_it_records_from_now_on_and_in_order():
    log = EventLog("boot")
    log.publish(change(RunState.ACCEPTED))
    recorder = Recorder(log)
    assert recorder.catch_up() is recorder
    assert recorder.events == []
    later = [change(RunState.ACTIVE), change(RunState.COMPLETED)]
    for event in later:
        log.publish(event)
    assert recorder.events == [], "a reader that does not read has seen nothing"
    assert recorder.catch_up().catch_up().events == later


async def test_it_can_read_by_itself_until_the_log_is_closed():
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        recorder = Recorder(log)
        await nursery.start(recorder.record)
        log.publish(change(RunState.ACTIVE))
        await wait_all_tasks_blocked()
        assert len(recorder.events) == 1
        log.publish(change(RunState.COMPLETED))
    assert recorder.states("r") == [RunState.ACTIVE, RunState.COMPLETED]


async def test_what_is_published_together_is_read_in_one_batch():
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        recorder = Recorder(log)
        await nursery.start(recorder.record)
        await wait_all_tasks_blocked()
        for state in (RunState.ACCEPTED, RunState.ACTIVE):
            log.publish(change(state))
        await wait_all_tasks_blocked()
        assert recorder.batches == 1


def test_a_reader_that_lost_its_place_keeps_the_resync():
    log = EventLog("boot", window=Window(events=2))
    recorder = Recorder(log)
    for n in range(10):
        log.publish(change(RunState.ACTIVE, str(n)))
    (resync,) = recorder.catch_up().resyncs
    assert resync.position.seq == 10
    assert len(resync.runs) == 10


# ── Waiting ────────────────────────────────────────────────────────────────────────────────────


async def test_seen_returns_at_once_what_is_past():
    log = EventLog("boot")
    recorder = Recorder(log)
    first, second = change(RunState.ACTIVE, "a"), change(RunState.ACTIVE, "b")
    for event in (first, second):
        log.publish(event)
    recorder.catch_up()
    with trio.testing.assert_checkpoints():
        assert await recorder.seen(lambda event: event.run.state is RunState.ACTIVE) is first
    assert await recorder.seen(lambda event: event.run.id == "b") is second


async def test_seen_waits_for_what_is_to_come():
    found = []

    async def wait():
        found.append(await recorder.seen(lambda event: event.run.id == "b"))

    async with open_event_log("boot") as log, trio.open_nursery() as nursery:
        recorder = Recorder(log)
        await nursery.start(recorder.record)
        nursery.start_soon(wait)
        log.publish(change(RunState.ACTIVE, "a"))
        await trio.sleep(3600)
        assert found == []
        log.publish(change(RunState.ACTIVE, "b"))
        await trio.sleep(1)
        assert [event.run.id for event in found] == ["b"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(5))
async def test_everybody_who_waits_is_told_in_whatever_order_they_run(seed):
    found = []

    async def wait(name):
        found.append((await recorder.seen_ending(name)).id)

    async with open_event_log("boot") as log, trio.open_nursery() as nursery:
        recorder = Recorder(log)
        nursery.start_soon(recorder.record)
        for name in "abc":
            nursery.start_soon(wait, name)
            log.publish(change(RunState.COMPLETED, name))
        await trio.sleep(1)
        assert sorted(found) == ["a", "b", "c"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", ["r", "mine"])
async def test_an_ending_is_awaited_by_either_id_and_states_before_it_are_not_taken_for_it(name):
    endings = []

    async def wait():
        endings.append(await recorder.seen_ending(name))

    async with open_event_log("boot") as log, trio.open_nursery() as nursery:
        recorder = Recorder(log)
        nursery.start_soon(recorder.record)
        nursery.start_soon(wait)
        log.publish(change(RunState.COMPLETED, "another"))
        log.publish(change(RunState.ACTIVE, run_id="mine"))
        await trio.sleep(1)
        assert endings == []
        log.publish(change(RunState.ERRORED, run_id="mine"))
        await trio.sleep(1)
        assert [view.state for view in endings] == [RunState.ERRORED]
        nursery.cancel_scope.cancel()


async def test_giving_up_leaves_the_recorder_usable():
    async with open_event_log("boot") as log, trio.open_nursery() as nursery:
        recorder = Recorder(log)
        nursery.start_soon(recorder.record)
        with trio.move_on_after(1) as patience:
            await recorder.seen_ending("r")
        assert patience.cancelled_caught
        log.publish(change(RunState.COMPLETED))
        assert (await recorder.seen_ending("r")).state is RunState.COMPLETED
        nursery.cancel_scope.cancel()


# ── Questions ──────────────────────────────────────────────────────────────────────────────────


def test_it_knows_endings_states_errors_and_messages():
    log = EventLog("boot")
    recorder = Recorder(log)
    error = agent_error(S, RunId("mine"), "boom")
    for event in (
        change(RunState.ACCEPTED, "a", "mine"),
        change(RunState.ACTIVE, "b"),
        said("one"),
        said("one two"),
        change(RunState.ERRORED, "a", "mine"),
        error,
        said("other", "n"),
        change(RunState.COMPLETED, "b"),
        change(RunState.COMPLETED, "b"),
    ):
        log.publish(event)
    recorder.catch_up()
    assert [view.id for view in recorder.endings] == ["a", "b", "b"]
    assert recorder.endings_per_run == {"a": 1, "b": 2}
    assert recorder.endings_per_run["never heard of"] == 0
    expected = [RunState.ACCEPTED, RunState.ERRORED]
    assert recorder.states("mine") == recorder.states("a") == expected
    assert recorder.errors == [error.entity]
    texts = {name: message.parts for name, message in recorder.messages.items()}
    assert texts == {"m": (TextPart(text="one two"),), "n": (TextPart(text="other"),)}
