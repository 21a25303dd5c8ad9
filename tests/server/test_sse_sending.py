"""A stream that sends by itself says the same, in the same order and at the same time."""

from contextlib import aclosing

import pytest
import trio
from attrs import define, field
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from crush_trio.events import Form, open_event_log
from crush_trio.server.sse import Drain, stream
from crush_trio.wire.runs import RunState
from tests.server.sse_client import Client, end_of, fact, run

BEAT = {Form.CRUSH: b"\n", Form.NATIVE: b"event: heartbeat\ndata: {}\n\n"}


@define(eq=False)
class Wire(Client):
    """A client's end of the wire: what is sent at once, and what has to be waited for."""

    room: list = field(factory=list)
    """How many bytes fit each time; everything, when nothing is said about it."""

    def send_now(self, data):
        taken = data[: self.room.pop(0) if self.room else None]
        if taken:
            self.pieces.append((trio.current_time(), taken))
        return len(taken)


@settings(
    max_examples=60,
    phases=[Phase.generate],
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    form=st.sampled_from(Form),
    room=st.lists(st.sampled_from([0, 1, 7, 100, 10_000]), max_size=12),
    bursts=st.lists(st.integers(0, 3), max_size=8),
)
async def test_whatever_fits_at_once_the_same_bytes_come_in_the_same_order(form, room, bursts):
    wire, plain = Wire(room=room), Client()
    async with trio.open_nursery() as nursery:
        async with open_event_log("boot") as log:
            nursery.start_soon(wire.taking(log, form, send_now=wire.send_now))
            nursery.start_soon(plain.taking(log, form))
            for number, size in enumerate(bursts):
                for each in range(size):
                    log.publish(fact(f"{number}.{each}"))
                log.publish(run(RunState.ACTIVE))
                await wait_all_tasks_blocked()
    assert b"".join(wire.sent) == b"".join(plain.sent)
    assert wire.ended


@pytest.mark.parametrize("form", Form)
async def test_silence_begins_with_the_last_piece_that_was_sent(form):
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        wire, began = Wire(), trio.current_time()
        nursery.start_soon(wire.taking(log, form, heartbeat=10, send_now=wire.send_now))
        for _ in range(3):
            await trio.sleep(9)
            log.publish(fact())
        await trio.sleep(25)
        beats = [when - began for when, piece in wire.pieces[1:] if piece == BEAT[form]]
        assert beats == [37, 47]


@pytest.mark.parametrize("room", [0, 5])
async def test_what_did_not_fit_is_waited_for_before_anything_else_is_read(room):
    wire = Wire(room=[room])
    async with open_event_log("boot") as log:
        cursor = log.cursor(Form.CRUSH)
        pieces = stream(cursor, boot="boot", drain=Drain(), heartbeat=1, send_now=wire.send_now)
        async with aclosing(pieces):
            await anext(pieces)
            log.publish(fact("first"))
            rest = await anext(pieces)
            read = cursor.after
            for _ in range(5):
                log.publish(fact("later"))
                await trio.sleep(10)
            assert cursor.after == read
            assert b'"first"' in b"".join(wire.sent) + rest
            assert len(wire.sent) == (room > 0)


async def test_a_stream_that_sends_by_itself_ends_when_it_is_told_to():
    wire = Wire()
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        nursery.start_soon(wire.taking(log, send_now=wire.send_now))
        await wait_all_tasks_blocked()
        log.publish(fact("seen"))
        await wait_all_tasks_blocked()
        log.publish(fact("last"))
        wire.drain.end_streams()
        await wait_all_tasks_blocked()
        assert wire.ended
        assert b'"last"' in b"".join(wire.sent)
        assert b"".join(wire.sent).endswith(end_of(b"server_shutting_down"))
