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
from typing import Final, Protocol
from urllib.parse import urlsplit

import trio
from attrs import define, evolve, field, frozen

from crush_trio.config.redaction import is_secret_name
from crush_trio.net.address import origin_of
from crush_trio.net.client import Body, Request, Response, Transport
from crush_trio.net.errors import NetworkError, ResponseTooLarge
from crush_trio.net.sse import SseDecoder, SseEvent
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
    ProviderUnreachable,
    failure,
    translated,
    translation,
)
from crush_trio.wire.converters import dump
from crush_trio.wire.fields import Json, JsonObject

AFFINITY_HEADERS: Final = ("x-session-affinity", "x-session-id")
"""Both carry the name of the conversation; load balancers in front of models look for one or the other."""

ERROR_MOST: Final = 65536
"""Bytes of an error response that are read."""

EVENT_MOST: Final = 16 * 1024 * 1024
"""Bytes that an incomplete event may have."""

BODY_MOST: Final = 64 * 1024 * 1024
"""Bytes that an answer may have that is one JSON value instead of a stream."""

SHORTEST_SECRET: Final = 4
"""Characters of the shortest configured value that is removed from errors; shorter ones are too common."""

_FRAMING: Final = frozenset({"host", "content-length", "transfer-encoding", "connection"})


# ── Requests ────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Post:
    """A request to a model; `url` is the complete URL."""

    url: str
    headers: Mapping[str, str]
    body: JsonObject

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


def secrets_of(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the values that must not appear in any error.

    A header of any name can carry a credential, so all configured ones count.
    """
    given = (*endpoint.extra_headers.values(), *_secret_texts(endpoint.extra_body))
    keys = (endpoint.api_key, *given)
    words = [key.rpartition(" ")[2] for key in keys]  # of "Bearer …", a server repeats the rest
    password = urlsplit(endpoint.base_url).password or ""
    telling = (each for each in (*given, *words) if len(each) >= SHORTEST_SECRET)
    return tuple(filter(None, (endpoint.api_key, *telling, password)))


def _secret_texts(value: Json, *, secret: bool = False) -> Iterator[str]:
    """Yield the texts under keys that name a secret, at any depth."""
    if isinstance(value, str) and secret:
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _secret_texts(item, secret=secret or is_secret_name(str(name)))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secret_texts(item, secret=secret)


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


def decoder_for(response: Response) -> Decoder:
    """Return the decoder for the body of *response*."""
    kind = response.headers.get("content-type", "").lower()
    return WholeBody() if kind.startswith("application/json") else SseDecoder(EVENT_MOST)


class Reading(Protocol):
    """Turns the events of one wire format into parts. Keeps the answer so far, and does no I/O."""

    finished: bool
    """Whether the last part was `Finished`; nothing is read after that."""

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
    error is raised after the parts that came before it, also if one packet brought them all.
    """

    _body: Body
    _reading: Reading
    _decoder: Decoder
    _ready: deque[StreamPart] = field(factory=deque, init=False)
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
        try:
            data = await self._body.receive()
        except NetworkError as exc:
            broken = translation(exc)
            if not isinstance(broken, ProviderUnreachable):
                raise broken from exc
            self._take(self._last())
            if self._failure is not None:
                self._failure = broken  # the reason, instead of the missing end that it caused
        else:
            self._take(self._read(lambda: self._decoder.feed(data)) if data else self._last())

    def _take(self, parts: Iterable[StreamPart]) -> None:
        self._ready.extend(joined(self._sound(parts)))

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
    http: Transport, post: Post, reading: Reading, secrets: tuple[str, ...]
) -> AsyncIterator[Parts]:
    """Send *post* and give the parts of its answer, as *reading* reads them."""
    async with AsyncExitStack() as stack:
        with translated():
            request = _request(post)
            del post  # the answer may take minutes; the unencoded body need not be kept that long
            response = await stack.enter_async_context(http.open(request))
            if not 200 <= response.status < 300:
                said, _ = await response.read_first(ERROR_MOST)
                text = said.decode("utf-8", "replace")
                raise failure(response.status, response.headers, text, secrets)
        yield AnswerParts(response, reading, decoder_for(response))
        await response.settle()


def _request(post: Post) -> Request:
    """Return *post* as a request. Repeating it is harmless: `call.py` does so after every broken one."""
    return Request(
        method="POST",
        origin=origin_of(post.url),
        target=post.target,
        headers=post.headers,
        body=dump(post.body),
        repeatable=True,
    )
