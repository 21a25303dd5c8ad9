"""`SdkSession`: an `McpSession` on the `mcp` package. Loaded by the first connection, never at start-up.

Only this module and its transports import the package. Its exceptions are translated to `McpFailure`
here. It gets nothing from the process: no environment, no proxies, no standard error.
"""

import base64
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import anyio
import mcp_types as types
import orjson
import trio
from attrs import define, field
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import FileUrl, ValidationError

from crush_trio import __version__
from crush_trio.integrations.mcp.http import ListChanges, open_transport
from crush_trio.integrations.mcp.session import (
    MAX_FAILURE_LENGTH,
    NO_CONTEXT,
    CallContext,
    Elicitation,
    ElicitationAction,
    ElicitationAnswer,
    ListKind,
    McpAnswer,
    McpFailure,
    McpTarget,
    OfferedResource,
    OfferedTool,
)
from crush_trio.nursery import open_hidden_nursery
from crush_trio.tools.base import Media
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.integrations import McpArgument, McpPrompt, McpResource

# The package logs message contents, which may be private; failures are logged by `server.py`.
if not logging.getLogger("mcp").level:
    logging.getLogger("mcp").setLevel(logging.CRITICAL)

MOST_ASKED: Final = 5
"""Maximum elicitations of one call that wait for the user at the same time; more are cancelled."""
_GREATEST: Final = int(sys.float_info.max)

MOST_LISTED: Final = 1000
"""Maximum tools, prompts or resources of one server. A paginated list may never end."""

P = TypeVar("P")
R = TypeVar("R")


@contextmanager
def _failures(changes: ListChanges | None = None) -> Iterator[None]:
    """Translate the package's exceptions to `McpFailure`; *changes* knows why a stream has ended."""
    try:
        yield
    except MCPError as error:
        why = changes.ended if changes and error.code == types.CONNECTION_CLOSED else ""
        raise McpFailure(why or error.message) from None
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
    _requests: "ServerRequests" = field(repr=False)
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
                name=each.name,
                description=each.description or "",
                schema=_encodable(each.input_schema),
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

    async def call(
        self, tool: str, arguments: JsonObject, context: CallContext = NO_CONTEXT
    ) -> McpAnswer:
        """Call a tool, once."""

        async def note(progress: float, total: float | None, message: str | None) -> None:
            await trio.lowlevel.checkpoint()
            context.progress(_progress(progress, total, message))

        async with self._requests.during(context):
            with _failures(self._changes):
                result = await self._client.call_tool(tool, dict(arguments), progress_callback=note)
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


@define(eq=False)
class ServerRequests:
    """Answers what a server asks of its client: the roots, and elicitation.

    The protocol does not say to which call an elicitation belongs. It is put to the user in the call
    that began last, and cancelled if there is none.
    """

    _target: McpTarget
    _calls: list["OpenCall"] = field(factory=list, init=False, repr=False)

    @asynccontextmanager
    async def during(self, context: CallContext) -> AsyncIterator[None]:
        """Ask the user in *context* while the block runs; nothing is asked any more when it is left.

        The user is asked in a task of the caller, not of the connection, so that a cancel of the call
        withdraws the question.
        """
        async with open_hidden_nursery() as nursery:
            call = OpenCall(context, nursery)
            self._calls.append(call)
            try:
                yield
            finally:
                self._calls.remove(call)
            nursery.cancel_scope.cancel()

    async def roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        """Return the directory of the workspace."""
        await trio.lowlevel.checkpoint()
        directory = self._target.directory
        root = types.Root(uri=FileUrl(directory.as_uri()), name=directory.name)
        return types.ListRootsResult(roots=[root])

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        """Ask the user."""
        await trio.lowlevel.checkpoint()
        if isinstance(params, types.ElicitRequestURLParams):
            asked = Elicitation(message=params.message, url=params.url)
        else:
            asked = Elicitation(message=params.message, schema=params.requested_schema)
        said = await self._calls[-1].ask(asked) if self._calls else ElicitationAnswer()
        content = dict(said.content) if said.action is ElicitationAction.ACCEPT else None
        return types.ElicitResult(action=said.action.value, content=content)


@define(eq=False)
class OpenCall:
    """A call that has not been answered yet, and the nursery of its caller."""

    _context: CallContext = field(repr=False)
    _nursery: trio.Nursery = field(repr=False)

    async def ask(self, asked: Elicitation) -> ElicitationAnswer:
        """Ask the user in the caller's nursery; `CANCEL` if the call ends first, or asks for much at once."""
        said = ElicitationAnswer()
        done = trio.Event()
        if len(self._nursery.child_tasks) >= MOST_ASKED:
            await trio.lowlevel.checkpoint()
            return said

        async def put() -> None:
            nonlocal said
            try:
                said = await self._context.elicit(asked)
            finally:
                done.set()

        self._nursery.start_soon(put)
        await done.wait()
        return said


def _progress(done: float, total: float | None, message: str | None) -> str:
    share = f"{done:g} of {total:g}" if total else f"{done:g}"
    return " ".join(filter(None, (message, f"({share})")))[:MAX_FAILURE_LENGTH]


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
    except ValueError:
        raise McpFailure("its data is not base64") from None


def _encodable(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return JSON in which whole numbers that our encoder does not have are floating-point numbers."""
    match value:
        case dict():
            return {key: _encodable(each) for key, each in value.items()}
        case list():
            return [_encodable(each) for each in value]
        case int() if not -(2**63) <= value < 2**64:
            return float(max(-_GREATEST, min(value, _GREATEST)))
    return value


def _answer(result: types.CallToolResult) -> McpAnswer:
    text = "\n".join(_texts(result.content))
    media = tuple(
        Media(data=_bytes(each.data), mime_type=each.mime_type)
        for each in result.content
        if isinstance(each, types.ImageContent | types.AudioContent)
    )
    if not result.content and result.structured_content is not None:
        text = orjson.dumps(_encodable(result.structured_content)).decode()
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
    changes, requests = ListChanges(), ServerRequests(target)
    async with open_transport(target, changes) as (incoming, outgoing):
        async with ClientSession(
            incoming,
            outgoing,
            elicitation_callback=requests.elicit,
            list_roots_callback=requests.roots,
            message_handler=changes.receive,
            client_info=types.Implementation(name="crush_trio", version=__version__),
        ) as client:
            with _failures():
                greeting = await client.initialize()
            yield SdkSession(
                target.name,
                client,
                greeting.capabilities,
                changes,
                requests,
                greeting.instructions or "",
            )
