"""Native streams for the tests of the client: what the server's own log makes of random turns."""

import orjson
from attrs import define, field
from hypothesis import strategies as st

from crush_trio.client.attachment import FRAME_MOST
from crush_trio.events import EventLog, Form, GrowingMessage, MessageChange, Position, RunChange
from crush_trio.net.sse import SseDecoder
from crush_trio.wire.events import EventType
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

SESSION = SessionId("s")
HEARTBEAT = 15.0


def frame(name, data, place=None):
    """Return the bytes of a frame."""
    encoded = data if isinstance(data, bytes) else orjson.dumps(data)
    told = b"" if place is None else b"id: %b\n" % place.encode()
    return b"%bevent: %b\ndata: %b\n\n" % (told, name.encode(), encoded)


READY = frame("ready", {"position": None, "heartbeat": HEARTBEAT})


def apply(picture, data):
    """Apply all frames of *data*, as one connection does."""
    for each in SseDecoder(FRAME_MOST).feed(data):
        picture.apply(each)


def asks(permissions=(), questions=()):
    return frame("asks", {"permissions": list(permissions), "questions": list(questions)})


def resync(place="boot-0", *, runs=(), messages=(), ended=()):
    state = {"position": place, "ended": ended, "runs": runs, "messages": messages}
    return frame(
        "resync", {name: list(v) if name != "position" else v for name, v in state.items()}, place
    )


def run(state, name="r", *, run_id=None, place=None):
    told = {"id": name, "session_id": SESSION, "state": state, "kind": "prompt"}
    return frame("run", told if run_id is None else {**told, "run_id": run_id}, place)


def run_view(state, name="r", **more):
    return RunView(id=RunId(name), session_id=SESSION, state=RunState(state), **more)


@define(eq=False)
class Author:
    """Writes an answer into a log, one step at a time; each step is a public method of a message."""

    log: EventLog
    name: str = "m"
    growing: GrowingMessage = field(init=False)
    calls: int = field(default=0, init=False)

    def __attrs_post_init__(self):
        head = Message(id=MessageId(self.name), role=Role.ASSISTANT, session_id=SESSION)
        self.growing = GrowingMessage(head)
        self.publish(EventType.CREATED)

    def publish(self, change=EventType.UPDATED, *, plain=False):
        self.log.publish(MessageChange(change=change, view=self.growing.view(), plain=plain))

    def say(self, text):
        self.growing.append_text(text)
        self.publish(plain=True)

    def think(self, text):
        self.growing.append_reasoning(text, started_at=1)
        self.publish(plain=True)

    def close_thought(self):
        self.growing.close_reasoning(finished_at=2, signature="sig")
        self.publish()

    def call(self, *, finished):
        if not finished or not self.calls:
            self.calls += 1
        self.growing.put(
            ToolCallPart(
                id=ToolCallId(f"c{self.calls}"),
                name="bash",
                input='{"command":"ls"}' if finished else "",
                finished=finished,
            )
        )
        self.publish()

    def restart(self):
        self.growing.reset()
        self.publish()

    def finish(self):
        self.growing.put(FinishPart(reason=FinishReason.END_TURN, time=3))
        self.publish()


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)

STEPS = st.one_of(
    st.tuples(st.just("say"), TEXT),
    st.tuples(st.just("say"), TEXT),
    st.tuples(st.just("think"), TEXT),
    st.tuples(st.just("close_thought")),
    st.tuples(st.just("begin_call")),
    st.tuples(st.just("finish_call")),
    st.tuples(st.just("restart")),
)


def play(author, step):
    match step:
        case ("begin_call",):
            author.call(finished=False)
        case ("finish_call",):
            author.call(finished=True)
        case (name, *arguments):
            getattr(author, name)(*arguments)


def written(steps, *, finish=True):
    """Return a log in which one message was written by *steps*, and its author."""
    log = EventLog("boot")
    log.publish(RunChange(run=run_view("active")))
    author = Author(log)
    for step in steps:
        play(author, step)
    if finish:
        author.finish()
        log.publish(RunChange(run=run_view("completed")))
    return log, author


def stream_of(log, after=0):
    """Return the native stream of a log from a place on."""
    cursor = log.cursor(Form.NATIVE, after=Position(boot="boot", seq=after))
    return cursor.take().encode(Form.NATIVE)


def tool_result(call="c1", content="out"):
    return ToolResultPart(tool_call_id=ToolCallId(call), name="bash", content=content)
