"""From a reader of the log to the bytes of an event stream.

A stream is pulled: it reads the log only when whoever sends it asks for more, so a client that does
not take what it gets costs nothing, whatever is published meanwhile. It gives bytes in pieces of
bounded size. What one wake-up brings is nearly always one piece, sent with one call; of a longer event
a stream keeps its position and the piece that is on its way, and shares the rest with all others.
Between events it sleeps; it wakes for an event, for a heartbeat once nothing was sent for a while,
and for its end.

Streams that have much to send take turns, so that requests are answered meanwhile.

Around the events of the log the native form has four of its own. They have no place in the log:

* `asks` tells everything that waits for a person. It comes before a reader is told a place that it
  has not read up to, be that by `ready` or by a resync: whoever resumes from there has seen it;
* `ready` comes first, after that and after whatever was missed before a restart. It tells the
  reader's place, from which it can resume before it has seen any event, and how often to expect a
  heartbeat;
* `heartbeat` says that the stream is alive. It has no id, so it cannot move a reader's place;
* `end` is the last one and gives a reason. A stream that stops without it was cut.

The crush form knows `data:` lines only; its clients skip a blank line in silence. In place of `asks`
they get each request again.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from math import inf
from typing import Final, Protocol

import trio
from attrs import define, field

from crush_trio.errors import LogClosed
from crush_trio.events.cursor import Batch
from crush_trio.events.facts import Position
from crush_trio.events.frames import Form
from crush_trio.events.pieces import Chunk, Content, pieces_after
from crush_trio.nursery import Interrupt
from crush_trio.server.http.outgoing import SendNow, send_nothing_now
from crush_trio.store.errors import StoreUnavailable
from crush_trio.wire.codec import encode

HEARTBEAT: Final = 15.0
"""Seconds of silence after which a stream says that it is alive."""

RETRY: Final = 1000
"""Milliseconds a reader is asked to wait before it connects again."""

TURNS: Final = 4
"""How many streams that have much to send may send a piece before others have their turn."""

LOST: Final = Position(boot="", seq=0)
"""A place that is in no log: reading from it begins with a resync."""

_PLACE_LIMIT: Final = 256
_HEARTBEATS: Final = {Form.CRUSH: b"\n", Form.NATIVE: b"event: heartbeat\ndata: {}\n\n"}

log = logging.getLogger(__name__)


class EndReason(StrEnum):
    """Why a stream ended: whether its reader should look for another workspace or another server."""

    WORKSPACE_CLOSED = "workspace_closed"
    SERVER_SHUTTING_DOWN = "server_shutting_down"


@define(eq=False)
class Drain:
    """How a server on its way out ends its streams, in two steps.

    `announce` first: each stream goes on until its workspace has closed, so that clients see every
    run end, and then gives the server's reason. `end_streams` is for those still there after that.
    """

    announced: bool = field(default=False, init=False)
    ending: Interrupt = field(factory=Interrupt, init=False)

    @property
    def reason(self) -> EndReason:
        """What a stream that ends now has to say about it."""
        return EndReason.SERVER_SHUTTING_DOWN if self.announced else EndReason.WORKSPACE_CLOSED

    def announce(self) -> None:
        """Say that the server is going away; no stream ends for that yet."""
        self.announced = True

    def end_streams(self) -> None:
        """Wake every stream to send what there is and end. Later streams end at once."""
        self.announced = True
        self.ending.call()


class Feed(Protocol):
    """What a stream reads from: a cursor of the log, or a reader that also asks the store."""

    @property
    def form(self) -> Form | None:
        """How the reader wants its events."""
        ...

    @property
    def after(self) -> int:
        """The last event that was read."""
        ...

    @property
    def lost(self) -> bool:
        """Whether the reader has lost its place: what it reads next is a resync."""
        ...

    @property
    def lag(self) -> int:
        """How many events were published that were not read."""
        ...

    @property
    def behind(self) -> bool:
        """Whether there is something to read now."""
        ...

    async def read(self) -> Batch:
        """Wait for something new and return it; raise `LogClosed` when nothing can come."""
        ...

    def rewind(self, after: int) -> None:
        """Go back to *after*, a place in the batch that was read last."""
        ...


@define(eq=False)
class Streams:
    """The streams that are attached, known by their places. A log does not know its readers."""

    turns: trio.CapacityLimiter = field(
        factory=lambda: trio.CapacityLimiter(TURNS), init=False, repr=False
    )
    _feeds: set[Feed] = field(factory=set, init=False, repr=False)

    @contextmanager
    def attached(self, feed: Feed) -> Iterator[None]:
        """Count the stream of *feed* for the length of the block."""
        self._feeds.add(feed)
        try:
            yield
        finally:
            self._feeds.discard(feed)

    def lags(self) -> list[int]:
        """Return how many events each of them has not read; the last piece may still be on its way."""
        return [feed.lag for feed in self._feeds]


async def nothing_missed() -> Batch | None:
    """Say that a reader has missed nothing before this start of the program."""
    await trio.lowlevel.checkpoint()
    return None


# ASYNC900: the framework sends nothing but a generator piece by piece, and this one holds no scope.
# ASYNC911: after the last piece there is nothing left to wait for.
async def stream(  # noqa: ASYNC900, ASYNC911
    feed: Feed,
    *,
    boot: str,
    drain: Drain,
    first: Content = b"",
    missed: Callable[[], Awaitable[Batch | None]] = nothing_missed,
    asks: Callable[[], Content] = bytes,
    heartbeat: float = HEARTBEAT,
    send_now: SendNow = send_nothing_now,
    turns: trio.CapacityLimiter | None = None,
) -> AsyncGenerator[bytes, None]:
    """Give the bytes of a stream, piece by piece, until the log is closed and read to its end.

    The form is the feed's and *boot* the boot of its log. What comes before that is *first*, and then
    what the reader *missed* before this start of the program. *asks* tells what waits for a person,
    for a reader that has lost its place and with it what it knew about that. There is a first piece
    at once, also of a silent log: some servers hold the headers of a response back until then (G9).
    If the store fails while it is asked what a reader missed, the stream is cut.
    No scope is open while a piece is out, and there is nothing to clean up: the stream may be left at
    any point, by closing or by cancelling.

    Pieces after the first are given to *send_now*; only what it does not take comes out here.
    """
    if feed.form is None:
        raise ValueError("a stream is for readers of bytes; this one has no form")
    limiter = turns or trio.CapacityLimiter(TURNS)
    sender = _Sender(feed, feed.form, drain, asks, heartbeat, send_now, limiter)
    opening = _Opening(sender, boot, first, missed)
    try:
        for following in (opening.next, sender.next, sender.rest):
            data = await following()
            while data:
                yield data
                data = await following()
    except StoreUnavailable as trouble:
        # The reader has lost its place, and what it missed cannot be told now. It will come back.
        log.warning("stream.cut", extra={"code": trouble.code})
        return  # noqa: ASYNC911 - the store was waited for
    if last := _ending(sender.form, drain.reason):
        yield last  # noqa: ASYNC911 - so was the end of the rest


@define(eq=False)
class _Opening:
    """The beginning of a stream. A reader's place is told only after all that lies before it."""

    _sender: "_Sender"
    _boot: str
    _first: Content
    _missed: Callable[[], Awaitable[Batch | None]]
    _begun: bool = field(default=False, init=False)
    _done: bool = field(default=False, init=False)

    async def next(self) -> bytes:
        """Return the next piece; empty when the reader has been told where it is."""
        while not (data := await self._sender.piece()) and not self._done:
            batch = await self._missed()
            self._done = batch is None
            told = (self._place(),) if batch is None else batch.chunks(self._sender.form)
            self._sender.hold(*self._prelude(), *told)
            self._begun = True
        return data

    def _prelude(self) -> tuple[Content, ...]:
        if self._begun:
            return ()
        retry = b"retry: %d\n" % RETRY if self._sender.form is Form.NATIVE else b""
        return retry, self._first

    def _place(self) -> bytes:
        """Return what tells a reader its place; for the crush form, a sign of life if all is silent."""
        feed, seconds = self._sender.feed, self._sender.heartbeat
        if self._sender.form is Form.CRUSH:
            return b"" if self._begun or self._first else _HEARTBEATS[Form.CRUSH]
        place = None if feed.lost else str(Position(boot=self._boot, seq=feed.after))
        told = b"" if place is None else b"id: %b\n" % place.encode()
        ready = encode({"position": place, "heartbeat": seconds if seconds < inf else None})
        return b"%bevent: ready\ndata: %b\n\n" % (told, ready)


