"""How a stream ends: cleanly, with nothing lost before and nothing left after."""

from contextlib import aclosing
from math import inf

import orjson
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.events import Form, MessageChange, Window, open_event_log
from crush_trio.server.sse import Drain, stream
from crush_trio.wire.events import EventType
from crush_trio.wire.runs import RunState
from tests.server.sse_client import Client, at, end_of, fact, frames, growing_message, run

# ── A client that does not take what it gets ───────────────────────────────────────────────────


@pytest.mark.parametrize("form", Form)
async def test_nothing_piles_up_for_a_client_that_does_not_pull(form):
    async with open_event_log("boot", window=Window(events=100)) as log:
        cursor, reference = log.cursor(form), log.cursor(form)
        pieces = stream(cursor, boot="boot", drain=Drain(), heartbeat=1)
        async with aclosing(pieces):
            await anext(pieces)
            for number in range(50):
                log.publish(fact(str(number)))
                await trio.sleep(10)
            assert cursor.after == 0, "nothing was read ahead"
            assert await anext(pieces) == reference.take().encode(form)


@pytest.mark.item("L3")
@pytest.mark.parametrize("form", Form)
async def test_a_client_that_fell_out_of_the_window_gets_the_endings_and_the_state(form):
    message = growing_message()
    async with open_event_log("boot", window=Window(events=10)) as log:
        pieces = stream(log.cursor(form), boot="boot", drain=Drain(), heartbeat=inf)
        async with aclosing(pieces):
            await anext(pieces)
            log.publish(run(RunState.COMPLETED, "gone"))
            log.publish(MessageChange(change=EventType.CREATED, view=message.view()))
            for _ in range(100):
                log.publish(fact())
            piece = await anext(pieces)
            if form is Form.NATIVE:
                [resync] = frames(piece)
                state = orjson.loads(resync[b"data"])
                assert (resync[b"event"], resync[b"id"]) == (b"resync", b"boot-102")
                assert [ended["id"] for ended in state["ended"]] == ["gone"]
                assert [each["id"] for each in state["messages"]] == ["m"]
            else:
                ending, state, rest = piece.split(b"\n\n")
                assert b'"run_complete"' in ending
                assert b'"id":"m"' in state
                assert rest == b""
            log.publish(fact("next"))
            assert b'"next"' in await anext(pieces)


@pytest.mark.parametrize("seed", range(10))
async def test_a_client_that_is_cancelled_while_it_waits_leaves_nothing_behind(seed):
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        client, cursor, scope = Client(), log.cursor(Form.NATIVE), trio.CancelScope()

        async def connected():
            with scope:
                await client.take(log, cursor, heartbeat=10)

        nursery.start_soon(connected)
        await trio.sleep(5)
        assert (len(log._native.waiting), len(client.drain.ending._waiting)) == (1, 1)
        log.publish(fact())
        scope.cancel()
        await wait_all_tasks_blocked()
        assert scope.cancelled_caught
        assert (len(log._native.waiting), len(client.drain.ending._waiting)) == (0, 0)
        read = [piece for piece in client.sent if b"config_changed" in piece]
        assert len(read) == cursor.after, "what was not sent was not read"


async def test_a_stream_can_be_left_between_two_pieces():
    async with open_event_log("boot") as log:
        drain = Drain()
        pieces = stream(log.cursor(Form.NATIVE), boot="boot", drain=drain)
        await anext(pieces)
        await pieces.aclose()
        drain.end_streams()
        assert len(log._native.waiting) == 0
        with pytest.raises(StopAsyncIteration):
            await anext(pieces)


# ── The end ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("G12")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("form", Form)
async def test_a_log_that_closes_is_read_to_its_end_and_the_stream_ends(form, seed):
    async with trio.open_nursery() as nursery, open_event_log("boot", tick=60) as log:
        client, reference = Client(), log.cursor(form)
        nursery.start_soon(client.take, log, log.cursor(form))
        await wait_all_tasks_blocked()
        for _ in range(3):
            log.publish(fact())
            await wait_all_tasks_blocked()
        log.publish(run(RunState.COMPLETED))
        log.close()
        await wait_all_tasks_blocked()
        assert client.ended
        last = end_of(b"workspace_closed") if form is Form.NATIVE else b""
        assert b"".join(client.sent[1:]) == reference.take().encode(form) + last


@pytest.mark.parametrize("form", Form)
async def test_a_stream_of_a_log_that_is_closed_already_opens_and_ends(form):
    async with open_event_log("boot") as log:
        log.close()
        client = Client()
        await client.take(log, log.cursor(form))
        assert client.ended
        if form is Form.NATIVE:
            assert client.names == ["ready", "end"]


async def test_while_a_drain_is_only_announced_runs_are_watched_to_their_end():
    async with trio.open_nursery() as nursery, open_event_log("boot") as log:
        client = Client()
        nursery.start_soon(client.taking(log))
        await wait_all_tasks_blocked()
        client.drain.announce()
        await trio.sleep(5)
        log.publish(run(RunState.CANCELLED))
        await trio.sleep(5)
        assert not client.ended
        log.close()
        await wait_all_tasks_blocked()
        assert client.names == ["ready", "run", "end"]
        assert client.sent[-1] == end_of(b"server_shutting_down")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("form", Form)
async def test_streams_that_have_to_end_send_what_there_is_at_once(form, seed):
    async with trio.open_nursery() as nursery, open_event_log("boot", tick=60) as log:
        client, reference, drain = Client(), log.cursor(form), Drain()
        client.drain = drain
        nursery.start_soon(client.take, log, log.cursor(form))
        await wait_all_tasks_blocked()
        began = trio.current_time()
        log.publish(fact())
        await wait_all_tasks_blocked()
        log.publish(fact())
        drain.end_streams()
        await wait_all_tasks_blocked()
        assert (client.ended, trio.current_time()) == (True, began)
        last = end_of(b"server_shutting_down") if form is Form.NATIVE else b""
        assert b"".join(client.sent[1:]) == reference.take().encode(form) + last
        assert len(drain.ending._waiting) == 0


async def test_a_stream_that_comes_after_the_end_of_streams_ends_at_once():
    async with open_event_log("boot") as log:
        client = Client()
        client.drain.end_streams()
        log.publish(fact("before"))
        await client.take(log, log.cursor(Form.NATIVE, at(0)))
        assert client.names == ["ready", "config_changed", "end"]
