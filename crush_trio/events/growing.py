"""A message while it is being written.

A model's answer arrives in small pieces, and after each of them someone wants to see the message.
Copying it every time would make an answer of n pieces cost n² bytes. So text here is only ever
appended to: a `MessageView` remembers *how far* each text had grown, not the text itself. Taking a
view, and encoding what changed between two views, costs as much as what was appended; only a
reader who wants the whole message pays for the whole message, once, shared with all other readers.

Views are immutable. A view taken earlier keeps showing what the message was then, whatever is
appended later, because nothing in the part it covers can change any more.
"""

from typing import Final

from attrs import define, evolve, field, frozen

from crush_trio.wire.codec import clean_text, encode, encode_part, escape, message_frame
from crush_trio.wire.messages import (
    FinishPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)

_EMPTY_STRING: Final = b'""'


@define(eq=False)
class GrowingText:
    """Text that is only appended to, kept escaped as JSON beside the plain pieces."""

    _pieces: list[str] = field(factory=list, init=False)
    _json: bytearray = field(factory=bytearray, init=False)
    _size: int = field(default=0, init=False)

    def append(self, text: str) -> None:
        """Add *text* at the end; costs as much as *text* is long."""
        text = clean_text(text)
        self._pieces.append(text)
        self._json += escape(text)
        self._size += len(text) if text.isascii() else len(text.encode())

    def cut(self) -> "TextCut":
        """Remember the text as it is now, without copying it."""
        return TextCut(self, len(self._pieces), len(self._json), self._size)

    def text(self, start: int, stop: int) -> str:
        """Return the text of some of the appends, counted from the first."""
        return "".join(self._pieces[start:stop])

    def json(self, start: int, stop: int) -> bytes:
        """Return a stretch of the escaped text; cuts know which stretches are whole."""
        with memoryview(self._json) as view:
            return bytes(view[start:stop])


@frozen(eq=False)
class TextCut:
    """How far a text had grown at one moment. `size` is its length in UTF-8 bytes."""

    source: GrowingText
    pieces: int
    escaped: int
    size: int

    def text(self, since: "TextCut | None" = None) -> str:
        """Return the text from an earlier cut, or from the beginning, up to this one."""
        return self.source.text(0 if since is None else since.pieces, self.pieces)

    def json(self, since: int = 0) -> bytes:
        """Return the escaped text from an earlier cut's `escaped` up to this one."""
        return self.source.json(since, self.escaped)


@frozen(eq=False)
class FixedPart:
    """A part that is replaced rather than extended, with its bytes."""

    part: Part
    encoded: bytes

    @property
    def size(self) -> int:
        """How many bytes the part's JSON takes."""
        return len(self.encoded)

    def value(self) -> Part:
        """Return the part."""
        return self.part

    def json(self) -> bytes:
        """Return the part's JSON, encoded when it was put in place."""
        return self.encoded


@frozen(eq=False)
class GrownPart:
    """A text or reasoning part as far as it had grown at one moment.

    `blank` is the same part with empty text, and `frame` the two halves of its JSON around it.
    """

    blank: TextPart | ReasoningPart
    frame: tuple[bytes, bytes]
    cut: TextCut

    @property
    def size(self) -> int:
        """How many bytes the escaped text takes."""
        return self.cut.escaped

    def value(self) -> Part:
        """Return the part with its text so far."""
        if isinstance(self.blank, TextPart):
            return TextPart(text=self.cut.text())
        return evolve(self.blank, thinking=self.cut.text())

    def json(self) -> bytes:
        """Return the part's JSON: two constant halves around the shared escaped text."""
        before, after = self.frame
        return b'%b"%b"%b' % (before, self.cut.json(), after)

    def since(self, earlier: "GrownPart") -> bytes:
        """Return the members of a delta that leads from *earlier* to this view."""
        delta = b'"offset":%d,"append":"%b"' % (
            earlier.cut.size,
            self.cut.json(earlier.cut.escaped),
        )
        if self.blank is earlier.blank:
            return delta
        return b'%b,"part":%b' % (delta, encode_part(self.blank))


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
        """About how many bytes the parts take, without putting them together."""
        return sum(view.size for view in self.parts)

    def message(self) -> Message:
        """Return the whole message as a value; costs as much as the message is long."""
        return evolve(self.head, parts=tuple(view.value() for view in self.parts))

    def json(self) -> bytes:
        """Return the whole message's JSON; finished parts are not encoded again."""
        return message_frame(self.head, [view.json() for view in self.parts])

    def since(self, earlier: "MessageView") -> bytes:
        """Return the JSON of the changes that lead from *earlier* to this view."""
        changes = [
            change
            for index, view in enumerate(self.parts)
            if (change := _part_change(index, view, earlier)) is not None
        ]
        if len(self.parts) < len(earlier.parts):
            changes.append(b'{"length":%d}' % len(self.parts))
        return b'{"id":%b,"session_id":%b,"updated_at":%d,"changes":[%b]}' % (
            encode(self.head.id),
            encode(self.head.session_id),
            self.head.updated_at,
            b",".join(changes),
        )


