"""`Link`: requests to one server with wire values, and its event streams. And the errors of the client.

Whatever goes wrong is raised as a `CrushError`. A failure of the network is a `NoAnswer`. A server answers
a refusal with a code: where it is the code of an error in `crush_trio.errors`, the client raises the same
class, with the same detail, so `except SessionBusy` works in the server's process and in a client's. Any
other code becomes an `ApiError`, which carries it.
"""

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Final, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import anyio
import anyio.lowlevel
import trio
from attrs import define, field

from crush_trio import errors
from crush_trio.client.asyncio_streams import asyncio_dial
from crush_trio.errors import CrushError, DecodeError, Unavailable
from crush_trio.net.address import Address, Origin, TcpAddress, UnixAddress, is_loopback
from crush_trio.net.client import (
    Content,
    HttpClient,
    Request,
    Response,
    Transport,
    open_http_client,
)
from crush_trio.net.dial import Dial, Dialer, UnixDialer
from crush_trio.net.errors import (
    BadEncoding,
    ConnectFailed,
    ForeignSocket,
    NetworkError,
    ResponseTooLarge,
)
from crush_trio.plain_json import shown
from crush_trio.wire.answers import ErrorBody
from crush_trio.wire.codec import decode, encode
from crush_trio.wire.runs import RunView

CONNECT_LIMIT: Final = 10.0
"""Seconds within which a server begins to answer a request for its events."""

ANSWER_MOST: Final = 1024**3
"""Bytes that an answer may have. Lists of messages are long; a limit only stops a broken server."""

REFUSAL_MOST: Final = 1024 * 1024
"""Bytes that are read of a refusal."""

KEEP_ALIVE: Final = 3.0
"""Seconds after which an unused connection is not used again; servers close theirs a little later."""

KEEP_MOST: Final = 100
"""How many unused connections are kept."""

_UNIX_HOST: Final = "api.crush.localhost"
"""The name under which clients ask for a server behind a Unix socket."""

T = TypeVar("T")

Query: TypeAlias = Mapping[str, str]
"""The query of a request."""

Take: TypeAlias = Callable[[bytes], float | None]
"""Takes a piece of a stream; returns how long to wait for the next, or None to end the stream."""


@define(eq=False)
class Link:
    """Requests to one server, any number at a time. Made by `open_link` only.

    Deadlines are the caller's: a request waits for as long as its answer takes.
    """

    address: Address
    _transport: Transport = field(repr=False)
    _headers: Mapping[str, str] = field(repr=False)
    _advice: str = field(repr=False)
    """What the user can do if nothing answers."""
    _closed: bool = field(default=False, init=False)

    async def ask(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        body: object = None,
        query: Query | None = None,
    ) -> T:
        """Send a request and return its answer as an *answer*."""
        data = await self.tell(method, path, body=body, query=query)
        with _decoding(method, path):
            return decode(data, answer)

    async def tell(
        self, method: str, path: str, *, body: object = None, query: Query | None = None
    ) -> bytes:
        """Send a request and return the body of a successful answer, which is often empty."""
        kind = {} if body is None else {"content-type": "application/json"}
        content = b"" if body is None else encode(body)
        async with self._open(method, path, query, kind, content) as response:
            if 200 <= response.status < 300:
                return await response.read(ANSWER_MOST)
            raise await _refusal(response)

    async def listen(self, path: str, take: Take, *, query: Query, place: str) -> None:
        """Give *take* the pieces of an event stream from *place* on, until it ends or *take* has enough.

        Raises `AnswerLost` if the connection breaks, or is silent for longer than *take* allowed.
        *take* does not wait and does not raise.
        """
        with anyio.CancelScope(deadline=anyio.current_time() + CONNECT_LIMIT) as scope:
            async with self._open("GET", path, query, {"last-event-id": place}) as response:
                if response.status != 200:
                    raise await _refusal(response)
                while data := await response.receive():
                    patience = take(data)
                    if patience is None:
                        return
                    scope.deadline = anyio.current_time() + patience
        if scope.cancelled_caught:
            raise AnswerLost("nothing was heard from the server for too long")

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Query | None,
        headers: Mapping[str, str],
        body: Content = b"",
    ) -> AsyncIterator[Response]:
        """Send a request; network errors in the block become errors of the client."""
        if self._closed:
            raise ClientClosed("the client has been closed")
        request = Request(
            method=method,
            origin=_origin(self.address),
            target=f"{path}?{urlencode(query)}" if query else path,
            headers={**self._headers, **headers},
            body=body,
        )
        with translated(self.address, self._advice):
            async with self._transport.open(request) as response:
                yield response

    def close(self) -> None:
        """Refuse further requests."""
        self._closed = True


