"""The tools of MCP servers, and the tools `list_mcp_resources` and `read_mcp_resource`.

Output of a server is untrusted: it is bounded before a model sees it, and calling one of its tools needs
permission like a command.

Models know a tool as `mcp_<server>_<tool>`. Providers accept at most 64 letters, digits, `_` and `-`. The
plain form is ambiguous: `mcp_a_b_c` is the tool `c` of a server `a_b`, or `b_c` of a server `a`. A name
decides which server is called and which permission applies, so it must always mean the same tool: the
plain form belongs to the server with the longer name, connected or not. Where the plain form cannot be
used, the name ends in a hash of both names; a plain form that looks like it has such a hash is not used.
"""

import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, TypeGuard, TypeVar

import orjson
import trio
from attrs import define, evolve, field, frozen

from crush_trio.config.errors import printable
from crush_trio.integrations.mcp.elicitation import put_to_user
from crush_trio.integrations.mcp.server import McpServer
from crush_trio.integrations.mcp.session import (
    CallContext,
    McpFailure,
    McpSession,
    OfferedResource,
    OfferedTool,
)
from crush_trio.tools.base import (
    INVALID_JSON,
    About,
    BuiltIn,
    Media,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
    Wanted,
    read_arguments,
)
from crush_trio.tools.files.view import picture_type
from crush_trio.tools.shell.jobs import clipped
from crush_trio.wire.fields import JsonObject

MAX_MEDIA_BYTES: Final = 5 * 1024 * 1024
"""Maximum bytes of an image or audio for the model."""

MAX_MEDIA: Final = 8
"""Maximum images and audio of one answer for the model."""

MAX_DESCRIPTION: Final = 4096
"""Maximum characters of a tool's description."""

MAX_RULES: Final = 2000
"""Maximum characters of the rules for arguments that are described in words."""

_ALTERNATIVES: Final = ("oneOf", "anyOf", "allOf")
_NOT_AT_ROOT: Final = (*_ALTERNATIVES, "enum", "not")

PROGRESS_PAUSE: Final = 1.0
MAX_PROGRESS: Final = 200

T = TypeVar("T")

FindServer = Callable[[str], McpServer]
"""Returns the server of a name; raises `McpFailure` if there is none."""


def server_tools(servers: Iterable[McpServer], directory: Path) -> tuple[Tool, ...]:
    """Return the tools of the servers that are connected."""
    by_name = {server.plan.name: server for server in servers}
    offered = {
        (name, tool.name): tool for name, server in by_name.items() for tool in server.offer.tools
    }
    return tuple(
        McpTool(name, by_name[server], offered[server, tool], directory)
        for name, server, tool in tool_names(offered, by_name)
    )


@define(eq=False)
class McpTool:
    """A tool of a server, as a `Tool`. Never parallel, because its effects are unknown."""

    name: str
    server: McpServer = field(repr=False)
    offered: OfferedTool = field(repr=False)
    directory: Path
    parallel: bool = field(default=False, init=False)

    @property
    def description(self) -> str:
        """The server's description."""
        return (
            self.offered.description[:MAX_DESCRIPTION] or f"{self.offered.name} of {self._server}"
        )

    @property
    def parameters(self) -> JsonObject:
        """The server's JSON Schema of the arguments, as providers accept it."""
        return _object_schema(self.offered.schema)

    @property
    def _server(self) -> str:
        return f"the MCP server {self.server.plan.name}"

    async def run(self, call: ToolCall) -> ToolResult:
        """Ask for permission, and call the tool."""
        arguments = _arguments(call.input)
        await call.permit(
            Wanted(
                action="execute",
                description=f"Run {self.offered.name} of {self._server}",
                params=arguments,
                path=self.directory,
            )
        )
        shown = ProgressNotes(call.progress, self._server)
        context = CallContext(
            progress=shown.note,
            elicit=lambda asked: put_to_user(self.server.plan.name, asked, call.ask),
        )
        try:
            answer = await self.server.use(
                lambda session: session.call(self.offered.name, arguments, context)
            )
        except McpFailure as failure:
            raise ToolError(f"{self._server}: {failure}") from None
        if answer.is_error:
            raise ToolError(clipped(answer.text) or f"{self._server} says that this went wrong")
        return _result(answer.text, answer.media, call)


