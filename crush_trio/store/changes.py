"""What can be written to a store: changes as values.

A caller says *what* is to become true; the store makes it true, several changes at once in one
transaction if they are given together. Changes are frozen and say everything they need, so that a
store may apply them later, in another thread, or a second time after a failed attempt. There is no
change that replaces a whole row: two writers that touch different columns never undo each other.

Times are unix seconds.

What every store does the same way, whatever it keeps its rows in.

A change is looked at here before it is applied: its text becomes text that can be stored, and a path
that means something else in every directory is refused. How a part grows and when a message is
complete on arrival are questions that two stores must not answer differently either.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from itertools import islice
from operator import is_
from pathlib import PurePath
from typing import Any, Final, TypeVar, cast

import attrs
from attrs import evolve, field, frozen

from crush_trio.wire.codec import clean_text
from crush_trio.wire.ids import (
    AskId,
    MessageId,
    RunId,
    SessionId,
    ToolCallId,
)
from crush_trio.wire.messages import FinishPart, Message, Part, ReasoningPart, TextPart
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import Session, Todo

# ── Sessions ────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class SessionCreated:
    """A new session, with its id, parent, title and times; counters start at zero."""

    session: Session


@frozen(kw_only=True)
class SessionEdited:
    """New values for some columns; None leaves a column as it is."""

    id: SessionId
    at: int
    title: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    summary_message_id: MessageId | None = None
    cost: float | None = None
    todos: tuple[Todo, ...] | None = None


@frozen(kw_only=True)
class UsageAdded:
    """What a model call used: gauges are set where given, totals and cost grow."""

    id: SessionId
    at: int
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    spent_prompt_tokens: int = 0
    spent_completion_tokens: int = 0
    cost: float = 0.0


@frozen(kw_only=True)
class SessionDeleted:
    """A session goes, with its messages, files and read marks; its runs stay on record."""

    id: SessionId


# ── Messages ────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class MessageCreated:
    """A new message at the end of its session, with the parts it has so far.

    `run_id` is the run whose turn it belongs to, if it does to one. `if_there` makes it do nothing
    when its session or its run is not there, instead of failing: a session may have been deleted in
    the meantime, and the acceptance of a run may have been refused.
    """

    message: Message
    run_id: RunId | None = None
    if_there: bool = False


@frozen(kw_only=True)
class PartPut:
    """The part at *index* of a message is now *part*; text appended to it before is kept.

    A growing part is put with empty text and grows by `TextAppended`.
    """

    message_id: MessageId
    index: int
    part: Part
    at: int


@frozen(kw_only=True)
class TextAppended:
    """More text at the end of a text or reasoning part; costs as much as *text* is long."""

    message_id: MessageId
    index: int
    text: str
    at: int


@frozen(kw_only=True)
class PartsCut:
    """The message has only its first *length* parts."""

    message_id: MessageId
    length: int
    at: int


@frozen(kw_only=True)
class MessageFinished:
    """The message will not change any more; a store may rearrange how it keeps it."""

    message_id: MessageId
    at: int


@frozen(kw_only=True)
class MessageDeleted:
    """A message goes."""

    id: MessageId


# ── Runs ────────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class RunAccepted:
    """A run was accepted in this start of the program; fails if its caller's id is taken."""

    run: RunView
    prompt: str
    attachments: tuple[Attachment, ...] = field(default=(), repr=False)


@frozen(kw_only=True)
class RunRetracted:
    """The run was not accepted after all; nothing of it is kept, its messages included."""

    id: RunId


@frozen(kw_only=True)
class RunMoved:
    """The run was queued or became active."""

    id: RunId
    state: RunState
    at: int


@frozen(kw_only=True)
class RunEdited:
    """The prompt of a run that waits is another one now. A run that has ended is left alone."""

    id: RunId
    prompt: str


@frozen(kw_only=True)
class RunEnded:
    """The run ended, as its view says. A run that has ended already is left alone.

    *withdrawn* says that no model was asked about it: its messages are kept for people, and are no
    part of any conversation. `if_there` makes it do nothing when there is no such run.
    """

    run: RunView
    withdrawn: bool = False
    if_there: bool = False