@asynccontextmanager
async def open_link(
    address: Address,
    *,
    advice: str = "",
    token: str | None = None,
    client_id: str = "",
    insecure: bool = False,
    certificates: Mapping[str, str] | None = None,
    transport: Transport | None = None,
    dial: Dial | None = None,
) -> AsyncIterator[Link]:
    """Open a link to the server at *address*; nothing is sent yet. Leaving closes its connections.

    *advice* tells the user what to do if nothing answers there. *client_id* is named in every request.
    *certificates* may have `SSL_CERT_FILE` and `SSL_CERT_DIR`. *transport* replaces the sockets,
    *dial* only how they are connected.

    Raises `TokenExposed` rather than send the token to another machine without TLS, unless *insecure*.
    """
    headers = {"x-crush-client-id": client_id} if client_id else {}
    if token is not None:
        if not insecure:
            _check_private(address)
        headers["authorization"] = f"Bearer {token}"
    async with _open_sockets(address, certificates or {}, dial) as sockets:
        link = Link(address, sockets if transport is None else transport, headers, advice)
        try:
            yield link
        finally:
            link.close()


def segment(text: str) -> str:
    """Return an id as a segment of a path; the `$$` in the id of a sub-agent's session stays."""
    return quote(text, safe="$")


async def _refusal(response: Response) -> CrushError:
    """Return the error for a refusal. Redirects are not followed: the token is for this server only."""
    if 300 <= response.status < 400:
        await anyio.lowlevel.checkpoint()
        place = shown(response.headers.get("location", ""))
        text = f"it redirects to {place}, and redirects are not followed; name that server yourself"
        return ApiError(text, code=f"http_{response.status}", status=response.status)
    body, _ = await response.read_first(REFUSAL_MOST)
    return refusal(response.status, body)


@contextmanager
def _decoding(method: str, path: str) -> Generator[None]:
    try:
        yield
    except DecodeError as error:
        raise AnswerGarbled(f"{method} {path}: {error.detail}") from error


def _check_private(address: Address) -> None:
    """Raise `TokenExposed` if what is sent to *address* can be read on the way."""
    if isinstance(address, TcpAddress) and not address.secure and not is_loopback(address):
        raise TokenExposed(str(address))


def _open_sockets(
    address: Address, certificates: Mapping[str, str], dial: Dial | None
) -> AbstractAsyncContextManager[HttpClient]:
    """Open the HTTP client of the async library that runs, by default with direct connections.

    Proxies of the environment are not for our own server.
    """
    opened = partial(open_http_client, idle_most=KEEP_MOST, idle_limit=KEEP_ALIVE)
    if not trio.lowlevel.in_trio_run():
        return opened(dial or asyncio_dial(address, certificates), library=anyio)
    if dial is None and isinstance(address, UnixAddress):
        dial = UnixDialer(address)
    return opened(dial or Dialer(certificates))


def _origin(address: Address) -> Origin:
    if isinstance(address, UnixAddress):
        return Origin(_UNIX_HOST, 80, secure=False)
    return Origin(address.host, address.port, secure=address.secure)


# ── Errors ──────────────────────────────────────────────────────────────────────────────────────


class ApiError(CrushError):
    """The server refused, with a code that has no class of its own on this side."""

    code = "api_error"
    message = "the server refused the request"

    def __init__(self, detail: str = "", *, code: str = "", status: int = 0) -> None:
        super().__init__(detail)
        self.status = status
        """The HTTP status; 0 if no server was involved."""
        if code:
            self.code = code  # type: ignore[misc]  # the class has a code, each error the server's
            self.args = (detail,)


class ClientClosed(trio.ClosedResourceError, anyio.ClosedResourceError):
    """The block of the client or of the workspace was left. Both libraries' class, whichever runs."""


