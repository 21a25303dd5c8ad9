"""`GrowingMessage`: a message while it is being written; `MessageView`: the message at one moment.

A model's answer arrives in small pieces, and readers want the message after each of them. Copying
it every time would make an answer of n pieces cost n² bytes. So text is only appended to, and a
`MessageView` stores the length of each text, not the text itself. Taking a view, and encoding the
difference of two views, costs as much as what was appended. Only a reader that wants the whole
message pays for the whole message; the result is shared with all other readers.

Views are immutable. An earlier view keeps showing the message as it was then, whatever is appended
later, because the part that it covers does not change any more.
"""

from typing import Final

from attrs import define, evolve, field, frozen

from crush_trio.events.pieces import (
    GRAIN,
    Base64,
    Chunk,
    Content,
    GrowingText,
    Pieces,
    TextCut,
    assemble,
    joined,
)
from crush_trio.wire.codec import encode, encode_part, message_members
from crush_trio.wire.messages import (
    BinaryPart,
    FinishPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)

_EMPTY_STRING: Final = b'""'


@frozen(eq=False)
class FixedPart:
    """A part that is replaced rather than extended, with its JSON.

    The JSON of a large file is made while it is sent: it is a third longer than the file, and most
    files are sent to few readers.
    """

    part: Part
    encoded: Content

    @property
    def size(self) -> int:
        """The number of bytes of the part's JSON."""
        return len(self.encoded)

    def value(self) -> Part:
        """Return the part."""
        return self.part

    def sources(self) -> tuple[Chunk, ...]:
        """Return the part's JSON, encoded when it was put in place."""
        return (self.encoded,)


@frozen(eq=False)
class GrownPart:
    """A text or reasoning part at one moment.

    `blank` is the same part with empty text, and `frame` the two halves of its JSON around the
    text.
    """

    blank: TextPart | ReasoningPart
    frame: tuple[bytes, bytes]
    cut: TextCut

    @property
    def size(self) -> int:
        """The number of bytes of the escaped text."""
        return self.cut.escaped

    def value(self) -> Part:
        """Return the part with its text so far."""
        if isinstance(self.blank, TextPart):
            return TextPart(text=self.cut.text())
        return evolve(self.blank, thinking=self.cut.text())

    def sources(self) -> tuple[Chunk, ...]:
        """Return the part's JSON: two constant halves around the shared escaped text."""
        before, after = self.frame
        return before, b'"', self.cut.json(), b'"', after

    def since(self, earlier: "GrownPart") -> tuple[Chunk, ...]:
        """Return the members of a delta that leads from *earlier* to this view."""
        begin = b'"offset":%d,"append":"' % earlier.cut.size
        end = b'"' if self.blank is earlier.blank else b'","part":%b' % encode_part(self.blank)
        return begin, self.cut.json(earlier.cut.escaped), end


PartView = FixedPart | GrownPart


@frozen(eq=False)
class MessageView:
    """A message at one moment; `head` is the message without its parts."""

    head: Message
    parts: tuple[PartView, ...]

    @property
    def finished(self) -> bool:
        """Whether the message has its finish part, after which it does not change."""
        return any(
            isinstance(view, FixedPart) and isinstance(view.part, FinishPart) for view in self.parts
        )

    @property
    def size(self) -> int:
        """About how many bytes the parts take; nothing is joined for it."""
        return sum(view.size for view in self.parts)

    def message(self) -> Message:
        """Return the whole message as a value; the cost is proportional to its length."""
        return evolve(self.head, parts=tuple(view.value() for view in self.parts))

    def json(self) -> bytes:
        """Return the whole message's JSON; finished parts are not encoded again."""
        return joined(assemble(self.sources()))

    def sources(self) -> list[Chunk]:
        """Return the whole message's JSON as unjoined sources."""
        listed: list[Chunk] = [b'{"parts":[']
        for index, view in enumerate(self.parts):
            if index:
                listed.append(b",")
            listed += view.sources()
        listed.append(b"],%b" % message_members(self.head))
        return listed

    def since(self, earlier: "MessageView") -> bytes:
        """Return the JSON of the changes that lead from *earlier* to this view."""
        return joined(assemble(self.sources_since(earlier)))

    def sources_since(self, earlier: "MessageView") -> list[Chunk]:
        """Return the JSON of the changes since *earlier* as unjoined sources."""
        head, separator = self.head, b""
        listed: list[Chunk] = [
            b'{"id":%b,"session_id":%b,"updated_at":%d,"changes":['
            % (encode(head.id), encode(head.session_id), head.updated_at)
        ]
        for index, view in enumerate(self.parts):
            before = earlier.parts[index] if index < len(earlier.parts) else None
            if view is not before:
                listed.append(b'%b{"index":%d,' % (separator, index))
                listed += _part_change(view, before)
                separator = b"},"
        if len(self.parts) < len(earlier.parts):
            listed.append(b'%b{"length":%d' % (separator, len(self.parts)))
            separator = b"},"
        listed.append(b"}]}" if separator else b"]}")
        return listed


def _part_change(view: PartView, before: PartView | None) -> tuple[Chunk, ...]:
    """Return the members of the change that turns the part *before* into *view*."""
    if (
        isinstance(view, GrownPart)
        and isinstance(before, GrownPart)
        and view.cut.source is before.cut.source
    ):
        return view.since(before)
    return (b'"part":', *view.sources())


