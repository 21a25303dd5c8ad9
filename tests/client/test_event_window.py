"""`Window`: many readers, one bounded memory; a slow one is told where it stands."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from crush_trio.client.events import ENDINGS, MessageEvent, Resynced, RunEvent, Window
from crush_trio.client.messages import GrowingMessage
from crush_trio.wire.events import ConfigChanged, Envelope, EventType, PayloadType
from crush_trio.wire.ids import MessageId, SessionId, WorkspaceId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart
from tests.client.native_streams import run_view

NOW = Resynced()


def window(**limits):
    return Window(lambda: NOW, **limits)


def fact(name="w"):
    return Envelope(
        payload_type=PayloadType.CONFIG_CHANGED,
        event_type=EventType.UPDATED,
        entity=ConfigChanged(workspace_id=WorkspaceId(str(name))),
    )


def ending(name="r"):
    return RunEvent(run_view("completed", name))


def message(text="", change=EventType.UPDATED, name="m", *, finished=False):
    done = (FinishPart(reason=FinishReason.STOP, time=1),) if finished else ()
    head = Message(
        id=MessageId(name),
        role=Role.ASSISTANT,
        session_id=SessionId("s"),
        parts=(TextPart(text=text), *done),
    )
    return MessageEvent(change, GrowingMessage(head).view())


def read(reader):
    """Return everything that a reader is given without waiting."""
    events = []
    while (event := reader.take()) is not None:
        events.append(event)
    return events


def texts(events):
    return [event.message.parts[0].text for event in events if isinstance(event, MessageEvent)]


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_is_given_what_is_published_from_now_on_in_order():
    it = window()
    it.publish(fact("before"))
    reader = it.reader()
    events = [fact(1), ending(), fact(2)]
    for event in events:
        it.publish(event)
    assert read(reader) == events
    assert read(reader) == []


@pytest.mark.item("D17")
def test_an_update_before_the_beginning_of_another_message_is_not_skipped():
    it = window()
    reader = it.reader()
    it.publish(message("a"))
    it.publish(message("a call"))
    it.publish(message("its result", EventType.CREATED, "t", finished=True))
    it.publish(message("a call, finished", finished=True))
    assert texts(read(reader)) == ["a call", "its result", "a call, finished"]


def test_every_reader_has_a_place_of_its_own():
    it = window()
    one, other = it.reader(), it.reader()
    it.publish(fact(1))
    assert read(one) == [fact(1)]
    it.publish(fact(2))
    assert read(one) == [fact(2)]
    assert read(other) == [fact(1), fact(2)]


def test_a_reader_may_begin_at_a_place_that_was_remembered():
    it = window()
    it.publish(fact(1))
    since = it.head
    it.publish(fact(2))
    assert read(it.reader(since)) == [fact(2)]


async def test_a_reader_waits_for_the_next_event():
    it = window()
    reader, seen = it.reader(), []

    async def watch():
        async for event in reader:
            seen.append(event)  # noqa: PERF401 - it is looked at meanwhile

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await wait_all_tasks_blocked()
        it.publish(fact(1))
        await wait_all_tasks_blocked()
        assert seen == [fact(1)]
        it.publish(fact(2))
        it.close()
    assert seen == [fact(1), fact(2)]


async def test_a_cancelled_read_has_read_nothing():
    it = window()
    reader = it.reader()
    with trio.move_on_after(1):
        await anext(reader)
    it.publish(fact(1))
    with trio.CancelScope() as scope:
        scope.cancel()
        await anext(reader)
    assert await anext(reader) == fact(1)


async def test_a_reader_of_a_closed_window_ends():
    it = window()
    it.close()
    assert [event async for event in it.reader()] == []


# ── Messages that grow ──────────────────────────────────────────────────────────────────────────


def test_a_slow_reader_is_given_the_newest_state_of_a_message_only():
    it = window()
    fast, slow = it.reader(), it.reader()
    it.publish(message("", EventType.CREATED))
    seen = []
    for text in ("H", "He", "Hel"):
        it.publish(message(text))
        seen += read(fast)
    assert texts(seen) == ["", "H", "He", "Hel"]
    assert texts(read(slow)) == ["", "Hel"]


def test_a_finished_state_is_never_passed_over():
    it = window()
    slow = it.reader()
    it.publish(message("H"))
    it.publish(message("Hi", finished=True))
    it.publish(message("Hi!", finished=True))
    assert texts(read(slow)) == ["Hi", "Hi!"]


def test_one_message_does_not_stand_for_another():
    it = window()
    slow = it.reader()
    it.publish(message("a"))
    it.publish(message("b", name="n"))
    assert texts(read(slow)) == ["a", "b"]


def test_that_a_message_is_gone_is_all_there_is_to_say_about_it():
    it = window()
    slow = it.reader()
    it.publish(message("a"))
    it.publish(message("a", EventType.DELETED))
    assert [event.change for event in read(slow)] == [EventType.DELETED]


def test_the_states_of_a_growing_message_do_not_push_others_out():
    it = window(events=4)
    slow = it.reader()
    it.publish(fact("first"))
    for n in range(1000):
        it.publish(message("x" * n))
    events = read(slow)
    assert events[0] == fact("first")
    assert texts(events) == ["x" * 999]


# ── Bounds ──────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_that_falls_out_of_the_window_is_told_the_state_of_now():
    it = window(events=4)
    slow = it.reader()
    for n in range(20):
        it.publish(fact(n))
    assert read(slow) == [NOW]
    it.publish(fact("next"))
    assert read(slow) == [fact("next")]


def test_a_reader_that_has_lost_its_place_is_told_every_ending_all_the_same():
    it = window(events=4)
    slow = it.reader()
    it.publish(ending("a"))
    for n in range(20):
        it.publish(fact(n))
    it.publish(ending("b"))
    assert read(slow) == [NOW, ending("a"), ending("b")]
    assert read(slow) == []


def test_an_ending_that_was_read_is_not_told_again_after_a_loss():
    it = window(events=4)
    slow = it.reader()
    it.publish(ending("a"))
    assert read(slow) == [ending("a")]
    for n in range(20):
        it.publish(fact(n))
    assert read(slow) == [NOW]


def test_large_events_push_others_out_by_their_weight():
    it = window(weight=1000)
    slow = it.reader()
    for n in range(5):
        it.publish(fact(n), weight=400)
    assert read(slow) == [NOW]
    assert it._total <= 1000


def test_a_single_event_may_be_larger_than_the_window():
    it = window(weight=1000)
    reader = it.reader()
    it.publish(fact(), weight=5000)
    assert read(reader) == [fact()]


def test_a_growing_message_weighs_as_much_as_its_text():
    it = window(weight=1000)
    slow = it.reader()
    it.publish(fact())
    for n in range(30):
        it.publish(message("x" * n), weight=100)
    assert read(slow)[0] is NOW


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("fact"), st.integers(0, 50)),
            st.tuples(st.just("end"), st.integers(0, 50)),
            st.tuples(st.just("text"), st.integers(0, 50)),
            st.tuples(st.just("read"), st.integers(0, 3)),
        ),
        max_size=80,
    )
)
def test_whatever_happens_the_window_is_bounded_and_no_ending_is_lost_or_told_twice(steps):
    it = window(events=5, weight=100)
    readers = [it.reader() for _ in range(4)]
    told = [[] for _ in readers]
    endings = 0
    for what, number in steps:
        match what:
            case "fact":
                it.publish(fact(number), weight=number)
            case "end":
                endings += 1
                it.publish(ending(f"r{endings}"), weight=number)
            case "text":
                it.publish(message("x" * number, name=f"m{number % 3}"), weight=number)
            case "read":
                told[number] += read(readers[number])
        assert len(it._entries) <= 2 * 5
        assert it._total <= 100 or len(it._entries) == 1
        assert it._total == sum(entry.weight for entry in it._entries)
    for place, reader in enumerate(readers):
        told[place] += read(reader)
        seen = [event.run.id for event in told[place] if isinstance(event, RunEvent)]
        assert seen == [f"r{number + 1}" for number in range(endings)]


def test_the_endings_beyond_the_window_are_bounded_too():
    it = window(events=2)
    slow = it.reader()
    for n in range(2 * ENDINGS):
        it.publish(ending(f"r{n}"))
    events = read(slow)
    assert events[0] is NOW
    assert ENDINGS <= len(events) <= ENDINGS + 5
    assert events[-1] == ending(f"r{2 * ENDINGS - 1}")


@pytest.mark.parametrize("seed", range(10))
async def test_readers_of_different_speed_do_not_disturb_each_other(seed):
    it = window(events=10)
    seen = {"fast": [], "slow": []}

    async def watch(name, pause):
        async for event in it.reader():
            seen[name].append(event)
            await trio.sleep(pause)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, "fast", 0)
        nursery.start_soon(watch, "slow", 5)
        await wait_all_tasks_blocked()
        for n in range(50):
            it.publish(fact(n))
            await trio.sleep(0.1)
        it.close()
    assert seen["fast"] == [fact(n) for n in range(50)]
    assert NOW in seen["slow"]
