"""What providers behind HTTP share: headers, the POST, and the streamed answer as parts.

The answer is an iterator with state, not a generator: it holds nothing, so a reader may stop at any part
and leave, and there is nothing to close.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from math import inf
from typing import Final, Protocol
from urllib.parse import urlsplit

import orjson
import trio
from attrs import define, evolve, field, frozen

from crush_trio.net.address import origin_of
from crush_trio.net.client import Body, Request, Response, Transport
from crush_trio.net.errors import NetworkError, ResponseTooLarge
from crush_trio.net.sse import SseDecoder, SseEvent
from crush_trio.plain_json import dump
from crush_trio.providers.base import (
    Endpoint,
    ModelRequest,
    Parts,
    ReasoningDelta,
    StreamPart,
    TextDelta,
    ToolCallDelta,
)
from crush_trio.providers.errors import (
    ProviderError,
    ProviderRefused,
    ProviderUnreachable,
    ProviderUnreadable,
    translated,
    translation,
)
from crush_trio.providers.failures import failure
from crush_trio.wire.fields import JsonObject

AFFINITY_HEADERS: Final = ("x-session-affinity", "x-session-id")
"""Both carry the name of the conversation; load balancers in front of models look for one or the other."""

ERROR_MOST: Final = 65536
"""Bytes of an error response that are read."""

EVENT_MOST: Final = 16 * 1024 * 1024
"""Bytes that an incomplete event may have."""

BODY_MOST: Final = 64 * 1024 * 1024
"""Bytes that an answer may have that is one JSON value instead of a stream."""

EMPTY: Final = "an empty answer; check the model's name and the log of the model server"
WEB_PAGE: Final = "a web page and not a model's answer; check base_url"

NO_ANSWER: Final = "but not with a model's answer; check base_url"

START_MOST: Final = 16
"""Bytes at the beginning of a body by which its format is recognised."""

TAIL_LIMIT: Final = 5.0
"""Seconds that the end of a body may take after the model has told why it ended; only usage may follow."""

_BLANKS: Final = b" \t\r\n\xef\xbb\xbf"
_JSON_STARTS: Final = (b"{", b"[")
_FIELDS: Final = (b":", b"data", b"event", b"id", b"retry")
_ANSWER_KEYS: Final = frozenset({"choices", "content", "error", "type"})
_FRAMING: Final = frozenset({"host", "content-length", "transfer-encoding", "connection"})


# ── Requests ────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Post:
    """A request to a model; `url` is the complete URL."""

    url: str
    headers: Mapping[str, str]
    body: JsonObject
    connect_within: float = inf

    @property
    def shown_url(self) -> str:
        """The URL without its login and its query, for errors."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()

    @property
    def target(self) -> str:
        """Path and query of the URL."""
        parts = urlsplit(self.url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def join_url(base_url: str, path: str, query: str = "") -> str:
    """Return the URL of *path* below *base_url*, which may have a query of its own."""
    parts = urlsplit(base_url)
    queries = "&".join(filter(None, (parts.query, query)))
    return parts._replace(path=parts.path.rstrip("/") + path, query=queries, fragment="").geturl()


def headers_for(
    endpoint: Endpoint, request: ModelRequest, own: Mapping[str, str]
) -> dict[str, str]:
    """Return the headers of a request; configured ones win, empty ones are not sent."""
    common = {
        "user-agent": user_agent(),
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",  # a compressed stream may be held back until a block is full
        "content-type": "application/json",
        **dict.fromkeys(AFFINITY_HEADERS, request.affinity),
    }
    named = {name.lower(): value for name, value in endpoint.extra_headers.items()}
    together = {**common, **own, **named}
    return {name: value for name, value in together.items() if value and name not in _FRAMING}


@cache
def user_agent() -> str:
    """Return the `User-Agent`."""
    try:
        return f"crush_trio/{version('crush-trio')}"
    except PackageNotFoundError:  # run from its source
        return "crush_trio"


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


class Decoder(Protocol):
    """Finds events in bytes."""

    def feed(self, data: bytes) -> Iterable[SseEvent]:
        """Return the events that *data* completes."""
        ...

    def end(self) -> Iterable[SseEvent]:
        """Return what is left at the end of the body."""
        ...


@define(eq=False)
class WholeBody:
    """Decoder for a body that is one JSON value: some servers send one although asked to stream."""

    _data: bytearray = field(factory=bytearray, init=False, repr=False)

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return nothing: the event is the whole body."""
        self._data += data
        if len(self._data) > BODY_MOST:
            raise ResponseTooLarge(f"it has more than {BODY_MOST} bytes")
        return []

    def end(self) -> list[SseEvent]:
        """Return the body as an event."""
        return [SseEvent("", bytes(self._data))]


@define(eq=False)
class AnyBody:
    """Decoder for a stream or for one JSON value, told apart by the first byte.

    The content type is often wrong: gateways send JSON as text, and streams as JSON. *came* names the
    URL and the type, for the error about a body that is neither.
    """

    _came: str
    _start: bytes = field(default=b"", init=False, repr=False)
    _decoder: Decoder | None = field(default=None, init=False)

    def feed(self, data: bytes) -> Iterable[SseEvent]:
        """Return the events that *data* completes."""
        if len(self._start) < START_MOST:
            self._start = (self._start + data[:START_MOST]).lstrip(_BLANKS)
        if self._decoder is None:
            data = data.lstrip(_BLANKS)
            if not data:
                return []
            self._decoder = WholeBody() if data[:1] in _JSON_STARTS else SseDecoder(EVENT_MOST)
        return self._decoder.feed(data)

    def end(self) -> Iterable[SseEvent]:
        """Return what is left; raises `ProviderRefused` for a body that is not a model's answer.

        A body that ends properly and has nothing in it is `ProviderUnreadable`: another attempt would
        be billed again, and most servers that send one do so each time.
        """
        if self._decoder is None:
            raise ProviderUnreadable(f"{self._came}, {EMPTY}", status=200)
        left = list(self._decoder.end())
        if isinstance(self._decoder, WholeBody):
            foreign = len(left[0].data) <= ERROR_MOST and not _is_answer(left[0].data)
        else:
            foreign = not self._start.startswith(_FIELDS)
        if foreign:
            raise ProviderRefused(f"{self._came}, {NO_ANSWER}", status=200)
        return left


def _is_answer(data: bytes) -> bool:
    """Whether a JSON value may be an answer or an error of a model; broken ones may."""
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        return True
    return isinstance(said, dict) and not _ANSWER_KEYS.isdisjoint(said)


def decoder_for(response: Response, url: str) -> Decoder:
    """Return the decoder for the body of *response*, which came from *url*."""
    kind = response.headers.get("content-type") or "no content type"
    return AnyBody(f"{url} answered with {kind}")


class Reading(Protocol):
    """Turns the events of one wire format into parts. Keeps the answer so far, and does no I/O."""

    finished: bool
    """Whether the last part was `Finished`; nothing is read after that."""

    @property
    def ending(self) -> bool:
        """Whether the model has told why it ended, so that the answer is complete."""
        ...

    def read(self, event: SseEvent) -> Iterable[StreamPart]:
        """Return the parts in *event*; raises a `ProviderError` if it reports an error."""
        ...

    def end(self) -> Iterable[StreamPart]:
        """Return the parts that are left at the end; raises if the answer is not complete."""
        ...


@define(eq=False)
class AnswerParts:
    """The parts of an answer, read from its body one after the other.

    What one read brings is parsed in one step, and adjacent pieces of text in it become one part. An
    error is raised after the parts that came before it, also if one packet brought them all. A server that
    keeps the body open after a complete answer is not waited for: the call would be repeated and billed.
    """

    _body: Body
    _reading: Reading
    _decoder: Decoder
    _heard: Callable[[], None] = lambda: None
    """Called when bytes have come, or the end."""
    _ready: deque[StreamPart] = field(factory=deque, init=False)
    _until: float = field(default=inf, init=False)
    """When the end of the body is no longer waited for."""
    _failure: ProviderError | None = field(default=None, init=False)

    def __aiter__(self) -> AsyncIterator[StreamPart]:
        """Return itself."""
        return self

    async def __anext__(self) -> StreamPart:
        """Return the next part. After `Finished` there is none."""
        if self._ready:
            await trio.lowlevel.checkpoint()
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if self._reading.finished:
                raise StopAsyncIteration
            await self._read_more()
        return self._ready.popleft()  # noqa: ASYNC910  # where no part was ready, one was read

    async def _read_more(self) -> None:  # noqa: ASYNC910  # receiving is what waits
        data = b""
        try:
            if self._until == inf:  # a scope for each piece is a tenth of its cost
                data, late = await self._body.receive(), False
                self._heard()
            else:
                with trio.CancelScope(deadline=self._until) as waiting:
                    data = await self._body.receive()
                    self._heard()
                late = waiting.cancelled_caught
        except NetworkError as exc:
            broken = translation(exc)
            if not isinstance(broken, ProviderUnreachable):
                raise broken from exc
            self._take(self._last())
            if self._failure is not None:
                self._failure = broken  # the reason, instead of the missing end that it caused
        else:
            if late:
                self._take(self._reading.end())
            else:
                self._take(self._read(lambda: self._decoder.feed(data)) if data else self._last())

    def _take(self, parts: Iterable[StreamPart]) -> None:
        self._ready.extend(joined(self._sound(parts)))
        if self._reading.ending and (self._ready or self._until == inf):
            self._until = trio.current_time() + TAIL_LIMIT

    def _sound(self, parts: Iterable[StreamPart]) -> Iterator[StreamPart]:
        """Yield *parts* up to the failure that ends them, if one does."""
        try:
            yield from parts
        except ProviderError as exc:
            self._failure = exc
        except NetworkError as exc:
            self._failure = translation(exc)

    def _last(self) -> Iterator[StreamPart]:
        yield from self._read(self._decoder.end)
        if not self._reading.finished:
            yield from self._reading.end()

    def _read(self, events: Callable[[], Iterable[SseEvent]]) -> Iterator[StreamPart]:
        for event in events():
            if not self._reading.finished:
                yield from self._reading.read(event)


def joined(parts: Iterable[StreamPart]) -> Iterator[StreamPart]:
    """Yield *parts*; adjacent pieces of a text, of reasoning or of a call's arguments become one."""
    for _, row in groupby(parts, _subject):
        match same := [*row]:
            case [(TextDelta() | ReasoningDelta() | ToolCallDelta()) as first, _, *_]:
                yield evolve(
                    first, text="".join(p.text for p in same if isinstance(p, type(first)))
                )
            case _:
                yield from same


def _subject(part: StreamPart) -> tuple[type[StreamPart], str]:
    """Return a key that is equal for adjacent parts that can be joined."""
    return type(part), part.id if isinstance(part, ToolCallDelta) else ""


# ── One call ────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def open_parts(
    http: Transport,
    post: Post,
    reading: Reading,
    secrets: tuple[str, ...],
    heard: Callable[[], None] = lambda: None,
) -> AsyncIterator[Parts]:
    """Send *post* and give the parts of its answer, as *reading* reads them.

    *heard* is called whenever bytes of the answer come.
    """
    async with AsyncExitStack() as stack:
        with translated():
            request, url = _request(post), post.shown_url
            del post  # the answer may take minutes; the unencoded body need not be kept that long
            response = await stack.enter_async_context(http.open(request))
            if not 200 <= response.status < 300:
                text = await _error_text(response)
                raise failure(response.status, response.headers, text, secrets, url)
            heard()  # from here on the answer may be billed
            if "html" in (kind := response.headers.get("content-type", "")).lower():
                raise ProviderRefused(f"{url} answered with {kind}, {WEB_PAGE}", status=200)
        yield AnswerParts(response, reading, decoder_for(response, url), heard)
        await response.settle()


async def _error_text(response: Response) -> str:
    """Return the beginning of an error's body; what cannot be read does not hide the status."""
    said = bytearray()
    try:
        while len(said) < ERROR_MOST and (piece := await response.receive()):
            said += piece
    except NetworkError:
        await trio.lowlevel.checkpoint()
    return said[:ERROR_MOST].decode("utf-8", "replace")  # noqa: ASYNC910  # received at least once


def _request(post: Post) -> Request:
    """Return *post* as a request. Repeating it is harmless: `call.py` does so after every broken one."""
    return Request(
        method="POST",
        origin=origin_of(post.url),
        target=post.target,
        headers=post.headers,
        body=dump(post.body),
        repeatable=True,
        connect_within=post.connect_within,
    )
