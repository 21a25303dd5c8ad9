"""Answers of routes: sessions, files, workspaces, the agent, errors.

Times are unix seconds. Lists that clients expect are written even if they are empty.
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

    `is_busy` and `attached_clients` are computed for each answer; in events they are zero. The same
    class is the body of a create, which uses the title only, and of an update.
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
    """One version of a file that a session changed; version 0 is the original."""

    id: FileId
    session_id: SessionId
    path: str
    content: str
    version: int = 0
    created_at: int = 0
    updated_at: int = 0


@frozen(kw_only=True)
class Version:
    """The version of the server; `platform` is `os/arch`."""

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
class Health:
    """`GET health` of a server that works and lacks something; without a problem there is no body."""

    problems: tuple[ErrorBody, ...] = ()


@frozen(kw_only=True)
class Resolved:
    """Whether an answer resolved an ask. False: none waited, or another client was first."""

    resolved: bool


@frozen(kw_only=True)
class ShellResult:
    """The output and the exit code of a command."""

    output: str
    exit_code: int


@frozen(kw_only=True)
class NeedsInit:
    """Whether the project has not been set up for an agent yet."""

    needs_init: bool


@frozen(kw_only=True)
class PromptText:
    """A prompt, ready to be sent."""

    prompt: str


@frozen(kw_only=True)
class WorkspaceView:
    """A hosted workspace; `version` is the server's. The environment is left out of `repr`."""

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
    """A sentence about what is wrong with its store; empty if nothing is."""
    warnings: OmitEmpty[tuple[ErrorBody, ...]] = ()
    """Warnings about it, such as those of its configuration."""


@frozen(kw_only=True)
class AgentInfo:
    """Whether the agent is ready, and its model. All zero before it is initialised."""

    is_busy: bool = False
    is_ready: bool = False
    model: CatalogModel = field(factory=CatalogModel)
    model_cfg: SelectedModel = field(factory=SelectedModel)
