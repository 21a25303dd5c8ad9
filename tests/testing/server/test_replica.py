"""`Replica`: applies a good stream however it is cut, and refuses a bad one."""

import orjson
import pytest
from attrs import define, field

from crush_trio.events import EventLog, Form, GrowingMessage, MessageChange, RunChange
from crush_trio.events.frames import native_frame
from crush_trio.testing.server.client import Replica, ReplicaMismatch, apply_change
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role
from crush_trio.wire.runs import RunState, RunView


def frame(event_id, name, data):
    return b"".join(native_frame(event_id, name, orjson.dumps(data)))


def message(event_id, *texts, change="created", name="m"):
    """A frame that says the whole message, with one text part for each of *texts*."""
    parts = [text_part(text) for text in texts]
    payload = {"id": name, "parts": parts, "updated_at": 0}
    return frame(event_id, "message", {"type": change, "payload": payload})


def delta(event_id, *changes, name="m"):
    return frame(event_id, "message_delta", {"id": name, "updated_at": 7, "changes": changes})


def run(event_id, state, name="r"):
    return frame(event_id, "run", {"id": name, "session_id": "s", "state": state})


def resync(event_id, *messages, ended=()):
    """A frame that says the state of now; *ended* names runs that ended unseen."""
    runs = [{"id": name, "session_id": "s", "state": "completed"} for name in ended]
    state = {"position": event_id, "ended": runs, "runs": [], "messages": messages}
    return frame(event_id, "resync", state)


def text_part(text):
    return {"type": "text", "data": {"text": text}}


def texts(replica, name="m"):
    return [part["data"]["text"] for part in replica.messages[name]["parts"]]


def fed(*frames):
    replica = Replica()
    for piece in frames:
        replica.feed(piece)
    return replica


@define(eq=False)
class Author:
    """Publishes a message as it grows."""

    log: EventLog
    growing: GrowingMessage = field(init=False)

    def __attrs_post_init__(self):
        head = Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=SessionId("s"))
        self.growing = GrowingMessage(head)
        self.publish(EventType.CREATED)

    def publish(self, change=EventType.UPDATED, *, plain=False):
        self.log.publish(MessageChange(change=change, view=self.growing.view(), plain=plain))

    def say(self, text):
        self.growing.append_text(text)
        self.publish(plain=True)


def stream_of_a_turn():
    """The native stream of one run with a growing answer, and the message it leads to."""
    log = EventLog("boot")
    reader = log.cursor(Form.NATIVE)
    view = RunView(id=RunId("r"), session_id=SessionId("s"), state=RunState.ACTIVE)
    log.publish(RunChange(run=view))
    author = Author(log)
    for text in ("Grüße, ", "Welt ", "🌍"):
        author.say(text)
    author.growing.put(FinishPart(reason=FinishReason.END_TURN, time=1))
    author.publish()
    done = RunView(id=RunId("r"), session_id=SessionId("s"), state=RunState.COMPLETED)
    log.publish(RunChange(run=done))
    return reader.take().encode(Form.NATIVE), orjson.loads(author.growing.view().json())


# ── Good streams ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
def test_a_stream_is_applied_however_it_is_cut_into_pieces(size):
    stream, final = stream_of_a_turn()
    replica = fed(*(stream[at : at + size] for at in range(0, len(stream), size)))
    assert replica.messages == {"m": final}
    assert list(replica.endings) == ["r"]
    assert replica.endings["r"]["state"] == "completed"
    assert replica.last_id == "boot-7"
    assert replica.resyncs == 0


def test_a_frame_is_applied_when_it_is_whole_and_not_before():
    replica = fed(message("boot-1", "a")[:-1])
    assert (replica.messages, replica.last_id) == ({}, None)
    replica.feed(b"\n")
    assert (texts(replica), replica.last_id) == (["a"], "boot-1")


def test_a_lost_connection_forgets_the_frame_it_was_cut_in():
    replica = fed(message("boot-1", "a"), message("boot-2", "b")[:20])
    replica.cut()
    replica.feed(message("boot-2", "c"))
    assert texts(replica) == ["c"]


def test_a_message_that_is_deleted_is_gone():
    replica = fed(message("boot-1", "a"), message("boot-2", change="deleted"))
    assert replica.messages == {}


def test_a_run_that_goes_on_is_no_ending():
    replica = fed(*(run(f"boot-{n}", s) for n, s in enumerate(("accepted", "queued", "active"))))
    assert replica.endings == {}


@pytest.mark.parametrize("state", [state for state in RunState if state.terminal])
def test_every_ending_is_kept(state):
    assert fed(run("boot-1", state)).endings["r"]["state"] == state