@define(eq=False)
class ProgressNotes:
    """Shows the progress of a call to clients, at most once in `PROGRESS_PAUSE` seconds."""

    _show: Callable[[str], None]
    _server: str
    _next: float = field(default=-math.inf, init=False)

    def note(self, text: str) -> None:
        """Show a text of the server, unless another was just shown."""
        now = trio.current_time()
        if now >= self._next:
            self._next = now + PROGRESS_PAUSE
            self._show(f"{self._server}: {printable(text, MAX_PROGRESS)}")


def _object_schema(schema: JsonObject) -> JsonObject:
    """Return a schema whose root is a plain object.

    Providers refuse a request in which the schema of any tool has alternatives at its root. The
    properties of all alternatives are offered instead, and the alternatives are described in words.
    """
    referred = _referred(schema, schema)
    root = {**referred, **schema}
    for dropped in ("$ref", "required"):
        root.pop(dropped, None)
    rest = {key: root.pop(key) for key in _NOT_AT_ROOT if key in root}
    parts = [referred, schema]
    for key in _ALTERNATIVES:
        for each in filter(_is_object, _list(rest.get(key))):
            part = {**_referred(each, schema), **each}
            parts.insert(0, part if key == "allOf" else {"properties": part.get("properties")})
    if rest:
        words = orjson.dumps(rest).decode()[:MAX_RULES]
        root["description"] = (
            f"{root.get('description', '')}\nThe arguments also fit {words}".strip()
        )
    if required := [name for part in parts for name in _list(part.get("required"))]:
        root["required"] = list(dict.fromkeys(map(str, required)))
    properties = [part.get("properties") for part in parts]
    merged = {key: value for each in filter(_is_object, properties) for key, value in each.items()}
    return {**root, "properties": merged, "type": "object"}


def _is_object(value: object) -> TypeGuard[JsonObject]:
    return isinstance(value, dict)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _referred(part: JsonObject, schema: JsonObject) -> JsonObject:
    """Return what the `$ref` of *part* refers to within *schema*; empty if there is none."""
    found: object = schema
    address = part.get("$ref")
    if not isinstance(address, str) or not address.startswith("#/"):
        return {}
    for name in address[2:].split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _arguments(text: str) -> JsonObject:
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as exc:
        raise ToolError(INVALID_JSON) from exc
    if not isinstance(value, dict):
        raise ToolError("the arguments are not a JSON object")
    return value


# ── Resources ───────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class ListArguments:
    """The arguments of `list_mcp_resources`."""

    mcp_name: Annotated[str, About("The name of the MCP server.")]


@frozen(kw_only=True)
class ReadArguments:
    """The arguments of `read_mcp_resource`."""

    mcp_name: Annotated[str, About("The name of the MCP server.")]
    uri: Annotated[str, About("The address of the resource.")]


@define(eq=False)
class ListResourcesTool(BuiltIn):
    """The tool `list_mcp_resources`."""

    name = "list_mcp_resources"
    parallel = True
    arguments = ListArguments

    find: FindServer = field(repr=False)
    directory: Path

    async def run(self, call: ToolCall) -> ToolResult:
        """Ask for permission, and list the current resources."""
        wanted = read_arguments(call.input, ListArguments)
        await call.permit(
            Wanted(
                action="list",
                description=f"List the resources of the MCP server {wanted.mcp_name}",
                params={"mcp_name": wanted.mcp_name},
                path=self.directory,
            )
        )
        found = await _ask(self.find, wanted.mcp_name, lambda session: session.resources())
        return ToolResult(content=clipped("\n".join(map(_line, found))) or "(It has none.)")


@define(eq=False)
class ReadResourceTool(BuiltIn):
    """The tool `read_mcp_resource`."""

    name = "read_mcp_resource"
    parallel = True
    arguments = ReadArguments

    find: FindServer = field(repr=False)
    directory: Path

    async def run(self, call: ToolCall) -> ToolResult:
        """Ask for permission, and read the resource."""
        wanted = read_arguments(call.input, ReadArguments)
        await call.permit(
            Wanted(
                action="read",
                description=f"Read {wanted.uri} of the MCP server {wanted.mcp_name}",
                params={"mcp_name": wanted.mcp_name, "uri": wanted.uri},
                path=self.directory,
            )
        )
        found = await _ask(self.find, wanted.mcp_name, lambda session: session.read(wanted.uri))
        texts = [each.text for each in found if not each.blob]
        media = (Media(data=each.blob, mime_type=each.mime_type) for each in found if each.blob)
        return _result("\n".join(texts), tuple(media), call)


