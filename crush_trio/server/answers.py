"""Requests in, answers out: the few lines that every route needs.

A route decodes with `read_body`, calls something that knows no HTTP, and answers with `answer`,
`nothing` or an exception. Which status an exception has is decided in one table (`server.status`).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeVar, cast

from attrs import frozen
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope
from quart import Response, request

from crush_trio.server.bodies import decode_body
from crush_trio.server.listings import JsonPages, ValuePages
from crush_trio.server.server import site_of
from crush_trio.wire.codec import encode

T = TypeVar("T")

JSON: Final = "application/json"

_CLEANUP = "crush_trio.cleanup"


async def read_body(cls: type[T], absent: T | None = None) -> T:
    """Return the body of the request as a *cls*; *absent* if there is none and that is allowed."""
    data = await request.get_data(cache=False, as_text=False)
    assert isinstance(data, bytes)
    return decode_body(data, cls, limits=site_of(request.scope).bodies, absent=absent)


@frozen
class Reply:
    """An answer before any framework has seen it: its body as JSON, and perhaps more to follow."""

    body: bytes
    status: int = 200
    rest: JsonPages | None = None
    """The rest of an array of which *body* is the first page."""
    hints: tuple[tuple[bytes, bytes], ...] = ()
    """More headers, in a refusal."""


def reply(value: object) -> Reply:
    """Reply with JSON."""
    return Reply(encode(value))


def respond(replied: Reply) -> Response:
    """Answer with a reply. Of what follows, one who wants the head only is given nothing."""
    if replied.rest is None:
        return (
            Response(replied.body, replied.status, content_type=JSON) if replied.body else nothing()
        )
    wanted = b"" if request.method == "HEAD" else replied.rest.following(replied.body)
    response = Response(wanted, replied.status, content_type=JSON)
    response.timeout = None
    return response


def answer(value: object, status: int = 200) -> Response:
    """Answer with JSON."""
    return Response(encode(value), status, content_type=JSON)


async def answer_values(values: Sequence[object]) -> Response:
    """Answer with an array of values, of which there may be many."""
    pages = JsonPages(ValuePages(values))
    first = await pages.read()
    return respond(Reply(first, rest=pages if pages.more else None))


def nothing(status: int = 200) -> Response:
    """Answer that it was done, with no body. Clients take other good statuses for failures."""
    response = Response(b"", status)
    del response.headers["Content-Type"]
    return response


async def send_whole(
    send: ASGISendCallable, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> None:
    """Send an answer that is there as a whole, for whoever answers without the framework."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def cleanup(scope: Mapping[str, Any]) -> ExitStack:
    """Return what is undone, synchronously, when the request is over, for whatever reason."""
    stack = scope[_CLEANUP]
    assert isinstance(stack, ExitStack)
    return stack


def with_cleanup(app: ASGIFramework) -> ASGIFramework:
    """Give every request of *app* a stack that is unwound when it is over.

    A streamed body is the framework's once its handler has returned. If the client hangs up before
    the first piece is asked for, no code of the generator ever runs; this does.
    """

    async def wrapped(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        with ExitStack() as stack:
            scope = cast("Scope", {**scope, _CLEANUP: stack})
            await app(scope, receive, send)

    return wrapped
