"""`SdkSession`: an `McpSession` on the `mcp` package. Loaded by the first connection, never at start-up.

Only this module and its transports import the package. Its exceptions are translated to `McpFailure`
here. It gets nothing from the process: no environment, no proxies, no standard error.
"""

import base64
import binascii
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import anyio
import mcp_types as types
import orjson
import trio
from attrs import define, field
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from crush_trio import __version__
from crush_trio.integrations.mcp.http import ListChanges, open_transport
from crush_trio.integrations.mcp.session import (
    ListKind,
    McpAnswer,
    McpFailure,
    McpTarget,
    OfferedResource,
    OfferedTool,
)
from crush_trio.tools.base import Media
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.integrations import McpArgument, McpPrompt, McpResource

# The package logs message contents, which may be private; failures are logged by `server.py`.
if not logging.getLogger("mcp").level:
    logging.getLogger("mcp").setLevel(logging.CRITICAL)

MOST_LISTED: Final = 1000
"""Maximum tools, prompts or resources of one server. A paginated list may never end."""

P = TypeVar("P")
R = TypeVar("R")


@contextmanager
def _failures() -> Iterator[None]:
    """Translate the package's exceptions to `McpFailure`."""
    try:
        yield
    except MCPError as error:
        raise McpFailure(error.message) from None
    except ValidationError:
        raise McpFailure("its answer is not what the protocol wants") from None
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        raise McpFailure("the connection is closed") from None
    except RuntimeError as error:
        raise McpFailure(str(error)) from None


@define(eq=False)
class SdkSession:
    """Satisfies `McpSession`."""

    _name: str
    _client: ClientSession = field(repr=False)
    _can: types.ServerCapabilities = field(repr=False)
    _changes: ListChanges = field(repr=False)
    instructions: str = field(repr=False)

    async def ping(self) -> None:
        """Return if the server answers, even if it does not know the method `ping`."""
        await trio.lowlevel.checkpoint()
        with _failures():
            try:
                await self._client.send_ping()
            except MCPError as error:
                if error.code != types.METHOD_NOT_FOUND:
                    raise

    async def tools(self) -> tuple[OfferedTool, ...]:
        """Return its tools."""
        if self._can.tools is None:
            return await _nothing()
        found = await _all(self._client.list_tools, lambda page: page.tools)
        return tuple(
            OfferedTool(
                name=each.name, description=each.description or "", schema=each.input_schema
            )
            for each in found
        )

    async def prompts(self) -> tuple[McpPrompt, ...]:
        """Return its prompts."""
        if self._can.prompts is None:
            return await _nothing()
        found = await _all(self._client.list_prompts, lambda page: page.prompts)
        return tuple(_prompt(self._name, each) for each in found)

    async def resources(self) -> tuple[OfferedResource, ...]:
        """Return its resources."""
        if self._can.resources is None:
            return await _nothing()
        found = await _all(self._client.list_resources, lambda page: page.resources)
        return tuple(
            OfferedResource(
                uri=each.uri,
                name=each.title or each.name,
                description=each.description or "",
                mime_type=each.mime_type or "",
            )
            for each in found
        )

    async def call(self, tool: str, arguments: JsonObject) -> McpAnswer:
        """Call a tool, once."""
        with _failures():
            result = await self._client.call_tool(tool, dict(arguments))
        return _answer(result)

    async def prompt(self, prompt: str, arguments: Mapping[str, str]) -> str:
        """Return the texts of a prompt."""
        with _failures():
            result = await self._client.get_prompt(prompt, dict(arguments))
        return "\n".join(_texts([message.content for message in result.messages]))

    async def read(self, uri: str) -> tuple[McpResource, ...]:
        """Return the contents of the resource at *uri*."""
        with _failures():
            result = await self._client.read_resource(uri)
        return tuple(_resource(each) for each in result.contents)

    async def changed(self) -> ListKind:
        """Wait until one of its lists has changed; raises `McpFailure` at the end of the stream."""
        return await self._changes.next()


async def _nothing() -> tuple[Any, ...]:
    await trio.lowlevel.checkpoint()
    return ()


async def _all(
    ask: Callable[..., Awaitable[P]], items: Callable[[P], Sequence[R]]
) -> tuple[R, ...]:
    """Return all pages of a list."""
    found: list[R] = []
    cursor: str | None = None
    while True:
        with _failures():
            page = await ask(params=types.PaginatedRequestParams(cursor=cursor))
        found += items(page)
        following = getattr(page, "next_cursor", None)
        if following is None or following == cursor or len(found) >= MOST_LISTED:
            return tuple(found[:MOST_LISTED])
        cursor = following


# ── Values ──────────────────────────────────────────────────────────────────────────────────────


def _prompt(server: str, prompt: types.Prompt) -> McpPrompt:
    return McpPrompt(
        id=f"{server}:{prompt.name}",
        title=prompt.title or "",
        description=prompt.description or "",
        prompt_id=prompt.name,
        client_id=server,
        arguments=tuple(
            McpArgument(
                id=each.name,
                title=each.title or each.name,
                description=each.description or "",
                required=bool(each.required),
            )
            for each in prompt.arguments or ()
        ),
    )


def _resource(found: types.TextResourceContents | types.BlobResourceContents) -> McpResource:
    mime_type = found.mime_type or ""
    if isinstance(found, types.TextResourceContents):
        return McpResource(uri=found.uri, mime_type=mime_type, text=found.text)
    return McpResource(uri=found.uri, mime_type=mime_type, blob=_bytes(found.blob))


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise McpFailure("its data is not base64") from None


def _answer(result: types.CallToolResult) -> McpAnswer:
    text = "\n".join(_texts(result.content))
    media = next(
        (
            Media(data=_bytes(each.data), mime_type=each.mime_type)
            for each in result.content
            if isinstance(each, types.ImageContent | types.AudioContent)
        ),
        None,
    )
    if not result.content and result.structured_content is not None:
        text = orjson.dumps(result.structured_content).decode()
    return McpAnswer(text=text, media=media, is_error=result.is_error)


def _texts(content: Sequence[types.ContentBlock]) -> Iterator[str]:
    """Yield the texts of *content*; a link to a resource becomes its name and URI."""
    for each in content:
        match each:
            case types.TextContent(text=text):
                yield text
            case types.EmbeddedResource(resource=types.TextResourceContents(text=text)):
                yield text
            case types.ResourceLink(uri=uri, name=name):
                yield f"{name}: {uri}"


# ── Opening ─────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def open_session(target: McpTarget) -> AsyncIterator[SdkSession]:
    """Connect to a server, initialise the protocol, and yield the session."""
    changes = ListChanges()
    async with open_transport(target, changes) as (incoming, outgoing):
        async with ClientSession(
            incoming,
            outgoing,
            message_handler=changes.receive,
            client_info=types.Implementation(name="crush_trio", version=__version__),
        ) as client:
            with _failures():
                greeting = await client.initialize()
            yield SdkSession(
                target.name, client, greeting.capabilities, changes, greeting.instructions or ""
            )
