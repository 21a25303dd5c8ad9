"""One row per route, and the one implementation that answers them all.

A `Route` states its method, path, handler, body, answer and errors once. The Quart application, the direct
path, the OpenAPI document, the docs page, the coverage page, the metrics' route label and the tests
read the same rows (`server.routes.ROUTES`). `respond` runs a row: it checks the caller's right, refuses a
change that a command of the agent asks for, checks ids, finds the workspace,
checks required query parameters, decodes the body, calls the handler, encodes the answer, and
translates errors, in this order.
"""

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from inspect import iscoroutinefunction
from typing import Any, Final
from urllib.parse import parse_qsl

import trio
from attrs import define, evolve, field, frozen

from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.errors import CrushError, DecodeError
from crush_trio.log_context import logged_for
from crush_trio.server.audit_notes import Audited, refusal, run_audited
from crush_trio.server.bodies import JsonPages, ValuePages, check_id, decode_body, query_client_id
from crush_trio.server.guard import Caller, Forbidden, check_own_process
from crush_trio.server.server import Server
from crush_trio.server.status import STATUS, error_body, error_headers, status_of
from crush_trio.server.tokens import Right, RightMissing
from crush_trio.wire.codec import encode
from crush_trio.wire.ids import ClientId, RunId, SessionId

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
HTML: Final = "text/html; charset=utf-8"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The media type for a scraper that does not ask for another form."""

REAL: Final = "real"
"""The state of a route that does what it says."""

EXTENSIONS: Final = "Extensions"
"""The group of the routes that the Go program does not have."""

WORKSPACE: Final = "/v1/workspaces/{wid}"
"""The prefix of every route about one workspace."""

STORE_ERRORS: Final = (
    *("data_directory_lost", "disk_failed", "disk_full"),
    *("store_busy", "store_failed", "store_read_only"),
)
"""The errors of any route that reads or writes a store."""

_PARAMETER: Final = re.compile(r"{(\w+)}")
_READING: Final = {"GET", "HEAD", "OPTIONS"}
_SWITCH: Final = {"0": False, "false": False, "1": True, "true": True}

log = logging.getLogger(__name__)


# ── Rows ────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Query:
    """A parameter in the query of a URL, always text."""

    name: str
    about: str
    check: Callable[[str | None], object] | None = None
    """Raises what is wrong with a required parameter, before the body is read; None if it is optional."""

    @property
    def required(self) -> bool:
        """Whether a request without the parameter is refused."""
        return self.check is not None


CLIENT: Final = Query("client_id", "the client's UUID", query_client_id)
RECEIPT: Final = Query(
    "receipt", "`1` to wait until the runs that were hit have ended, and to get a receipt"
)


@frozen
class Route:
    """One method of one path: everything that describes it. `{…}` in the path are parameters.

    Shapes (*body*, *answer*) are types as the codec knows them: a wire class, `tuple[X, ...]`,
    `Mapping[str, X]`, a plain type; None where there is none.
    """

    method: str
    path: str
    about: str
    handler: Callable[["Call"], Any] = field(repr=False)
    """Returns the answer's value, or a `Reply`. A plain function must not wait; it runs in one step."""
    answer: Any = field(default=None, kw_only=True)
    """The shape of what the handler returns; of each event, if *media* is `EVENTS`."""
    answer_optional: bool = field(default=False, kw_only=True)
    """Whether the handler may return None for an answer without a body."""
    body: Any = field(default=None, kw_only=True)
    """Decoded, with its ids checked, before the handler is called."""
    body_optional: bool = field(default=False, kw_only=True)
    query: tuple[Query, ...] = field(default=(), kw_only=True)
    status: int = field(default=200, kw_only=True)
    media: str = field(default=JSON, kw_only=True)
    errors: tuple[str, ...] = field(default=(), kw_only=True)
    """The codes of the errors that are this route's own; `codes` has all of them."""
    needs_workspace: bool = field(default=True, kw_only=True)
    """Whether an unknown `{wid}` is refused before the query and the body are looked at.

    False for routes where the Go program does not look at all, and for those that answer other
    mistakes first; these look it up themselves and name `workspace_not_found` in *errors*.
    """
    changes: bool = field(kw_only=True)
    """Whether a command of the agent is refused here: whether the route does more than read."""
    right: Right = field(kw_only=True)
    """The right that a caller's token must include: by default `watch` for GET, else `admin`."""
    audit: Audited | None = field(default=None, kw_only=True)
    """What a request leaves in the audit; None leaves nothing."""
    direct: bool = field(default=False, kw_only=True)
    """Whether a request that has arrived whole is answered without Quart, which costs less."""
    state: str = field(default=REAL, kw_only=True)
    """`REAL`, or what the route does instead."""
    group: str = field(default="", kw_only=True)
    """The heading that it stands under in the documents."""
    waits: bool = field(init=False, repr=False)

    @changes.default
    def _changes(self) -> bool:
        return self.method not in _READING

    @right.default
    def _right(self) -> Right:
        return Right.WATCH if self.method == "GET" else Right.ADMIN

    @waits.default
    def _waits(self) -> bool:
        return iscoroutinefunction(self.handler)

    @property
    def extension(self) -> bool:
        """Whether the Go program does not have this route."""
        return self.group == EXTENSIONS

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters in the path."""
        return tuple(_PARAMETER.findall(self.path))

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of every error that a request which reached this route may be answered with."""
        found = set(self.errors)
        if "wid" in self.parameters and self.needs_workspace:
            found.add("workspace_not_found")
        if self.parameters:
            found.add("id_invalid")
        if self.changes:
            found.add("own_process")
        if self.body is not None:
            found |= {"bad_request", "body_too_large", "id_invalid"}
        return tuple(sorted(found, key=lambda code: (STATUS[code], code)))


