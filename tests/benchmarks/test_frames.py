"""What the driver of the benchmarks reads off a stream, in either form and however it is cut."""

import pytest

from benchmarks.driver.frames import CRUSH, NATIVE, Ended, Grew, Reader, split_frame
from crush_trio.events import EventLog, Form, GrowingMessage, MessageChange, RunChange
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role
from crush_trio.wire.runs import RunState, RunView

SESSION = SessionId("s1")


def streamed(form, *, state=RunState.COMPLETED):
    """Return the bytes of a whole turn as the server's own log encodes them."""
    log = EventLog("boot")
    reader = log.cursor(form)
    run = RunView(id=RunId("r1"), session_id=SESSION, state=RunState.ACTIVE, seq=1, accepted_at=1)
    log.publish(RunChange(run=run))
    answer = GrowingMessage(Message(id=MessageId("m1"), role=Role.ASSISTANT, session_id=SESSION))
    log.publish(MessageChange(change=EventType.CREATED, view=answer.view()))
    data = b""
    for piece in ("Grüß", " Gott", "!"):
        answer.append_text(piece)
        log.publish(MessageChange(change=EventType.UPDATED, view=answer.view(), plain=True))
        data += reader.take().encode(form)
    answer.put(FinishPart(reason=FinishReason.END_TURN, time=1))
    log.publish(MessageChange(change=EventType.UPDATED, view=answer.view()))
    ended = RunView(id=RunId("r1"), run_id="mine", session_id=SESSION, state=state, seq=1)
    log.publish(RunChange(run=ended))
    return data + reader.take().encode(form)


@pytest.mark.parametrize(("form", "name"), [(Form.NATIVE, NATIVE), (Form.CRUSH, CRUSH)])
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_text_grows_and_the_run_ends_wherever_the_stream_is_cut(form, name, size):
    stream, reader = streamed(form), Reader(name)
    told = [
        each
        for start in range(0, len(stream), size)
        for each in reader.feed(stream[start : start + size])
    ]
    texts = [each.text for each in told if isinstance(each, Grew)]
    assert texts[:3] == ["Grüß", "Grüß Gott", "Grüß Gott!"]
    assert told[-1] == Ended("mine", "completed")
    assert reader.frames == stream.count(b"\n\n")


@pytest.mark.parametrize(("form", "name"), [(Form.NATIVE, NATIVE), (Form.CRUSH, CRUSH)])
def test_a_cancelled_run_is_told_from_a_completed_one(form, name):
    told = [*Reader(name).feed(streamed(form, state=RunState.CANCELLED))]
    assert told[-1] == Ended("mine", "cancelled")


def test_only_native_streams_greet():
    native, crush = Reader(NATIVE), Reader(NATIVE)
    assert not [*native.feed(b'id: b-0\nevent: ready\ndata: {"position":"b-0"}\n\n')]
    assert not [*crush.feed(b"\n\n")]
    assert (native.greeted, crush.greeted) == (True, False)


def test_updates_are_weighed_without_their_text():
    delta = (
        b"id: b-1\nevent: message_delta\n"
        b'data: {"id":"m","session_id":"s","changes":[{"index":0,"offset":0,"append":"%b"}]}\n\n'
    )
    reader = Reader(NATIVE)
    for text in (b"a", b"a longer text"):
        [grew] = reader.feed(delta % text)
        assert grew.text.endswith(text.decode())
    assert reader.updates == 2
    assert reader.overhead == len(delta % b"")


def test_a_frame_without_data_says_nothing():
    assert split_frame(b"") == (b"", b"")
    assert split_frame(b"event: heartbeat\ndata: {}") == (b"heartbeat", b"{}")
