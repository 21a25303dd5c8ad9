"""Sessions with their todos, and the files that they changed; `wire.answers` has the other answers.

Times are unix seconds. Lists that clients expect are written even if they are empty.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from attrs import frozen

from crush_trio.wire.fields import OmitEmpty
from crush_trio.wire.ids import NO_MESSAGE, NO_SESSION, FileId, MessageId, SessionId


class TodoStatus(StrEnum):
    """The state of a todo."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


@frozen(kw_only=True)
class Todo:
    """A task on the agent's own list; `active_form` is the text to show while it is in progress."""

    content: str
    status: TodoStatus = TodoStatus.PENDING
    active_form: str = ""


@frozen(kw_only=True)
class Session:
    """A conversation.

    `is_busy` and `attached_clients` are computed for each answer. In events `attached_clients` is zero,
    and `is_busy` is only true in native form, while a run is active. The same class is the body of a
    create, which uses the title only, and of an update.
    """

    id: SessionId
    parent_session_id: SessionId = NO_SESSION
    title: str = ""
    message_count: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    summary_message_id: MessageId = NO_MESSAGE
    cost: float = 0
    todos: OmitEmpty[tuple[Todo, ...]] = ()
    created_at: int = 0
    updated_at: int = 0
    is_busy: bool = False
    attached_clients: int = 0


@frozen(kw_only=True)
class UsageDay:
    """What one day (UTC) used: the runs that ended on it, and the tokens and cost of its model calls."""

    day: str
    runs: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0


DAY: Final = 86_400
"""The seconds of a day."""


def day_of(unix: int) -> str:
    """Return the day of *unix* seconds in UTC, such as `2026-01-01`."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d")


@frozen(kw_only=True)
class File:
    """One version of a file that a session changed; version 0 is the original."""

    id: FileId
    session_id: SessionId
    path: str
    content: str
    version: int = 0
    created_at: int = 0
    updated_at: int = 0
