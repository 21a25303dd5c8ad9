"""Growing messages: built from deltas without copying, and the new pieces between two states.

Text is only ever appended to. A `MessageView` remembers how far each text had grown when the view was taken,
so taking one after every delta costs as much as the delta. Building the whole message costs its length,
once. A view keeps showing the message as it was.

The rules of a delta are those of docs/events.md. What does not fit raises `StreamBroken`: a client that has
missed something must not guess.

`pieces_between` compares two views of a message and returns what happened between them, as a program that
prints an answer needs it. Because it compares states and does not repeat deltas, nothing is reported twice
or skipped, whether the states came from deltas, from a reconnect, or from reading the message again.
"""

from collections.abc import Mapping
from itertools import zip_longest
from typing import TypeAlias

from attrs import define, evolve, field, frozen

from crush_trio.client.http import StreamBroken
from crush_trio.errors import DecodeError
from crush_trio.wire.codec import structure
from crush_trio.wire.fields import Json
from crush_trio.wire.ids import MessageId
from crush_trio.wire.messages import (
    FinishPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

Growable = TextPart | ReasoningPart
"""The parts that grow; all others are replaced."""


@define(eq=False)
class Growth:
    """The text of one part. `size` is its length in UTF-8 bytes."""

    pieces: list[str] = field(factory=list)
    size: int = 0

    def append(self, text: str) -> None:
        """Add *text* at the end."""
        if text:
            self.pieces.append(text)
            self.size += len(text) if text.isascii() else len(text.encode())


@frozen(eq=False)
class PartView:
    """A part at one moment. If it grows, its text is in `growth` and not in `part`."""

    part: Part
    growth: Growth | None = None
    count: int = 0
    """How many pieces of the growth were there."""

    def text(self, since: int = 0) -> str:
        """Return the text, without its first *since* pieces; a part that does not grow has none."""
        return "" if self.growth is None else "".join(self.growth.pieces[since : self.count])

    def value(self) -> Part:
        """Return the part, with its text."""
        return self.part if self.growth is None else _with_text(self.part, self.text())


@frozen(eq=False)
class MessageView:
    """A message at one moment; `head` is the message without its parts.

    Views of the same `source` show one message as one stream reported it, in that order.
    """

    head: Message
    parts: tuple[PartView, ...]
    source: "GrowingMessage" = field(repr=False)

    @property
    def id(self) -> MessageId:
        """The message's id."""
        return self.head.id

    @property
    def finished(self) -> bool:
        """Whether the message has its finish part."""
        return any(isinstance(view.part, FinishPart) for view in self.parts)

    def message(self) -> Message:
        """Return the whole message; costs as much as it is long."""
        return evolve(self.head, parts=tuple(view.value() for view in self.parts))


@define(eq=False)
class GrowingMessage:
    """A message that deltas are applied to."""

    _head: Message
    _slots: list[PartView] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._slots = [_slot(part) for part in self._head.parts]
        self._head = evolve(self._head, parts=())

    def view(self) -> MessageView:
        """Return the message as it is now; costs one step per part."""
        return MessageView(self._head, tuple(self._slots), self)

    def apply(self, delta: Mapping[str, Json]) -> MessageView:
        """Apply the data of a `message_delta`; return the message as it is then.

        After `StreamBroken` a part of it may have been applied: the message must not be used again.
        """
        try:
            if delta["updated_at"] != self._head.updated_at:
                self._head = evolve(self._head, updated_at=int(delta["updated_at"]))
            for change in delta["changes"]:
                self._change(change)
        except (KeyError, TypeError, ValueError, DecodeError) as flaw:
            raise StreamBroken(f"a delta of {self._head.id}: {flaw!r}") from flaw
        return self.view()

    def _change(self, change: Mapping[str, Json]) -> None:
        """Apply one change; its keys, checked in this order, say which of the three kinds it is."""
        place = change["length"] if "length" in change else change["index"]
        if not 0 <= place <= len(self._slots):
            raise StreamBroken(f"part {place} of {self._head.id}, which has {len(self._slots)}")
        if "length" in change:
            del self._slots[place:]
        elif "append" in change:
            self._slots[place : place + 1] = [self._grown(place, change)]
        else:
            self._slots[place : place + 1] = [_slot(_part(change["part"]))]

    def _grown(self, place: int, change: Mapping[str, Json]) -> PartView:
        slot = self._slots[place] if place < len(self._slots) else None
        if slot is None or slot.growth is None:
            raise StreamBroken(f"part {place} of {self._head.id} does not grow")
        if slot.growth.size != change["offset"]:
            raise StreamBroken(
                f"part {place} of {self._head.id} has {slot.growth.size} bytes, "
                f"and the delta begins at {change['offset']}"
            )
        slot.growth.append(structure(change["append"], str))
        blank = _blank(_part(change["part"])) if "part" in change else slot.part
        return PartView(blank, slot.growth, len(slot.growth.pieces))


def _part(tree: Json) -> Part:
    return structure(tree, Part)  # type: ignore[arg-type]  # a union is no type[T]


def _slot(part: Part) -> PartView:
    if not isinstance(part, Growable):
        return PartView(part)
    growth = Growth()
    growth.append(_text(part))
    return PartView(_blank(part), growth, len(growth.pieces))


def _text(part: Growable) -> str:
    return part.text if isinstance(part, TextPart) else part.thinking


def _blank(part: Part) -> Part:
    return _with_text(part, "")


def _with_text(part: Part, text: str) -> Part:
    if isinstance(part, TextPart):
        return TextPart(text=text)
    if isinstance(part, ReasoningPart):
        return evolve(part, thinking=text)
    raise StreamBroken(f"a {part.kind} part does not grow")


@frozen
class TextPiece:
    """More text of the answer."""

    message_id: MessageId
    text: str


@frozen
class ReasoningPiece:
    """More of the model's reasoning."""

    message_id: MessageId
    text: str


@frozen
class ToolCallBegun:
    """The beginning of a tool call. Its arguments may be incomplete."""

    message_id: MessageId
    call: ToolCallPart


@frozen
class ToolCallFinished:
    """The end of a tool call; `call.input` is complete."""

    message_id: MessageId
    call: ToolCallPart


@frozen
class ToolResult:
    """The result of a tool."""

    message_id: MessageId
    result: ToolResultPart


@frozen
class MessageFinished:
    """A message is complete; `finish` says why, and what went wrong if something did."""

    message_id: MessageId
    finish: FinishPart


@frozen
class MessageRestarted:
    """The earlier pieces of this message are void; the pieces that follow are all of it.

    A model that failed in the middle of an answer was asked again.
    """

    message_id: MessageId


MessagePiece: TypeAlias = (
    TextPiece
    | ReasoningPiece
    | ToolCallBegun
    | ToolCallFinished
    | ToolResult
    | MessageFinished
    | MessageRestarted
)
"""Anything that can be new about a message."""


def pieces_between(earlier: MessageView | None, later: MessageView) -> tuple[MessagePiece, ...]:
    """Return the pieces from *earlier* to *later*, views of one message; None is its beginning."""
    if earlier is None:
        return tuple(piece for view in later.parts for piece in _new(later.id, view))
    found: list[MessagePiece] = []
    for before, after in zip_longest(earlier.parts, later.parts):
        step = _step(later.id, before, after)
        if step is None:
            return (MessageRestarted(later.id), *pieces_between(None, later))
        found += step
    return tuple(found)


def is_older(view: MessageView, than: MessageView) -> bool:
    """Whether *view* shows nothing that *than* does not show too, and is from another source.

    A message that was read from the server may be ahead of the stream; what the stream says of it is
    old until it has caught up.
    """
    if view.source is than.source or view.finished or len(view.parts) > len(than.parts):
        return False
    return all(map(_is_beginning, view.parts, than.parts))


def _is_beginning(view: PartView, than: PartView) -> bool:
    if view.growth is not None and than.growth is not None:
        same = type(view.part) is type(than.part)
        return same and than.text().startswith(view.text())
    if isinstance(view.part, ToolCallPart) and isinstance(than.part, ToolCallPart):
        return view.part.id == than.part.id and (than.part.finished or not view.part.finished)
    return view.part == than.part


def _step(
    message_id: MessageId, before: PartView | None, after: PartView | None
) -> list[MessagePiece] | None:
    """Return the pieces of one part; None if its earlier pieces are void."""
    if after is before:
        return []
    if before is None and after is not None:
        return _new(message_id, after)
    if before is None or after is None or type(before.part) is not type(after.part):
        return None
    if after.growth is not None:
        grown = _appended(before, after)
        return None if grown is None else _text_pieces(message_id, after, grown)
    return _replaced(message_id, before, after)


def _new(message_id: MessageId, view: PartView) -> list[MessagePiece]:
    match view.part:
        case TextPart() | ReasoningPart():
            return _text_pieces(message_id, view, view.text())
        case ToolCallPart() as call:
            begun = ToolCallBegun(message_id, call)
            return [begun, ToolCallFinished(message_id, call)] if call.finished else [begun]
        case ToolResultPart() as result:
            return [ToolResult(message_id, result)]
        case FinishPart() as finish:
            return [MessageFinished(message_id, finish)]
    return []


def _text_pieces(message_id: MessageId, view: PartView, text: str) -> list[MessagePiece]:
    kind = TextPiece if isinstance(view.part, TextPart) else ReasoningPiece
    return [kind(message_id, text)] if text else []


def _appended(before: PartView, after: PartView) -> str | None:
    """Return the text that was appended; None if the text was changed in another way."""
    if after.growth is before.growth:
        return after.text(since=before.count)
    old, new = before.text(), after.text()
    return new[len(old) :] if new.startswith(old) else None


def _replaced(
    message_id: MessageId, before: PartView, after: PartView
) -> list[MessagePiece] | None:
    match before.part, after.part:
        case ToolCallPart() as old, ToolCallPart() as new:
            if old.id != new.id:
                return None
            return [ToolCallFinished(message_id, new)] if new.finished > old.finished else []
        case FinishPart() as told, FinishPart() as finish:
            return [] if told == finish else [MessageFinished(message_id, finish)]
        case old_part, new_part:
            return [] if old_part == new_part else _new(message_id, after)
