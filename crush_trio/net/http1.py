"""HTTP/1.1 from the client's side, as a state machine without I/O; and the inflater of compressed bodies.

`Http1` returns the bytes to send and is fed the bytes that were received. It knows no stream, no clock and
no address, so it works over anything that carries bytes, and a test can feed it byte by byte. The caller
alternates: send what `request` (or `begin`, `data`, `end`) returns; then, until `head` and later `body`
have something, receive bytes and `feed` them. No bytes mean that the server closed the connection.

`Inflater` works in pieces of bounded size, because a small compressed body can stand for a very large one.
A reader never gets more than `PIECE` bytes at a time, and can stop as soon as it has counted too many;
what has not been asked for is not inflated.
"""

import zlib
from collections.abc import Iterable, Mapping
from typing import Final

import h11
from attrs import define, field, frozen

from crush_trio.net.errors import (
    BadEncoding,
    ConnectionLost,
    NetworkError,
    NotHttp,
    UnsendableRequest,
)

HEAD_MOST: Final = 65536
"""Bytes that the head of a response, or the trailers after its body, may have."""

Headers = Iterable[tuple[str, str]]


@frozen
class Head:
    """Status and headers of a response; names are in lower case, repeated headers joined by commas."""

    status: int
    headers: Mapping[str, str] = field(repr=False)


@define(eq=False)
class Http1:
    """One connection: a request out, a response in, and then perhaps another request."""

    heard: bool = field(default=False, init=False)
    """Whether a byte of the current response has come."""
    _closed: bool = field(default=False, init=False)
    _failure: NetworkError | None = field(default=None, init=False)
    _http: h11.Connection = field(factory=lambda: h11.Connection(h11.CLIENT, HEAD_MOST), init=False)

    # ── Requests ────────────────────────────────────────────────────────────────────────────────

    def request(self, method: str, target: str, headers: Headers, body: bytes = b"") -> bytes:
        """Return the bytes of a whole request. Framing headers are the caller's."""
        return self.begin(method, target, headers) + self.data(body) + self.end()

    def begin(self, method: str, target: str, headers: Headers) -> bytes:
        """Return the head of a request; raises `UnsendableRequest`."""
        try:
            head = h11.Request(method=method, target=target, headers=list(headers))
            return self._http.send(head) or b""
        except (h11.LocalProtocolError, UnicodeEncodeError):
            # The text of these errors would repeat the header, which may be a key.
            raise UnsendableRequest(
                "a header or the URL has characters that cannot be sent"
            ) from None

    def data(self, piece: bytes) -> bytes:
        """Return a piece of a request's body as it is sent."""
        return (self._http.send(h11.Data(data=piece)) or b"") if piece else b""

    def end(self) -> bytes:
        """Return what ends a request."""
        return self._http.send(h11.EndOfMessage()) or b""

    # ── Responses ───────────────────────────────────────────────────────────────────────────────

    def feed(self, data: bytes) -> None:
        """Take bytes that were received; no bytes are the end of the connection."""
        self.heard |= bool(data)
        self._closed |= not data
        self._http.receive_data(data)

    def head(self) -> Head | None:
        """Return the head of the response, or None if more bytes are needed. Skips 1xx responses."""
        while not isinstance(event := self._next(), h11.Response):
            if event is None:
                return None
        return Head(event.status_code, _joined(event.headers))

    def body(self) -> bytes | None:
        """Return all of the body that is here, no bytes at its end, or None if more are needed.

        An error is raised after the bytes that came before it, and again on every later call.
        """
        said = bytearray()
        while self._failure is None and self._http.their_state is h11.SEND_BODY:
            try:
                event = self._next()
            except NetworkError:
                break
            if isinstance(event, h11.Data):
                said += event.data
            elif event is None:
                return bytes(said) or None
        if self._failure is not None and not said:
            raise self._failure
        return bytes(said)

    @property
    def reusable(self) -> bool:
        """Whether request and response are complete, nothing follows, and both sides keep it open."""
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        return done and self._http.trailing_data == (b"", False)

    def next_cycle(self) -> None:
        """Prepare for another request; only if `reusable`."""
        self._http.start_next_cycle()
        self.heard = False

    def _next(self) -> h11.Event | None:
        if self._failure is not None:
            raise self._failure
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as exc:
            self._failure = self._read_as(exc)
            raise self._failure from exc
        return event if isinstance(event, h11.Event) else None

    def _read_as(self, exc: h11.RemoteProtocolError) -> NetworkError:
        """Return what *exc* means: h11 complains alike about nonsense and about an early end."""
        if self._closed:
            return ConnectionLost("the connection was closed before the response was complete")
        return NotHttp(str(exc))


