"""Protocols of the integrations: `LanguageServers`, `McpServers`, `Skills`, and empty versions of each.

State is read by synchronous methods: clients poll it several times a second, and it must not wait.
Actions are async. A server that a client has started belongs to the workspace and stays when that
client disconnects (T13).

A workspace always has all three. The empty versions, such as `NoMcpServers`, mean that there is nothing
of the kind.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import orjson
from attrs import field, frozen
from trio.lowlevel import checkpoint
from typing_extensions import override

from crush_trio.clock import Clock
from crush_trio.config.live import Configuration
from crush_trio.errors import CrushError, LspNotFound, NotFound, SkillNotFound
from crush_trio.events.facts import Fact
from crush_trio.tools.base import Tool
from crush_trio.tools.sandbox.settings import CommandSandbox
from crush_trio.wire.answers import Diagnostics
from crush_trio.wire.fields import Json
from crush_trio.wire.ids import SkillId, WorkspaceId
from crush_trio.wire.integrations import (
    LspClientInfo,
    McpClientInfo,
    McpPrompt,
    McpResource,
    PendingAuth,
    SkillContent,
    SkillInfo,
    SkillState,
)

if TYPE_CHECKING:
    from crush_trio.tools.files.changes import FileChanges


class McpFailed(CrushError):
    """A request to an MCP server failed; the detail names the server and the reason."""

    code = "mcp_failed"
    message = "MCP server failed"


class McpNotFound(NotFound):
    """No MCP server of this name is configured. The detail is the whole text, as clients know it."""

    code = "mcp_not_found"
    message = "no such MCP server"

    @override
    def __str__(self) -> str:
        return self.detail or self.message


def read_json(text: str | bytes) -> Json:
    """Return the JSON that a foreign program wrote; raises `ValueError`.

    Halves of surrogate pairs become question marks. Programs write them for names of files that are not
    UTF-8, and where they cut a text inside a character.
    """
    found: Json
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            plain = json.dumps(json.loads(text), ensure_ascii=False)
        except (ValueError, RecursionError):
            raise error from None
        found = orjson.loads(plain.encode(errors="replace"))
    return found


# ── Protocols ───────────────────────────────────────────────────────────────────────────────────


class LanguageServers(Protocol):
    """The language servers of a workspace."""

    def states(self) -> Mapping[str, LspClientInfo]:
        """Return the state of each server, by name."""
        ...

    def diagnostics(self, name: str) -> Diagnostics:
        """Return the current diagnostics of a server, by document; raises `LspNotFound`."""
        ...

    async def start(self, path: str) -> None:
        """Start the servers for the file at *path* that do not run yet."""
        ...

    async def stop(self) -> None:
        """Stop all servers."""
        ...

    async def viewed(self, path: Path) -> str:
        """Return the diagnostics for a file that an agent has viewed, as text; often empty."""
        ...

    async def changed(self, path: Path) -> str:
        """Return the diagnostics for a file that an agent has changed, as text (H7)."""
        ...

    def code_tools(self, changes: "FileChanges") -> Iterable[Tool]:
        """Return the tools that use the servers; those that write files do it through *changes*."""
        ...


@frozen(kw_only=True)
class ServerInstructions:
    """The instructions of an MCP server for models. Untrusted text."""

    server: str
    text: str = field(repr=False)


class McpServers(Protocol):
    """The MCP servers of a workspace."""

    def states(self) -> Mapping[str, McpClientInfo]:
        """Return the state of each server, by name."""
        ...

    def pending_logins(self) -> tuple[PendingAuth, ...]:
        """Return the pending logins, by name of the server."""
        ...

    def login_url(self, name: str) -> str:
        """Return the login URL of a server; empty if no login is pending."""
        ...

    async def log_in(self, name: str) -> None:
        """Log in to a server; returns when a person has completed the login."""
        ...

    def prompts(self) -> tuple[McpPrompt, ...]:
        """Return the prompts of all servers."""
        ...

    async def prompt(self, name: str, prompt: str, arguments: Mapping[str, str]) -> str:
        """Return a prompt of a server, filled in with *arguments*."""
        ...

    async def read_resource(self, name: str, uri: str) -> tuple[McpResource, ...]:
        """Return the contents of the resource at *uri*."""
        ...

    async def refresh_tools(self, name: str) -> None:
        """Ask a server for its tools again."""
        ...

    async def refresh_prompts(self, name: str) -> None:
        """Ask a server for its prompts again."""
        ...

    async def refresh_resources(self, name: str) -> None:
        """Ask a server for its resources again."""
        ...

    async def use_docker(self, wanted: bool) -> bool:
        """Add Docker's gateway to the configuration or remove it; return whether it changed."""
        ...

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools that the servers offer; called before every step of a run."""
        ...

    def instructions(self) -> tuple[ServerInstructions, ...]:
        """Return the instructions of the connected servers, by name."""
        ...

    async def settled(self) -> None:
        """Wait until no server is starting. Only runs without a person at a client wait for this."""
        ...


@frozen(kw_only=True)
class AgentSkill:
    """A skill as an agent uses it: a file to read, and other files in its directory."""

    info: SkillInfo
    file: Path
    """The path of the file, with links resolved."""
    advertised: bool = True
    """Whether the system prompt mentions it; if not, only a person can start it."""


class Skills(Protocol):
    """The skills of a workspace."""

    def states(self) -> tuple[SkillState, ...]:
        """Return every skill file that was found, with its error if it has one."""
        ...

    def listed(self) -> tuple[SkillInfo, ...]:
        """Return the usable skills, for clients."""
        ...

    async def read(self, skill_id: SkillId) -> SkillContent:
        """Return the file of a skill; raises `SkillNotFound`."""
        ...

    def for_agents(self) -> tuple[AgentSkill, ...]:
        """Return the usable skills, for agents."""
        ...

    async def refresh(self) -> None:
        """Search for skills again; called before every run."""
        ...


# ── Empty versions ──────────────────────────────────────────────────────────────────────────────


@frozen
class NoLanguageServers:
    """`LanguageServers` of a workspace that has none."""

    def states(self) -> Mapping[str, LspClientInfo]:
        """Return nothing."""
        return {}

    def diagnostics(self, name: str) -> Diagnostics:
        """Raise `LspNotFound`."""
        raise LspNotFound(name)

    async def start(self, path: str) -> None:
        """Start nothing."""
        await checkpoint()

    async def stop(self) -> None:
        """Stop nothing."""
        await checkpoint()

    async def viewed(self, path: Path) -> str:  # noqa: ASYNC910  # called by every view: costs nothing
        """Return nothing."""
        return ""  # noqa: ASYNC910

    async def changed(self, path: Path) -> str:  # noqa: ASYNC910  # as above
        """Return nothing."""
        return ""  # noqa: ASYNC910

    def code_tools(self, changes: "FileChanges") -> Iterable[Tool]:
        """Return nothing."""
        return ()


@frozen
class NoMcpServers:
    """`McpServers` of a workspace that has none."""

    def states(self) -> Mapping[str, McpClientInfo]:
        """Return nothing."""
        return {}

    def pending_logins(self) -> tuple[PendingAuth, ...]:
        """Return nothing."""
        return ()

    def login_url(self, name: str) -> str:
        """Return nothing: no login is pending."""
        return ""

    async def log_in(self, name: str) -> None:
        """Return at once."""
        await checkpoint()

    def prompts(self) -> tuple[McpPrompt, ...]:
        """Return nothing."""
        return ()

    async def prompt(self, name: str, prompt: str, arguments: Mapping[str, str]) -> str:
        """Return an empty prompt."""
        await checkpoint()
        return ""

    async def read_resource(self, name: str, uri: str) -> tuple[McpResource, ...]:
        """Return nothing."""
        await checkpoint()
        return ()

    async def refresh_tools(self, name: str) -> None:
        """Return at once."""
        await checkpoint()

    async def refresh_prompts(self, name: str) -> None:
        """Return at once."""
        await checkpoint()

    async def refresh_resources(self, name: str) -> None:
        """Return at once."""
        await checkpoint()

    async def use_docker(self, wanted: bool) -> bool:
        """Change nothing."""
        await checkpoint()
        return False

    def tools(self) -> tuple[Tool, ...]:
        """Return nothing."""
        return ()

    def instructions(self) -> tuple[ServerInstructions, ...]:
        """Return nothing."""
        return ()

    async def settled(self) -> None:  # noqa: ASYNC910 - there is nothing to wait for
        """Return at once."""


@frozen
class NoSkills:
    """`Skills` of a workspace that has none."""

    def states(self) -> tuple[SkillState, ...]:
        """Return nothing."""
        return ()

    def listed(self) -> tuple[SkillInfo, ...]:
        """Return nothing."""
        return ()

    async def read(self, skill_id: SkillId) -> SkillContent:
        """Raise `SkillNotFound`."""
        await checkpoint()
        raise SkillNotFound(skill_id)

    def for_agents(self) -> tuple[AgentSkill, ...]:
        """Return nothing."""
        return ()

    async def refresh(self) -> None:
        """Return at once."""
        await checkpoint()


# ── The integrations of a workspace ─────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Integrations:
    """The integrations of a workspace."""

    lsp: LanguageServers = NoLanguageServers()
    mcp: McpServers = NoMcpServers()
    skills: Skills = NoSkills()


NO_INTEGRATIONS = Integrations()
"""Integrations of a workspace that has none."""


@frozen(kw_only=True)
class Surroundings:
    """What integrations need to know of their workspace.

    `publish` tells its clients, at once and without waiting. After the runs of the workspace have ended
    its event log is closed, and publishing does nothing.
    """

    workspace_id: WorkspaceId
    directory: Path
    live: Configuration = field(repr=False)
    publish: Callable[[Fact], object] = field(repr=False)
    clock: Clock = field(repr=False)
    sandbox: CommandSandbox = field(factory=CommandSandbox, repr=False)


OpenIntegrations = Callable[[Surroundings], AbstractAsyncContextManager[Integrations]]
"""Opens the integrations of a workspace. They are closed after the last run that could use them."""


@asynccontextmanager
async def open_no_integrations(_surroundings: Surroundings) -> AsyncIterator[Integrations]:
    """Open no integrations."""
    await checkpoint()
    yield NO_INTEGRATIONS
