"""A connection to one MCP server, as the rest of us sees it: what it offers, and what it can be asked.

The protocol itself is spoken by the `mcp` package, which takes a second to import and which not
everybody has. So it stands behind a Protocol, and only the first connection loads it. Whatever goes
wrong behind it leaves as an `McpFailure` with a sentence for people.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol

import trio
from attrs import field, frozen

from crush_trio.clock import Clock
from crush_trio.tools.base import Media
from crush_trio.wire.config import McpServerConfig
from crush_trio.wire.events import McpEventType
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.integrations import McpPrompt, McpResource

MAX_FAILURE_LENGTH: Final = 512
"""Characters of a sentence about a failure; what a server has to say about itself can be long."""

NOT_INSTALLED: Final = (
    "MCP servers need the package mcp, which is not installed: pip install 'crush-trio[mcp]'"
)

_SDK: Final = "crush_trio.integrations.mcp.sdk"


class McpFailure(Exception):
    """A server could not be reached, or did not do what it was asked. Its text is one line."""

    def __init__(self, text: str) -> None:
        line = "".join(each if each.isprintable() else " " for each in text)
        super().__init__(" ".join(line.split())[:MAX_FAILURE_LENGTH])


class LoginNeeded(McpFailure):
    """A server answers only those who have logged in."""


# ── What a server offers ────────────────────────────────────────────────────────────────────────


class ListKind(Enum):
    """The lists that a server may change; the value is how its clients hear of it."""

    TOOLS = McpEventType.TOOLS_LIST_CHANGED
    PROMPTS = McpEventType.PROMPTS_LIST_CHANGED
    RESOURCES = McpEventType.RESOURCES_LIST_CHANGED


@frozen(kw_only=True)
class OfferedTool:
    """A tool as its server describes it. `schema` is that of its arguments."""

    name: str
    description: str = ""
    schema: JsonObject = field(factory=dict, repr=False)


@frozen(kw_only=True)
class OfferedResource:
    """Something that can be read."""

    uri: str
    name: str = ""
    description: str = ""
    mime_type: str = ""


@frozen(kw_only=True)
class McpAnswer:
    """What a tool of a server answered: its texts, and the first picture or sound among the rest."""

    text: str = ""
    media: Media | None = None
    is_error: bool = False


class McpSession(Protocol):
    """A server that has introduced itself. Every call raises `McpFailure` if it goes wrong.

    Any task may call it. Calls that wait when the session closes fail.
    """

    @property
    def instructions(self) -> str:
        """What the server has to say to models about itself."""
        ...

    async def ping(self) -> None:
        """Return if the server answers."""
        ...

    async def tools(self) -> tuple[OfferedTool, ...]:
        """Return its tools."""
        ...

    async def prompts(self) -> tuple[McpPrompt, ...]:
        """Return its prompts."""
        ...

    async def resources(self) -> tuple[OfferedResource, ...]:
        """Return its resources."""
        ...

    async def call(self, tool: str, arguments: JsonObject) -> McpAnswer:
        """Have a tool do something, once."""
        ...

    async def prompt(self, prompt: str, arguments: Mapping[str, str]) -> str:
        """Return the text of a prompt."""
        ...

    async def read(self, uri: str) -> tuple[McpResource, ...]:
        """Return what is at *uri*."""
        ...

    async def changed(self) -> ListKind:
        """Wait until one of its lists is another one; raises `McpFailure` when it has hung up."""
        ...


# ── How it is reached ───────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class McpTarget:
    """A server as it is to be started or reached: all values filled in.

    `environment` is all that a command sees, `directory` where it runs.
    """

    name: str
    config: McpServerConfig = field(repr=False)
    directory: Path
    environment: Mapping[str, str] = field(factory=dict, repr=False)
    clock: Clock = field(repr=False)


class Connector(Protocol):
    """What connects to servers."""

    async def load(self) -> None:
        """Get ready, which may take a while; raises `McpFailure` if something is not installed."""
        ...

    def open(self, target: McpTarget) -> AbstractAsyncContextManager[McpSession]:
        """Connect to a server for the length of a block, which one task enters and leaves."""
        ...


@frozen
class SdkConnector:
    """Satisfies `Connector`, by means of the package `mcp`."""

    async def load(self) -> None:
        """Import what speaks the protocol, in a thread: others have things to do meanwhile."""
        try:
            await trio.to_thread.run_sync(import_module, _SDK)
        except ModuleNotFoundError:
            raise McpFailure(NOT_INSTALLED) from None

    def open(self, target: McpTarget) -> AbstractAsyncContextManager[McpSession]:
        """Connect to a server; `load` comes before."""
        opens: Callable[[McpTarget], AbstractAsyncContextManager[McpSession]]
        opens = import_module(_SDK).open_session
        return opens(target)
