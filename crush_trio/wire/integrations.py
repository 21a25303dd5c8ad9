"""Language servers, MCP servers and skills as clients see them, and the events about them.

The state of a language server is a number on the wire, that of an MCP server a word. An `error` is
the first key if there is one.
"""

from enum import IntEnum, StrEnum
from typing import Final

from attrs import frozen

from crush_trio.wire.fields import ZERO_TIME, OmitEmpty, Timestamp
from crush_trio.wire.ids import SkillId


class LspState(IntEnum):
    """The state of a language server."""

    UNSTARTED = 0
    STARTING = 1
    READY = 2
    ERROR = 3
    STOPPED = 4
    DISABLED = 5


class McpState(StrEnum):
    """The state of an MCP server. Peers refuse a whole list because of any other word."""

    DISABLED = "disabled"
    STARTING = "starting"
    CONNECTED = "connected"
    ERROR = "error"
    NEEDS_AUTH = "needs auth"


FAILED: Final = "MCP server {name} has failed: {error}"
"""What people are told of a server that is in the state `error` or `needs auth`."""


class SkillLoad(IntEnum):
    """Whether a skill file could be read."""

    OK = 0
    ERROR = 1


class SkillSource(StrEnum):
    """Where a skill comes from."""

    SYSTEM = "system"
    USER = "user"
    PROJECT = "project"


@frozen(kw_only=True)
class LspClientInfo:
    """One language server."""

    error: OmitEmpty[str] = ""
    name: str
    state: LspState
    diagnostic_count: OmitEmpty[int] = 0
    connected_at: Timestamp = ZERO_TIME


@frozen(kw_only=True)
class McpClientInfo:
    """One MCP server."""

    error: OmitEmpty[str] = ""
    name: str
    state: McpState = McpState.DISABLED
    tool_count: OmitEmpty[int] = 0
    prompt_count: OmitEmpty[int] = 0
    resource_count: OmitEmpty[int] = 0
    connected_at: Timestamp = ZERO_TIME


@frozen(kw_only=True)
class McpArgument:
    """An argument of an MCP prompt."""

    id: str
    title: str
    description: OmitEmpty[str] = ""
    required: OmitEmpty[bool] = False


@frozen(kw_only=True)
class McpPrompt:
    """A prompt of an MCP server. `id` is `server:prompt`, `client_id` the server's name."""

    id: str
    title: OmitEmpty[str] = ""
    description: OmitEmpty[str] = ""
    prompt_id: str
    client_id: str
    arguments: OmitEmpty[tuple[McpArgument, ...]] = ()


@frozen(kw_only=True)
class McpResource:
    """What an MCP server returned for a resource: text or bytes."""

    uri: str
    mime_type: OmitEmpty[str] = ""
    text: OmitEmpty[str] = ""
    blob: OmitEmpty[bytes] = b""


@frozen(kw_only=True)
class PendingAuth:
    """An MCP server that waits for a person's login at `url`."""

    name: str
    url: str


@frozen(kw_only=True)
class AuthUrl:
    """The URL of a login; empty if no login is under way."""

    auth_url: OmitEmpty[str] = ""


@frozen(kw_only=True)
class SkillState:
    """Whether a skill file was loaded. The name may be unknown if it was not.

    A skill with a `warning` is used; something in its file should be corrected.
    """

    name: str
    path: str
    state: SkillLoad = SkillLoad.OK
    error: OmitEmpty[str] = ""
    warning: OmitEmpty[str] = ""


@frozen(kw_only=True)
class SkillInfo:
    """A skill that a person can select. `label` is `source:name`."""

    id: SkillId
    name: str
    description: str
    label: str
    source: SkillSource
    user_invocable: bool


@frozen(kw_only=True)
class SkillSummary:
    """The head of a skill file."""

    name: str
    description: str
    source: str
    builtin: bool


@frozen(kw_only=True)
class SkillContent:
    """The content of a skill file, and its summary."""

    content: bytes
    result: SkillSummary


# ── Events ──────────────────────────────────────────────────────────────────────────────────────


class McpEventType(StrEnum):
    """What changed about an MCP server."""

    STATE_CHANGED = "state_changed"
    TOOLS_LIST_CHANGED = "tools_list_changed"
    PROMPTS_LIST_CHANGED = "prompts_list_changed"
    RESOURCES_LIST_CHANGED = "resources_list_changed"


class LspEventType(StrEnum):
    """What changed about a language server."""

    STATE_CHANGED = "state_changed"
    DIAGNOSTICS_CHANGED = "diagnostics_changed"


@frozen(kw_only=True)
class SkillsEvent:
    """The skills were searched again; `states` has all that were found."""

    states: tuple[SkillState, ...]


@frozen(kw_only=True)
class McpEvent:
    """Something changed about an MCP server."""

    error: OmitEmpty[str] = ""
    type: McpEventType
    name: str
    state: McpState = McpState.DISABLED
    tool_count: OmitEmpty[int] = 0
    prompt_count: OmitEmpty[int] = 0
    resource_count: OmitEmpty[int] = 0


@frozen(kw_only=True)
class LspEvent:
    """Something changed about a language server."""

    error: OmitEmpty[str] = ""
    type: LspEventType
    name: str
    state: LspState
    diagnostic_count: OmitEmpty[int] = 0
