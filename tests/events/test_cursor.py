"""A reader's place: what it reads, when it waits, how it ends, and how it comes back."""

import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from crush_trio.errors import LogClosed
from crush_trio.events import EventLog, Fact, Form, Position, Window, open_event_log
from crush_trio.testing.server.client import Replica
from crush_trio.wire.events import ConfigChanged, EventType, PayloadType
from crush_trio.wire.ids import WorkspaceId


def fact(name):
    return Fact(
        payload_type=PayloadType.CONFIG_CHANGED,
        change=EventType.UPDATED,
        entity=ConfigChanged(workspace_id=WorkspaceId(str(name))),
    )


def names(batch):
    return [event.entity.workspace_id for event in batch.events]


def at(seq, boot="boot"):
    return Position(boot=boot, seq=seq)


# ── Taking ─────────────────────────────────────────────────────────────────────────────────────


def test_taking_moves_the_place_and_what_was_taken_does_not_come_again():
    log = EventLog("boot")
    reader = log.cursor()
    log.publish(fact("a"))
    log.publish(fact("b"))
    assert reader.lag == 2
    assert names(reader.take()) == ["a", "b"]
    assert reader.lag == 0
    empty = reader.take()
    assert empty.events == ()
    assert empty.encode(Form.CRUSH) == empty.encode(Form.NATIVE) == b""
    log.publish(fact("c"))
    assert names(reader.take()) == ["c"]


def test_a_batch_is_its_frames_in_one_piece():
    log = EventLog("boot")
    reader = log.cursor(Form.NATIVE)
    log.publish(fact("a"))
    log.publish(fact("b"))
    batch = reader.take()
    frames = [entry.frame(Form.NATIVE) for entry in batch.entries]
    assert batch.encode(Form.NATIVE) == b"".join(frames)
    assert [frame.split(b"\n")[0] for frame in frames] == [b"id: boot-1", b"id: boot-2"]


@pytest.mark.parametrize("form", Form)
def test_readers_at_the_same_place_share_one_piece_of_bytes(form):
    log = EventLog("boot")
    one, two = log.cursor(form), log.cursor(form)
    log.publish(fact("a"))
    log.publish(fact("b"))
    assert one.take().encode(form) is two.take().encode(form)


def test_readers_at_different_places_share_the_bytes_of_each_event():
    log = EventLog("boot")
    one = log.cursor(Form.CRUSH)
    log.publish(fact("a"))
    two = log.cursor(Form.CRUSH)
    log.publish(fact("b"))
    (shared,) = two.take().entries
    assert one.take().entries[1] is shared
    assert shared.frame(Form.CRUSH) is shared.frame(Form.CRUSH)


# ── Coming back ────────────────────────────────────────────────────────────────────────────────


def test_a_reader_continues_after_the_place_it_names():
    log = EventLog("boot")
    for name in "abcd":
        log.publish(fact(name))
    assert names(log.cursor(after=at(0)).take()) == ["a", "b", "c", "d"]
    assert names(log.cursor(after=at(3)).take()) == ["d"]
    last = log.cursor(after=at(4)).take()
    assert (last.events, last.resync) == ((), None)


def test_the_id_of_the_last_frame_is_the_place_to_come_back_to():
    log = EventLog("boot")
    reader, replica = log.cursor(Form.NATIVE), Replica()
    log.publish(fact("a"))
    log.publish(fact("b"))
    replica.feed(reader.take().encode(Form.NATIVE))
    log.publish(fact("c"))
    again = log.cursor(Form.NATIVE, after=Position.parse(replica.last_id))
    assert names(again.take()) == ["c"]


@pytest.mark.parametrize("place", [at(2, "another boot"), at(99), at(5)])
@pytest.mark.parametrize("form", [*Form, None])
def test_a_place_that_is_not_in_this_log_is_answered_with_the_state_of_now(place, form):
    log = EventLog("boot")
    for name in "abcd":
        log.publish(fact(name))
    reader = log.cursor(form, after=place)
    batch = reader.take()
    assert batch.entries == ()
    assert batch.resync.position == at(4)
    log.publish(fact("e"))
    after = reader.take()
    assert (names(after), after.resync) == (["e"], None)


