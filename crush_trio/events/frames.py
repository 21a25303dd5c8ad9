"""The two forms a stream can have, and the frames that each of them is made of.

`crush` is the wire of the Go program: bare `data:` lines, a whole message per update, no word about
runs but their completion. `native` adds an id and a name to each event, shows every state of a run,
and sends of a growing message only what was appended. Both come from the same log.

Functions here return the bytes of a frame as sources of `events.pieces`, not put together.

Events that are kept for readers who come late: as bytes, and nothing beside them.

An event as a value is a few dozen objects, and most of what a log remembers is never looked at
again. So after a while the log keeps of an event only what both forms and the value itself can be
made from again.
"""

from enum import Enum
from typing import Any, Final

import orjson
from attrs import evolve, frozen

from crush_trio.events.facts import Fact, MessageChange
from crush_trio.events.growing_message import GrowingMessage
from crush_trio.events.growing_text import Stretch
from crush_trio.events.pieces import (
    JOINED,
    PIECE,
    Chunk,
    Content,
    Escaped,
    Pieces,
    assemble,
    joined,
)
from crush_trio.wire.codec import decode, encode, encode_change, structure
from crush_trio.wire.events import ENTITIES, EventType, PayloadType, RunComplete
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import RunState, RunView


@frozen(eq=False)
class PackedFact:
    """A `Fact` as it was encoded."""

    payload_type: PayloadType
    encoded: bytes

    @property
    def size(self) -> int:
        """How many bytes it keeps."""
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
    """A `MessageChange` as the JSON of the message, of what changed in it, or of both.

    `delta` is empty where the native form sends the whole message. `whole` is empty where a later
    change says all that this one says: then nobody will ask for it.
    """

    change: EventType
    plain: bool
    whole: Content
    delta: Content = b""

    @property
    def size(self) -> int:
        """How many bytes it keeps."""
        return len(self.whole) + len(self.delta)

    def unpack(self) -> MessageChange:
        """Return a change that shows the same message as the one that was packed."""
        view = GrowingMessage(decode(joined(self.whole), Message)).view()
        return MessageChange(change=self.change, view=view, plain=self.plain)


def compacted(sources: list[Chunk]) -> Content:
    """Return *sources* without growing text: that is copied, files are not.

    A growing text is kept with each word as it came, which is many times its length.
    """
    content = assemble(sources, JOINED)
    if isinstance(content, bytes):
        return content
    settled = (joined(s) if isinstance(s, Stretch) else s for s in content.sources)
    return Pieces(tuple(settled), len(content))


Packed = PackedFact | PackedMessage
"""What becomes of an event. A run's change is not packed: its value is as small as its bytes."""


_MARK: Final = "\0"
_ESCAPED_MARK: Final = b"\\u0000"
"""A text that is put in the place of a long one, and how it is found there: no id has a NUL."""


class Form(Enum):
    """How a reader wants its events."""

    CRUSH = "crush"
    NATIVE = "native"


def message_change(change: EventType, *message: Chunk) -> list[Chunk]:
    """Return a message change as `encode_change` would, around JSON that exists already."""
    return [b'{"type":"%b","payload":' % change.encode(), *message, b"}"]


def crush_frame(payload_type: PayloadType, *change: Chunk) -> list[Chunk]:
    """Wrap an encoded change as the Go program's clients expect it."""
    return [b'data: {"type":"%b","payload":' % payload_type.encode(), *change, b"}\n\n"]


def data_of(frame: bytes) -> bytes:
    """Return the encoded data that a native frame was made of."""
    return frame[frame.index(b"\ndata: ") + 7 : -2]


def native_frame(place: str, name: str, *data: Chunk) -> list[Chunk]:
    """Wrap encoded data with its place in the log and its name."""
    return [b"id: %b\nevent: %b\ndata: " % (place.encode(), name.encode()), *data, b"\n\n"]


def run_complete(run: RunView) -> RunComplete | None:
    """Return the completion that *run* is known by in crush form, if it has one.

    A folded run has no completion of its own: the run that absorbed it has (C4).
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


def completion(run: RunView) -> list[Chunk]:
    """Return the crush frame of a run's change: that of its completion, if it has one."""
    complete = run_complete(run)
    if complete is None:
        return []
    if len(run.text) <= PIECE:
        changed = encode_change(EventType.UPDATED, complete)
        return crush_frame(PayloadType.RUN_COMPLETE, changed)
    around = encode_change(EventType.UPDATED, evolve(complete, text=_MARK))
    before, after = around.split(_ESCAPED_MARK, 1)
    return crush_frame(PayloadType.RUN_COMPLETE, before, Escaped(run.text), after)


def encode_run(run: RunView) -> bytes:
    """Return a run as the native form shows it.

    The answer itself has been sent as deltas; sending it again would double it.
    """
    return encode(evolve(run, text="") if run.text else run)
