"""Sessions with their todos, the files that they changed, the roster of all sessions, and the servers of a database.

`wire.answers` has the other answers.

Times are unix seconds. Lists that clients expect are written even if they are empty.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from attrs import frozen

from crush_trio.wire.fields import OmitEmpty
from crush_trio.wire.ids import (
    NO_MESSAGE,
    NO_SESSION,
    FileId,
    MessageId,
    RunId,
    SessionId,
    WorkspaceId,
)
from crush_trio.wire.messages import Role
from crush_trio.wire.runs import RunState


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


# ── The roster ──────────────────────────────────────────────────────────────────────────────────


class SessionGroup(StrEnum):
    """What a session does, at a glance. `needs_you` wins over `working`."""

    WORKING = "working"
    NEEDS_YOU = "needs_you"
    IDLE = "idle"


class Need(StrEnum):
    """Why a session needs a person: an ask waits, or its last run failed and none came after it."""

    PERMISSION = "permission"
    QUESTION = "question"
    ERROR = "error"


@frozen(kw_only=True)
class ModelName:
    """A model and its provider."""

    provider: str
    model: str


@frozen(kw_only=True)
class RosterRun:
    """The active run of a session. `started_at` is in unix seconds."""

    id: RunId
    state: RunState
    started_at: int


@frozen(kw_only=True)
class RosterSession:
    """A session of the roster; a subagent's session has no row, its asks count for its parent.

    `tokens` is the size of the present context, `model` the one of the last answer, `queue` the number
    of waiting runs.
    """

    id: SessionId
    workspace_id: WorkspaceId
    title: str = ""
    group: SessionGroup = SessionGroup.IDLE
    needs: tuple[Need, ...] = ()
    cost: float = 0
    tokens: int = 0
    model: ModelName | None = None
    queue: int = 0
    run: RosterRun | None = None
    updated_at: int = 0
    message_count: int = 0


@frozen(kw_only=True)
class RosterWorkspace:
    """A hosted workspace; `name` is the last part of its path."""

    id: WorkspaceId
    path: str
    name: str


@frozen(kw_only=True)
class RecentDirectory:
    """A directory that was a workspace, and when it was opened last."""

    path: str
    used_at: int


@frozen(kw_only=True)
class Roster:
    """All sessions of a server; `right` is what the reader may do, `directory` the server's own."""

    directory: str
    version: str
    right: str
    workspaces: tuple[RosterWorkspace, ...] = ()
    recent: tuple[RecentDirectory, ...] = ()
    sessions: tuple[RosterSession, ...] = ()


class RosterChange(StrEnum):
    """What happened to a row of the roster."""

    UPDATED = "updated"
    DELETED = "deleted"


@frozen(kw_only=True)
class RosterSessionChange:
    """A session of the roster that is new, has changed or is gone."""

    type: RosterChange
    payload: RosterSession


@frozen(kw_only=True)
class RosterWorkspaceChange:
    """A workspace that was opened or closed."""

    type: RosterChange
    payload: RosterWorkspace


@frozen(kw_only=True)
class SearchHit:
    """A session whose title, or a message whose text, contains what was searched.

    `message_id` is null and `role` empty for a title.
    """

    workspace_id: WorkspaceId
    session_id: SessionId
    title: str
    message_id: MessageId | None
    role: Role
    snippet: str
    at: int


# ── Servers ─────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class LeaseView:
    """The right of one process to run a workspace, until it expires in `seconds` unless it is renewed.

    `epoch` counts the owners that the workspace has had, `holder` says in one line who this one is.
    """

    workspace_id: WorkspaceId
    site: str
    path: str
    epoch: int
    seconds: float
    holder: str


@frozen(kw_only=True)
class NodeView:
    """One server. `id` is the same after every restart, `boot` names this start of it.

    `address` is where the other nodes reach it, empty if they cannot; `site` names the machines that see the
    same files. It was heard of `seen_seconds` ago, and is `alive` if that is not too long. A node that is
    `draining` ends soon and takes no new work.
    """

    id: str
    boot: str
    site: str
    address: str
    host: str
    pid: int
    version: str
    started_at: int
    alive: bool
    draining: bool
    seen_seconds: float
    leases: tuple[LeaseView, ...] = ()


@frozen(kw_only=True)
class ClusterView:
    """All servers of a database; a server with a store of its own is the only one, and has no leases.

    `shared` says whether the store is one that several servers can use. `node` is the id of the one that
    answered, empty if the database was asked directly. `others` are the leases of processes that are no
    servers, such as commands.
    """

    shared: bool
    node: str
    nodes: tuple[NodeView, ...]
    others: tuple[LeaseView, ...] = ()