@define(eq=False)
class _Sender:
    """Reads a feed and sends what it brings, one piece at a time."""

    feed: Feed
    form: Form
    _drain: Drain
    _asks: Callable[[], Content]
    heartbeat: float
    _send_now: SendNow
    _turns: trio.CapacityLimiter
    _pieces: Iterator[bytes] | None = field(default=None, init=False)
    """What is left of something that is sent piece by piece."""
    _fresh: Batch | None = field(default=None, init=False)
    """The batch that is about to be sent with one call."""
    _more: bool = field(default=False, init=False)
    """Whether there was more to read than what was read last."""

    async def next(self) -> bytes:
        """Send what comes; return what has to be waited for, empty when no more is to be waited for.

        A batch for which the form has no word is passed over, and counts as silence. A deadline that
        was set for an earlier silence is not moved with each piece, it is set anew when it has come.
        """
        spoken = trio.current_time()
        while True:
            deadline = spoken + self.heartbeat
            with trio.CancelScope(deadline=deadline) as scope, self._drain.ending.ends(scope):
                try:
                    while True:
                        data = await self._take()
                        sent = self._send_now(data)
                        if sent < len(data):
                            return self._unsent(data, sent)
                        self._fresh = None
                        if data:
                            spoken = trio.current_time()
                except LogClosed:
                    return b""  # noqa: ASYNC910 - reading is a checkpoint
            # ASYNC910: what got here was cancelled while it waited.
            if self._drain.ending.called:
                return b""  # noqa: ASYNC910
            if spoken + self.heartbeat <= deadline:
                if self._pieces is None:
                    return _HEARTBEATS[self.form]  # noqa: ASYNC910
                spoken = trio.current_time()  # nothing may come between two pieces of a frame

    async def rest(self) -> bytes:
        """Return the next piece of what there is to read now; empty if there is no more."""
        await trio.lowlevel.checkpoint()
        data = b""
        while not data and (self._pieces is not None or self.feed.behind):
            data = self._unsent(await self._take(), 0)
        return data

    async def _take(self) -> bytes:
        """Wait for the next piece and return it, perhaps empty.

        Who has more to send than one piece has to wait for its turn. Whatever is taken is returned in
        the same step: nothing is lost by cancelling.
        """
        if self._pieces is None and not self._more:
            return self._begun(await self.feed.read())
        async with self._turns:
            if data := self._continued():
                return data
            if self.feed.behind:
                return self._begun(await self.feed.read())
        self._more = False
        return b""

    async def piece(self) -> bytes:
        """Return the next piece of what is held; empty if that was all."""
        if self._pieces is None:
            await trio.lowlevel.checkpoint()
            return b""
        async with self._turns:
            return self._continued()

    def hold(self, *chunks: Chunk) -> None:
        """Have *chunks* sent next, piece by piece."""
        self._pieces = pieces_after(chunks, 0)

    def _begun(self, batch: Batch) -> bytes:
        """Return a batch, or its first piece if it is long, in the step in which it was taken.

        If it has a resync, what waits for a person belongs to it, and is of the same moment.
        """
        self._more = batch.more
        if batch.resync is not None:
            self.hold(self._asks(), *batch.chunks(self.form))
        elif batch.endings:
            self.hold(*batch.chunks(self.form))
        else:
            content = batch.content(self.form)
            if isinstance(content, bytes):
                self._fresh = batch
                return content
            self.hold(content)
        return self._continued()

    def _unsent(self, data: bytes, sent: int) -> bytes:
        """Return what has to be waited for if only *sent* bytes of *data* were taken.

        Of a batch that is what was begun. The reader goes back to there, and holds no more than that.
        """
        batch, self._fresh = self._fresh, None
        if batch is None:
            return data[sent:]
        after, self._pieces = batch.rest(self.form, sent)
        self.feed.rewind(after)
        self._more = True
        return self._continued()

    def _continued(self) -> bytes:
        data = b"" if self._pieces is None else next(self._pieces, b"")
        if not data:
            self._pieces = None
        return data


def _ending(form: Form, reason: EndReason) -> bytes:
    """Return the word that a stream ends with on purpose; for crush readers its end says it all."""
    if form is Form.CRUSH:
        return b""
    return b"event: end\ndata: %b\n\n" % encode({"reason": reason.value})


def position_from(last_event_id: str | None, after: str | None) -> Position | None:
    """Return the place a reader resumes from; None if it names none and wants what comes from now.

    The `Last-Event-ID` header wins over the `after` of the query: a reader that connects again by
    itself repeats its first URL, and its header is newer. Text that is no place is taken for one
    that was lost, and answered with a resync. A refusal would be final, for a browser gives up
    after a status other than 200, while a resync mends whatever the reader thought it knew.
    """
    text = last_event_id or after
    if not text:
        return None
    if len(text) > _PLACE_LIMIT or not (text.isascii() and text.isprintable()):
        return LOST
    return Position.parse(text) or LOST
