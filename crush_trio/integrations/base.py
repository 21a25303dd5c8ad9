"""What a workspace may have from outside, as its clients ask for it: three Protocols and their absence.

What is known is told by plain functions: clients ask for it several times a second, and it must not
wait behind anything. What has to be done may wait. A request is not what keeps it alive: a server
that a client has started belongs to the workspace, and stays when that client hangs up (T13).

A workspace has all three, always. Where there is nothing of a kind, it has the one that says so.

What can go wrong with what a workspace has from outside, as clients are told.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attrs import field, frozen
from trio.lowlevel import checkpoint

from crush_trio.clock import Clock
from crush_trio.config.live import Configuration
from crush_trio.errors import CrushError, LspNotFound, SkillNotFound
from crush_trio.events.facts import Fact
from crush_trio.tools.base import Tool
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
from crush_trio.wire.views import Diagnostics

if TYPE_CHECKING:
    from crush_trio.tools.files.changes import FileChanges


class McpFailed(CrushError):
    """An MCP server did not do what it was asked; the detail says which one, and why."""

    code = "mcp_failed"
    message = "MCP server failed"


# ── What can be asked ───────────────────────────────────────────────────────────────────────────


class LanguageServers(Protocol):
    """The language servers of a workspace."""

    def states(self) -> Mapping[str, LspClientInfo]:
        """Return how each of them does, by name."""
        ...

    def diagnostics(self, name: str) -> Diagnostics:
        """Return what one of them last had to say, by document; raises `LspNotFound`."""
        ...

    async def start(self, path: str) -> None:
        """Start those that understand the file at *path*, as far as they do not run already."""
        ...

    async def stop(self) -> None:
        """Stop them all."""
        ...

    async def viewed(self, path: Path) -> str:
        """Return what they have to say about a file that an agent has looked at; often nothing."""
        ...

    async def changed(self, path: Path) -> str:
        """Return what they have to say about a file that an agent has changed (H7)."""
        ...

    def code_tools(self, changes: "FileChanges") -> Iterable[Tool]:
        """Return the tools by which an agent asks them; those that write do it through *changes*."""
        ...


@frozen(kw_only=True)
class ServerInstructions:
    """What an MCP server has to say to models about itself. It is the server's word, nobody else's."""

    server: str
    text: str = field(repr=False)


class McpServers(Protocol):
    """The MCP servers of a workspace. One that is not there has nothing, and that is no error."""

    def states(self) -> Mapping[str, McpClientInfo]:
        """Return how each of them does, by name."""
        ...

    def pending_logins(self) -> tuple[PendingAuth, ...]:
        """Return those that wait for somebody to log in, in the order of their names."""
        ...

    def login_url(self, name: str) -> str:
        """Return where to log in to one of them; empty if no login is under way."""
        ...

    async def log_in(self, name: str) -> None:
        """Log in to one of them; returns when that is done, which a person has to see to."""
        ...

    def prompts(self) -> tuple[McpPrompt, ...]:
        """Return the prompts that they offer."""
        ...

    async def prompt(self, name: str, prompt: str, arguments: Mapping[str, str]) -> str:
        """Return a prompt of one of them, filled in with *arguments*."""
        ...

    async def read_resource(self, name: str, uri: str) -> tuple[McpResource, ...]:
        """Return what one of them has at *uri*."""
        ...

    async def refresh_tools(self, name: str) -> None:
        """Ask one of them for its tools again."""
        ...

    async def refresh_prompts(self, name: str) -> None:
        """Ask one of them for its prompts again."""
        ...

    async def refresh_resources(self, name: str) -> None:
        """Ask one of them for its resources again."""
        ...

    async def use_docker(self, wanted: bool) -> bool:
        """Add Docker's gateway to the configuration, or remove it; whether that changed anything."""
        ...

    def tools(self) -> tuple[Tool, ...]:
        """Return what an agent can do with them now; asked before every step of a run."""
        ...

    def instructions(self) -> tuple[ServerInstructions, ...]:
        """Return what they have to say to an agent, in the order of their names."""
        ...

    async def settled(self) -> None:
        """Wait until none of them is being started. A run waits for it if no person sits at it."""
        ...


@frozen(kw_only=True)
class AgentSkill:
    """A skill as an agent uses it: by reading its file, and what else is in the directory of that."""

    info: SkillInfo
    file: Path
    """Where the file really is, links followed."""
    advertised: bool = True
    """Whether a model is told of it by itself, or only if a person says so."""


