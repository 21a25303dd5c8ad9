"""HTTP/1.1 framing of a connection: h11, with a shortcut for plain requests.

Most requests arrive as a whole, with a short body or none, and most answers are complete when they are
sent. Such a pair needs no parser and no state machine: the head is a few lines that either match a strict
pattern or are left to h11, the body is as long as the head says, and the answer is its head and its body.
That saves a third of the cost of a small request.

Everything else goes through h11, from its first byte: another method, a body that is still arriving, a
header about the connection or the framing, anything that the pattern does not match, an interim response,
an answer of unknown length. A request that took the shortcut is handed to h11 when that becomes necessary,
as if it had just arrived.

h11 is lenient where programs disagree. `StrictConnection` is not: a proxy in front of us may read such a
request in another way than we do.
"""

import re
from collections.abc import Sequence
from typing import Final

import h11
from attrs import define, field, frozen
from typing_extensions import override

HEAD_SIZE: Final = 2**14
"""Bytes of the head of a request."""

Headers = Sequence[tuple[bytes, bytes]]

_REQUEST_LINE: Final = re.compile(rb"(DELETE|GET|PATCH|POST|PUT) (/[\x21-\x7e]*) HTTP/1\.1")
_LENGTH: Final = re.compile(rb"0|[1-9][0-9]{0,8}")
_FIELD: Final = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?[ \t]*"
)
_VALUE: Final = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_LEFT_TO_H11: Final = {
    *(b"expect", b"keep-alive", b"proxy-connection", b"te", b"trailer"),
    *(b"transfer-encoding", b"upgrade"),
}
"""Headers about the connection or the framing. Two others are accepted with their default values."""
_ANSWER_FIELDS: Final = {b"content-length", b"content-type", b"date"}
_LENIENT: Final = re.compile(rb"(?<!\r)\n|\n[ \t]")
"""A line that ends with a bare LF, or that continues the line before."""
_LOWER: Final = re.compile(rb"[a-z]")
ADDRESS: Final = re.compile(rb"(?i:https?)://([^/?]+)/?(.*)")
"""A target in the form for proxies, with scheme and host before the path."""
_BODILESS: Final = {204, 304}
_END: Final = h11.EndOfMessage()


@frozen
class PlainRequest:
    """A request that needed no parser; it has the attributes of h11's, and its body."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes = b""
    http_version: bytes = b"1.1"

    def events(self) -> list[object]:
        """Return the request as the events that h11 would make of it, the last one first."""
        return [_END, *([h11.Data(data=self.body)] if self.body else ()), self]


def plain_request(data: bytes) -> PlainRequest | None:
    """Return *data* as one complete plain request; None if h11 has to parse it."""
    head, ended, body = data.partition(b"\r\n\r\n")
    if not ended or len(head) > HEAD_SIZE - len(ended):
        return None
    first, *lines = head.split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(first)
    if request is None:
        return None
    headers, hosts, lengths = [], 0, []
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            return None
        name, value = found[1].lower(), found[2] or b""
        if name in _LEFT_TO_H11 or (name == b"connection" and value.lower() != b"keep-alive"):
            return None
        if name == b"content-length":
            lengths.append(value)
        hosts += name == b"host"
        headers.append((name, value))
    if hosts != 1 or not _is_length(lengths, body):
        return None
    return PlainRequest(request[1], request[2], headers, body)


def _is_length(said: Sequence[bytes], body: bytes) -> bool:
    """Whether what `Content-Length` says, which may be missing, is the length of *body*."""
    if not said:
        return not body
    return len(said) == 1 and _LENGTH.fullmatch(said[0]) is not None and int(said[0]) == len(body)


class StrictConnection(h11.Connection):
    """h11's parser of requests, which also refuses what other programs may read in another way.

    * A line that ends with a bare LF, and a folded line: 400.
    * A length together with an encoding: 400.
    * A method with lower-case letters, which is another one than in upper case (RFC 9110 §9.1): 501.
    * A target with another host than the `Host` header: 403. The guard checks only the header.
    """

    def __init__(self, head_size: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=head_size)
        self._cr = b""
        """A CR that h11 has taken, if its LF has not arrived."""

    @override
    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event, after checking it and the lines that it was made from.

        The lines are those of a head, or of the end of a body in chunks, which may have lines like a
        head. Of other bodies the end has no bytes.
        """
        before = self.trailing_data[0]
        event = super().next_event()
        lines = self._cr + before[: len(before) - len(self.trailing_data[0])]
        if isinstance(event, h11.Request | h11.EndOfMessage) and _LENIENT.search(lines) is not None:
            raise h11.RemoteProtocolError("a line that does not end with CR LF, or is folded")
        if isinstance(event, h11.Request):
            _check_request(event)
        self._cr = b"\r" if event is h11.NEED_DATA and lines.endswith(b"\r") else b""
        return event


