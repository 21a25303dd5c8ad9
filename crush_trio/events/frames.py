"""The two forms of an event stream, their frames, and packed events.

`crush` is the wire of the Go program: bare `data:` lines, a whole message per update, and of runs
only the completion. `native` adds an id and a name to each event, shows every state of a run, and
sends only what was appended to a growing message. Both come from the same log. The functions return
a frame as unjoined sources of `events.pieces`.

An event as a value is a few dozen objects, and most events of a log are never read again. So old
events are packed: the log keeps only the bytes from which both forms, and the value itself, can be
made again.
"""

from enum import Enum
from typing import Any, Final

import orjson
from attrs import evolve, frozen

from crush_trio.events.facts import Fact, MessageChange
from crush_trio.events.growing_message import GrowingMessage
from crush_trio.events.pieces import (
    JOINED,
    PIECE,
    Chunk,
    Content,
    Escaped,
    Pieces,
    TextSlice,
    assemble,
    joined,
)
from crush_trio.wire.codec import decode, encode, encode_change, structure
from crush_trio.wire.events import ENTITIES, EventType, PayloadType, RunComplete
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import RunState, RunView

_PLACEHOLDER: Final = "\0"
_ESCAPED_PLACEHOLDER: Final = b"\\u0000"
"""Stands for a long text while the JSON around it is encoded.

It is unambiguous: no id has a NUL.
"""


_BUSY: Final = b'"is_busy":true,"attached_clients":0}}'
_IDLE: Final = b'"is_busy":false,"attached_clients":0}}'
"""The last members of a session are these, and events do not count its clients."""


class Form(Enum):
    """The form in which a reader gets its events."""

    CRUSH = "crush"
    NATIVE = "native"


def message_change(change: EventType, *message: Chunk) -> list[Chunk]:
    """Return what `encode_change` would, for a message that is JSON already."""
    return [b'{"type":"%b","payload":' % change.encode(), *message, b"}"]


def crush_frame(payload_type: PayloadType, *change: Chunk) -> list[Chunk]:
    """Wrap an encoded change as a frame of the crush form."""
    return [b'data: {"type":"%b","payload":' % payload_type.encode(), *change, b"}\n\n"]


def idle(session: bytes) -> tuple[Chunk, ...]:
    """Return the encoded change of a session as the crush form has it: never busy (E17)."""
    if session.endswith(_BUSY):
        return session[: -len(_BUSY)], _IDLE
    return (session,)


def native_data(frame: bytes) -> bytes:
    """Return the encoded data of a native frame."""
    return frame[frame.index(b"\ndata: ") + 7 : -2]


def native_frame(place: str, name: str, *data: Chunk) -> list[Chunk]:
    """Wrap encoded data as a native frame, with its place in the log and its event name."""
    return [b"id: %b\nevent: %b\ndata: " % (place.encode(), name.encode()), *data, b"\n\n"]


def run_complete(run: RunView) -> RunComplete | None:
    """Return the completion of *run* in crush form; None if it has none.

    A folded run has no completion: the run that absorbed it has one (C4).
    """
    if not run.state.terminal or run.state is RunState.FOLDED:
        return None
    return RunComplete(
        session_id=run.session_id,
        run_id=run.run_id,
        message_id=run.message_id,
        text=run.text,
        error=run.error,
        cancelled=run.state is RunState.CANCELLED,
    )


def completion_frame(run: RunView) -> list[Chunk]:
    """Return the crush frame of a run change; empty unless the run has a completion."""
    complete = run_complete(run)
    if complete is None:
        return []
    if len(run.text) <= PIECE:
        changed = encode_change(EventType.UPDATED, complete)
        return crush_frame(PayloadType.RUN_COMPLETE, changed)
    around = encode_change(EventType.UPDATED, evolve(complete, text=_PLACEHOLDER))
    before, after = around.split(_ESCAPED_PLACEHOLDER, 1)
    return crush_frame(PayloadType.RUN_COMPLETE, before, Escaped(run.text), after)


def encode_run(run: RunView) -> bytes:
    """Return the JSON of a run in native form.

    Without the answer: readers have it from the message's deltas, and it may be long.
    """
    return encode(evolve(run, text="") if run.text else run)


# ── Packed events ───────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class PackedFact:
    """A `Fact` as it was encoded."""

    payload_type: PayloadType
    encoded: bytes

    @property
    def size(self) -> int:
        """The number of bytes it keeps."""
        return len(self.encoded)

    def unpack(self) -> Fact:
        """Return a fact that equals the one that was packed."""
        tree: dict[str, Any] = orjson.loads(self.encoded)
        return Fact(
            payload_type=self.payload_type,
            change=EventType(tree["type"]),
            entity=structure(tree["payload"], ENTITIES[self.payload_type]),
        )


@frozen(eq=False)
class PackedMessage:
    """A `MessageChange` as the JSON of the message, of its delta, or of both.

    `delta` is empty where the native form sends the whole message. `whole` is empty where a later
    change supersedes this one: then no reader needs it.
    """

    change: EventType
    plain: bool
    whole: Content
    delta: Content
    session_id: SessionId

    @property
    def size(self) -> int:
        """The number of bytes it keeps."""
        return len(self.whole) + len(self.delta)

    def unpack(self) -> MessageChange:
        """Return a change that shows the same message as the one that was packed."""
        view = GrowingMessage(decode(joined(self.whole), Message)).view()
        return MessageChange(change=self.change, view=view, plain=self.plain)


def compacted(sources: list[Chunk]) -> Content:
    """Return *sources* with growing text copied; files are not copied.

    A slice keeps its `GrowingText` alive, which stores every appended piece as a string of its own
    and takes many times the length of the text.
    """
    content = assemble(sources, JOINED)
    if isinstance(content, bytes):
        return content
    settled = (joined(s) if isinstance(s, TextSlice) else s for s in content.sources)
    return Pieces(tuple(settled), len(content))


Packed = PackedFact | PackedMessage
"""A packed event. A run change is not packed: its value is as small as its bytes."""
