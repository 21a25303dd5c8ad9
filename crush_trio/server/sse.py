"""Event streams: from a reader of the log to the bytes of server-sent events.

A stream is pulled: it reads the log only when its sender asks for more, so a client that does not read
costs nothing, whatever is published meanwhile. It yields bytes in pieces of bounded size. A wake-up
nearly always brings one piece, sent with one call; of a longer event a stream keeps its position and
the piece being sent, and shares the rest with all other streams. Between events it sleeps; it wakes
for an event, for a heartbeat when nothing was sent for a while, and for its end.

Streams with much to send take turns (`TURNS`), so that requests are answered meanwhile.

The native form has four events that are not in the log:

* `asks` lists all pending asks. It comes before a reader is told a place that it has not read up to,
  by `ready` or by a resync, so a reader that resumes from there has seen them;
* `ready` comes next, and after the events that were missed before a restart. It gives the reader's
  place, from which it can resume before it has seen any event, and the heartbeat interval;
* `heartbeat` says that the stream is alive. It has no id, so it cannot move a reader's place;
* `end` is the last one and gives a reason. A stream that stops without it was cut.

The crush form has `data:` lines only; its clients ignore a blank line. In place of `asks` they get each
request again.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
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
from crush_trio.server.roster.changes import NOTHING_BESIDE, Beside
from crush_trio.store.errors import StoreUnavailable
from crush_trio.wire.answers import EndReason, StreamEnd, StreamHeartbeat, StreamReady
from crush_trio.wire.codec import encode

HEARTBEAT: Final = 15.0
"""Seconds of silence after which a stream sends a heartbeat."""

RETRY: Final = 1000
"""Milliseconds a reader is asked to wait before it connects again."""

TURNS: Final = 4
"""How many streams with much to send may send a piece at the same time."""

LOST: Final = Position(boot="", seq=0)
"""A place that is in no log: a reader that starts there gets a resync."""

_PLACE_LIMIT: Final = 256
_HEARTBEATS: Final = {
    Form.CRUSH: b"\n",
    Form.NATIVE: b"event: heartbeat\ndata: %b\n\n" % encode(StreamHeartbeat()),
}

log = logging.getLogger(__name__)


@define(eq=False)
class Drain:
    """Ends the streams of a server that shuts down, in two steps.

    `announce` comes first: each stream goes on until its workspace has closed, so that clients see
    every run end, and then gives the server's reason. `end_streams` ends those that are left.
    """

    announced: bool = field(default=False, init=False)
    announcing: trio.Event = field(factory=trio.Event, init=False, repr=False)
    """Set by `announce`, for streams without a workspace, which have nothing to wait for."""
    ending: Interrupt = field(factory=Interrupt, init=False)

    @property
    def reason(self) -> EndReason:
        """The reason that a stream gives if it ends now."""
        return EndReason.SERVER_SHUTTING_DOWN if self.announced else EndReason.WORKSPACE_CLOSED

    def announce(self) -> None:
        """Note that the server shuts down; no stream of a workspace ends yet."""
        self.announced = True
        self.announcing.set()

    def end_streams(self) -> None:
        """Wake every stream to send what is left and end. Later streams end at once."""
        self.announce()
        self.ending.call()


class Feed(Protocol):
    """What a stream reads from: a cursor of the log, or a reader that also reads the store."""

    @property
    def form(self) -> Form | None:
        """The form in which the reader wants its events."""
        ...

    @property
    def after(self) -> int:
        """The sequence number of the last event that was read."""
        ...

    @property
    def lost(self) -> bool:
        """Whether the reader has lost its place: what it reads next is a resync."""
        ...

    @property
    def lag(self) -> int:
        """How many published events were not read yet."""
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
    """The attached streams, by their feeds. A log does not know its readers."""

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
        """Return how many events each of them has not read; the last piece read may not be sent yet."""
        return [feed.lag for feed in self._feeds]


async def nothing_missed() -> Batch | None:
    """Return that a reader has missed nothing before this start of the program."""
    await trio.lowlevel.checkpoint()
    return None


# ASYNC900: Quart sends nothing but an async generator piece by piece, and this one holds no scope.
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
    beside: Beside = NOTHING_BESIDE,
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a stream, piece by piece, until the log is closed and read to its end.

    The form is the feed's, and *boot* is the boot of its log. Before the events come *first*, and what
    the reader *missed* before this start of the program. *asks* returns the pending asks, for a reader
    that has lost its place and with it what it knew about them. There is a first piece at once, also
    for a silent log: some servers hold the headers of a response back until then (G9). If the store
    fails while it is asked what a reader missed, the stream is cut. No scope is open during a yield,
    and there is nothing to clean up: the stream may be closed or cancelled at any point.

    Pieces after the first are given to *send_now*; only what it does not take is yielded. What comes
    *beside* the feed is sent between two frames.
    """
    if feed.form is None:
        raise ValueError("a stream is for readers of bytes; this one has no form")
    limiter = turns or trio.CapacityLimiter(TURNS)
    sender = _Sender(feed, feed.form, drain, asks, heartbeat, send_now, limiter, beside)
    opening = _Opening(sender, boot, first, missed)
    try:
        for following in (opening.next, sender.next, sender.rest):
            data = await following()
            while data:
                yield data
                data = await following()
    except StoreUnavailable as trouble:
        # The reader has lost its place, and what it missed cannot be read now. It will reconnect.
        log.warning("stream.cut", extra={"code": trouble.code})
        return  # noqa: ASYNC911 - the store was waited for
    if last := _ending(sender.form, drain.reason):
        yield last  # noqa: ASYNC911 - so was the end of the rest