class TokenExposed(CrushError):
    """A token would be sent to another machine without TLS, where others can read it."""

    code = "token_exposed"
    message = (
        "the token would be sent unencrypted to another machine; use https://, or a tunnel to "
        "127.0.0.1, or --insecure on a network that you trust"
    )


class NoAnswer(Unavailable):
    """The server did not answer; the same request may be answered later."""


class ServerUnreachable(NoAnswer):
    """There was no connection, so the server has not seen the request."""

    code = "server_unreachable"
    message = "cannot reach the server"


class ServerForeign(CrushError):
    """The default socket belongs to another user, or lies where another user can replace it."""

    code = "server_foreign"
    message = "the default socket cannot be trusted"


class AnswerLost(NoAnswer):
    """The connection broke before the answer was complete; the request may have been carried out."""

    code = "answer_lost"
    message = "the connection to the server broke"


class AnswerGarbled(CrushError):
    """The server's answer does not have the form that its interface promises."""

    code = "answer_garbled"
    message = "the server's answer makes no sense"


class StreamBroken(CrushError):
    """An event of the stream cannot be applied to the state that earlier events built."""

    code = "stream_broken"
    message = "the event stream does not fit"


class RunNotCompleted(CrushError):
    """The text of a run was asked for, and the run ended without completing."""

    code = "run_not_completed"
    message = "the run did not complete"

    def __init__(self, detail: str = "", *, run: RunView | None = None) -> None:
        super().__init__(detail)
        self.run = run
        """The run as it ended."""


# ── From refusals and network errors to errors of the client ────────────────────────────────────


def _leaves(cls: type[CrushError]) -> Iterator[type[CrushError]]:
    below = [sub for sub in cls.__subclasses__() if sub.__module__ == errors.__name__]
    if not below:
        yield cls
    for sub in below:
        yield from _leaves(sub)


KNOWN: Final[Mapping[str, type[CrushError]]] = {cls.code: cls for cls in _leaves(CrushError)}
"""The errors that the client raises as the server raised them, by code."""


_BETWEEN_NODES: Final[Mapping[str, type[NoAnswer]]] = {
    "forward_lost": AnswerLost,
    "not_owner": ServerUnreachable,
    "owner_unreachable": ServerUnreachable,
}
"""What a node of a cluster says of its connection to another one means the same as for our own."""

_BY_PROXIES: Final = frozenset({502, 504})
"""Statuses with which proxies say that they got no answer; those of our servers have a code."""


def refusal(status: int, body: bytes) -> CrushError:
    """Return the error for a response with *status* and *body*."""
    try:
        told = decode(body, ErrorBody)
    except DecodeError:
        told = ErrorBody(message=body[:200].decode(errors="replace").strip())
    known = KNOWN.get(told.code) or _BETWEEN_NODES.get(told.code)
    if known is not None:
        return known(told.detail or _detail(told.message, known.message))
    text = ": ".join(filter(None, (told.message, told.detail))) or f"HTTP status {status}"
    if not told.code and status in _BY_PROXIES:
        return AnswerLost(text)
    return ApiError(text, code=told.code or f"http_{status}", status=status)


def _detail(text: str, message: str) -> str:
    """Return the detail in the text of an error: what follows its message."""
    return text.removeprefix(message).removeprefix(": ")


def passes(error: CrushError) -> bool:
    """Whether to try again: the server is away, busy or broken, and the request was valid."""
    if isinstance(error, ApiError):
        return error.status >= 500
    return isinstance(error, Unavailable | errors.WorkspaceClosing)


@contextmanager
def translated(address: Address, advice: str) -> Generator[None]:
    """Turn the network errors of a block into errors of the client.

    *advice* tells the user what to do if nothing answers at *address*.
    """
    try:
        yield
    except ConnectFailed as exc:
        reason = f" ({exc.reason})" if exc.reason else ""
        raise ServerUnreachable(f"nothing answers at {address}{reason}; {advice}") from exc
    except ForeignSocket as exc:
        raise ServerForeign(exc.detail) from exc
    except (BadEncoding, ResponseTooLarge) as exc:
        raise AnswerGarbled(exc.detail) from exc
    except NetworkError as exc:
        raise AnswerLost(exc.detail or type(exc).__name__) from exc
