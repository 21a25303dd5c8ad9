"""`Picture`: what a client knows after every frame, and what it tells its readers."""

from crush_trio.client.events import (
    Disconnected,
    MessageEvent,
    RunEvent,
)
from crush_trio.client.state import NOWHERE, Picture
from crush_trio.wire.events import Envelope, EventType, PayloadType
from crush_trio.wire.messages import FinishPart, FinishReason, TextPart
from tests.client.native_streams import (
    READY,
    SESSION,
    apply,
    asks,
    frame,
    resync,
    run,
)
from tests.client.test_event_window import read

DONE = FinishPart(reason=FinishReason.END_TURN, time=1)
PERMISSION = {
    "id": "p1",
    "session_id": SESSION,
    "tool_call_id": "t1",
    "tool_name": "bash",
    "description": "",
    "action": "",
    "params": None,
    "path": "",
}
BATCH = {"id": "q1", "session_id": SESSION, "tool_call_id": "t2", "questions": []}


def synced(*, runs=(), messages=(), ended=(), place="boot-0"):
    """Return a picture after its first connection, and a reader of what comes after."""
    picture = Picture()
    state = resync(place, runs=runs, messages=messages, ended=ended)
    apply(picture, READY + asks() + state)
    return picture, picture.window.reader()


def message(text="", *, name="m", finished=False):
    parts = [{"type": "text", "data": {"text": text}}] if text else []
    if finished:
        parts.append({"type": "finish", "data": {"reason": "end_turn", "time": 1}})
    return {"id": name, "role": "assistant", "session_id": SESSION, "parts": parts}


def told(change, payload, place, name="message"):
    return frame(name, {"type": change, "payload": payload}, place)


def grow(text, offset, place, name="m"):
    change = {"index": 0, "offset": offset, "append": text}
    data = {"id": name, "session_id": SESSION, "updated_at": 0, "changes": [change]}
    return frame("message_delta", data, place)


def live(state, name="r"):
    return {"id": name, "session_id": SESSION, "state": state}


def states(events):
    return [(e.run.id, e.run.state.value) for e in events if isinstance(e, RunEvent)]


def texts(events):
    return [
        "".join(part.text for part in event.message.parts if isinstance(part, TextPart))
        for event in events
        if isinstance(event, MessageEvent)
    ]


# ── The first connection ────────────────────────────────────────────────────────────────────────


def test_a_picture_asks_for_the_state_of_now_before_it_has_seen_anything():
    assert Picture().place == NOWHERE


def test_the_first_resync_is_the_state_and_no_event():
    picture = Picture()
    reader = picture.window.reader()
    assert not picture.synced.is_set()
    apply(picture, READY + asks([PERMISSION], [BATCH]))
    apply(
        picture,
        resync(
            "boot-7",
            runs=[live("active")],
            messages=[message("Hel")],
            ended=[live("completed", "old")],
        ),
    )
    assert picture.synced.is_set()
    assert picture.place == "boot-7"
    now = picture.snapshot()
    assert [run.id for run in now.runs] == ["r"]
    assert [each.parts for each in now.messages] == [(TextPart(text="Hel"),)]
    assert [request.id for request in now.permissions] == ["p1"]
    assert [batch.id for batch in now.questions] == ["q1"]
    assert read(reader) == []


def test_an_answer_that_had_begun_before_we_came_goes_on_growing():
    picture, reader = synced(messages=[message("Hel")])
    apply(picture, grow("lo", 3, "boot-1"))
    assert texts(read(reader)) == ["Hello"]


def test_the_server_says_how_often_to_expect_a_sound():
    picture, _ = synced()
    assert picture.silence == 45
    apply(picture, frame("ready", {"position": "b-1", "heartbeat": None}, "b-1"))
    assert picture.silence == float("inf")


# ── Frame by frame ──────────────────────────────────────────────────────────────────────────────


def test_every_state_of_a_run_is_told_and_only_live_ones_are_kept():
    picture, reader = synced()
    for seq, state in enumerate(("accepted", "queued", "active"), 1):
        apply(picture, run(state, place=f"boot-{seq}"))
    assert list(picture.runs) == ["r"]
    apply(picture, run("completed", place="boot-4"))
    assert states(read(reader)) == [("r", s) for s in ("accepted", "queued", "active", "completed")]
    assert picture.runs == {}


