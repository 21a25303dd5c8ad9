"""Streams of events that do not fit a piece: whole, bounded, in turns, and undisturbed."""

import gc
import os
import tracemalloc
from contextlib import aclosing
from math import inf

import pytest
import trio
from attrs import define, evolve
from trio.testing import wait_all_tasks_blocked

from crush_trio.events import Form, GrowingMessage, MessageChange, Window, open_event_log
from crush_trio.events.pieces import PIECE, Base64, assemble
from crush_trio.server.sse import Drain, stream
from crush_trio.store.errors import StoreFailed
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import BinaryPart, Message, Role
from crush_trio.wire.runs import RunState
from tests.server.sse_client import Client, at, end_of, fact, frames, run

BEAT = b"event: heartbeat\ndata: {}\n\n"


def large(size=2**20, name="large"):
    file = BinaryPart(path="/a", mime_type="text/plain", data=os.urandom(size))
    head = Message(id=MessageId(name), role=Role.USER, session_id=SessionId("s"))
    view = GrowingMessage(evolve(head, parts=(file,))).view()
    return MessageChange(change=EventType.CREATED, view=view)


def everything(log, form, after=0):
    cursor, read = log.cursor(form, at(after)), b""
    while cursor.behind:
        read += cursor.take().encode(form)
    return read


@define(eq=False)
class Wire(Client):
    """A client's end of the wire that takes so many bytes at once and no more."""

    room: float = inf

    def send_now(self, data):
        taken = data[: int(min(len(data), self.room))]
        self.room -= len(taken)
        if taken:
            self.pieces.append((trio.current_time(), taken))
        return len(taken)


# ── Whole and bounded ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("room", [0, 1000, 100_000, inf])
@pytest.mark.parametrize("form", Form)
async def test_a_large_event_comes_whole_in_pieces_that_are_not_large(form, room):
    async with trio.open_nursery() as nursery:
        async with open_event_log("boot") as log:
            wire = Wire(room=room)
            nursery.start_soon(wire.taking(log, form, send_now=wire.send_now))
            await wait_all_tasks_blocked()
            log.publish(fact("before"))
            log.publish(large())
            log.publish(fact("after"))
            log.publish(run(RunState.COMPLETED))
            await wait_all_tasks_blocked()
            expected = everything(log, form)
    last = end_of(b"workspace_closed") if form is Form.NATIVE else b""
    assert b"".join(wire.sent[1:]) == expected + last
    assert max(map(len, wire.sent)) <= PIECE
    assert len(wire.sent) < len(expected) / PIECE * 1.5 + 10


@pytest.mark.parametrize("form", Form)
async def test_stalled_streams_hold_little_each(form):
    streams = 40
    async with open_event_log("boot") as log:
        wires = [Wire(room=100_000 + 5000 * number) for number in range(streams)]
        pulled = [
            stream(log.cursor(form), boot="boot", drain=Drain(), send_now=wire.send_now)
            for wire in wires
        ]
        for pieces in pulled:
            await anext(pieces)
        log.publish(large(5 * 2**20))
        for wire in wires:
            wire.pieces.clear()
        gc.collect()
        tracemalloc.start()
        rests = [await anext(pieces) for pieces in pulled]
        for wire in wires:
            wire.pieces.clear()  # what was sent is not here any more
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] / streams
        tracemalloc.stop()
        assert all(0 < len(rest) <= PIECE for rest in rests)
        assert held < 64 * 1024
        for pieces in pulled:
            await pieces.aclose()


async def test_what_waits_for_a_person_may_be_large_too():
    waiting = assemble([b"event: asks\ndata: ", Base64(bytes(200_000)), b"\n\n"])
    async with trio.open_nursery() as nursery:
        async with open_event_log("boot", window=Window(events=2)) as log:
            client, late = Client(), Client()
            for _ in range(10):
                log.publish(fact())
            nursery.start_soon(client.taking(log, first=waiting))
            cursor = log.cursor(Form.NATIVE, at(1))
            nursery.start_soon(lambda: late.take(log, cursor, asks=lambda: waiting))
            await wait_all_tasks_blocked()
    assert client.names == ["asks", "ready", "end"]
    assert late.names == ["ready", "asks", "resync", "end"]
    assert max(map(len, client.sent + late.sent)) <= PIECE


