"""Events that are kept as bytes: they say what they said, to everybody, and weigh what they weigh."""

import gc
import tracemalloc
import weakref

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.events import (
    EventLog,
    Fact,
    Form,
    GrowingMessage,
    MessageChange,
    RunChange,
    Window,
)
from crush_trio.events.cursor import Batch
from crush_trio.events.entry import ByteMeter, LogEntry
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import (
    FinishPart,
    FinishReason,
    Message,
    Role,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import Session

SESSION = Session(id=SessionId("s"), title='a "title"\n', prompt_tokens=3)
FACT = Fact(payload_type=PayloadType.SESSION, change=EventType.UPDATED, entity=SESSION)
ENDED = RunView(
    id=RunId("run"), session_id=SessionId("s"), state=RunState.COMPLETED, text="the answer"
)
FINISH = FinishPart(reason=FinishReason.END_TURN, time=1)


def message(text="", name="m"):
    head = Message(id=MessageId(name), role=Role.ASSISTANT, session_id=SessionId("s"))
    growing = GrowingMessage(head)
    growing.append_text(text)
    return growing


def calling(text):
    """Return views of a message before and after it calls a tool."""
    growing = message(text)
    before = growing.view()
    growing.put(ToolCallPart(id=ToolCallId("c"), name="bash", input="{}"))
    return before, growing.view()


def update(view, *, plain=False):
    return MessageChange(change=EventType.UPDATED, view=view, plain=plain)


def entry(event, before=None, meter=None):
    return LogEntry(7, event, "boot", ByteMeter() if meter is None else meter, before)


def cases():
    before, after = calling("some text ")
    result = message(name="result")
    result.put(ToolResultPart(tool_call_id=ToolCallId("c"), name="bash", content="x" * 9000))
    long_before, long_after = calling("long " * 2000)
    return {
        "fact": (FACT, None),
        "run": (RunChange(run=evolve(ENDED, state=RunState.ACTIVE, text="")), None),
        "ending": (RunChange(run=ENDED), None),
        "created": (MessageChange(change=EventType.CREATED, view=before), None),
        "created long": (MessageChange(change=EventType.CREATED, view=result.view()), None),
        "deleted": (MessageChange(change=EventType.DELETED, view=after), before),
        "update": (update(after), before),
        "update of what nobody saw": (update(after), None),
        "update of a long message": (update(long_after), long_before),
    }


@pytest.mark.parametrize("case", cases())
@pytest.mark.parametrize("form", Form)
def test_a_packed_event_is_told_as_it_was_told_before(case, form):
    event, before = cases()[case]
    fresh, packed = entry(event, before), entry(event, before)
    packed.pack()
    packed.pack()
    assert packed.frame(form) == fresh.frame(form)
    assert packed.terminal == fresh.terminal


@pytest.mark.parametrize("case", cases())
def test_a_packed_event_is_still_there_as_a_value(case):
    event, before = cases()[case]
    packed = entry(event, before)
    packed.pack()
    if isinstance(event, MessageChange):
        told = packed.event
        assert (told.change, told.plain, told.message) == (event.change, event.plain, event.message)
    else:
        assert packed.event == event


@given(title=st.text(), tokens=st.integers(0, 10**9))
def test_any_fact_survives_packing(title, tokens):
    entity = evolve(SESSION, title=title, prompt_tokens=tokens)
    packed = entry(evolve(FACT, entity=entity))
    packed.pack()
    assert packed.event == evolve(FACT, entity=entity)


def test_of_a_superseded_change_only_the_delta_is_kept():
    growing = message("a" * 100_000)
    before = growing.view()
    growing.append_text("b")
    meter = ByteMeter()
    one = entry(update(growing.view(), plain=True), before, meter)
    told = one.frame(Form.NATIVE)
    one.supersede()
    one.pack()
    assert one.frame(Form.NATIVE) == told
    assert meter.total < 1000
    assert Batch(7, (one, entry(FACT))).events == (FACT,)


def test_a_superseded_change_of_a_message_that_nobody_saw_before_is_kept_whole():
    one = entry(update(message("begun").view(), plain=True))
    told = one.frame(Form.NATIVE)
    one.supersede()
    one.pack()
    assert one.frame(Form.NATIVE) == told


def test_a_packed_event_keeps_neither_its_value_nor_its_frames():
    before, after = calling("some text ")
    meter = ByteMeter()
    one = entry(update(after), before, meter)
    fresh, views = meter.total, [weakref.ref(before), weakref.ref(after)]
    for form in Form:
        one.frame(form)
    one.pack()
    packed = meter.total
    for form in Form:
        one.frame(form)
    del before, after
    gc.collect()
    assert [view() for view in views] == [None, None]
    assert packed == meter.total < fresh


def test_the_changes_of_a_long_message_go_on_sharing_its_text():
    growing = message("a" * 100_000)
    meter = ByteMeter()
    entries = []
    for number in range(20):
        before = growing.view()
        growing.put(ToolCallPart(id=ToolCallId(f"c{number}"), name="bash", input="{}"))
        entries.append(entry(update(growing.view()), before, meter))
        entries[-1].pack()
    assert meter.total < 100_000
    assert entries[3].event.message.parts[-1].id == "c3"


# ── In a log ───────────────────────────────────────────────────────────────────────────────────


def talk(log, number, words=40):
    """Publish what a short run publishes."""
    run = RunView(
        id=RunId(f"run-{number}"), session_id=SessionId(f"session-{number}"), state=RunState.ACTIVE
    )
    log.publish(RunChange(run=run))
    growing = message(name=f"message-{number}")
    log.publish(MessageChange(change=EventType.CREATED, view=growing.view()))
    for word in range(words):
        growing.append_text(f"w{word} ")
        if word % 20 == 0:
            log.publish(update(growing.view(number), plain=True))
    growing.put(FINISH)
    log.publish(update(growing.view(number)))
    entity = evolve(SESSION, title=f"a title of some length {number}")
    log.publish(evolve(FACT, entity=entity))
    log.publish(RunChange(run=evolve(run, state=RunState.COMPLETED, text=f"answer {number}" * 20)))


@pytest.mark.parametrize("form", [*Form, None])
def test_a_reader_is_told_the_same_however_far_it_is_behind(form):
    told = []
    for fresh in (0, 1, 5, 1000):
        log = EventLog("boot", window=Window(fresh=fresh))
        slow, opened = log.cursor(form), message("begun ", "open")
        log.publish(MessageChange(change=EventType.CREATED, view=opened.view()))
        for number in range(20):
            talk(log, number)
            opened.append_text(f"{number} ")
            log.publish(update(opened.view(), plain=number % 2 == 0))
        batch = slow.take()
        assert batch.resync is None
        if form is None:
            told.append([getattr(e, "run", getattr(e, "message", e)) for e in batch.events])
        else:
            told.append(batch.encode(form))
    assert told[0]
    assert told.count(told[0]) == len(told)


def test_an_open_message_is_packed_once_a_later_change_has_taken_its_place():
    log = EventLog("boot", window=Window(fresh=2))
    opened = message("begun ", "open")
    view = opened.view()
    kept = weakref.ref(view)
    log.publish(MessageChange(change=EventType.CREATED, view=view))
    del view
    for _ in range(5):
        log.publish(FACT)
    assert kept() is not None, "the next change is told against it"
    for _ in range(2):
        opened.append_text("more")
        log.publish(update(opened.view()))
    assert kept() is not None, "what was told against it is fresh"
    log.publish(FACT)
    gc.collect()
    assert kept() is None


@pytest.mark.heavy
@pytest.mark.parametrize("fresh", [0, 10**6])
def test_a_log_weighs_about_what_it_says_it_does(fresh):
    log = EventLog("boot", window=Window(fresh=fresh))
    readers = [log.cursor(form) for form in Form]

    def live(numbers):
        for number in numbers:
            talk(log, number)
            for reader in readers:
                reader.take().encode(reader.form)

    live(range(20))
    gc.collect()
    tracemalloc.start()
    try:
        counted, real = log._meter.total, tracemalloc.get_traced_memory()[0]
        live(range(100, 400))
        gc.collect()
        counted, real = log._meter.total - counted, tracemalloc.get_traced_memory()[0] - real
    finally:
        tracemalloc.stop()
    assert 0.7 < real / counted < 1.4