def test_a_resync_says_what_messages_are_now_and_which_runs_ended_unseen():
    replica = fed(message("boot-1", "then"), message("boot-2", "b", name="n"))
    now = {"id": "m", "parts": [text_part("now")], "updated_at": 0}
    replica.feed(resync("boot-9", now, ended=["r"]))
    assert (texts(replica), texts(replica, "n")) == (["now"], ["b"])
    assert (list(replica.endings), replica.resyncs, replica.last_id) == (["r"], 1, "boot-9")


def test_a_resync_may_repeat_the_place_it_was_asked_from():
    replica = fed(message("boot-5", "a"), resync("boot-5"), message("boot-6", "b"))
    assert (texts(replica), replica.resyncs) == (["b"], 1)


def test_an_event_of_an_unknown_name_moves_the_place_and_nothing_else():
    replica = fed(message("boot-1", "a"), frame("boot-2", "weather", {"sun": True}))
    assert (texts(replica), replica.last_id) == (["a"], "boot-2")


def test_after_a_restart_the_ids_may_begin_anew():
    """A reader that comes back to another start of the program is given a resync of its own."""
    replica = fed(message("first-50", "a"), resync("second-3"), message("second-4", "b"))
    assert (texts(replica), replica.last_id) == (["b"], "second-4")


def test_changes_of_a_delta_are_applied_in_order():
    parts = [text_part("a"), text_part("b")]
    for change in (
        {"index": 1, "offset": 1, "append": "c"},
        {"index": 2, "part": text_part("new")},
        {"index": 0, "part": text_part("other")},
    ):
        apply_change(parts, change)
    assert [part["data"]["text"] for part in parts] == ["other", "bc", "new"]
    apply_change(parts, {"length": 1})
    assert [part["data"]["text"] for part in parts] == ["other"]


def test_reasoning_grows_too_and_may_be_closed_in_the_same_change():
    parts = [{"type": "reasoning", "data": {"thinking": "hm", "signature": ""}}]
    closed = {"type": "reasoning", "data": {"signature": "sig", "finished_at": 5}}
    apply_change(parts, {"index": 0, "offset": 2, "append": "m", "part": closed})
    assert parts[0]["data"] == {"thinking": "hmm", "signature": "sig", "finished_at": 5}


# ── Bad streams ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([message("b-1", "a"), message("b-1", "a")], "event b-1 came after b-1"),
        ([message("b-5", "a"), run("b-4", "active")], "event b-4 came after b-5"),
        ([message("b-10", "a"), run("b-9", "active")], "event b-9 came after b-10"),
        ([delta("b-1", {"index": 0, "offset": 0, "append": "x"})], "an unknown message: m"),
        (
            [message("b-1", "ab"), delta("b-2", {"index": 0, "offset": 1, "append": "x"})],
            "delta at 1, but the text has 2",
        ),
        (
            [message("b-1", "ab"), delta("b-2", {"index": 0, "offset": 3, "append": "x"})],
            "delta at 3, but the text has 2",
        ),
        (
            [message("b-1", "ü"), delta("b-2", {"index": 0, "offset": 1, "append": "x"})],
            "delta at 1, but the text has 2",
        ),
        (
            [message("b-1", "a"), delta("b-2", {"index": 2, "part": text_part("x")})],
            "part 2 of a message that has 1",
        ),
        ([message("b-5", "a"), resync("b-4")], "event b-4 came after b-5"),
        ([resync("b-5"), run("b-5", "active")], "event b-5 came after b-5"),
        ([run("b-1", "completed"), run("b-2", "completed")], "run r ended twice"),
        ([run("b-1", "completed"), resync("b-2", ended=["r"])], "run r ended twice"),
        ([run("b-1", "cancelled"), run("b-2", "errored")], "run r ended twice"),
    ],
    ids=[
        "same id",
        "id going back",
        "id going back across a digit",
        "unknown message",
        "offset too low",
        "offset too high",
        "offset in characters",
        "part beyond the end",
        "resync going back",
        "event at the place of a resync",
        "ended twice",
        "ended twice, once unseen",
        "ended twice, differently",
    ],
)
def test_what_does_not_fit_is_refused(frames, why):
    *good, bad = frames
    replica = fed(*good)
    with pytest.raises(ReplicaMismatch, match=why):
        replica.feed(bad)


@pytest.mark.parametrize(
    "change",
    [{"index": 1, "offset": 0, "append": "x"}, {"length": 2}],
    ids=["text of a part that is not there", "shortening to more than there is"],
)
def test_a_change_that_needs_more_parts_than_there_are_is_refused(change):
    replica = fed(message("b-1", "a"))
    with pytest.raises(ReplicaMismatch):
        replica.feed(delta("b-2", change))