def _check_request(request: h11.Request) -> None:
    headers: dict[bytes, bytes] = dict(request.headers)
    if b"content-length" in headers and b"transfer-encoding" in headers:
        raise h11.RemoteProtocolError("a length and an encoding")
    if _LOWER.search(request.method) is not None:
        raise h11.RemoteProtocolError("unknown method", error_status_hint=501)
    named = ADDRESS.fullmatch(request.target)
    if named is not None and named[1].lower() != headers.get(b"host", b"").lower():
        raise h11.RemoteProtocolError("another host", error_status_hint=403)


@define(eq=False)
class Framing:
    """The framing of one connection: bytes into request events, answers into bytes.

    Its states are those of h11, with or without the shortcut.
    """

    _http: "StrictConnection" = field(factory=lambda: StrictConnection(HEAD_SIZE), init=False)
    _fed: bool = field(default=False, init=False)
    """Whether h11 has data of the current request, or of one after it."""
    _plain: PlainRequest | None = field(default=None, init=False)
    """The current request, if it took the shortcut."""
    _data: bytes = field(default=b"", init=False)
    """Its bytes."""
    _left: list[object] = field(factory=list, init=False)
    """Its events that were not returned yet, the last one first."""
    _answered: bool = field(default=False, init=False)

    # ── Requests ────────────────────────────────────────────────────────────────────────────────

    @property
    def begun(self) -> bool:
        """Whether part of a request has arrived and not all of it."""
        return self._fed and bool(self._http.trailing_data[0])

    @property
    def they_wait_for_us(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body."""
        return self._fed and self._http.they_are_waiting_for_100_continue

    @property
    def their_state(self) -> object:
        """The client's state, as in h11."""
        if self._plain is None:
            return self._http.their_state
        return h11.SEND_BODY if self._left else h11.DONE

    @property
    def interim(self) -> bool:
        """Whether the client understands interim responses."""
        return self._plain is not None or self._http.their_http_version == b"1.1"

    def receive(self, data: bytes) -> None:
        """Take data from the client; no bytes mean that it has closed its side."""
        if not self._fed and (plain := plain_request(data)) is not None:
            self._plain, self._data, self._answered = plain, data, False
            self._left = plain.events()
        else:
            self._fed = True
            self._http.receive_data(data)

    def next_event(self) -> object:
        """Return the next event of a request; raise `h11.RemoteProtocolError` if it is malformed."""
        if self._plain is None:
            return self._http.next_event() if self._fed else h11.NEED_DATA
        return self._left.pop() if self._left else h11.PAUSED

    def next_cycle(self) -> None:
        """Prepare for the next request."""
        if self._plain is not None:
            self._plain = None
        else:
            self._http.start_next_cycle()
            self._fed = bool(self._http.trailing_data[0])

    # ── Answers ─────────────────────────────────────────────────────────────────────────────────

    @property
    def our_state(self) -> object:
        """Our state, as in h11."""
        if self._plain is None:
            return self._http.our_state
        return h11.DONE if self._answered else h11.SEND_RESPONSE

    def begin(self, status: int, headers: Headers, body: bytes, *, more: bool) -> bytes:
        """Return the bytes of an answer's head and of the first part of its body."""
        if self._plain is not None and not more and _is_whole(status, headers, body):
            self._answered = True
            lines = b"".join([b"%b: %b\r\n" % each for each in headers])
            return b"HTTP/1.1 %d \r\n%b\r\n%b" % (status, lines, body)
        self.hand_over()
        head = self._http.send(h11.Response(status_code=status, headers=list(headers))) or b""
        return head + self.go_on(body, more=more)

    def go_on(self, body: bytes, *, more: bool) -> bytes:
        """Return the bytes of the next part of an answer's body."""
        data = (self._http.send(h11.Data(data=body)) or b"") if body else b""
        return data if more else data + (self._http.send(_END) or b"")

    def inform(self) -> bytes:
        """Return the bytes of an interim response."""
        self.hand_over()
        return self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b""

    def end_with_connection(self) -> None:
        """Make the body of the answer end with the connection, without chunks."""
        self.hand_over()
        self._http.their_http_version = b"1.0"

    def hand_over(self) -> None:
        """Give h11 the current request, if it took the shortcut; h11 reads it the same way."""
        if self._plain is not None:
            taken = len(self._plain.events()) - len(self._left)
            self._plain, self._fed = None, True
            self._http.receive_data(self._data)
            for _ in range(taken):
                self._http.next_event()


def _is_whole(status: int, headers: Headers, body: bytes) -> bool:
    """Whether an answer can be written without h11."""
    length = None
    for name, value in headers:
        if name not in _ANSWER_FIELDS or _VALUE.fullmatch(value) is None:
            return False
        if name == b"content-length":
            length = value
    return length == b"%d" % len(body) and status >= 200 and status not in _BODILESS