# ── Asks, read marks, event tail ────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class AskOpened:
    """Something waits for a person's answer."""

    id: AskId
    kind: str
    session_id: SessionId
    run_id: RunId
    tool_call_id: ToolCallId
    payload: str
    at: int


@frozen(kw_only=True)
class AskResolved:
    """It waits no longer."""

    id: AskId
    resolution: str
    at: int


@frozen(kw_only=True)
class FileRead:
    """The session has seen the file as it was at this time."""

    session_id: SessionId
    path: str
    at: int


@frozen(kw_only=True)
class TailKept:
    """An event to remember across a restart; only the newest *keep* of all are.

    `event` is the JSON of a `store.base.TailEvent`'s content. `previous` is the seq of the event
    that was given to keep before this one. If the store does not know it, that one was lost, and
    no reader of before can be continued with certainty. `ended` is the run whose ending the event
    is; its place is remembered for as long as the run is.
    """

    seq: int
    terminal: bool
    event: str
    keep: int
    previous: int = 0
    ended: RunId | None = None


@frozen(kw_only=True)
class BootClosed:
    """This start of the program ended in good order: what it published, it has stored.

    `last` is the seq of the last event that was given to keep; without it, the end is not in order.
    """

    at: int
    last: int = 0


Change = (
    SessionCreated
    | SessionEdited
    | UsageAdded
    | SessionDeleted
    | MessageCreated
    | PartPut
    | TextAppended
    | PartsCut
    | MessageFinished
    | MessageDeleted
    | RunAccepted
    | RunRetracted
    | RunMoved
    | RunEdited
    | RunEnded
    | AskOpened
    | AskResolved
    | FileRead
    | TailKept
    | BootClosed
)
"""Anything that can be written to a store."""


T = TypeVar("T")

GROWING: Final = (TextPart, ReasoningPart)
"""The parts that text can be appended to."""


def admitted(change: Change) -> Change:
    """Return *change* as it can be stored.

    Raises `ValueError` for a relative path: it would depend on where the program was started (L21).
    """
    change = cleaned(change)
    if isinstance(change, FileRead):
        absolute(change.path)
    return change


def cleaned(value: T) -> T:
    """Return *value* with all text in it free of surrogate halves, which no database can keep.

    What needs nothing, which is nearly everything, is returned itself.
    """
    return cast("T", _clean(value))


def _clean(value: object) -> object:
    if isinstance(value, str):
        return value if isinstance(value, Enum) else clean_text(value)
    if isinstance(value, tuple):
        items = tuple(_clean(item) for item in value)
        return value if all(map(is_, items, value)) else items
    cls: Any = type(value)
    names = _fields(cls)
    return _clean_fields(value, names) if names else value


def _clean_fields(value: object, names: tuple[str, ...]) -> object:
    changed = {}
    for name in names:
        old = getattr(value, name)
        new = _clean(old)
        if new is not old:
            changed[name] = new
    return evolve(cast("Any", value), **changed) if changed else value


@cache
def _fields(cls: type[object]) -> tuple[str, ...]:
    """Return the names of the fields of an attrs class; none for other classes.

    Remembered, because every change that is stored comes by here.
    """
    return tuple(attrs.fields_dict(cls)) if attrs.has(cls) else ()


def absolute(path: str) -> str:
    """Return *path* as it can be stored; raise `ValueError` if it is not absolute."""
    if not PurePath(path).is_absolute():
        raise ValueError(f"not an absolute path: {path!r}")
    return clean_text(path)


def grown(part: Part, text: str) -> Part:
    """Return *part* with *text* at its end; only text and reasoning grow."""
    match part:
        case TextPart():
            return evolve(part, text=part.text + text)
        case ReasoningPart():
            return evolve(part, thinking=part.thinking + text)
        case _:
            raise TypeError(f"a {part.kind} part does not grow")


def page(rows: Iterable[T], limit: int, size: int, length: Callable[[T], int]) -> list[T]:
    """Return the first of *rows*: at most *limit*, and none after they have *size* characters."""
    found: list[T] = []
    for row in islice(rows, limit):
        found.append(row)
        size -= length(row)
        if size <= 0:
            break
    return found


def complete(message: Message) -> bool:
    """Whether a new message is finished as it comes: the user's and the tools' are (D1)."""
    return any(isinstance(part, FinishPart) for part in message.parts)