def _part_change(index: int, view: PartView, earlier: MessageView) -> bytes | None:
    """Return what turns the part at *index* of *earlier* into *view*, or None if nothing does."""
    before = earlier.parts[index] if index < len(earlier.parts) else None
    if view is before:
        return None
    if (
        isinstance(view, GrownPart)
        and isinstance(before, GrownPart)
        and view.cut.source is before.cut.source
    ):
        return b'{"index":%d,%b}' % (index, view.since(before))
    return b'{"index":%d,"part":%b}' % (index, view.json())


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
        """Change what stands around the text, such as a signature."""
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

    Keeps the rules of a stored message: at most one text and one reasoning part, deltas go to the
    first of their kind (D3), at most one finish part and always last (D2).
    """

    head: Message
    _parts: list[FixedPart | _Growth] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        for part in self.head.parts:
            self.put(part)
        self.head = evolve(self.head, parts=())

    def append_text(self, delta: str) -> None:
        """Append to the answer; a message never starts with the newline some models begin with."""
        if not self._parts:
            delta = delta.removeprefix("\n")
        if delta:
            self._growth(TextPart).text.append(delta)

    def append_reasoning(self, delta: str, *, started_at: int = 0) -> None:
        """Append to the model's reasoning, which begins at *started_at* if it had not begun."""
        growth = self._growth(ReasoningPart, started_at=started_at)
        growth.text.append(delta)

    def close_reasoning(self, *, finished_at: int, signature: str | None = None) -> bool:
        """End the reasoning; return whether that changed anything.

        A model that thinks more than once signs more than once; the last signature covers it all.
        """
        for growth in self._parts:
            if isinstance(growth, _Growth) and isinstance(growth.blank, ReasoningPart):
                blank = growth.blank
                if blank.finished_at and signature in {None, blank.signature}:
                    return False
                growth.revise(
                    evolve(
                        blank,
                        finished_at=finished_at,
                        signature=blank.signature if signature is None else signature,
                    )
                )
                return True
        return False

    def put(self, part: Part) -> None:
        """Add *part*; a tool call with a known id replaces itself, a finish ends up last."""
        if isinstance(part, TextPart):
            self._growth(TextPart).text.append(part.text)
            return
        if isinstance(part, ReasoningPart):
            self._put_reasoning(part)
            return
        fixed = FixedPart(part, encode_part(part))
        if isinstance(part, FinishPart):
            self._parts = [kept for kept in self._parts if not _is(kept, FinishPart)]
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
        """Forget what the model streamed, before it is asked again (D14a); other parts stay."""
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
        """Return the message as it is now; costs one step per part, however long the text."""
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
        ended = bool(self._parts) and _is(self._parts[-1], FinishPart)
        self._parts.insert(len(self._parts) - ended, slot)

    def _put_reasoning(self, part: ReasoningPart) -> None:
        growth = self._growth(ReasoningPart)
        if part.thinking:
            growth.text.append(part.thinking)
        growth.revise(evolve(part, thinking=""))


def _is(kept: FixedPart | _Growth, kind: type[Part]) -> bool:
    """Whether a slot holds a fixed part of *kind*."""
    return isinstance(kept, FixedPart) and isinstance(kept.part, kind)