async def test_a_reader_that_lost_its_place_is_told_at_once_also_by_a_log_that_never_spoke():
    async with open_event_log("boot") as log:
        before = trio.current_time()
        batch = await log.cursor(Form.NATIVE, after=at(7, "another boot")).read()
        assert trio.current_time() == before
        assert batch.resync.position == at(0)
        assert b"event: resync" in batch.encode(Form.NATIVE)


def test_lag_is_counted_from_the_beginning_for_a_reader_without_a_place():
    log = EventLog("boot")
    log.publish(fact("a"))
    assert log.cursor(after=at(0, "another boot")).lag == 1


# ── Waiting ────────────────────────────────────────────────────────────────────────────────────


async def test_reading_waits_for_something_new():
    async with open_event_log("boot") as log, trio.open_nursery() as nursery:
        read = []

        async def reader(cursor):
            read.extend(names(await cursor.read()))

        log.publish(fact("before"))
        nursery.start_soon(reader, log.cursor())
        await trio.sleep(60)
        assert read == []
        log.publish(fact("new"))
        await wait_all_tasks_blocked()
        assert read == ["new"]


async def test_reading_is_a_checkpoint_also_when_there_is_something():
    async with open_event_log("boot") as log:
        reader = log.cursor()
        log.publish(fact("a"))
        with assert_checkpoints():
            await reader.read()


@pytest.mark.parametrize("published_first", [False, True])
async def test_a_read_that_is_cancelled_has_read_nothing(published_first):
    async with open_event_log("boot") as log:
        reader = log.cursor()
        if published_first:
            log.publish(fact("a"))
        with trio.CancelScope() as scope:
            scope.cancel()
            await reader.read()
        assert scope.cancelled_caught
        if not published_first:
            log.publish(fact("a"))
        assert names(await reader.read()) == ["a"]


@pytest.mark.parametrize("seed", range(10))
async def test_a_reader_that_gives_up_again_and_again_misses_nothing(seed):
    async with open_event_log("boot", tick=0.005) as log, trio.open_nursery() as nursery:
        reader, read = log.cursor(), []

        async def publish():
            for number in range(100):
                log.publish(fact(number))
                await trio.sleep(0.003)

        nursery.start_soon(publish)
        while len(read) < 100:
            with trio.move_on_after(0.004):
                read += names(await reader.read())
        assert read == [str(number) for number in range(100)]


# ── Ending ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_reader_of_a_closed_log_reads_the_rest_and_then_ends():
    async with open_event_log("boot") as log:
        reader, iterating = log.cursor(), log.cursor()
        log.publish(fact("a"))
        log.close()
        assert names(await reader.read()) == ["a"]
        for _ in range(2):
            with pytest.raises(LogClosed):
                await reader.read()
        assert [names(batch) async for batch in iterating] == [["a"]]


async def test_readers_that_wait_when_the_log_closes_end():
    async with trio.open_nursery() as nursery:
        ended = []

        async def read_all(cursor):
            async for _batch in cursor:
                pass
            ended.append(cursor)

        async with open_event_log("boot", window=Window(events=4)) as log:
            for form in (*Form, None):
                nursery.start_soon(read_all, log.cursor(form))
            await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        assert len(ended) == 3


async def test_readers_end_also_when_the_log_s_surroundings_are_cancelled():
    ended = []

    async def read_all(cursor):
        async for _batch in cursor:
            pass
        ended.append(cursor)

    async with trio.open_nursery() as outside:
        with trio.CancelScope() as surroundings:
            async with open_event_log("boot") as log:
                outside.start_soon(read_all, log.cursor())
                await wait_all_tasks_blocked()
                surroundings.cancel()
                await trio.sleep_forever()
        await wait_all_tasks_blocked()
        outside.cancel_scope.cancel()
    assert len(ended) == 1