@define(eq=False)
class _Opening:
    """The beginning of a stream. A reader's place is sent only after everything before it."""

    _sender: "_Sender"
    _boot: str
    _first: Content
    _missed: Callable[[], Awaitable[Batch | None]]
    _begun: bool = field(default=False, init=False)
    _done: bool = field(default=False, init=False)

    async def next(self) -> bytes:
        """Return the next piece; empty when the reader has been sent its place."""
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
        """Return the event with a reader's place; for the crush form, a heartbeat if nothing else is sent."""
        feed, seconds = self._sender.feed, self._sender.heartbeat
        if self._sender.form is Form.CRUSH:
            return b"" if self._begun or self._first else _HEARTBEATS[Form.CRUSH]
        place = None if feed.lost else str(Position(boot=self._boot, seq=feed.after))
        told = b"" if place is None else b"id: %b\n" % place.encode()
        ready = StreamReady(position=place, heartbeat=seconds if seconds < inf else None)
        return b"%bevent: ready\ndata: %b\n\n" % (told, encode(ready))


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
    _beside: Beside
    _pieces: Iterator[bytes] | None = field(default=None, init=False)
    """The rest of something that is sent piece by piece."""
    _fresh: Batch | None = field(default=None, init=False)
    """The batch that is about to be sent with one call."""
    _more: bool = field(default=False, init=False)
    """Whether there was more to read than what was read last."""

    async def next(self) -> bytes:
        """Send what arrives; return what could not be sent at once, empty when the stream ends.

        A batch that the form does not show is skipped, and counts as silence. The heartbeat's deadline
        is not moved with each piece; when it comes too early, it is set again.
        """
        spoken = trio.current_time()
        while True:
            deadline = spoken + self.heartbeat
            if self._pieces is None and (told := self._beside.take()):
                self.hold(told)
            with (
                trio.CancelScope(deadline=deadline) as scope,
                self._drain.ending.ends(scope),
                self._beside.wakes(scope),
            ):
                try:
                    while self._pieces is not None or not self._beside.news:
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
            if spoken + self.heartbeat <= trio.current_time():
                if self._pieces is None:
                    return _HEARTBEATS[self.form]  # noqa: ASYNC910
                spoken = trio.current_time()  # nothing may come between two pieces of a frame

    async def rest(self) -> bytes:
        """Return the next piece of what can be read now; empty if there is no more."""
        await trio.lowlevel.checkpoint()
        data = b""
        while not data and (self._pieces is not None or self.feed.behind):
            data = self._unsent(await self._take(), 0)
        return data

    async def _take(self) -> bytes:
        """Wait for the next piece and return it, perhaps empty.

        A stream that has more than one piece to send waits for its turn. What is read is returned in
        the same step, so cancelling loses nothing.
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
        """Return the next piece of what was passed to `hold`; empty if that was all."""
        if self._pieces is None:
            await trio.lowlevel.checkpoint()
            return b""
        async with self._turns:
            return self._continued()

    def hold(self, *chunks: Chunk) -> None:
        """Have *chunks* sent next, piece by piece."""
        self._pieces = pieces_after(chunks, 0)

    def _begun(self, batch: Batch) -> bytes:
        """Return a batch, or its first piece if it is long, in the step in which it was read.

        A resync is sent together with the pending asks of the same moment.
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
        """Return what is left to send if only *sent* bytes of *data* were taken.

        Of a batch that is the rest of the event that was begun; the reader goes back to after that event.
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
    """Return the last event of a stream; the crush form has none."""
    if form is Form.CRUSH:
        return b""
    return b"event: end\ndata: %b\n\n" % encode(StreamEnd(reason=reason))


def position_from(last_event_id: str | None, after: str | None) -> Position | None:
    """Return the place a reader resumes from; None if it names none and wants events from now on.

    The `Last-Event-ID` header wins over the `after` of the query: a reader that reconnects by itself
    repeats its first URL, and its header is newer. Text that is no place counts as a lost place, and
    is answered with a resync. A refusal would be final, because a browser gives up after a status
    other than 200; a resync corrects whatever the reader knew.
    """
    text = last_event_id or after
    if not text:
        return None
    if len(text) > _PLACE_LIMIT or not (text.isascii() and text.isprintable()):
        return LOST
    return Position.parse(text) or LOST