# ── Undisturbed ────────────────────────────────────────────────────────────────────────────────


async def test_no_heartbeat_comes_between_two_pieces_of_a_frame():
    async with open_event_log("boot") as log:
        turns = trio.CapacityLimiter(1)
        pieces = stream(
            log.cursor(Form.NATIVE), boot="boot", drain=Drain(), heartbeat=5, turns=turns
        )
        async with aclosing(pieces), trio.open_nursery() as nursery:
            await anext(pieces)
            log.publish(large())
            got = [await anext(pieces)]

            async def keep_others_waiting(task_status):
                async with turns:
                    task_status.started()
                    await trio.sleep(60)

            await nursery.start(keep_others_waiting)
            while got[-1] != BEAT:
                got.append(await anext(pieces))
        [message, beat] = frames(b"".join(got))
        assert (message[b"event"], beat[b"event"]) == (b"message", b"heartbeat")


@pytest.mark.parametrize("form", Form)
async def test_a_stream_that_has_to_end_in_the_middle_of_a_frame_completes_it_first(form):
    async with open_event_log("boot") as log:
        drain = Drain()
        pieces = stream(log.cursor(form), boot="boot", drain=drain)
        async with aclosing(pieces):
            await anext(pieces)
            log.publish(large())
            log.publish(run(RunState.COMPLETED))
            got = [await anext(pieces)]
            drain.end_streams()
            got += [piece async for piece in pieces]
        last = end_of(b"server_shutting_down") if form is Form.NATIVE else b""
        assert b"".join(got) == everything(log, form) + last
        assert max(map(len, got)) <= PIECE


async def test_a_stream_that_has_to_end_sends_all_that_is_there_batch_by_batch():
    async with open_event_log("boot") as log:
        client = Client()
        for number in range(500):
            log.publish(fact(str(number)))
        client.drain.end_streams()
        await client.take(log, log.cursor(Form.CRUSH, at(0)))
        assert b"".join(client.sent[1:]) == everything(log, Form.CRUSH)
        assert len(client.sent) > 4


async def test_a_store_that_fails_while_it_is_asked_what_was_missed_cuts_the_stream(caplog):
    async def missed():
        await trio.lowlevel.checkpoint()
        raise StoreFailed("gone")

    async with open_event_log("boot") as log:
        client = Client()
        await client.take(log, log.cursor(Form.NATIVE), missed=missed)
        assert client.sent == []
        assert [record.getMessage() for record in caplog.records] == ["stream.cut"]


# ── In turns ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.heavy
async def test_streams_with_much_to_send_leave_room_for_others():
    """Any other task has its turn after a few pieces, however many streams there are."""
    rounds = [0]
    sends = []

    class Counting(Wire):
        def send_now(self, data):
            sends.append(rounds[0])
            return super().send_now(data)

    async with trio.open_nursery() as nursery:
        async with open_event_log("boot") as log:
            wires = [Counting() for _ in range(50)]
            turns = trio.CapacityLimiter(4)
            for wire in wires:
                options = {"send_now": wire.send_now, "turns": turns}
                nursery.start_soon(wire.taking(log, Form.CRUSH, **options))
            await wait_all_tasks_blocked()
            sends.clear()
            log.publish(large())
            size = len(everything(log, Form.CRUSH))
            while any(sum(map(len, wire.sent)) < size for wire in wires):
                rounds[0] += 1
                await trio.lowlevel.checkpoint()
    first = len(wires)  # pieces that are sent at once
    assert len(sends) >= len(wires) * 2**20 / PIECE
    assert len(sends) - first <= 2 * 4 * rounds[0]
