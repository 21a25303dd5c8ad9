"""Requests to the web, for tools: one GET, its redirects, and an answer that is read piece by piece.

The block of `open_answer` owns the connection. Leaving it closes the connection at once, be it for an
error or a cancel in the middle of an answer. There is one connection at a time and one request on it;
it is judged (`reach.py`) before anything is sent over it. Nothing comes from the environment of the
process: no proxies, no logins, no cookies.

Answers are asked for uncompressed. Should one be compressed all the same, it is inflated in bounded
pieces, so that a small answer cannot become a large one before somebody has counted it.

Which addresses a model's requests may reach.

A person sees the whole URL before anything is requested, and may well mean a server on this machine.
What a person cannot see is where a name or a redirect leads. So addresses are judged when a connection
is there, before anything is sent over it; a name that means one thing now and another a moment later
gains nothing by that. Two things are refused:

* addresses at which clouds hand out credentials to whoever asks, and all link-local ones, always;
* addresses that are not public, once a redirect comes from a public one.

Addresses of the web, taken apart once and for all.

What a person was shown and what is requested must be the same thing, so a URL is read in one place. One
that different programs read differently (with a login in it, with blanks, with no host) is refused.
"""

import re
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final, TypeAlias
from urllib.parse import quote, urljoin, urlsplit

import h11
import trio
from attrs import define, field, frozen
from typing_extensions import override

from crush_trio.tools.base import ToolError

Address: TypeAlias = IPv4Address | IPv6Address

FORBIDDEN: Final = tuple(
    ip_network(text)
    for text in (
        *("169.254.0.0/16", "fe80::/10"),  # link-local, with the metadata services of most clouds
        *("fd00:ec2::/32", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
    )
)
_FORBIDDEN_NAMES: Final = frozenset(("metadata.google.internal", "metadata.goog"))
_NAT64: Final = ip_network("64:ff9b::/96")


@define(eq=False)
class Reach:
    """Judges one request: the address it begins at, and those its redirects lead to."""

    forbidden: tuple[IPv4Network | IPv6Network, ...] = FORBIDDEN
    _public: bool = field(default=False, init=False)
    """Whether it has been at a public address."""

    def judge_name(self, host: str) -> None:
        """Raise a `ToolError` if *host* needs no look-up to be refused."""
        name = host.rstrip(".").lower()
        if name in _FORBIDDEN_NAMES:
            raise _refused(host)
        try:
            address = ip_address(name.strip("[]"))
        except ValueError:
            return
        self._judge(_plain(address), host)

    def admit(self, text: str) -> None:
        """Raise a `ToolError` unless a request may be sent to this address, the next of its way."""
        address = _plain(ip_address(text))
        self._judge(address, text)
        self._public = self._public or address.is_global

    def _judge(self, address: Address, shown: str) -> None:
        if any(address in network for network in self.forbidden):
            raise _refused(shown)
        if self._public and not address.is_global:
            raise ToolError(f"refused: a public site redirects to the private address {shown}")


def _refused(shown: str) -> ToolError:
    return ToolError(f"refused: {shown} is a link-local or metadata address")


def _plain(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, if it stands for one."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


PORTS: Final = {"http": 80, "https": 443}

_BLANK: Final = re.compile(r"[\x00-\x20\x7f]")
_SAFE: Final = "/%:@!$&'()*+,;=~-._?[]|"
"""Characters of a path or a query that are sent as they are."""


@frozen(kw_only=True)
class Url:
    """A place on the web. `host` is what is looked up, `target` what the server is asked for."""

    scheme: str
    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, text: str) -> "Url":
        """Read a URL; raise a `ToolError` if it is none, or not one of the web."""
        if not text:
            raise ToolError("url is required")
        if _BLANK.search(text):
            raise ToolError("not a usable URL: there is a blank in it")
        try:
            parts = urlsplit(text)
            port = parts.port
            host = _ascii(parts.hostname or "")
        except ValueError as exc:
            raise ToolError(f"not a usable URL: {exc}") from exc
        if parts.scheme not in PORTS or not host:
            raise ToolError("the URL must begin with http:// or https:// and name a host")
        if parts.username is not None:
            raise ToolError("the URL must not hold a login")
        query = f"?{quote(parts.query, safe=_SAFE)}" if parts.query else ""
        return cls(
            scheme=parts.scheme,
            host=host,
            port=PORTS[parts.scheme] if port is None else port,
            target=quote(parts.path or "/", safe=_SAFE) + query,
        )

    def join(self, reference: str) -> "Url":
        """Return where *reference* leads from here."""
        try:
            return Url.parse(urljoin(str(self), reference.strip()))
        except ValueError as exc:
            raise ToolError(f"not a usable URL: {exc}") from exc

    @property
    def authority(self) -> str:
        """The host, and the port if it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @override
    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def _ascii(host: str) -> str:
    """Return a host as the name servers know it; `UnicodeError` is a `ValueError`."""
    return host if host.isascii() else host.encode("idna").decode("ascii")


REDIRECTS: Final = 10
PIECE: Final = 64 * 1024
"""Bytes read or inflated at a time."""

_MOVED: Final = frozenset((301, 302, 303, 307, 308))
_FAILURES: Final = (OSError, trio.BrokenResourceError, h11.ProtocolError)


@asynccontextmanager
async def open_answer(text: str, reach: Reach | None = None) -> AsyncIterator["Answer"]:
    """Request a URL and follow where it redirects; raise a `ToolError` if that leads nowhere.

    The answer may have any other status. How long all of it may take is the caller's business.
    """
    url, reach = Url.parse(text), reach or Reach()
    for _ in range(REDIRECTS + 1):
        async with _open_one(url, reach) as answer:
            location = answer.header("location")
            if answer.status not in _MOVED or not location:
                yield answer
                return
        url = url.join(location)
    raise ToolError(f"{text} redirects more than {REDIRECTS} times")


@asynccontextmanager
async def _open_one(url: Url, reach: Reach) -> AsyncIterator["Answer"]:
    """Request *url* over a connection of its own."""
    reach.judge_name(url.host)
    with _told(url):
        socket = await trio.open_tcp_stream(url.host, url.port)
    async with socket:
        reach.admit(socket.socket.getpeername()[0])
        answer = Answer(url=url, stream=await _secured(socket, url))
        with _told(url):
            await answer.ask()
        yield answer


async def _secured(stream: trio.SocketStream, url: Url) -> trio.abc.Stream:
    """Return what to speak over: the stream itself, or TLS on it. Nothing is sent yet."""
    if url.scheme == "http":
        await trio.lowlevel.checkpoint()
        return stream
    context = await trio.to_thread.run_sync(_tls)
    return trio.SSLStream(stream, context, server_hostname=url.host, https_compatible=True)


def _tls() -> ssl.SSLContext:
    """Return how TLS is spoken: the system's certificates count. To read them takes a moment."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Answer:
    """An answer as far as it has come: its head, and the body for whoever reads it, once.

    `url` is where it came from, after all redirects.
    """

    url: Url
    _stream: trio.abc.Stream
    _state: h11.Connection = field(
        factory=lambda: h11.Connection(h11.CLIENT, max_incomplete_event_size=PIECE), init=False
    )
    status: int = field(default=0, init=False)
    _headers: dict[str, str] = field(factory=dict, init=False)

    def header(self, name: str) -> str:
        """Return a header; empty if the answer has none."""
        return self._headers.get(name, "")

    @property
    def content_type(self) -> str:
        """What the server says it is."""
        return self.header("content-type")

    @property
    def length(self) -> int | None:
        """How many bytes the body has, if the server says so and they are not compressed."""
        length = self.header("content-length")
        return int(length) if length and not self.header("content-encoding") else None

    async def ask(self) -> None:
        """Send the request and read the head of the answer."""
        headers = [
            ("Host", self.url.authority),
            ("User-Agent", f"crush-trio/{version('crush-trio')}"),
            ("Accept", "*/*"),
            ("Accept-Encoding", "identity"),
            ("Connection", "close"),
        ]
        request = h11.Request(method="GET", target=self.url.target, headers=headers)
        end = h11.EndOfMessage()
        await self._stream.send_all(b"".join(filter(None, map(self._state.send, (request, end)))))
        head = await self._next()
        while not isinstance(head, h11.Response):  # some say first that they are still there
            head = await self._next()
        self.status = head.status_code
        self._headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}

    async def read(self, limit: int) -> tuple[bytes, bool]:
        """Return the first *limit* bytes of the body, and whether there are more."""
        data = bytearray()

        async def take(piece: bytes) -> bool:
            data.extend(piece)
            await trio.lowlevel.checkpoint()
            return len(data) <= limit

        await self.pour(take)
        return bytes(data[:limit]), len(data) > limit

    async def pour(self, take: Callable[[bytes], Awaitable[bool]]) -> None:
        """Pass the body on, piece by piece, until it ends or *take* returns False."""
        body = _body_of(self.header("content-encoding"))
        with _told(self.url):
            while isinstance(event := await self._next(), h11.Data):
                for piece in body.pieces(bytes(event.data)):
                    if not await take(piece):
                        return
        body.end()

    async def _next(self) -> h11.Event:
        """Return what comes next; raise if that is the end of the connection."""
        await trio.lowlevel.checkpoint()
        while (event := self._state.next_event()) is h11.NEED_DATA:
            self._state.receive_data(bytes(await self._stream.receive_some(PIECE)))
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("the server hung up")
        return event