def _encoded(part: Part) -> Content:
    """Return the JSON of a part that does not grow."""
    if not isinstance(part, BinaryPart) or len(part.data) <= GRAIN:
        return encode_part(part)
    before, _, after = encode_part(evolve(part, data=b"")).rpartition(_EMPTY_STRING)
    data = Base64(part.data)
    return Pieces((b'%b"' % before, data, b'"%b' % after), len(before) + len(data) + len(after) + 2)


@define(eq=False)
class _Growth:
    """The place of a growing part in its message, and the last view taken of it."""

    blank: TextPart | ReasoningPart
    text: GrowingText = field(factory=GrowingText, init=False)
    frame: tuple[bytes, bytes] = field(init=False)
    seen: GrownPart | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.revise(self.blank)

    def revise(self, blank: TextPart | ReasoningPart) -> None:
        """Replace the members around the text, such as the signature."""
        self.blank = blank
        before, _, after = encode_part(blank).partition(_EMPTY_STRING)
        self.frame = (before, after)

    def view(self) -> GrownPart:
        """Return the part as it is now; the same object as before if nothing changed."""
        cut = self.text.cut()
        if (
            self.seen is None
            or self.seen.blank is not self.blank
            or self.seen.cut.pieces != cut.pieces
        ):
            self.seen = GrownPart(self.blank, self.frame, cut)
        return self.seen


@define(eq=False)
class GrowingMessage:
    """A message being written: append to it, put parts into it, take views of it.

    Enforces the rules of a stored message: at most one text and one reasoning part, to which deltas
    are appended (D3), and at most one finish part, which is always last (D2).
    """

    head: Message
    _parts: list[FixedPart | _Growth] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        for part in self.head.parts:
            self.put(part)
        self.head = evolve(self.head, parts=())

    def append_text(self, delta: str) -> None:
        """Append to the answer; drop the newline with which some models begin a message."""
        if not self._parts:
            delta = delta.removeprefix("\n")
        if delta:
            self._growth(TextPart).text.append(delta)

    def append_reasoning(self, delta: str, *, started_at: int = 0) -> None:
        """Append to the model's reasoning; *started_at* counts if this is its beginning."""
        growth = self._growth(ReasoningPart, started_at=started_at)
        growth.text.append(delta)

    def close_reasoning(
        self, *, finished_at: int, signature: str | None = None, replay: str = ""
    ) -> bool:
        """End the reasoning; return whether that changed anything.

        A model that reasons more than once signs more than once; the last signature covers all of
        it.
        """
        for growth in self._parts:
            if isinstance(growth, _Growth) and isinstance(growth.blank, ReasoningPart):
                blank = growth.blank
                if signature is None:
                    signature, replay = blank.signature, blank.replay
                if blank.finished_at and (signature, replay) == (blank.signature, blank.replay):
                    return False
                growth.revise(
                    evolve(blank, finished_at=finished_at, signature=signature, replay=replay)
                )
                return True
        return False

    def put(self, part: Part) -> None:
        """Add *part*. A tool call with a known id replaces the old one; a finish part goes last."""
        if isinstance(part, TextPart):
            self._growth(TextPart).text.append(part.text)
            return
        if isinstance(part, ReasoningPart):
            self._put_reasoning(part)
            return
        fixed = FixedPart(part, _encoded(part))
        if isinstance(part, FinishPart):
            self._parts = [kept for kept in self._parts if not _is_part(kept, FinishPart)]
        elif isinstance(part, ToolCallPart):
            for index, old in enumerate(self._parts):
                if (
                    isinstance(old, FixedPart)
                    and isinstance(old.part, ToolCallPart)
                    and old.part.id == part.id
                ):
                    self._parts[index] = fixed
                    return
        self._add(fixed)

    def reset(self) -> None:
        """Drop what the model streamed, before it is asked again (D14a); other parts stay."""
        self._parts = [
            kept
            for kept in self._parts
            if isinstance(kept, FixedPart) and not isinstance(kept.part, ToolCallPart | FinishPart)
        ]

    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """Return the tool calls so far, in order."""
        return tuple(
            kept.part
            for kept in self._parts
            if isinstance(kept, FixedPart) and isinstance(kept.part, ToolCallPart)
        )

    def view(self, updated_at: int | None = None) -> MessageView:
        """Return the message as it is now; the cost depends on the number of parts, not on text."""
        if updated_at is not None and updated_at != self.head.updated_at:
            self.head = evolve(self.head, updated_at=updated_at)
        parts = tuple(p.view() if isinstance(p, _Growth) else p for p in self._parts)
        return MessageView(self.head, parts)

    def _growth(self, kind: type[TextPart | ReasoningPart], *, started_at: int = 0) -> _Growth:
        for growth in self._parts:
            if isinstance(growth, _Growth) and isinstance(growth.blank, kind):
                return growth
        blank = (
            TextPart(text="")
            if kind is TextPart
            else ReasoningPart(thinking="", started_at=started_at)
        )
        growth = _Growth(blank)
        self._add(growth)
        return growth

    def _add(self, slot: FixedPart | _Growth) -> None:
        """Add *slot* at the end, but before a finish part."""
        ended = bool(self._parts) and _is_part(self._parts[-1], FinishPart)
        self._parts.insert(len(self._parts) - ended, slot)

    def _put_reasoning(self, part: ReasoningPart) -> None:
        growth = self._growth(ReasoningPart)
        if part.thinking:
            growth.text.append(part.thinking)
        growth.revise(evolve(part, thinking=""))


def _is_part(kept: FixedPart | _Growth, kind: type[Part]) -> bool:
    """Whether a slot holds a fixed part of *kind*."""
    return isinstance(kept, FixedPart) and isinstance(kept.part, kind)
