"""`Call`: a request that has found its route, and `respond`, which answers it.

`respond` runs a row for all routes alike: it checks the caller's right, refuses a change that a command of
the agent asks for, checks ids, finds the workspace, checks required query parameters, decodes the
body, calls the handler, encodes the answer, and translates errors, in this order.
"""

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl

import trio
from attrs import define, evolve, field, frozen

from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.errors import CrushError, DecodeError
from crush_trio.log_context import logged_for
from crush_trio.server.audit_notes import hide_for, refusal, run_audited
from crush_trio.server.bodies import JsonPages, ValuePages, check_id, decode_body, query_client_id
from crush_trio.server.guard import (
    Caller,
    Forbidden,
    check_csrf,
    check_own_process,
    is_own_process,
)
from crush_trio.server.routing.route import JSON, Route
from crush_trio.server.server import Server
from crush_trio.server.status import code_of, error_body, error_headers
from crush_trio.server.tokens import RightMissing
from crush_trio.wire.codec import decode, encode
from crush_trio.wire.ids import ClientId, RunId, SessionId

if TYPE_CHECKING:
    from crush_trio.server.cluster.stored import StoredWorkspace

T = TypeVar("T")

_SWITCH: Final = {"0": False, "false": False, "1": True, "true": True}

log = logging.getLogger(__name__)


@frozen(kw_only=True)
class Here:
    """What is known of a request about a workspace of a shared store that is to be answered here."""

    body: bytes | None = field(default=None, repr=False)
    """The body, if it was received to be passed on; there is nothing left to receive then."""
    stored: "StoredWorkspace | None" = None
    """The workspace as its store has it, if no node runs it and the row only reads."""
    reopened: bool = False
    """Whether the workspace was opened for this request, after its last owner had ended."""


OPEN_HERE: Final = Here()
"""The workspace is open here, or is not known."""


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
    here: Here = OPEN_HERE
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
    def records(self) -> "HostedWorkspace | StoredWorkspace":
        """What the path names, for rows that only read the store: the workspace, open or not."""
        return self.here.stored or self.workspace

    @property
    def attached_clients(self) -> Counter[SessionId]:
        """How many clients look at each session of the workspace; none if it is not open."""
        if self.here.stored is not None:
            return Counter()
        return self.server.attached_clients(self.values["wid"])

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
        """The client that the query names, if the caller may speak for it."""
        return self.own_client(query_client_id(self.query.get("client_id")))

    def own_client(self, client_id: ClientId) -> ClientId:
        """Return *client_id*; raises `RightMissing` if it belongs to another token than the caller's."""
        self.server.clients.check(client_id, self.caller.token, self.caller.right)
        return client_id

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
        """Return whether a switch in the query is on; an absent one is off."""
        value = _SWITCH.get(self.query.get(name, "0").lower())
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


BODILESS: Final = frozenset({204, 304})
"""Answers without a body, of which a length would say something about another answer."""

ReadBody = Callable[[], Awaitable[bytes]]
"""Waits for the body of a request and returns it."""


async def respond(call: Call, body: bytes | ReadBody) -> Reply:
    """Run the handler; return its answer, or the answer for the error it raised."""
    try:
        return await _reply(call.route, await _handle(call, body))
    except (RightMissing, Forbidden) as error:
        call.server.audit.note(refusal(call.scope, error, call.caller.token))
        return refused(error, call)  # noqa: ASYNC910 - the answer is sent next
    except Exception as error:  # noqa: BLE001 - the barrier between requests (B18)
        return refused(error, call)  # noqa: ASYNC910 - the answer is sent next


async def _handle(call: Call, body: bytes | ReadBody) -> object:
    route = call.route
    await _check(call)
    if not route.waits:  # the lookup and the handler then happen in one step
        await trio.lowlevel.checkpoint()
    if route.needs_workspace and "wid" in call.values:
        _ = call.records
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


async def _check(call: Call) -> None:  # noqa: ASYNC910 - there is nothing to wait for over TCP
    """Raise what the caller may not do here, or what is wrong with the ids of the path."""
    if not call.route.open_to_all:
        call.caller.check(call.route.right)
    check_csrf(call.caller, call.scope)
    if call.route.changes:
        await check_own_process(call.scope)
    for name, value in call.values.items():
        check_id(value, name)


async def checked_caller(call: Call) -> Caller:
    """Check a request as `respond` does, and return its caller as another node is told of it."""
    await _check(call)
    own = await is_own_process(call.scope)
    client = call.scope.get("client")
    address = f"{client[0]}:{client[1]}" if client and client[1] is not None else ""
    return evolve(call.caller, address=address, own_process=own)


async def elsewhere(call: Call, cls: type[T]) -> list[T]:
    """Return what the other nodes answer to a request that is about no single workspace.

    Nothing without a cluster, and nothing if another node asks: it asks every node by itself. A node that
    does not answer in time, or in words of another version, is left out.
    """
    await trio.lowlevel.checkpoint()
    if call.server.cluster is None or call.caller.forwarded:
        return []
    query = call.scope["query_string"].decode("latin-1")
    target = f"{call.scope['path']}?{query}" if query else call.scope["path"]
    caller, peers = await checked_caller(call), call.server.cluster.peers
    found = []
    for body in (await peers.ask_all(caller, "GET", target)).values():
        with suppress(DecodeError):
            found.append(decode(body, cls))
    return found


async def _reply(route: Route, given: object) -> Reply:
    """Return the answer with a handler's value."""
    if isinstance(given, Reply):
        return given  # noqa: ASYNC910 - the answer is sent next
    if given is None:
        return Reply(status=route.empty_status)  # noqa: ASYNC910 - the answer is sent next
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


_EXPLAINED: Final = frozenset(
    {
        *("config_invalid", "not_built", "server_shutting_down", "store_locked"),
        *("forward_lost", "owned_elsewhere", "owner_unreachable", "workspace_elsewhere"),
        *("store_unreachable", "acceptance_not_stored"),
    }
)
"""Errors with a 5xx, most of them of a create or of another node, that say all there is to say."""


def refused(error: Exception, call: Call) -> Reply:
    """Return the answer for *error*, which is logged if it is our own fault."""
    workspace_id, hide = call.values.get("wid"), hide_for(call)
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    status = call.route.error_status(code_of(error))
    with nullcontext() if workspace_id is None else logged_for(workspace_id, hide):
        if not isinstance(error, CrushError):
            log.error("request.crashed", exc_info=error)
        elif error.code in _EXPLAINED and status >= 500:
            log.warning("request.failed", extra={"code": error.code, "error": str(error)})
        elif status >= 500:
            log.error("request.failed", extra={"code": error.code}, exc_info=error)
    return Reply(error_body(error, hide), status, tuple(error_headers(error)))