class Skills(Protocol):
    """The skills of a workspace."""

    def states(self) -> tuple[SkillState, ...]:
        """Return every skill file that was found, and what is wrong with it, if anything is."""
        ...

    def listed(self) -> tuple[SkillInfo, ...]:
        """Return the skills that can be used."""
        ...

    async def read(self, skill_id: SkillId) -> SkillContent:
        """Return the file of a skill; raises `SkillNotFound`."""
        ...

    def for_agents(self) -> tuple[AgentSkill, ...]:
        """Return the same as an agent uses them."""
        ...

    async def refresh(self) -> None:
        """Look for them again; called before every run, so that it knows those of its moment."""
        ...


# ── Where there is nothing ──────────────────────────────────────────────────────────────────────


@frozen
class NoLanguageServers:
    """Satisfies `LanguageServers`."""

    def states(self) -> Mapping[str, LspClientInfo]:
        """Return nothing."""
        return {}

    def diagnostics(self, name: str) -> Diagnostics:
        """Say that there is no such server."""
        raise LspNotFound(name)

    async def start(self, path: str) -> None:
        """Start nothing: nothing understands any file."""
        await checkpoint()

    async def stop(self) -> None:
        """Stop nothing."""
        await checkpoint()

    async def viewed(self, path: Path) -> str:  # noqa: ASYNC910  # part of every view, and costs none anything
        """Say nothing."""
        return ""  # noqa: ASYNC910

    async def changed(self, path: Path) -> str:  # noqa: ASYNC910  # as above
        """Say nothing."""
        return ""  # noqa: ASYNC910

    def code_tools(self, changes: "FileChanges") -> Iterable[Tool]:
        """Return nothing: there is nobody to ask."""
        return ()


@frozen
class NoMcpServers:
    """Satisfies `McpServers`."""

    def states(self) -> Mapping[str, McpClientInfo]:
        """Return nothing."""
        return {}

    def pending_logins(self) -> tuple[PendingAuth, ...]:
        """Return nothing."""
        return ()

    def login_url(self, name: str) -> str:
        """Return nothing: no login is under way."""
        return ""

    async def log_in(self, name: str) -> None:
        """Return at once: there is nothing to log in to."""
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
        """Return at once: there is nobody to ask."""
        await checkpoint()

    async def refresh_prompts(self, name: str) -> None:
        """Return at once: there is nobody to ask."""
        await checkpoint()

    async def refresh_resources(self, name: str) -> None:
        """Return at once: there is nobody to ask."""
        await checkpoint()

    async def use_docker(self, wanted: bool) -> bool:
        """Change nothing, and say so."""
        await checkpoint()
        return False

    def tools(self) -> tuple[Tool, ...]:
        """Return nothing."""
        return ()

    def instructions(self) -> tuple[ServerInstructions, ...]:
        """Return nothing."""
        return ()

    async def settled(self) -> None:  # noqa: ASYNC910 - there is nothing to wait for
        """Return at once: nothing is being started."""


@frozen
class NoSkills:
    """Satisfies `Skills`."""

    def states(self) -> tuple[SkillState, ...]:
        """Return nothing."""
        return ()

    def listed(self) -> tuple[SkillInfo, ...]:
        """Return nothing."""
        return ()

    async def read(self, skill_id: SkillId) -> SkillContent:
        """Say that there is no such skill."""
        await checkpoint()
        raise SkillNotFound(skill_id)

    def for_agents(self) -> tuple[AgentSkill, ...]:
        """Return nothing."""
        return ()

    async def refresh(self) -> None:
        """Return at once: there is nowhere to look."""
        await checkpoint()


# ── What a workspace is given ───────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Integrations:
    """Everything that a workspace has from outside."""

    lsp: LanguageServers = NoLanguageServers()
    mcp: McpServers = NoMcpServers()
    skills: Skills = NoSkills()


NO_INTEGRATIONS = Integrations()
"""What a workspace has that has nothing."""


@frozen(kw_only=True)
class Surroundings:
    """The workspace that integrations are opened for.

    `publish` tells its clients, at once and without waiting. After the runs of the workspace have ended
    its event log is closed, and publishing does nothing.
    """

    workspace_id: WorkspaceId
    directory: Path
    live: Configuration = field(repr=False)
    publish: Callable[[Fact], object] = field(repr=False)
    clock: Clock = field(repr=False)


OpenIntegrations = Callable[[Surroundings], AbstractAsyncContextManager[Integrations]]
"""What opens the integrations of a workspace. They are closed after the last run that could use them."""


@asynccontextmanager
async def open_no_integrations(_surroundings: Surroundings) -> AsyncIterator[Integrations]:
    """Bring nothing along."""
    await checkpoint()
    yield NO_INTEGRATIONS
