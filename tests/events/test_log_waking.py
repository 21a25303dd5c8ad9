"""When readers wake: the first event at once, then once per tick, what is urgent at once, else never."""

import pytest
import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from crush_trio.events import Fact, Form, GrowingMessage, MessageChange, RunChange, open_event_log
from crush_trio.wire.events import ConfigChanged, EventType, PayloadType
from crush_trio.wire.ids import MessageId, RunId, SessionId, WorkspaceId
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.runs import RunState, RunView

TICK = 0.5
FACT = Fact(
    payload_type=PayloadType.CONFIG_CHANGED,
    change=EventType.UPDATED,
    entity=ConfigChanged(workspace_id=WorkspaceId("w")),
)
ENDING = RunChange(run=RunView(id=RunId("r"), session_id=SessionId("s"), state=RunState.COMPLETED))


@define(eq=False)
class Diary:
    """Reads on, and writes down when a batch came and how many events it had."""

    batches: list = field(factory=list)
    sent: list = field(factory=list)

    async def keep(self, cursor):
        async for batch in cursor:
            self.batches.append((trio.current_time(), len(batch.entries)))
            if cursor.form is not None:
                self.sent.append(batch.encode(cursor.form))


async def test_the_first_event_wakes_readers_at_once_and_the_next_ones_wait_for_the_tick():
    async with trio.open_nursery() as nursery, open_event_log("boot", tick=TICK) as log:
        diary, start = Diary(), trio.current_time()
        nursery.start_soon(diary.keep, log.cursor())
        await wait_all_tasks_blocked()
        log.publish(FACT)
        await wait_all_tasks_blocked()
        assert diary.batches == [(start, 1)]
        for _ in range(100):
            log.publish(FACT)
            await trio.sleep(TICK / 1000)
        await trio.sleep(10 * TICK)
        assert diary.batches == [(start, 1), (start + TICK, 100)]


@pytest.mark.parametrize("seed", range(10))
async def test_a_publisher_that_lets_others_run_does_not_wake_them_for_every_event(seed):
    async with trio.open_nursery() as nursery, open_event_log("boot", tick=TICK) as log:
        diary, start = Diary(), trio.current_time()
        nursery.start_soon(diary.keep, log.cursor())
        await wait_all_tasks_blocked()
        for _ in range(100):
            log.publish(FACT)
            await trio.lowlevel.checkpoint()
        await trio.sleep(10 * TICK)
        assert len(diary.batches) < 20
        assert diary.batches[-1][0] <= start + TICK
        assert sum(count for _, count in diary.batches) == 100


async def test_after_a_pause_an_event_wakes_readers_at_once_again():
    async with trio.open_nursery() as nursery, open_event_log("boot", tick=TICK) as log:
        diary, start = Diary(), trio.current_time()
        nursery.start_soon(diary.keep, log.cursor())
        for second in range(3):
            await trio.sleep_until(start + 10 * second + 1)
            log.publish(FACT)
        await wait_all_tasks_blocked()
        assert diary.batches == [(start + 1, 1), (start + 11, 1), (start + 21, 1)]


async def test_an_ending_wakes_readers_at_once_with_all_that_came_before_it():
    async with trio.open_nursery() as nursery, open_event_log("boot", tick=TICK) as log:
        diary, start = Diary(), trio.current_time()
        nursery.start_soon(diary.keep, log.cursor())
        await wait_all_tasks_blocked()
        log.publish(FACT)
        await wait_all_tasks_blocked()
        log.publish(FACT)
        await wait_all_tasks_blocked()
        log.publish(ENDING)
        await wait_all_tasks_blocked()
        assert diary.batches == [(start, 1), (start, 2)]


async def test_the_first_words_of_a_message_wake_readers_at_once_and_the_next_ones_wait():
    async with trio.open_nursery() as nursery, open_event_log("boot", tick=TICK) as log:
        diary, start = Diary(), trio.current_time()
        nursery.start_soon(diary.keep, log.cursor())
        await wait_all_tasks_blocked()
        head = Message(id=MessageId("m"), session_id=SessionId("s"), role=Role.ASSISTANT)
        growing = GrowingMessage(head)
        for change in (EventType.CREATED, EventType.UPDATED, EventType.UPDATED):
            log.publish(MessageChange(change=change, view=growing.view(), plain=True))
            growing.append_text("word ")
            await wait_all_tasks_blocked()
        assert diary.batches == [(start, 1), (start, 1)]
        await trio.sleep(TICK)
        assert diary.batches[2:] == [(start + TICK, 1)]


async def test_closing_does_not_wait_for_the_tick():
    start = trio.current_time()
    async with trio.open_nursery() as nursery, open_event_log("boot", tick=TICK) as log:
        diary = Diary()
        nursery.start_soon(diary.keep, log.cursor())
        for _ in range(3):
            await wait_all_tasks_blocked()
            log.publish(FACT)
    assert diary.batches == [(start, 1), (start, 2)]


class Steps(trio.abc.Instrument):
    """Counts every step of every task."""

    def __init__(self):
        self.count = 0

    def before_task_step(self, task):
        self.count += 1


async def test_a_silent_log_wakes_nobody():
    async with trio.open_nursery() as nursery, open_event_log("boot", tick=TICK) as log:
        for form in (*Form, None):
            nursery.start_soon(Diary().keep, log.cursor(form))
        log.publish(FACT)
        await trio.sleep(10 * TICK)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(3600)
        trio.lowlevel.remove_instrument(steps)
        assert steps.count == 1, "this test's own step, after an hour"


@pytest.mark.parametrize("form", Form)
async def test_a_thousand_readers_get_everything_and_share_the_bytes(form):
    message = GrowingMessage(
        Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=SessionId("s"))
    )
    diaries = [Diary() for _ in range(1000)]
    async with trio.open_nursery() as nursery, open_event_log("boot", tick=TICK) as log:
        for diary in diaries:
            nursery.start_soon(diary.keep, log.cursor(form))
        await wait_all_tasks_blocked()
        log.publish(MessageChange(change=EventType.CREATED, view=message.view()))
        for _ in range(10):
            message.append_text("more ")
            log.publish(MessageChange(change=EventType.UPDATED, view=message.view(), plain=True))
            await trio.sleep(TICK * 0.3)
        log.publish(ENDING)
    first = diaries[0].sent
    assert len(first) >= 3
    for diary in diaries:
        assert len(diary.sent) == len(first)
        assert all(mine is theirs for mine, theirs in zip(diary.sent, first, strict=True))
