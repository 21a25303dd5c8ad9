"""The bytes of an event: what each form says, that it says it once, and what the bytes weigh."""

import orjson
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.events import (
    EventLog,
    Fact,
    Form,
    GrowingMessage,
    MessageChange,
    Position,
    Resync,
    RunChange,
)
from crush_trio.events.cursor import resync_frames
from crush_trio.events.entry import ByteMeter, LogEntry
from crush_trio.events.frames import run_complete
from crush_trio.wire.codec import encode, encode_envelope
from crush_trio.wire.events import ConfigChanged, EventType, PayloadType, RunComplete
from crush_trio.wire.ids import MessageId, RunId, SessionId, WorkspaceId
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.runs import RunState, RunView

RUN = RunView(
    id=RunId("run-1"),
    run_id=RunId("mine"),
    session_id=SessionId("s"),
    state=RunState.ACTIVE,
    seq=3,
    message_id=MessageId("m"),
    text="the whole answer",
    error="e",
)
FACT = Fact(
    payload_type=PayloadType.CONFIG_CHANGED,
    change=EventType.UPDATED,
    entity=ConfigChanged(workspace_id=WorkspaceId("w")),
)
ENDINGS = [state for state in RunState if state.terminal]


def entry(event, before=None, meter=None):
    return LogEntry(7, event, "boot", meter if meter is not None else ByteMeter(), before)


def message(text="", message_id="m"):
    growing = GrowingMessage(
        Message(id=MessageId(message_id), role=Role.ASSISTANT, session_id=SessionId("s"))
    )
    growing.append_text(text)
    return growing


def update(view, *, plain=False):
    return MessageChange(change=EventType.UPDATED, view=view, plain=plain)


def native(frame):
    """Take a native frame apart: its id, its name, its data."""
    lines = frame.removesuffix(b"\n\n").split(b"\n")
    fields = dict(line.split(b": ", 1) for line in lines)
    assert list(fields) == [b"id", b"event", b"data"]
    return fields[b"id"].decode(), fields[b"event"].decode(), orjson.loads(fields[b"data"])


# ── crush ──────────────────────────────────────────────────────────────────────────────────────


def test_in_crush_form_a_fact_is_a_bare_data_line():
    expected = encode_envelope(FACT.payload_type, FACT.change, FACT.entity)
    assert entry(FACT).frame(Form.CRUSH) == b"data: " + expected + b"\n\n"


@pytest.mark.parametrize("change", EventType)
def test_in_crush_form_a_message_is_whole_whatever_came_before(change):
    growing = message("a")
    before = growing.view()
    growing.append_text("b\n😀")
    view = growing.view()
    frame = entry(MessageChange(change=change, view=view), before).frame(Form.CRUSH)
    expected = encode_envelope(PayloadType.MESSAGE, change, view.message())
    assert frame == b"data: " + expected + b"\n\n"


@pytest.mark.parametrize("state", [state for state in RunState if state not in ENDINGS])
def test_in_crush_form_a_run_that_goes_on_has_no_word(state):
    assert entry(RunChange(run=evolve(RUN, state=state))).frame(Form.CRUSH) == b""


@pytest.mark.parametrize("state", ENDINGS)
def test_in_crush_form_an_ending_is_a_completion_unless_the_run_was_folded(state):
    run = evolve(RUN, state=state)
    frame = entry(RunChange(run=run)).frame(Form.CRUSH)
    if state is RunState.FOLDED:
        assert run_complete(run) is None
        assert frame == b""
        return
    complete = RunComplete(
        session_id=RUN.session_id,
        run_id=RUN.run_id,
        message_id=RUN.message_id,
        text=RUN.text,
        error=RUN.error,
        cancelled=state is RunState.CANCELLED,
    )
    expected = encode_envelope(PayloadType.RUN_COMPLETE, EventType.UPDATED, complete)
    assert frame == b"data: " + expected + b"\n\n"


# ── native ─────────────────────────────────────────────────────────────────────────────────────


def test_in_native_form_a_fact_has_its_place_and_its_name():
    place, name, data = native(entry(FACT).frame(Form.NATIVE))
    assert (place, name) == ("boot-7", "config_changed")
    assert data == {"type": "updated", "payload": {"workspace_id": "w"}}


@pytest.mark.parametrize("state", RunState)
def test_in_native_form_every_state_of_a_run_is_told_but_not_the_answer_again(state):
    run = evolve(RUN, state=state)
    place, name, data = native(entry(RunChange(run=run)).frame(Form.NATIVE))
    assert (place, name) == ("boot-7", "run")
    assert data == orjson.loads(encode(evolve(run, text="")))
    assert "text" not in data


def test_in_native_form_an_update_is_what_was_appended():
    growing = message("a")
    before = growing.view()
    growing.append_text("b")
    place, name, data = native(entry(update(growing.view()), before).frame(Form.NATIVE))
    assert (place, name) == ("boot-7", "message_delta")
    assert data["changes"] == [{"index": 0, "offset": 1, "append": "b"}]


