"""`Picture`: what a client knows after every frame, and what it tells its readers."""

import orjson
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.client.errors import StreamBroken
from crush_trio.client.events import (
    Disconnected,
    MessageEvent,
    Reconnected,
    Resynced,
    RunEvent,
)
from crush_trio.client.picture import NOWHERE, Picture
from crush_trio.testing.replica import Replica
from crush_trio.wire.codec import encode, structure
from crush_trio.wire.events import Envelope, EventType, PayloadType
from crush_trio.wire.ids import MessageId, RunId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart
from crush_trio.wire.native import RunState
from tests.client.native_streams import (
    READY,
    SESSION,
    STEPS,
    apply,
    asks,
    frame,
    play,
    resync,
    run,
    run_view,
    stream_of,
    written,
)
from tests.client.test_window import read

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


# ── Connections that break ──────────────────────────────────────────────────────────────────────


def test_a_lost_connection_is_told_once_and_so_is_the_next_one():
    picture, reader = synced()
    picture.disconnected("cut")
    picture.disconnected("refused")
    apply(picture, READY)
    apply(picture, READY)
    assert read(reader) == [Disconnected("cut"), Reconnected()]


def test_events_that_were_applied_before_are_not_told_again():
    picture, reader = synced()
    apply(picture, run("active", place="boot-1"))
    apply(picture, grow_from_nothing("boot-2"))
    read(reader)
    apply(picture, run("active", place="boot-1"))
    apply(picture, grow_from_nothing("boot-2"))
    assert read(reader) == []
    assert picture.place == "boot-2"


def grow_from_nothing(place):
    return told("created", message("Hi"), place)


def test_after_a_restart_the_places_begin_anew():
    picture, reader = synced()
    apply(picture, run("active", place="boot-50"))
    apply(picture, run("cancelled", place="second-1"))
    assert states(read(reader)) == [("r", "active"), ("r", "cancelled")]


def test_a_resync_tells_the_state_of_now_and_then_the_endings_that_were_missed():
    picture, reader = synced(runs=[live("active"), live("queued", "r2")])
    apply(
        picture,
        READY
        + asks([PERMISSION])
        + resync("boot-9", runs=[live("active", "r2")], ended=[live("errored")]),
    )
    first, *rest = read(reader)
    assert isinstance(first, Resynced)
    assert [run.id for run in first.runs] == ["r2"]
    assert [request.id for request in first.permissions] == ["p1"]
    assert states(rest) == [("r", "errored")]
    assert picture.place == "boot-9"


def test_an_ending_that_was_told_is_not_told_again_by_a_resync():
    picture, reader = synced(ended=[live("completed", "old")])
    apply(picture, run("completed", place="boot-1"))
    apply(picture, resync("boot-9", ended=[live("completed"), live("completed", "old")]))
    assert states(read(reader)) == [("r", "completed")]


def test_nothing_is_told_of_a_run_after_its_ending():
    picture, reader = synced()
    apply(picture, run("completed", place="boot-1") + run("active", place="boot-2"))
    apply(picture, resync("boot-9", runs=[live("active")]))
    assert states(read(reader)) == [("r", "completed")]
    assert picture.runs == {}


def test_a_broken_stream_begins_anew_from_nowhere():
    picture, _ = synced()
    with pytest.raises(StreamBroken, match="nobody mentioned"):
        apply(picture, grow("x", 0, "boot-1"))
    picture.mislay()
    assert picture.place == NOWHERE


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'data: {"type":"session"}\n\n', "not the native form"),
        (frame("run", {"id": "r", "session_id": "s", "state": "asleep"}), "asleep"),
        (frame("run", b"{"), "no JSON"),
        (frame("message", {"type": "created"}), "KeyError"),
        (frame("message", {"type": "exploded", "payload": {}}), "exploded"),
        (frame("message", [1]), "TypeError"),
        (frame("session", {"type": "created", "payload": {"id": 7}}), "expected a string"),
        (frame("resync", {"ended": [], "runs": []}), "messages"),
        (frame("ready", {}), "heartbeat"),
    ],
)
def test_a_frame_that_makes_no_sense_breaks_the_stream(data, why):
    picture, _ = synced(place="boot-3")
    with pytest.raises(StreamBroken, match=why):
        apply(picture, data)
    assert picture.place == "boot-3"


# ── Doubts ──────────────────────────────────────────────────────────────────────────────────────


def test_a_run_of_which_a_resync_says_nothing_is_in_doubt_until_somebody_asks():
    picture, reader = synced(runs=[live("active")])
    apply(picture, resync("second-1"))
    assert list(picture.doubtful_runs) == ["r"]
    assert picture.in_doubt
    read(reader)
    picture.settle_run(RunId("r"), run_view("interrupted"))
    assert states(read(reader)) == [("r", "interrupted")]
    assert not picture.in_doubt


