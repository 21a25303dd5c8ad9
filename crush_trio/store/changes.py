"""Changes: the values that can be written to a store, and rules that all stores share.

Changes that are given together are applied in one transaction. Changes are frozen and complete, so
that a store may apply them later, in another thread, or again after a failed attempt. There is no
change that replaces a whole row: two writers that touch different columns never undo each other.
Times are unix seconds.

The functions at the end are the same for all stores: `storable` checks and cleans a change before it is
applied, and the others say how a part grows, when a new message is complete and how long a page is.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from itertools import islice
from operator import is_
from pathlib import PurePath
from types import NoneType
from typing import Any, Final, TypeVar, cast

import attrs
from attrs import evolve, field, frozen

from crush_trio.plain_json import clean_text
from crush_trio.wire.ids import AskId, MessageId, RunId, SessionId, ToolCallId
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
    """New values for some columns of a session; None leaves a column as it is.

    With `title_over` the title is set only if the present one is among these.
    """

    id: SessionId
    at: int
    title: str | None = None
    title_over: tuple[str, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    summary_message_id: MessageId | None = None
    cost: float | None = None
    todos: tuple[Todo, ...] | None = None


@frozen(kw_only=True)
class UsageAdded:
    """What a model call used: the context's tokens are set if given, totals and cost are added.

    `counted` if the cost was counted for its day already, in the session of a task.
    """

    id: SessionId
    at: int
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    spent_prompt_tokens: int = 0
    spent_completion_tokens: int = 0
    cost: float = 0.0
    counted: bool = False


@frozen(kw_only=True)
class SessionDeleted:
    """A session was deleted, with its messages, files and read marks; its runs are kept."""

    id: SessionId


@frozen(kw_only=True)
class SessionPruned:
    """A session that was not used since *before* was removed, with the sessions of its tasks.

    Their runs and asks are kept without text. Nothing changes if it does not exist, if one of these
    sessions was used since, or if a run of them has not ended.
    """

    id: SessionId
    before: int


# ── Messages ────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class MessageCreated:
    """A new message at the end of its session, with the parts it has so far.

    `run_id` is the run whose turn it belongs to, if any. With `if_there` the change does nothing,
    instead of failing, if its session or its run is missing: the session may have been deleted
    meanwhile, and the acceptance of the run may have been refused.
    """

    message: Message
    run_id: RunId | None = None
    if_there: bool = False


@frozen(kw_only=True)
class PartPut:
    """The part at *index* of a message is now *part*; text that was appended to it is kept.

    A growing part is put with empty text and grows by `TextAppended`.
    """

    message_id: MessageId
    index: int
    part: Part
    at: int


@frozen(kw_only=True)
class TextAppended:
    """More text at the end of a text or reasoning part; the cost depends on *text* only."""

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
    """The message will not change any more; a store may now store it in another layout."""

    message_id: MessageId
    at: int


@frozen(kw_only=True)
class MessageDeleted:
    """A message was deleted."""

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
    """The run was not accepted after all; it is removed, with its messages."""

    id: RunId


@frozen(kw_only=True)
class RunMoved:
    """The run was queued or became active."""

    id: RunId
    state: RunState
    at: int


@frozen(kw_only=True)
class RunEdited:
    """The prompt of a waiting run was replaced. A run that has ended is not changed."""

    id: RunId
    prompt: str


@frozen(kw_only=True)
class RunEnded:
    """The run ended as its view says. A run that has ended already is not changed.

    *withdrawn* means that no model was asked: its messages are kept for people and are not part of
    what a model gets. With `if_there` the change does nothing if there is no such run.
    """

    run: RunView
    withdrawn: bool = False
    if_there: bool = False


@frozen(kw_only=True)
class RunRecorded:
    """The next piece of a run's recording; nothing is stored if its session is missing."""

    run_id: RunId
    session_id: SessionId
    n: int
    data: str = field(repr=False)


# ── Asks, read marks, event tail ────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class AskOpened:
    """An ask waits for a person's answer."""

    id: AskId
    kind: str
    session_id: SessionId
    run_id: RunId
    tool_call_id: ToolCallId
    payload: str
    at: int


@frozen(kw_only=True)
class AskResolved:
    """An ask was answered or withdrawn."""

    id: AskId
    resolution: str
    at: int


@frozen(kw_only=True)
class FileRead:
    """The session has read the file at this time."""

    session_id: SessionId
    path: str
    at: int


@frozen(kw_only=True)
class TailKept:
    """An event to keep across a restart; the store keeps the newest *keep* of all.

    `event` is the JSON of a `store.base.TailEvent`'s content. `previous` is the seq of the event
    that was handed over before this one. If the store does not have it, that write was lost, and
    readers from before it cannot be continued. `ended` is the run whose ending the event is; the
    place of an ending is kept as long as the run.
    """

    seq: int
    terminal: bool
    event: str
    keep: int
    previous: int = 0
    ended: RunId | None = None


@frozen(kw_only=True)
class BootClosed:
    """This start of the program ended cleanly: everything that it published is stored.

    `last` is the seq of the last event that was handed over to be kept. If the store does not have
    that event, the start does not count as ended cleanly.
    """

    at: int
    last: int = 0


Change = (
    SessionCreated
    | SessionEdited
    | UsageAdded
    | SessionDeleted
    | SessionPruned
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
    | RunRecorded
    | AskOpened
    | AskResolved
    | FileRead
    | TailKept
    | BootClosed
)
"""Any change of a store."""


T = TypeVar("T")

GROWING: Final = (TextPart, ReasoningPart)
"""The parts that text can be appended to."""


_TEXTLESS: Final = frozenset({NoneType, bool, bytes, float, int})


def storable(change: Change) -> Change:
    """Return *change* with text that can be stored.

    Raises `ValueError` for a relative path, whose meaning depends on the working directory (L21).
    """
    change = cleaned(change)
    if isinstance(change, FileRead):
        absolute(change.path)
    return change


def cleaned(value: T) -> T:
    """Return *value* without lone surrogates in its text, which no database can store.

    A value that needs no change, which is nearly every one, is returned itself.
    """
    return cast("T", _clean(value))


def _clean(value: object) -> object:
    if isinstance(value, str):
        return value if isinstance(value, Enum) else clean_text(value)
    if isinstance(value, tuple):
        items = tuple(map(_clean, value))
        return value if all(map(is_, items, value)) else items
    changed = {}
    cls: Any = type(value)
    for name in _fields(cls):
        old = getattr(value, name)
        kind = type(old)
        if kind in _TEXTLESS or (kind is str and old.isascii()):
            continue  # nearly every field, of every change that is stored
        new = _clean(old)
        if new is not old:
            changed[name] = new
    return evolve(cast("Any", value), **changed) if changed else value


@cache
def _fields(cls: type[object]) -> tuple[str, ...]:
    """Return the names of the fields of an attrs class; none for other classes.

    Cached, because this is called for every change that is stored.
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


def first_page(rows: Iterable[T], limit: int, size: int, length: Callable[[T], int]) -> list[T]:
    """Return the first of *rows*: at most *limit*, and no more once they have *size* characters."""
    found: list[T] = []
    for row in islice(rows, limit):
        found.append(row)
        size -= length(row)
        if size <= 0:
            break
    return found


def is_complete(message: Message) -> bool:
    """Whether a new message is finished already: the user's and the tools' are (D1)."""
    return any(isinstance(part, FinishPart) for part in message.parts)