@pytest.mark.parametrize("change", EventType)
def test_in_native_form_a_message_nobody_knew_is_whole(change):
    view = message("a").view()
    _, name, data = native(entry(MessageChange(change=change, view=view)).frame(Form.NATIVE))
    assert name == "message"
    assert data == {"type": change, "payload": orjson.loads(encode(view.message()))}


# ── both ───────────────────────────────────────────────────────────────────────────────────────


@settings(derandomize=True, deadline=None, max_examples=50)
@given(text=st.text(), form=st.sampled_from(Form))
def test_no_text_can_break_a_frame_in_two(text, form):
    frame = entry(update(message(text + "\n\n\r\n").view())).frame(form)
    assert frame.count(b"\n\n") == 1
    assert frame.endswith(b"\n\n")
    assert b"\r" not in frame


@pytest.mark.parametrize("event", [FACT, RunChange(run=RUN), update(message("a").view())])
@pytest.mark.parametrize("form", Form)
def test_an_event_is_encoded_once_and_its_bytes_are_shared(event, form):
    one = entry(event)
    assert one.frame(form) is one.frame(form)


def test_a_fact_that_has_no_json_is_refused_to_its_publisher_and_leaves_no_trace():
    log = EventLog("boot")
    reader = log.cursor(Form.CRUSH)
    with pytest.raises(TypeError):
        log.publish(evolve(FACT, entity=ConfigChanged(workspace_id=object())))
    assert log.publish(FACT) == 1
    assert reader.take().encode(Form.CRUSH) == entry(FACT).frame(Form.CRUSH)


# ── resync ─────────────────────────────────────────────────────────────────────────────────────


def test_in_native_form_a_resync_is_one_frame_with_what_ended_what_goes_on_and_its_place():
    view = message("half an ans").view()
    resync = Resync(position=Position(boot="boot", seq=9), runs=(RUN,), messages=(view,))
    ended = evolve(RUN, id=RunId("run-0"), state=RunState.CANCELLED)
    place, name, data = native(resync_frames(resync, [entry(RunChange(run=ended))], Form.NATIVE))
    assert (place, name) == ("boot-9", "resync")
    assert data == {
        "position": "boot-9",
        "ended": [orjson.loads(encode(evolve(ended, text="")))],
        "runs": [orjson.loads(encode(evolve(RUN, text="")))],
        "messages": [orjson.loads(encode(view.message()))],
    }


def test_in_crush_form_a_resync_is_the_endings_and_an_update_of_every_open_message():
    views = (message("one", "m1").view(), message("two", "m2").view())
    resync = Resync(position=Position(boot="boot", seq=9), runs=(RUN,), messages=views)
    ended = entry(RunChange(run=evolve(RUN, state=RunState.COMPLETED)))
    assert resync_frames(resync, [ended], Form.CRUSH) == ended.frame(Form.CRUSH) + b"".join(
        entry(update(view)).frame(Form.CRUSH) for view in views
    )
    assert resync_frames(evolve(resync, messages=()), [], Form.CRUSH) == b""


# ── weight ─────────────────────────────────────────────────────────────────────────────────────


def test_the_meter_counts_the_bytes_made_and_forgets_them_with_the_entry():
    meter = ByteMeter()
    one = entry(update(message("a" * 1000).view()), meter=meter)
    bare = meter.total
    assert bare >= 1000
    frame = one.frame(Form.CRUSH)
    assert meter.total == bare + len(frame)
    one.frame(Form.NATIVE)
    one.supersede()
    assert meter.total == bare + len(one.frame(Form.NATIVE))
    one.release()
    assert meter.total == 0


def test_an_entry_weighs_what_its_message_grew_by_and_not_the_whole_message():
    growing = message("a" * 100_000)
    before = growing.view()
    growing.append_text("b")
    meter = ByteMeter()
    entry(update(growing.view()), before, meter)
    assert 0 < meter.total < 5000


def test_an_entry_that_shortens_its_message_has_weight_too():
    growing = message("a" * 100_000)
    before = growing.view()
    growing.reset()
    meter = ByteMeter()
    entry(update(growing.view()), before, meter)
    assert meter.total > 0


@pytest.mark.parametrize("form", Form)
def test_bytes_made_of_an_entry_that_was_let_go_are_not_charged_to_the_log(form):
    meter = ByteMeter()
    ended = entry(RunChange(run=evolve(RUN, state=RunState.COMPLETED)), meter=meter)
    ended.release()
    assert ended.frame(form)
    assert meter.total == 0


def test_superseding_an_entry_that_was_let_go_gives_nothing_back_twice():
    meter = ByteMeter()
    one = entry(update(message("a").view(), plain=True), meter=meter)
    one.frame(Form.CRUSH)
    one.release()
    one.supersede()
    assert meter.total == 0