def _joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


# ── Compressed bodies ───────────────────────────────────────────────────────────────────────────

PIECE: Final = 64 * 1024
"""Bytes that are inflated at a time."""

ACCEPTED: Final = "gzip, deflate"
"""What a request that takes compressed answers says in `Accept-Encoding`."""

_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
_GZIP_MAGIC: Final = b"\x1f\x8b"
_RAW: Final = -zlib.MAX_WBITS

_CHOICE: Final = 2
"""Bytes after which zlib's header can be told from a deflate stream that has none."""


@define(eq=False)
class Inflater:
    """Inflates gzip and deflate. Feed it a chunk, then `take` pieces until there are none.

    Bytes after the end of the compressed data are an error.
    """

    _raw_allowed: bool
    """Whether the stream may lack zlib's header: some servers send `deflate` so."""
    _waiting: bytes = field(default=b"", init=False)
    _full: bool = field(default=False, init=False)
    _members: int = field(default=0, init=False)
    """How many compressed streams are complete; gzip allows several in a row."""
    _state: "zlib._Decompress | None" = field(default=None, init=False)

    def feed(self, chunk: bytes) -> None:
        """Add compressed bytes."""
        self._waiting += chunk

    def take(self) -> bytes:
        """Return the next piece, at most `PIECE` bytes; no bytes if more have to be fed."""
        while self._waiting or self._full:  # a full piece may have left something behind
            state = self._state = self._state or self._begun()
            if state is None:
                return b""
            try:
                piece = state.decompress(self._waiting, PIECE)
            except zlib.error as exc:
                raise BadEncoding(f"the answer cannot be decompressed: {exc}") from exc
            self._waiting, self._full = state.unconsumed_tail, len(piece) == PIECE
            if state.eof:
                # From here on zlib would only collect bytes in `unused_data`, without a limit.
                self._waiting, self._full, self._state = state.unused_data, False, None
                self._members += 1
            if piece:
                return piece
        return b""

    def end(self) -> None:
        """Raise `BadEncoding` unless the stream is complete. An empty body is complete."""
        if self._state is not None or self._waiting:
            raise BadEncoding("the answer ends in the middle")

    def _begun(self) -> "zlib._Decompress | None":
        """Return the state for the stream that begins here, None if more bytes have to be fed.

        Raises `BadEncoding` for bytes after a complete stream that are not another gzip member.
        """
        start = self._waiting[:_CHOICE]
        if self._members and (self._raw_allowed or not _GZIP_MAGIC.startswith(start)):
            raise BadEncoding("the answer goes on after the end of its compressed data")
        return zlib.decompressobj(self._format()) if len(start) == _CHOICE else None

    def _format(self) -> int:
        first, second = self._waiting[:_CHOICE]
        has_header = first & 0x0F == zlib.DEFLATED and (first << 8 | second) % 31 == 0
        return _RAW if self._raw_allowed and not has_header else _GZIP_OR_ZLIB


def inflater_for(encoding: str) -> Inflater | None:
    """Return the inflater for a `Content-Encoding`, None for a plain body; raises `BadEncoding`."""
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip":
            return Inflater(raw_allowed=False)
        case "deflate":
            return Inflater(raw_allowed=True)
        case other:
            raise BadEncoding(f"the answer is compressed in a way that was not asked for: {other}")
