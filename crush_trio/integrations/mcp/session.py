"""`McpSession`: the Protocol of a connection to one MCP server, and the values it exchanges.

The protocol itself is implemented by the optional `mcp` package, which takes a second to import. So it
is used only behind this Protocol, and the first connection loads it (`SdkConnector`). Every error
becomes an `McpFailure` with one sentence for people.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol

import trio
from attrs import field, frozen

from crush_trio.clock import Clock
from crush_trio.tools.base import Media
from crush_trio.tools.sandbox.settings import CommandSandbox
from crush_trio.wire.config import McpServerConfig
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.integrations import McpEventType, McpPrompt, McpResource

MAX_FAILURE_LENGTH: Final = 512
"""Maximum characters of a failure's text; a server's own message can be long."""

NOT_INSTALLED: Final = (
    "MCP servers need the package mcp, which is not installed: pip install 'crush-trio[mcp]'"
)

_SDK: Final = "crush_trio.integrations.mcp.sdk"


class McpFailure(Exception):
    """A server could not be reached, or a request failed. The text is one line."""

    def __init__(self, text: str) -> None:
        line = "".join(each if each.isprintable() else " " for each in text)
        super().__init__(" ".join(line.split())[:MAX_FAILURE_LENGTH])


class LoginNeeded(McpFailure):
    """A server requires a login."""


# ── Values ──────────────────────────────────────────────────────────────────────────────────────


class ListKind(Enum):
    """The lists that a server may change; the value is the event for clients."""

    TOOLS = McpEventType.TOOLS_LIST_CHANGED
    PROMPTS = McpEventType.PROMPTS_LIST_CHANGED
    RESOURCES = McpEventType.RESOURCES_LIST_CHANGED


@frozen(kw_only=True)
class OfferedTool:
    """A tool as its server describes it. `schema` is the JSON Schema of its arguments."""

    name: str
    description: str = ""
    schema: JsonObject = field(factory=dict, repr=False)


@frozen(kw_only=True)
class OfferedResource:
    """A resource as its server describes it."""

    uri: str
    name: str = ""
    description: str = ""
    mime_type: str = ""


@frozen(kw_only=True)
class McpAnswer:
    """The result of a tool call: its texts, and the images and audio in it."""

    text: str = ""
    media: tuple[Media, ...] = ()
    is_error: bool = False


@frozen(kw_only=True)
class Elicitation:
    """What a server asks of the user during a call.

    `schema` is a JSON Schema of an object with plain values. A `url` is a page to be visited instead.
    """

    message: str
    schema: JsonObject = field(factory=dict, repr=False)
    url: str = ""


class ElicitationAction(Enum):
    """How the user answered; the value is the word of the protocol."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"


@frozen(kw_only=True)
class ElicitationAnswer:
    """The user's answer, with the values of the schema if it is accepted."""

    action: ElicitationAction = ElicitationAction.CANCEL
    content: JsonObject = field(factory=dict, repr=False)


async def _cancel(_asked: Elicitation) -> ElicitationAnswer:
    await trio.lowlevel.checkpoint()
    return ElicitationAnswer()


@frozen(kw_only=True, eq=False)
class CallContext:
    """What a server may do while it answers a call: report its progress, and ask the user."""

    progress: Callable[[str], None] = field(default=lambda _text: None, repr=False)
    elicit: Callable[[Elicitation], Awaitable[ElicitationAnswer]] = field(
        default=_cancel, repr=False
    )


NO_CONTEXT: Final = CallContext()


class McpSession(Protocol):
    """An initialised connection to a server. Every method raises `McpFailure` on failure.

    Any task may use it. Requests that are waiting when the session closes fail.
    """

    @property
    def instructions(self) -> str:
        """The server's instructions for models."""
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

    async def call(
        self, tool: str, arguments: JsonObject, context: CallContext = NO_CONTEXT
    ) -> McpAnswer:
        """Call a tool, once."""
        ...

    async def prompt(self, prompt: str, arguments: Mapping[str, str]) -> str:
        """Return the text of a prompt."""
        ...

    async def read(self, uri: str) -> tuple[McpResource, ...]:
        """Return the contents of the resource at *uri*."""
        ...

    async def changed(self) -> ListKind:
        """Wait until one of its lists has changed; raises `McpFailure` when the server disconnects."""
        ...


# ── Connecting ──────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class McpTarget:
    """The resolved configuration of a server to connect to.

    `environment` is the whole environment of a command, `directory` its working directory.
    """

    name: str
    config: McpServerConfig = field(repr=False)
    directory: Path
    environment: Mapping[str, str] = field(factory=dict, repr=False)
    clock: Clock = field(repr=False)
    sandbox: CommandSandbox = field(factory=CommandSandbox, repr=False)


class Connector(Protocol):
    """Connects to servers."""

    async def load(self) -> None:
        """Prepare, which may take a while; raises `McpFailure` if a package is not installed."""
        ...

    def open(self, target: McpTarget) -> AbstractAsyncContextManager[McpSession]:
        """Connect to a server; the same task must enter and leave the context manager."""
        ...


@frozen
class SdkConnector:
    """A `Connector` that uses the `mcp` package."""

    async def load(self) -> None:
        """Import the package in a thread: it takes a second, which must not block the event loop."""
        try:
            await trio.to_thread.run_sync(import_module, _SDK)
        except ModuleNotFoundError:
            raise McpFailure(NOT_INSTALLED) from None

    def open(self, target: McpTarget) -> AbstractAsyncContextManager[McpSession]:
        """Connect to a server; requires `load` first."""
        opens: Callable[[McpTarget], AbstractAsyncContextManager[McpSession]]
        opens = import_module(_SDK).open_session
        return opens(target)
