"""Events that are kept for readers who come late: as bytes, and nothing beside them.

An event as a value is a few dozen objects, and most of what a log remembers is never looked at
again. So after a while the log keeps of an event only what both forms and the value itself can be
made from again.
"""

from typing import Any

import orjson
from attrs import frozen

from crush_trio.events.facts import Fact, MessageChange
from crush_trio.events.growing import GrowingMessage
from crush_trio.events.pieces import JOINED, Chunk, Content, Pieces, assemble, joined
from crush_trio.events.text import Stretch
from crush_trio.wire.codec import decode, structure
from crush_trio.wire.events import ENTITIES, EventType, PayloadType
from crush_trio.wire.messages import Message


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
