"""Routes that are answered before the framework is asked: prompts, and what clients poll.

What the framework does for every request costs more than accepting a prompt or reading a session does.
A request for one of these routes that has arrived whole is answered here, by the same functions and with
the same bytes as its route would. Anything out of the ordinary goes on to the route: a body that is
still on its way, another server, another method.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qsl

from attrs import field, frozen
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope

from crush_trio.errors import CrushError
from crush_trio.log_context import logged_for
from crush_trio.server import reads
from crush_trio.server.answers import JSON, Reply, send_whole
from crush_trio.server.bodies import check_id, decode_body
from crush_trio.server.http.exchange import take_whole_body
from crush_trio.server.routes.agent import accept
from crush_trio.server.server import Site, note_route
from crush_trio.server.status import error_body, hint_headers, status_of
from crush_trio.wire.codec import encode
from crush_trio.wire.requests import AgentMessage

_WORKSPACE: Final = "/v1/workspaces/<wid>"
_PARAMETER: Final = re.compile(r"<(\w+)>")
_JSON: Final = (b"content-type", JSON.encode())

log = logging.getLogger(__name__)


@frozen
class Read:
    """A route that only reads, and the function behind it; *rule* is the one of its route."""

    rule: str
    function: Callable[..., Awaitable[Reply]]
    path: re.Pattern[str] = field(init=False)
    names: tuple[str, ...] = field(init=False)
    """What the parameters of the path are called."""

    @path.default
    def _path(self) -> re.Pattern[str]:
        return re.compile(_PARAMETER.sub("([^/]+)", self.rule))

    @names.default
    def _names(self) -> tuple[str, ...]:
        return tuple(_PARAMETER.findall(self.rule))


PROMPT: Final = f"{_WORKSPACE}/agent"
"""The rule of the route that accepts prompts."""

READS: Final = (
    Read("/v1/health", reads.health),
    Read(f"{_WORKSPACE}/agent", reads.agent),
    Read(f"{_WORKSPACE}/agent/sessions/<sid>", reads.agent_session),
    Read(f"{_WORKSPACE}/sessions", reads.sessions),
    Read(f"{_WORKSPACE}/sessions/<sid>", reads.session),
    Read(f"{_WORKSPACE}/sessions/<sid>/messages", reads.messages),
)
"""What is read directly."""

_PROMPT_PATH: Final = Read(PROMPT, reads.agent).path


def direct(site: Site, app: ASGIFramework) -> ASGIFramework:
    """Answer what can be answered here for *site*, and hand all else to *app*."""

    async def wrapped(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "http" and (answering := _answering(site, scope)) is not None:
            await _send(send, await answering)
        else:
            await app(scope, receive, send)

    return wrapped


def _answering(site: Site, scope: Scope) -> Awaitable[Reply] | None:
    """Return what answers a request, if that can be done here."""
    assert scope["type"] == "http"
    if scope["method"] == "GET":
        for route in READS:
            if (path := route.path.fullmatch(scope["path"])) is not None:
                whole = take_whole_body(scope) is not None
                return _read(site, route, scope, path.groups()) if whole else None
    elif scope["method"] == "POST" and not scope["query_string"]:
        path = _PROMPT_PATH.fullmatch(scope["path"])
        if path is not None and (body := take_whole_body(scope)) is not None:
            note_route(scope, PROMPT)
            return _accepted(site, path[1], body)
    return None


async def _read(site: Site, route: Read, scope: Scope, ids: tuple[str, ...]) -> Reply:
    """Return what a route reads; a query that cannot be understood has the meaning it seems to have."""
    assert scope["type"] == "http"
    note_route(scope, route.rule)
    try:
        for name, value in zip(route.names, ids, strict=True):
            check_id(value, name)
        given = scope["query_string"]
        pairs = parse_qsl(given.decode("latin-1"), keep_blank_values=True) if given else ()
        return await route.function(site, dict(reversed(pairs)), *ids)
    except Exception as error:  # noqa: BLE001 - as the framework does
        return _refused(error, ids[0] if ids else "")  # noqa: ASYNC910 - the answer is sent next


async def _accepted(site: Site, wid: str, body: bytes) -> Reply:
    """Accept the prompt in *body*."""
    try:
        check_id(wid, "wid")
        repeated = await accept(site, wid, decode_body(body, AgentMessage, limits=site.bodies))
    except Exception as error:  # noqa: BLE001 - as the framework does
        return _refused(error, wid)  # noqa: ASYNC910 - the answer is sent next
    return Reply(b"" if repeated is None else encode(repeated), 202)


async def _send(send: ASGISendCallable, replied: Reply) -> None:
    """Send a reply; what follows its first piece as it is taken."""
    body, rest = replied.body, replied.rest
    if rest is None:
        head = [_JSON] if body else []
        length = (b"content-length", b"%d" % len(body))
        await send_whole(send, replied.status, [*head, length, *replied.hints], body)
        return
    await send({"type": "http.response.start", "status": replied.status, "headers": [_JSON]})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    while rest.more:
        piece = await rest.read()
        await send({"type": "http.response.body", "body": piece, "more_body": rest.more})


def _refused(error: Exception, wid: str) -> Reply:
    with logged_for(wid):
        status, body = refusal(error)
    return Reply(body, status, hints=tuple(hint_headers(error)))


def refusal(error: Exception) -> tuple[int, bytes]:
    """Return the status and the body that tell *error*, which is logged if it is our own fault."""
    status = status_of(error)
    if not isinstance(error, CrushError):
        log.error("request.crashed", exc_info=error)
    elif status >= 500:
        log.error("request.failed", extra={"code": error.code}, exc_info=error)
    return status, error_body(error)
