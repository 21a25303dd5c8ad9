"""A stream: everything once, in order, in as few pieces as there were wake-ups."""

from contextlib import aclosing

import orjson
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.agent.record.event_reader import new_reader
from crush_trio.agent.record.event_tail import StoredEventCache
from crush_trio.events import Batch, Form, MessageChange, open_event_log
from crush_trio.events.entry import ByteMeter, LogEntry
from crush_trio.server.sse import HEARTBEAT, LOST, RETRY, Drain, position_from, stream
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.server.client import Replica
from crush_trio.wire.events import EventType
from crush_trio.wire.runs import RunState
from tests.server.sse_client import Client, at, fact, frames, growing_message, run

BEAT = {Form.CRUSH: b"\n", Form.NATIVE: b"event: heartbeat\ndata: {}\n\n"}


# ── The first piece ────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("G9")
@pytest.mark.parametrize("form", Form)
async def test_a_silent_log_is_answered_at_once(form):
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        client, began = Client(), trio.current_time()
        nursery.start_soon(client.take, log, log.cursor(form))
        await trio.sleep(3600)
        [(when, piece)] = client.pieces
        assert when == began
        assert piece, "an empty piece might not be sent"


@pytest.mark.item("L3")
async def test_a_native_stream_begins_with_when_to_retry_and_where_the_reader_is():
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        log.publish(fact())
        log.publish(fact())
        client = Client()
        nursery.start_soon(client.take, log, log.cursor(Form.NATIVE))
        await wait_all_tasks_blocked()
        [opening] = client.sent
        assert opening.startswith(b"retry: %d\n" % RETRY)
        [ready] = frames(opening)
        assert (ready[b"event"], ready[b"id"]) == (b"ready", b"boot-2")
        assert orjson.loads(ready[b"data"]) == {"position": "boot-2", "heartbeat": None}


async def test_a_reader_that_saw_no_event_can_resume_from_where_it_was_told_it_is():
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        log.publish(fact("before"))
        first = Client()
        nursery.start_soon(first.take, log, log.cursor(Form.NATIVE))
        await wait_all_tasks_blocked()
        [ready] = frames(first.sent[0])
        log.publish(fact("missed"))
        again = log.cursor(Form.NATIVE, position_from(ready[b"id"].decode(), None))
        assert [event.entity.workspace_id for event in again.take().events] == ["missed"]


async def test_readers_are_told_how_often_to_expect_a_heartbeat():
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        client = Client()
        nursery.start_soon(client.taking(log, heartbeat=HEARTBEAT))
        await wait_all_tasks_blocked()
        [ready] = frames(client.sent[0])
        assert orjson.loads(ready[b"data"])["heartbeat"] == HEARTBEAT


@pytest.mark.parametrize("form", Form)
async def test_what_was_missed_before_a_restart_comes_before_the_reader_s_place(form):
    pages = [missed_page("old", 7), missed_page("old", 8), None]

    async def missed():
        await trio.lowlevel.checkpoint()
        return pages.pop(0)

    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        client = Client()
        nursery.start_soon(client.taking(log, form, missed=missed))
        await wait_all_tasks_blocked()
        if form is Form.CRUSH:
            assert [orjson.loads(piece.removeprefix(b"data: ")) for piece in client.sent]
            assert b"\n" not in client.sent, "there is no need for a sign of life"
        else:
            ids = [frame.get(b"id") for frame in frames(b"".join(client.sent))]
            assert ids == [b"old-7", b"old-8", b"boot-0"]
            assert b"".join(client.sent).count(b"retry: ") == 1


def missed_page(boot, seq):
    return Batch(0, (LogEntry(seq, fact(), boot, ByteMeter()),))


async def test_a_cursor_without_a_form_has_no_bytes_to_stream():
    async with open_event_log("boot") as log:
        with pytest.raises(ValueError, match="no form"):
            await Client().take(log, log.cursor())


# ── Events ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("G10")
async def test_a_crush_stream_is_bare_data_lines():
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        client = Client()
        nursery.start_soon(client.taking(log, Form.CRUSH, heartbeat=10))
        await trio.sleep(15)
        log.publish(fact())
        log.publish(run(RunState.ACTIVE))
        log.publish(run(RunState.COMPLETED))
        await trio.sleep(1)
        log.close()
    text = b"".join(client.sent)
    lines = [line for line in text.split(b"\n") if line]
    assert len(lines) == 2
    assert all(line.startswith(b'data: {"type":') for line in lines)
    assert client.ended


@pytest.mark.parametrize("form", Form)
async def test_one_wake_up_is_one_piece(form):
    async with trio.open_nursery() as nursery, open_event_log("boot", tick=0.5) as log:
        client, cursor, copy = Client(), log.cursor(form), log.cursor(form)
        nursery.start_soon(client.take, log, cursor)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        for _ in range(100):
            log.publish(fact())
            await trio.sleep(0.001)
        await trio.sleep(60)
        _, first, second = client.pieces
        assert [first[0], second[0]] == [began, began + 0.5]
        assert first[1] + second[1] == copy.take().encode(form)


