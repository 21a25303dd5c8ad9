"""A message in progress: what is stored when, what is published after it, what is left at the end."""

import gc
import random
import weakref

import pytest
import trio
import trio.testing

from crush_trio.agent.record.transcript import FLUSH_LIMIT, PACE
from crush_trio.store.changes import MessageCreated, MessageDeleted, TextAppended
from crush_trio.store.errors import DiskFull, StoreFailed
from crush_trio.testing.explore import explore
from crush_trio.testing.server.faults import Moment
from crush_trio.testing.server.faulty_store import StoreFault
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId
from crush_trio.wire.messages import FinishReason, Message, ReasoningPart, Role, ToolCallPart
from tests.agent.durable import END, S, finish_of, open_desk, parts_of, text_of, told
from tests.store.stores import STOP, call, text

settle = trio.testing.wait_all_tasks_blocked


async def grow(desk, *deltas):
    """Begin a message and say something, and let time pass until all of it is stored."""
    opened = await desk.create()
    for delta in deltas:
        opened.append_text(delta)
    await trio.sleep(2 * PACE)
    return opened


# ── Creating ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D1")
async def test_a_message_is_stored_before_it_is_published():
    async with open_desk(latency=1) as desk, trio.open_nursery() as nursery:
        nursery.start_soon(desk.create)
        await trio.sleep(0.5)
        assert desk.published() == []
        await trio.sleep(1)
        (event,) = desk.published()
        assert event.change is EventType.CREATED
        assert told(event.message) == told(await desk.stored())


@pytest.mark.item("D1")
@pytest.mark.parametrize("write", ["create", "write"])
async def test_a_message_that_cannot_be_stored_is_not_published(write):
    async with open_desk(StoreFault(of=(MessageCreated,), error=DiskFull)) as desk:
        message = Message(id=MessageId("m"), role=Role.USER, session_id=S, parts=(text("hello"),))
        with pytest.raises(DiskFull):
            await getattr(desk.turn, write)(message)
        assert desk.published() == []
        assert desk.transcript.open_messages() == ()


@pytest.mark.item("D1")
@pytest.mark.parametrize("role", [Role.USER, Role.TOOL, Role.SYSTEM])
async def test_a_message_that_no_model_wrote_ends_with_a_stop(role):
    message = Message(id=MessageId("m"), role=role, session_id=S, parts=(text("hello"),))
    async with open_desk() as desk:
        written = await desk.transcript.write(message)
        assert written.parts == (text("hello"), STOP)
        assert (await desk.stored(), desk.published()[-1].message) == (written, written)
        assert (await desk.store.message(MessageId("m"))).finished


@pytest.mark.item("D1")
async def test_a_complete_message_keeps_its_own_finish():
    async with open_desk() as desk:
        message = Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=S, parts=(END,))
        assert (await desk.transcript.write(message)).parts == (END,)


@pytest.mark.item("D3")
@pytest.mark.parametrize(
    "parts",
    [(text("x"), text("y")), (ReasoningPart(thinking="hm", started_at=1),)],
    ids=["two texts", "reasoning"],
)
async def test_a_message_created_with_parts_is_stored_as_it_is_published(parts):
    async with open_desk() as desk:
        opened = await desk.create("m", *parts)
        opened.append_text("z")
        await opened.close_reasoning("signed")
        assert told(await desk.stored()) == told(opened.message())
        assert told(desk.published()[-1].message) == told(opened.message())


# ── Pacing ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D4")
async def test_the_first_piece_is_stored_and_published_at_once():
    async with open_desk() as desk:
        opened = await desk.create()
        opened.append_text("first")
        await settle()
        assert trio.current_time() == 0
        assert text_of(await desk.stored()) == "first"
        assert [(e.change, e.plain) for e in desk.published()] == [
            (EventType.CREATED, False),
            (EventType.UPDATED, True),
        ]


@pytest.mark.item("D4", "D10")
async def test_five_pieces_within_a_window_are_one_write_and_one_event():
    async with open_desk() as desk:
        opened = await grow(desk, "first")
        opened.append_text(" ")  # opens the window
        await settle()
        commits, events = len(desk.store.commits), len(desk.published())
        for piece in ("a", "b", "c", "d", "e"):
            opened.append_text(piece)
            await trio.sleep(PACE / 10)
        assert (len(desk.store.commits), len(desk.published())) == (commits, events)
        await trio.sleep(PACE)
        ((appended,),) = desk.store.commits[commits:]
        assert (type(appended), appended.text) == (TextAppended, "abcde")
        (event,) = desk.published()[events:]
        assert text_of(event.message) == "first abcde"


async def test_after_a_quiet_while_the_next_piece_does_not_wait():
    async with open_desk() as desk:
        opened = await grow(desk, "a")
        before = trio.current_time()
        opened.append_text("b")
        await settle()
        assert trio.current_time() == before
        assert text_of(await desk.stored()) == "ab"


