"""What routes answer with, and entities that are read rather than sent.

Times are unix seconds. Lists that clients expect to exist are written even when they are empty.

A workspace and its agent as clients see them.

Apart from the other views because these carry the configuration and the catalogue, which most
programs that watch a stream never load.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

from attrs import field, frozen

from crush_trio.wire.config import CatalogModel, Config, SelectedModel
from crush_trio.wire.fields import JsonObject, OmitEmpty
from crush_trio.wire.ids import NO_MESSAGE, NO_SESSION, FileId, MessageId, SessionId, WorkspaceId
from crush_trio.wire.integrations import SkillState

Diagnostics: TypeAlias = Mapping[str, tuple[JsonObject, ...]]
"""A language server's diagnostics by document, as the server wrote them."""


class TodoStatus(StrEnum):
    """How far a task has come."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


@frozen(kw_only=True)
class Todo:
    """A task the agent set itself; `active_form` is what to show while it is being done."""

    content: str
    status: TodoStatus = TodoStatus.PENDING
    active_form: str = ""


@frozen(kw_only=True)
class Session:
    """A conversation.

    `is_busy` and `attached_clients` are computed for the one who asks; events leave them at zero.
    The same shape is the body of a create, which uses the title only, and of an update.
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
class File:
    """One version of a file a session changed; version 0 is what was there before."""

    id: FileId
    session_id: SessionId
    path: str
    content: str
    version: int = 0
    created_at: int = 0
    updated_at: int = 0


@frozen(kw_only=True)
class Version:
    """What is serving; `platform` is `os/arch`."""

    version: str
    commit: str
    build_id: str
    go_version: str
    platform: str


@frozen(kw_only=True)
class ErrorBody:
    """The body of every answer that reports a failure: a sentence for people, a code for programs.

    The Go program sends no code.
    """

    message: str
    code: OmitEmpty[str] = ""


@frozen(kw_only=True)
class Resolved:
    """Whether an answer settled something. False: nothing waited, or someone was first."""

    resolved: bool


@frozen(kw_only=True)
class ShellResult:
    """What a command printed and how it ended."""

    output: str
    exit_code: int


@frozen(kw_only=True)
class NeedsInit:
    """Whether the project has never been set up for an agent."""

    needs_init: bool


@frozen(kw_only=True)
class PromptText:
    """A prompt, ready to be sent."""

    prompt: str


@frozen(kw_only=True)
class Workspace:
    """A hosted directory; `version` is the server's. The environment stays out of `repr`."""

    id: WorkspaceId
    path: str
    yolo: OmitEmpty[bool] = False
    debug: OmitEmpty[bool] = False
    data_dir: OmitEmpty[str] = ""
    version: OmitEmpty[str] = ""
    config: OmitEmpty[Config | None] = None
    env: OmitEmpty[tuple[str, ...]] = field(default=(), repr=False)
    channels: OmitEmpty[tuple[str, ...]] = ()
    skills: OmitEmpty[tuple[SkillState, ...]] = ()
    degraded: OmitEmpty[str] = ""
    """What is wrong with its store, in a sentence."""
    warnings: OmitEmpty[tuple[ErrorBody, ...]] = ()
    """What a user should know about it although it works."""


@frozen(kw_only=True)
class AgentInfo:
    """Whether the agent can be asked, and what would answer. All zero before it is initialised."""

    is_busy: bool = False
    is_ready: bool = False
    model: CatalogModel = field(factory=CatalogModel)
    model_cfg: SelectedModel = field(factory=SelectedModel)
