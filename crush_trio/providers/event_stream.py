"""Server-sent events: bytes come in, cut anywhere; parts of an answer go out.

`Events` is the format, `Reading` what a family of providers makes of it; both are plain data. The
shell around them, `AnswerParts`, is an iterator and not a generator: it holds nothing, so a reader
may stop at any part and leave, and there is nothing that would have to be closed.
"""

import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import groupby
from typing import Final, Protocol

import orjson
import trio
from attrs import define, evolve, field, frozen

from crush_trio.providers.base import ReasoningDelta, StreamPart, TextDelta, ToolCallDelta
from crush_trio.providers.errors import ProviderError, ProviderGarbled, ProviderUnreachable
from crush_trio.providers.exchange import Answer
from crush_trio.wire.fields import Json

EVENT_MOST: Final = 16 * 1024 * 1024
"""Bytes of an event that is not complete; more is no answer but an accident."""

_BOM: Final = b"\xef\xbb\xbf"


@frozen
class Event:
    """One event: its data, and its name if it has one."""

    data: str
    name: str = ""

    def json(self) -> Json:
        """Return the data as JSON; `ProviderGarbled` if it is none.

        The strict reader is fast. The lenient one knows what some servers send: half of a
        surrogate pair, or a number that is none.
        """
        try:
            return orjson.loads(self.data)
        except orjson.JSONDecodeError:
            pass
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError) as exc:
            raise ProviderGarbled(f"no JSON: {self.data[:80]!r}") from exc


class Decoder(Protocol):
    """Finds events in bytes."""

    def feed(self, data: bytes) -> Iterable[Event]:
        """Return the events that *data* completes."""
        ...

    def end(self) -> Iterable[Event]:
        """Return what is left at the end of the body."""
        ...


@define(eq=False)
class Events:
    """Decodes an event stream. Comments, ids and retry times are of no use here."""

    _rest: bytes = field(default=b"", init=False)
    _begun: bool = field(default=False, init=False)
    _name: str = field(default="", init=False)
    _data: list[str] = field(factory=list, init=False)

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that *data* completes."""
        lines = (self._rest + data).splitlines(keepends=True)
        # A line without an end goes on; one that ends with CR may yet end with CR LF.
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if len(self._rest) > EVENT_MOST:
            raise ProviderGarbled("an event without an end")
        return [event for line in lines if (event := self._line(line)) is not None]

    def end(self) -> list[Event]:
        """Return the last event, if the stream ended before the empty line that should follow."""
        rest, self._rest = self._rest, b""
        last = (self._line(line) for line in (*rest.splitlines(), b""))
        return [event for event in last if event is not None]

    def _line(self, line: bytes) -> Event | None:
        if not self._begun:
            self._begun, line = True, line.removeprefix(_BOM)
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if not text:
            return self._complete()
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        return None

    def _complete(self) -> Event | None:
        event = Event("\n".join(self._data), self._name) if self._data else None
        self._data, self._name = [], ""
        return event


@define(eq=False)
class WholeBody:
    """Takes a body that is one JSON value: some servers answer so although asked to stream."""

    _pieces: list[bytes] = field(factory=list, init=False)

    def feed(self, data: bytes) -> list[Event]:
        """Return nothing: the event is the whole."""
        self._pieces.append(data)
        return []

    def end(self) -> list[Event]:
        """Return the body."""
        return [Event(b"".join(self._pieces).decode("utf-8", "replace"))]


def decoder_for(answer: Answer) -> Decoder:
    """Return the decoder that fits the body of *answer*."""
    kind = answer.headers.get("content-type", "").lower()
    return WholeBody() if kind.startswith("application/json") else Events()


class Reading(Protocol):
    """What a family of providers makes of events. Keeps the answer so far, and does no I/O."""

    finished: bool
    """Whether the last part was `Finished`; nothing is read after that."""

    def read(self, event: Event) -> Iterable[StreamPart]:
        """Return the parts that *event* amounts to; raises a `ProviderError` if it tells of one."""
        ...

    def end(self) -> Iterable[StreamPart]:
        """Return the parts that are left at the end; raises if the answer is not complete."""
        ...


@define(eq=False)
class AnswerParts:
    """The parts of an answer, read from its body one after the other.

    What one read brings is parsed in one go, and the text in it is one part, into however many
    events the server has cut it. An error comes after the parts that came before it, also if one
    packet brought them all.
    """

    _answer: Answer
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
            data = await self._answer.receive()
        except ProviderUnreachable as broken:
            self._take(self._last())
            if self._failure is not None:
                self._failure = broken  # the reason, rather than that there is no end
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

    def _last(self) -> Iterator[StreamPart]:
        yield from self._read(self._decoder.end)
        if not self._reading.finished:
            yield from self._reading.end()

    def _read(self, events: Callable[[], Iterable[Event]]) -> Iterator[StreamPart]:
        for event in events():
            if not self._reading.finished:
                yield from self._reading.read(event)


def joined(parts: Iterable[StreamPart]) -> Iterator[StreamPart]:
    """Yield *parts*; pieces of one text, of one thought or of one call's arguments become one."""
    for _, row in groupby(parts, _subject):
        match same := [*row]:
            case [(TextDelta() | ReasoningDelta() | ToolCallDelta()) as first, _, *_]:
                yield evolve(
                    first, text="".join(p.text for p in same if isinstance(p, type(first)))
                )
            case _:
                yield from same


def _subject(part: StreamPart) -> tuple[type[StreamPart], str]:
    """Return what two parts have in common of which the second goes on where the first ends."""
    return type(part), part.id if isinstance(part, ToolCallDelta) else ""