@pytest.mark.item("D10")
async def test_without_a_pace_nothing_waits_for_time_to_pass():
    async with open_desk(pace=0) as desk:
        opened = await desk.create()
        for piece in ("a", "b", "c"):
            opened.append_text(piece)
            await settle()
        assert trio.current_time() == 0
        assert [c.text for c in desk.store.committed(TextAppended)] == ["a", "b", "c"]


STRUCTURAL = {
    "a tool call": lambda opened: opened.put_tool_call(call()),
    "the end of reasoning": lambda opened: opened.close_reasoning("signed"),
    "a reset": lambda opened: opened.reset(),
    "the finish": lambda opened: opened.finish(END),
}


@pytest.mark.item("D5", "D6")
@pytest.mark.parametrize("change", STRUCTURAL)
async def test_structural_changes_do_not_wait_and_take_what_waits_with_them(change):
    async with open_desk() as desk:
        opened = await desk.create()
        opened.append_reasoning("hm")
        await settle()
        opened.append_reasoning(", so")
        opened.append_text("buffered")
        commits, events = len(desk.store.commits), len(desk.published())
        await STRUCTURAL[change](opened)
        assert trio.current_time() == 0
        assert len(desk.store.commits) == commits + 1
        (event,) = desk.published()[events:]
        assert not event.plain
        assert told(event.message) == told(opened.message()) == told(await desk.stored())


@pytest.mark.item("D5")
async def test_a_tool_call_that_is_finished_replaces_itself():
    async with open_desk() as desk:
        opened = await desk.create()
        await opened.put_tool_call(call())
        await opened.put_tool_call(call(input='{"a":1}', finished=True))
        assert parts_of(await desk.stored(), ToolCallPart) == [call(input='{"a":1}', finished=True)]
        assert not desk.published()[-1].plain


async def test_events_carry_the_time_of_the_change():
    async with open_desk() as desk:
        opened = await desk.create()
        await trio.sleep(100)
        opened.append_text("late")
        await settle()
        now = desk.transcript.clock.unix()
        assert desk.published()[-1].message.updated_at == now
        assert (await desk.stored()).updated_at == now


# ── One writer ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D7")
async def test_a_structural_change_waits_for_the_write_under_way_and_then_writes_the_rest():
    async with open_desk(latency=1) as desk:
        opened = await desk.create()
        opened.append_text("a")
        await settle()
        assert desk.store.under_way == 1
        opened.append_text("b")
        await opened.put_tool_call(call())
        assert trio.current_time() == 3
        assert told(await desk.stored()) == told(opened.message())


@pytest.mark.item("D6", "D7")
@pytest.mark.parametrize("seed", range(20))
async def test_no_older_state_is_published_after_a_newer_one(seed):
    """Several tasks change one message while writes take time; see also `overlaps` in `open_desk`."""
    choose = random.Random(seed)

    async def speak(opened, name):
        for n in range(6):
            opened.append_text(f"{name}{n};")
            await trio.sleep(choose.choice([0, 0.01, 0.05]))
            if choose.random() < 0.4:
                await opened.put_tool_call(call(f"{name}{n}"))
                stored = parts_of(await desk.stored(), ToolCallPart)
                assert call(f"{name}{n}") in stored, "not stored when the call returned"

    async with open_desk(latency=0.02) as desk:
        opened = await desk.create()
        async with trio.open_nursery() as nursery:
            for name in "ab":
                nursery.start_soon(speak, opened, name)
        await opened.finish(END)
        texts = [text_of(event.message) for event in desk.published()]
        calls = [len(parts_of(event.message, ToolCallPart)) for event in desk.published()]
        assert texts == sorted(texts, key=len)
        assert calls == sorted(calls)
        assert told(desk.published()[-1].message) == told(await desk.stored())
        assert len(text_of(await desk.stored())) == 36


# ── Cancelling ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D9")
async def test_a_cancelled_waiter_leaves_its_change_to_the_writer():
    async with open_desk(latency=1) as desk:
        opened = await desk.create()
        with trio.move_on_after(0.5):
            opened.append_text("buffered")
            await opened.put_tool_call(call())
        await trio.sleep(2)
        assert told(await desk.stored()) == told(opened.message())
        assert told(desk.published()[-1].message) == told(opened.message())


async def append_structural_cancel():
    async with open_desk() as desk:
        opened = await desk.create()
        scope = trio.CancelScope()
        returned = False

        async def change():
            nonlocal returned
            with scope:
                opened.append_text("a")
                await trio.lowlevel.checkpoint()
                opened.append_text("b")
                await opened.put_tool_call(call())
                returned = True
                assert told(desk.published()[-1].message) == told(opened.message())

        async def cancel():
            await trio.lowlevel.checkpoint()
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            nursery.start_soon(cancel)
        await trio.sleep(2 * PACE)
        assert told(desk.published()[-1].message) == told(opened.message())
        assert told(await desk.stored()) == told(opened.message())
        return returned, text_of(opened.message())


@pytest.mark.item("D7", "D9")
def test_a_cancel_of_the_waiter_strands_nothing_in_any_order(report_exploration):
    found = explore(append_structural_cancel, deviations=2)
    report_exploration(found)
    assert found.exhaustive
    assert set(found.outcomes) >= {(True, "ab"), (False, "ab")}