async def test_a_native_stream_can_be_followed_to_the_letter():
    message = growing_message()
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        client = Client()
        nursery.start_soon(client.taking(log, heartbeat=1))
        await wait_all_tasks_blocked()
        log.publish(MessageChange(change=EventType.CREATED, view=message.view()))
        for _ in range(20):
            message.append_text("more ")
            log.publish(MessageChange(change=EventType.UPDATED, view=message.view(), plain=True))
            await trio.sleep(0.3)
        await trio.sleep(5)
        log.publish(run(RunState.COMPLETED))
    replica = Replica()
    for frame in b"".join(client.sent).split(b"\n\n"):
        if b"id: " in frame and b"event: ready" not in frame:
            replica.feed(frame + b"\n\n")
    assert replica.messages["m"]["parts"][0]["data"]["text"] == "more " * 20
    assert list(replica.endings) == ["r"]
    assert "heartbeat" in client.names


async def test_events_that_have_no_crush_word_send_nothing_and_count_as_silence():
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        client, began = Client(), trio.current_time()
        nursery.start_soon(client.taking(log, Form.CRUSH, heartbeat=10))
        for _ in range(4):
            await trio.sleep(3)
            log.publish(run(RunState.ACTIVE))
        await trio.sleep(1)
        assert client.pieces == [(began, b"\n"), (began + 10, b"\n")]


# ── Silence ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("L3")
@pytest.mark.parametrize("form", Form)
async def test_a_heartbeat_comes_after_silence_and_only_then(form):
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        client, began = Client(), trio.current_time()
        nursery.start_soon(client.taking(log, form, heartbeat=10))
        for _ in range(3):
            await trio.sleep(9)
            log.publish(fact())
        await trio.sleep(25)
        beats = [when - began for when, piece in client.pieces[1:] if piece == BEAT[form]]
        assert beats == [37, 47], "ten seconds after the last event, at 27, and ten after that"


async def test_a_heartbeat_does_not_touch_the_reader_s_place():
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        client = Client()
        nursery.start_soon(client.taking(log, heartbeat=10))
        await trio.sleep(25)
        _, *beats = frames(b"".join(client.sent))
        assert len(beats) == 2
        assert all(beat[b"event"] == b"heartbeat" and b"id" not in beat for beat in beats)


async def test_silence_is_counted_from_when_the_client_took_the_last_piece():
    async with open_event_log("boot") as log:
        pieces = stream(log.cursor(Form.CRUSH), boot="boot", drain=Drain(), heartbeat=10)
        async with aclosing(pieces):
            await anext(pieces)
            await trio.sleep(100)
            asked = trio.current_time()
            assert await anext(pieces) == b"\n"
            assert trio.current_time() == asked + 10


class Steps(trio.abc.Instrument):
    """Counts every step of every task."""

    def __init__(self):
        self.count = 0

    def before_task_step(self, task):
        self.count += 1


async def steps_of_an_hour(**options):
    steps = Steps()
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        for form in Form:
            nursery.start_soon(Client().taking(log, form, **options))
        await trio.sleep(1)
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(3600)
        trio.lowlevel.remove_instrument(steps)
    return steps.count


async def test_an_idle_stream_costs_nothing():
    assert await steps_of_an_hour() == 1, "this test's own step, after an hour"


async def test_an_idle_stream_wakes_once_per_heartbeat():
    heartbeats = 2 * 3600 // 60
    assert await steps_of_an_hour(heartbeat=60) <= 2 * heartbeats + 1


# ── Coming back ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("L3")
@pytest.mark.parametrize(
    ("header", "query", "place"),
    [
        (None, None, None),
        ("", "", None),
        ("boot-7", None, at(7)),
        (None, "boot-7", at(7)),
        ("boot-9", "boot-7", at(9)),
        ("", "boot-7", at(7)),
        ("6e3c1c1e-0a1b-7", None, at(7, "6e3c1c1e-0a1b")),
    ],
)
def test_the_header_wins_over_the_query(header, query, place):
    assert position_from(header, query) == place


@pytest.mark.parametrize(
    "text",
    ["7", "boot", "boot-", "-7", "boot--", "boot-x", "b\n-7", "ü-7", "\udcff-1", "b" * 999 + "-1"],
)
async def test_text_that_is_no_place_is_answered_with_a_resync(text):
    assert position_from(text, "boot-1") is position_from(None, text) is LOST
    async with open_event_log("boot") as log:
        log.publish(fact())
        store = MemoryStore()
        reader = await new_reader(log, store, StoredEventCache(store), LOST, Form.NATIVE)
        client = Client()
        log.close()
        await client.take(log, reader)
        assert client.names == ["ready", "resync", "end"]
        [ready, resync, _] = frames(b"".join(client.sent))
        assert b"id" not in ready, "a reader without a place gets one with the resync"
        assert resync[b"id"] == b"boot-1"