def under(
    prefix: str, *routes: Route, group: str, errors: tuple[str, ...] = ()
) -> tuple[Route, ...]:
    """Return *routes* below *prefix*, with their *group* and the *errors* that they share."""
    return tuple(
        evolve(route, path=prefix + route.path, errors=route.errors + errors, group=group)
        for route in routes
    )


_Segment = tuple[str, str]


@define(eq=False)
class Matcher:
    """Finds the row of a method and a path. A literal segment wins over a parameter, as in Quart.

    Plain comparisons instead of patterns: compiling a pattern for each row takes 5 ms of every start.
    """

    _rows: dict[tuple[str, int], list[tuple[Route, tuple[_Segment, ...]]]] = field(
        factory=dict, init=False
    )
    """Rows and their segments, by method and number of segments, the more literal ones first."""

    @classmethod
    def of(cls, routes: Iterable[Route]) -> "Matcher":
        """Return a matcher of *routes*."""
        matcher = cls()
        for route in sorted(routes, key=_parameter_places):
            segments = tuple(_segment(text) for text in route.path.split("/"))
            matcher._rows.setdefault((route.method, len(segments)), []).append((route, segments))
        return matcher

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """Return the row and the values of its parameters; None if there is no such row."""
        given = path.split("/")
        for route, segments in self._rows.get((method, len(given)), ()):
            values: dict[str, str] = {}
            for (literal, name), text in zip(segments, given, strict=True):
                if name and text:
                    values[name] = text
                elif name or text != literal:
                    break
            else:
                return route, values
        return None


def _segment(text: str) -> _Segment:
    """Return a segment of a path as its literal text and the name of its parameter; one is empty."""
    return ("", text[1:-1]) if text.startswith("{") else (text, "")


def _parameter_places(route: Route) -> list[bool]:
    return [segment.startswith("{") for segment in route.path.split("/")]


# ── Calls ───────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Call:
    """One request that has found its route."""

    server: Server
    route: Route
    scope: Mapping[str, Any] = field(repr=False)
    """The ASGI scope of the request."""
    values: Mapping[str, str]
    """The parameters of the path, by name."""
    cleanup: ExitStack = field(repr=False)
    """Closed, without waiting, when the request is over, for whatever reason.

    A streamed body belongs to the framework once its handler has returned. If the client disconnects
    before the first piece is asked for, no code of the generator ever runs; this does.
    """
    caller: Caller = field(factory=Caller)
    body: Any = field(default=None, init=False, repr=False)
    """The decoded body, if the route has one."""
    query: Mapping[str, str] = field(init=False)
    """The query; of a name that is there twice, the first value."""
    _workspace: HostedWorkspace | None = field(default=None, init=False, repr=False)

    @query.default
    def _query(self) -> Mapping[str, str]:
        given: bytes = self.scope["query_string"]
        if not given:
            return {}
        return dict(reversed(parse_qsl(given.decode("latin-1"), keep_blank_values=True)))

    @property
    def workspace(self) -> HostedWorkspace:
        """The workspace that the path names, looked up once; raises `WorkspaceNotFound`."""
        if self._workspace is None:
            self._workspace = self.server.workspace(self.values["wid"])
        return self._workspace

    @property
    def session_id(self) -> SessionId:
        """The session that the path names."""
        return SessionId(self.values["sid"])

    @property
    def run_id(self) -> RunId:
        """The run that the path names."""
        return RunId(self.values["rid"])

    @property
    def client_id(self) -> ClientId:
        """The client that the query names."""
        return query_client_id(self.query.get("client_id"))

    @property
    def head_only(self) -> bool:
        """Whether the client wants the head of the answer and no body."""
        return bool(self.scope["method"] == "HEAD")

    def header(self, name: bytes) -> str | None:
        """Return the first header called *name*, which is in lower case."""
        for key, value in self.scope["headers"]:
            if key.lower() == name:
                return str(value.decode("latin-1"))
        return None

    def flag(self, name: str) -> bool:
        """Return whether a switch in the query is on."""
        value = _SWITCH.get(self.query.get(name, "0"))
        if value is None:
            raise DecodeError(f"{name} is neither 0 nor 1")
        return value

    def number(self, name: str, most: int) -> int | None:
        """Return a number of the query between 1 and *most*; None if it is absent."""
        text = self.query.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
            raise DecodeError(f"{name} is not a number from 1 to {most}")
        return int(text)