async def _ask(find: FindServer, name: str, ask: Callable[[McpSession], Awaitable[T]]) -> T:
    """Return the result of *ask*; a failure becomes a `ToolError`."""
    try:
        return await find(name).use_briefly(ask)
    except McpFailure as failure:
        raise ToolError(f"the MCP server {name}: {failure}") from None


def _line(resource: OfferedResource) -> str:
    """Return a resource as one line."""
    about = ", ".join(filter(None, (resource.name, resource.description, resource.mime_type)))
    return " ".join(f"{resource.uri}: {about}".split())


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


def _result(text: str, media: Sequence[Media], call: ToolCall) -> ToolResult:
    """Return a tool result; media that the model cannot use is replaced by a note."""
    shown: list[Media] = []
    notes: list[str] = []
    for each in map(_recognised, media):
        why = _why_not_shown(each, call)
        if not why and len(shown) < MAX_MEDIA:
            shown.append(each)
        else:
            notes.append(why or f"(It also returned more than {MAX_MEDIA} images, left out.)")
    said = clipped(text)
    if said != text:
        notes.append(f"({TOO_LONG.format(length=len(text))})")
    content = "\n".join(filter(None, (said, *dict.fromkeys(notes))))
    if not shown:
        return ToolResult(content=content or "(no output)")
    return ToolResult(content=content, media=shown[0], more_media=tuple(shown[1:]))


TOO_LONG: Final = (
    "The answer has {length} characters, too many to show: its middle was left out. Call the tool again "
    "for less, for one part or one page."
)


def _recognised(media: Media) -> Media:
    """Return an image with the type that its data has: providers refuse one with another type."""
    found = picture_type(media.data) if media.mime_type.startswith("image/") else None
    return media if found is None else evolve(media, mime_type=found)


def _why_not_shown(media: Media, call: ToolCall) -> str:
    """Return why media is not passed to the model; empty if it is."""
    what = f"(It also returned {media.mime_type or 'data'}, {len(media.data)} bytes"
    if len(media.data) > MAX_MEDIA_BYTES:
        return f"{what}: more than can be shown.)"
    if not media.mime_type.startswith(("image/", "audio/")):
        return f"{what}, which cannot be shown.)"
    if media.mime_type.startswith("image/") and picture_type(media.data) is None:
        return f"{what}, which is not a PNG, JPEG, GIF or WebP picture.)"
    return "" if call.images else f"{what}, which this model cannot take.)"


MAX_NAME_LENGTH: Final = 64
_DIGITS: Final = 10
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")
_MARK: Final = re.compile(rf"_[0-9a-f]{{{_DIGITS}}}$")


def tool_names(
    tools: Iterable[tuple[str, str]], servers: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the unique name of each tool, with its server and its name there.

    *servers* are all configured servers, connected or not.
    """
    taken = set[str]()
    for server, tool in sorted(set(tools)):
        name = _plain(server, tool, servers) or _marked(server, tool)
        if name not in taken:
            taken.add(name)
            yield name, server, tool


def _plain(server: str, tool: str, servers: Collection[str]) -> str:
    """Return the plain form; empty if it cannot be used."""
    name = f"mcp_{server}_{tool}"
    longer = (each for each in servers if len(each) > len(server))
    if any(name.startswith(f"mcp_{each}_") for each in longer):
        return ""
    unfit = len(name) > MAX_NAME_LENGTH or _FOREIGN.search(name) or _MARK.search(name)
    return "" if unfit else name


def _marked(server: str, tool: str) -> str:
    digits = sha256(f"{server}\0{tool}".encode()).hexdigest()[:_DIGITS]
    readable = _FOREIGN.sub("_", f"mcp_{server}_{tool}")
    return f"{readable[: MAX_NAME_LENGTH - 1 - _DIGITS]}_{digits}"
