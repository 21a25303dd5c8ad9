"""The one route that is answered before the framework is asked: a prompt, which is what a server is for.

What the framework does for every request costs more than accepting a prompt does. A request that is
a prompt, and has arrived whole, is decoded, accepted and answered here, by the same functions and with
the same bytes as its route would. Anything out of the ordinary goes on to the route: a query, a body
that is still on its way, another server.
"""

import logging
import re
from typing import Final

from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope

from crush_trio.errors import CrushError
from crush_trio.logging_context import logged_for
from crush_trio.server.answers import send_whole
from crush_trio.server.bodies import check_id, decode_body
from crush_trio.server.exchange import take_whole_body
from crush_trio.server.meters import note_route
from crush_trio.server.native import accept
from crush_trio.server.site import Site
from crush_trio.server.status import error_body, status_of
from crush_trio.wire.codec import encode
from crush_trio.wire.requests import AgentMessage

RULE: Final = "/v1/workspaces/<wid>/agent"
"""The rule of the route that this stands in for."""

_PATH: Final = re.compile(RULE.replace("<wid>", "([^/]+)"))

log = logging.getLogger(__name__)


def direct(site: Site, app: ASGIFramework) -> ASGIFramework:
    """Answer prompts for *site* here, and hand all else to *app*."""

    async def wrapped(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if (
            scope["type"] == "http"
            and scope["method"] == "POST"
            and not scope["query_string"]
            and (path := _PATH.fullmatch(scope["path"])) is not None
            and (body := take_whole_body(scope)) is not None
        ):
            note_route(scope, RULE)
            status, said = await _accepted(site, path[1], body)
            await send_whole(send, status, _headers(said), said)
        else:
            await app(scope, receive, send)

    return wrapped


async def _accepted(site: Site, wid: str, body: bytes) -> tuple[int, bytes]:
    """Accept the prompt in *body*; return the status and the body of the answer."""
    try:
        check_id(wid, "wid")
        repeated = await accept(site, wid, decode_body(body, AgentMessage))
    except Exception as error:  # noqa: BLE001 - as the framework does
        with logged_for(wid):
            return refusal(error)  # noqa: ASYNC910 - the answer is sent next
    return 202, b"" if repeated is None else encode(repeated)


def refusal(error: Exception) -> tuple[int, bytes]:
    """Return the status and the body that tell *error*, which is logged if it is our own fault."""
    status = status_of(error)
    if not isinstance(error, CrushError):
        log.error("request.crashed", exc_info=error)
    elif status >= 500:
        log.error("request.failed", extra={"code": error.code}, exc_info=error)
    return status, error_body(error)


def _headers(body: bytes) -> list[tuple[bytes, bytes]]:
    kind = [(b"content-type", b"application/json")] if body else []
    return [*kind, (b"content-length", b"%d" % len(body))]