@frozen
class Reply:
    """An answer that is ready to be sent, by Quart or directly."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """All headers but the length."""
    pieces: AsyncGenerator[bytes, None] | None = field(default=None, repr=False)
    """The body of an answer that is sent piece by piece, in place of *body*."""


ReadBody = Callable[[], Awaitable[bytes]]
"""Waits for the body of a request and returns it."""


async def respond(call: Call, body: bytes | ReadBody) -> Reply:
    """Run the handler; return its answer, or the answer for the error it raised."""
    try:
        return await _reply(call.route, await _handle(call, body))
    except (RightMissing, Forbidden) as error:
        call.server.audit.note(refusal(call.scope, error, call.caller.token))
        return refused(error, None)  # noqa: ASYNC910 - the answer is sent next
    except Exception as error:  # noqa: BLE001 - the barrier between requests (B18)
        return refused(error, call.values.get("wid"))  # noqa: ASYNC910 - the answer is sent next


async def _handle(call: Call, body: bytes | ReadBody) -> object:
    route = call.route
    call.caller.check(route.right)
    if route.changes:
        await check_own_process(call.scope)
    if not route.waits:  # the lookup and the handler then happen in one step
        await trio.lowlevel.checkpoint()
    for name, value in call.values.items():
        check_id(value, name)
    if route.needs_workspace and "wid" in call.values:
        _ = call.workspace
    for query in route.query:
        if query.check is not None:
            query.check(call.query.get(query.name))
    if route.body is not None:
        data = body if isinstance(body, bytes) else await body()
        absent = route.body() if route.body_optional else None
        call.body = decode_body(data, route.body, limits=call.server.bodies, absent=absent)
    if route.audit is not None:
        return await run_audited(call, route.audit)
    if route.waits:
        return await route.handler(call)
    return route.handler(call)  # noqa: ASYNC910 - there was a checkpoint above


async def _reply(route: Route, given: object) -> Reply:
    """Return the answer with a handler's value."""
    if isinstance(given, Reply):
        return given  # noqa: ASYNC910 - the answer is sent next
    if given is None:
        return Reply(status=route.status)  # noqa: ASYNC910 - the answer is sent next
    if isinstance(given, list | tuple):
        given = JsonPages(ValuePages(given))
    if isinstance(given, JsonPages):
        return await paged(given)
    body, headers = encode(given), ((b"content-type", JSON.encode()),)
    return Reply(body, route.status, headers)  # noqa: ASYNC910 - the answer is sent next


async def paged(pages: JsonPages) -> Reply:
    """Return the answer with a list; its first page is read here, so what is wrong can still be told."""
    first, headers = await pages.read(), ((b"content-type", JSON.encode()),)
    if pages.more:
        return Reply(headers=headers, pieces=pages.following(first))
    return Reply(first, headers=headers)


def refused(error: Exception, workspace_id: str | None) -> Reply:
    """Return the answer for *error*, which is logged if it is our own fault."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    status = status_of(error)
    with nullcontext() if workspace_id is None else logged_for(workspace_id):
        if not isinstance(error, CrushError):
            log.error("request.crashed", exc_info=error)
        elif status >= 500:
            log.error("request.failed", extra={"code": error.code}, exc_info=error)
    return Reply(error_body(error), status, tuple(error_headers(error)))