def test_a_doubt_that_the_stream_itself_settles_is_not_told_twice():
    picture, reader = synced(runs=[live("active")])
    apply(picture, resync("second-1"))
    apply(picture, run("interrupted", place="second-2"))
    picture.settle_run(RunId("r"), run_view("interrupted"))
    assert states(read(reader)) == [("r", "interrupted")]


def test_a_run_that_nobody_knows_any_more_is_forgotten():
    picture, reader = synced(runs=[live("active")])
    apply(picture, resync("second-1"))
    picture.settle_run(RunId("r"), None)
    assert states(read(reader)) == []
    assert not picture.in_doubt


def stored(text, name="m"):
    return Message(
        id=MessageId(name),
        role=Role.ASSISTANT,
        session_id=SESSION,
        parts=(TextPart(text=text), DONE),
    )


def test_a_message_of_which_a_resync_says_nothing_is_asked_for():
    picture, reader = synced(messages=[message("Hel"), message("x", name="gone")])
    apply(picture, resync("boot-9"))
    assert set(picture.doubtful_messages) == {"m", "gone"}
    read(reader)
    picture.settle_messages(SESSION, [stored("Hello"), stored("not ours", "n")])
    updated, deleted = read(reader)
    assert (updated.change, texts([updated])) == ("updated", ["Hello"])
    assert (deleted.change, deleted.message_id) == ("deleted", "gone")
    assert not picture.in_doubt


def test_a_message_that_still_grows_is_not_in_doubt():
    picture, reader = synced(messages=[message("Hel")])
    apply(picture, resync("boot-9", messages=[message("Hello")]))
    assert not picture.in_doubt
    [now] = read(reader)
    assert [each.parts for each in now.messages] == [(TextPart(text="Hello"),)]
    apply(picture, grow("!", 5, "boot-10"))
    assert texts(read(reader)) == ["Hello!"]


def test_the_messages_of_a_deleted_session_are_neither_kept_nor_asked_for():
    picture, _ = synced(messages=[message("a"), message("b", name="n")])
    apply(picture, resync("boot-5", messages=[message("a")]))
    apply(picture, told("deleted", {"id": SESSION}, "boot-6", "session"))
    assert picture.snapshot().messages == ()
    assert not picture.in_doubt


# ── News ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["r", "mine"])
async def test_whoever_waits_for_a_run_hears_of_its_ending_under_either_name(name):
    picture, _ = synced()
    with picture.news_of(RunId(name)) as news:
        apply(picture, run("active", run_id="mine", place="boot-1"))
        assert not news.is_set()
        apply(picture, run("completed", run_id="mine", place="boot-2"))
        assert news.is_set()


async def test_whoever_waits_for_a_run_looks_again_after_every_connection():
    picture, _ = synced()
    with picture.news_of(RunId("r")) as one, picture.news_of(RunId("r")) as other:
        picture.disconnected("cut")
        assert not one.is_set()
        apply(picture, READY)
        assert one.is_set()
        assert other.is_set()


async def test_nobody_is_remembered_who_does_not_wait_any_more():
    picture, _ = synced()
    with trio.CancelScope() as scope, picture.news_of(RunId("r")) as news:
        scope.cancel()
        await news.wait()
    assert picture._news == {}


# ── Any stream, cut anywhere ────────────────────────────────────────────────────────────────────


@given(st.lists(STEPS, max_size=12), st.lists(st.integers(0, 15), max_size=4), st.booleans())
def test_a_stream_cut_after_any_frame_and_resumed_is_the_whole_stream(steps, cuts, finish):
    """After every cut the stream begins again at our place, or a frame or two before it."""
    log, _ = written(steps, finish=finish)
    picture, reader = synced()
    events = []
    for cut in [*cuts, None]:
        after = int(picture.place.rpartition("-")[2])
        pieces = stream_of(log, max(0, after - len(cuts))).split(b"\n\n")[:-1]
        apply(picture, b"".join(piece + b"\n\n" for piece in pieces[:cut]))
        events += read(reader)
    replica = Replica()
    replica.feed(stream_of(log))
    last = [event for event in events if isinstance(event, MessageEvent)][-1]
    assert orjson.loads(encode(last.message)) == replica.messages["m"]
    ended = [state for _, state in states(events) if RunState(state).terminal]
    assert ended == (["completed"] if finish else [])
    assert picture.place == replica.last_id


@given(st.lists(STEPS, min_size=1, max_size=10), st.integers(0, 10))
def test_a_resync_anywhere_leaves_the_same_message_as_the_whole_stream(steps, place):
    log, author = written([], finish=False)
    picture, reader = synced()
    for number, step in enumerate(steps):
        play(author, step)
        if number == place:
            now = log.snapshot()
            data = [orjson.loads(view.json()) for view in now.messages]
            apply(picture, resync(str(now.position), messages=data, runs=[live("active")]))
        else:
            apply(picture, stream_of(log, int(picture.place.rpartition("-")[2])))
    [view] = picture.snapshot().messages
    assert view == structure(orjson.loads(author.growing.view().json()), Message)
    assert read(reader)
