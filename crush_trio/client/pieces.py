"""What is new about a message, as a program that prints an answer wants to be told.

`pieces_between` compares two views of a message and says what happened from one to the other. Because
it compares states and does not repeat deltas, nothing is told twice and nothing is skipped, however
the states came about: by deltas, by a reconnect, or by reading the message anew.
"""

from itertools import zip_longest
from typing import TypeAlias

from attrs import frozen

from crush_trio.client.growing import MessageView, PartView
from crush_trio.wire.ids import MessageId
from crush_trio.wire.messages import (
    FinishPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)


@frozen
class TextPiece:
    """More of what the agent says."""

    message_id: MessageId
    text: str


@frozen
class ReasoningPiece:
    """More of what the model thinks before it speaks."""

    message_id: MessageId
    text: str


@frozen
class ToolCallBegun:
    """The model asks for a tool. What it wants from it may still be coming."""

    message_id: MessageId
    call: ToolCallPart


@frozen
class ToolCallFinished:
    """The model has said everything about a call; `call.input` is complete."""

    message_id: MessageId
    call: ToolCallPart


@frozen
class ToolResult:
    """A tool has answered."""

    message_id: MessageId
    result: ToolResultPart


@frozen
class MessageFinished:
    """A message is complete; `finish` says why, and what went wrong if something did."""

    message_id: MessageId
    finish: FinishPart


@frozen
class MessageRestarted:
    """What was told of this message so far is void; the pieces that follow are all of it.

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
    """Return what leads from *earlier* to *later*, views of one message; None is before its first."""
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

    A message that was read anew may be ahead of the stream; what the stream then says of it is no
    news until it has caught up.
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
    """Return what happened to one part; None if what was told of it does not hold any more."""
    if after is before:
        return []
    if before is None and after is not None:
        return _new(message_id, after)
    if before is None or after is None or type(before.part) is not type(after.part):
        return None
    if after.growth is not None:
        grown = _appended(before, after)
        return None if grown is None else _text(message_id, after, grown)
    return _replaced(message_id, before, after)


def _new(message_id: MessageId, view: PartView) -> list[MessagePiece]:
    match view.part:
        case TextPart() | ReasoningPart():
            return _text(message_id, view, view.text())
        case ToolCallPart() as call:
            begun = ToolCallBegun(message_id, call)
            return [begun, ToolCallFinished(message_id, call)] if call.finished else [begun]
        case ToolResultPart() as result:
            return [ToolResult(message_id, result)]
        case FinishPart() as finish:
            return [MessageFinished(message_id, finish)]
    return []


def _text(message_id: MessageId, view: PartView, text: str) -> list[MessagePiece]:
    kind = TextPiece if isinstance(view.part, TextPart) else ReasoningPiece
    return [kind(message_id, text)] if text else []


def _appended(before: PartView, after: PartView) -> str | None:
    """Return what was added to a text; None if it was not only added to."""
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