# ── Bodies ──────────────────────────────────────────────────────────────────────────────────────


class Plain:
    """Bytes that are what they are."""

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what *chunk* holds."""
        yield chunk

    def end(self) -> None:
        """Check that nothing is missing; for these bytes the protocol has done so."""


@define(eq=False)
class Deflated:
    """Bytes of gzip or zlib."""

    _state: "zlib._Decompress" = field(
        factory=lambda: zlib.decompressobj(zlib.MAX_WBITS | 32), init=False
    )

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what *chunk* holds, in pieces of bounded size."""
        full = True
        while chunk or full:  # a full piece may have left something behind
            try:
                piece = self._state.decompress(chunk, PIECE)
            except zlib.error as exc:
                raise ToolError(f"the answer cannot be decompressed: {exc}") from exc
            chunk, full = self._state.unconsumed_tail, len(piece) == PIECE
            yield piece

    def end(self) -> None:
        """Check that nothing is missing."""
        if not self._state.eof:
            raise ToolError("the answer ends in the middle")


Body: TypeAlias = Plain | Deflated


def _body_of(encoding: str) -> Body:
    """Return what turns the bytes of an answer into those of its content."""
    match encoding.strip().lower():
        case "" | "identity":
            return Plain()
        case "gzip" | "x-gzip" | "deflate":
            return Deflated()
        case other:
            raise ToolError(f"the answer is compressed in a way that was not asked for: {other}")


# ── Failures ────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _told(url: Url) -> Iterator[None]:
    """Turn what goes wrong on the way into something to tell the model."""
    try:
        yield
    except _FAILURES as exc:
        raise ToolError(f"cannot fetch {url}: {_reason(exc)}") from exc


def _reason(failure: BaseException) -> str:
    """Return what the innermost error says that says anything: outer ones are often empty."""
    said = ""
    inner: BaseException | None = failure
    while inner is not None:
        said = str(inner) or said
        inner = inner.__cause__
    return said or type(failure).__name__