def test_a_message_is_kept_while_it_grows_and_told_as_a_whole():
    picture, reader = synced()
    apply(picture, told("created", message(), "boot-1"))
    apply(
        picture,
        frame(
            "message_delta",
            {
                "id": "m",
                "session_id": SESSION,
                "updated_at": 0,
                "changes": [{"index": 0, "part": {"type": "text", "data": {"text": "H"}}}],
            },
            "boot-2",
        ),
    )
    assert len(picture.snapshot().messages) == 1
    finish = {"index": 1, "part": {"type": "finish", "data": {"reason": "end_turn", "time": 1}}}
    data = {"id": "m", "session_id": SESSION, "updated_at": 0, "changes": [finish]}
    apply(picture, frame("message_delta", data, "boot-3"))
    assert picture.snapshot().messages == ()
    created, finished = read(reader)
    assert (created.change, created.finished, created.message.parts) == ("created", False, ())
    assert finished.message.parts == (TextPart(text="H"), DONE)
    assert (finished.message_id, finished.session_id, finished.role) == ("m", SESSION, "assistant")


def test_a_message_that_is_told_as_a_whole_replaces_what_was_known():
    picture, reader = synced(messages=[message("Hel")])
    apply(picture, told("updated", message("Howdy", finished=True), "boot-1"))
    apply(picture, told("deleted", message("Howdy", finished=True), "boot-2"))
    first, second = read(reader)
    assert texts([first]) == ["Howdy"]
    assert second.change is EventType.DELETED
    assert picture.snapshot().messages == ()


def test_other_changes_are_told_as_the_wire_has_them():
    picture, reader = synced()
    session = {"id": "s", "title": "a title"}
    apply(picture, told("created", session, "boot-1", "session"))
    [event] = read(reader)
    assert isinstance(event, Envelope)
    assert (event.payload_type, event.event_type) == (PayloadType.SESSION, EventType.CREATED)
    assert event.entity.title == "a title"


def test_events_of_names_we_do_not_know_move_the_place_and_nothing_else():
    picture, reader = synced()
    apply(picture, frame("weather", {"sun": True}, "boot-9"))
    assert (picture.place, read(reader)) == ("boot-9", [])


def test_what_has_no_place_does_not_move_ours():
    picture, reader = synced(place="boot-4")
    apply(picture, frame("heartbeat", {}))
    assert (picture.place, read(reader)) == ("boot-4", [])


def test_the_reason_of_a_stream_that_ends_is_remembered_until_it_has_ended():
    picture, reader = synced()
    apply(picture, frame("end", {"reason": "server_shutting_down"}))
    assert picture.farewell == "server_shutting_down"
    picture.disconnected(picture.farewell)
    assert picture.farewell == ""
    assert read(reader) == [Disconnected("server_shutting_down")]


# ── Asks ────────────────────────────────────────────────────────────────────────────────────────


def test_a_permission_waits_until_it_is_granted_denied_or_withdrawn():
    picture, reader = synced()
    apply(picture, told("created", PERMISSION, "boot-1", "permission_request"))
    apply(picture, told("created", {"tool_call_id": "t1"}, "boot-2", "permission_notification"))
    assert list(picture.permissions) == ["p1"]
    apply(
        picture,
        told(
            "created",
            {"tool_call_id": "other", "granted": True},
            "boot-3",
            "permission_notification",
        ),
    )
    assert list(picture.permissions) == ["p1"]
    apply(
        picture,
        told(
            "created", {"tool_call_id": "t1", "denied": True}, "boot-4", "permission_notification"
        ),
    )
    assert picture.permissions == {}
    assert [event.payload_type.value for event in read(reader)] == [
        "permission_request",
        *["permission_notification"] * 3,
    ]


def test_a_batch_of_questions_waits_until_it_is_settled():
    picture, reader = synced()
    apply(picture, told("created", BATCH, "boot-1", "question_batch_request"))
    assert list(picture.questions) == ["q1"]
    apply(picture, told("created", {"batch_id": "q1"}, "boot-2", "question_batch_notification"))
    assert picture.questions == {}
    assert len(read(reader)) == 2


def test_a_request_that_is_known_already_is_no_news():
    picture = Picture()
    apply(picture, READY + asks([PERMISSION], [BATCH]) + resync())
    reader = picture.window.reader()
    apply(picture, told("created", PERMISSION, "boot-1", "permission_request"))
    apply(picture, told("created", BATCH, "boot-2", "question_batch_request"))
    assert read(reader) == []