# ── Flushing and deleting ───────────────────────────────────────────────────────────────────────


@pytest.mark.item("D10", "D12")
async def test_flush_all_stores_what_waits_in_every_session_and_then_does_nothing():
    async with open_desk(sessions=("s", "t")) as desk:
        one, two = await desk.create("one"), await desk.create("two", session="t")
        for opened in (one, two):
            opened.append_text("a")
        await settle()
        for opened in (one, two):
            opened.append_text("b")
        await desk.transcript.flush_all()
        assert trio.current_time() == 0
        assert [text_of(await desk.stored(name)) for name in ("one", "two")] == ["ab", "ab"]
        commits, events = len(desk.store.commits), len(desk.published("one"))
        await desk.transcript.flush_all()
        await one.flush()
        assert (len(desk.store.commits), len(desk.published("one"))) == (commits, events)


async def flush_all_and_end(end):
    async with open_desk() as desk:
        one, two = await desk.create("one"), await desk.create("two")
        for opened in (one, two):
            opened.append_text("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.transcript.flush_all)
            nursery.start_soon(end, two)
        assert text_of(await desk.stored("one")) == "a"


@pytest.mark.item("D10", "D12")
def test_flushing_everything_does_not_stumble_over_a_message_that_ends_meanwhile(
    report_exploration,
):
    found = explore(lambda: flush_all_and_end(lambda o: o.finish(END)), deviations=2, limit=300)
    report_exploration(found)
    assert found.schedules == 300


@pytest.mark.parametrize("error", [DiskFull, None], ids=["fails", "hangs"])
async def test_readers_do_not_wait_for_a_store_that_fails_or_hangs(error):
    async with open_desk() as desk:
        opened = await desk.create()
        desk.store.spoil(StoreFault(error=error))
        opened.append_text("a")
        await desk.transcript.flush_all()
        assert trio.current_time() <= FLUSH_LIMIT
        assert text_of(await desk.stored()) == ""


@pytest.mark.item("D11")
async def test_deleting_discards_what_was_not_stored():
    async with open_desk() as desk:
        opened = await grow(desk, "a")
        opened.append_text("b")
        opened.append_text("c")
        desk.turn.discard(opened)
        await desk.end()
        await trio.sleep(1)
        assert isinstance(desk.store.commits[-1][-1], MessageDeleted)
        assert await desk.store.messages(S) == []
        assert desk.published()[-1].change is EventType.DELETED
        assert not opened.open


async def delete_while_writing():
    async with open_desk() as desk:
        opened = await desk.create()
        opened.append_text("a")
        await trio.lowlevel.checkpoint()
        desk.turn.discard(opened)
        await desk.end()
        await trio.sleep(1)
        assert await desk.store.messages(S) == []
        changes = [event.change for event in desk.published()]
        assert changes[-1] is EventType.DELETED, "published again after it was deleted"
        return len(changes)


@pytest.mark.item("D11")
def test_nothing_brings_a_deleted_message_back_in_any_order(report_exploration):
    found = explore(delete_while_writing, deviations=2)
    report_exploration(found)
    assert found.exhaustive
    assert set(found.outcomes) == {2, 3}


# ── Ending ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["finish", "delete"])
async def test_a_message_that_has_ended_leaves_nothing_behind(end):
    async with open_desk() as desk:
        opened = await grow(desk, "some ", "text")
        assert desk.transcript.open_messages() == (opened,)
        assert len(desk.transcript.services.child_tasks) == 1
        if end == "finish":
            await opened.finish(END)
        else:
            desk.turn.discard(opened)
            await desk.end()
        await settle()
        assert not desk.transcript.services.child_tasks
        assert desk.transcript.open_messages() == ()
        left = weakref.ref(opened)
        del opened
        gc.collect()
        assert left() is None


async def test_a_message_that_has_ended_cannot_change():
    async with open_desk() as desk:
        opened = await desk.create()
        with pytest.raises(AssertionError, match="still has a writer"):
            opened.remaining()
        await opened.finish(END)
        with pytest.raises(AssertionError, match="has ended"):
            opened.append_text("more")
        assert finish_of(opened.remaining()[0].message()) == END


@pytest.mark.parametrize("moment", list(Moment))
async def test_a_message_released_in_the_middle_of_a_write_is_stored_whole_either_way(moment):
    async with open_desk() as desk:
        opened = await desk.create()
        await opened.put_tool_call(call(finished=True))
        desk.store.spoil(StoreFault(moment=moment, of=(TextAppended,), times=1))
        await trio.sleep(PACE)
        opened.append_text("some ")
        await settle()
        opened.append_text("text")
        assert desk.store.under_way == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.end)
            await settle()
            desk.store._under_way[0].withdraw(StoreFailed())
        assert told(await desk.stored()) == told(desk.published()[-1].message)
        assert text_of(await desk.stored()) == "some text"
        assert finish_of(await desk.stored()).reason is FinishReason.CANCELLED
        assert len(desk.published()) == 3, "the write that was overtaken is not told of"
