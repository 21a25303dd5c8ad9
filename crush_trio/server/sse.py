"""From a cursor to the bytes of an event stream.

A stream is pulled: it reads the log only when whoever sends it asks for more, so a client that does
not take what it gets costs nothing, whatever is published meanwhile. Each piece it gives is all
that one wake-up brought, to be sent with one call. Between events it sleeps; it wakes for an
event, for a heartbeat once nothing was sent for a while, and for its end.

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

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

import trio
from attrs import define, field

from crush_trio.errors import LogClosed
from crush_trio.events.cursor import Batch, Cursor
from crush_trio.events.facts import Position
from crush_trio.events.forms import Form
from crush_trio.server.interrupt import Interrupt
from crush_trio.server.streaming import SendNow, send_nothing_now
from crush_trio.wire.codec import encode

HEARTBEAT: Final = 15.0
"""Seconds of silence after which a stream says that it is alive."""

RETRY: Final = 1000
"""Milliseconds a reader is asked to wait before it connects again."""

LOST: Final = Position(boot="", seq=0)
"""A place that is in no log: reading from it begins with a resync."""

_PLACE_LIMIT: Final = 256
_HEARTBEATS: Final = {Form.CRUSH: b"\n", Form.NATIVE: b"event: heartbeat\ndata: {}\n\n"}


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


@define(eq=False)
class Streams:
    """The streams that are attached, known by their places. A log does not know its readers."""

    _cursors: set[Cursor] = field(factory=set, init=False, repr=False)

    @contextmanager
    def attached(self, cursor: Cursor) -> Iterator[None]:
        """Count the stream of *cursor* for the length of the block."""
        self._cursors.add(cursor)
        try:
            yield
        finally:
            self._cursors.discard(cursor)

    def lags(self) -> list[int]:
        """Return how many events each of them has not read; the last piece may still be on its way."""
        return [cursor.lag for cursor in self._cursors]


# ASYNC900: the framework sends nothing but a generator piece by piece, and this one holds no scope.
# ASYNC911: after the last piece there is nothing left to wait for.
async def stream(  # noqa: ASYNC900, ASYNC911
    cursor: Cursor,
    *,
    boot: str,
    drain: Drain,
    first: bytes = b"",
    asks: Callable[[], bytes] = bytes,
    heartbeat: float = HEARTBEAT,
    send_now: SendNow = send_nothing_now,
) -> AsyncGenerator[bytes, None]:
    """Give the bytes of a stream, piece by piece, until the log is closed and read to its end.

    The form is the cursor's, *boot* the boot of its log, and *first* what the reader missed before
    that. *asks* tells what waits for a person, for a reader that has lost its place and with it what
    it knew about that. There is a first piece at once, also of a silent log: some servers hold the headers of a
    response back until then (G9). No scope is open while a piece is out, and there is nothing to
    clean up: the stream may be left at any point, by closing or by cancelling.

    Pieces after the first are given to *send_now*; only what it does not take comes out here.
    """
    await trio.lowlevel.checkpoint()
    form = cursor.form
    if form is None:
        raise ValueError("a stream is for readers of bytes; this cursor has no form")
    more, data = True, _opening(cursor, form, boot, first, heartbeat)
    while more:
        yield data
        more, data = await _next(cursor, form, drain, asks, heartbeat, send_now)
    if data:
        yield data


async def _next(
    cursor: Cursor,
    form: Form,
    drain: Drain,
    asks: Callable[[], bytes],
    heartbeat: float,
    send_now: SendNow,
) -> tuple[bool, bytes]:
    """Send what comes; return whether more can follow, and the next piece that has to be waited for.

    The last piece may be empty, others are not: a batch for which *form* has no word is passed
    over, and counts as silence. A deadline that was set for an earlier silence is not moved with
    each piece, it is set anew when it has come.
    """
    spoken = trio.current_time()
    while True:
        deadline = spoken + heartbeat
        with trio.CancelScope(deadline=deadline) as scope, drain.ending.ends(scope):
            try:
                while True:
                    data = _piece(await cursor.read(), form, asks)
                    sent = send_now(data)
                    if sent < len(data):
                        return True, data[sent:]
                    if data:
                        spoken = trio.current_time()
            except LogClosed:
                return False, _ending(form, drain.reason)  # noqa: ASYNC910 - reading is a checkpoint
        # ASYNC910: what got here was cancelled while it waited.
        if drain.ending.called:
            rest = _piece(cursor.take(), form, asks)
            return False, rest + _ending(form, drain.reason)  # noqa: ASYNC910
        if spoken + heartbeat <= deadline:
            return True, _HEARTBEATS[form]  # noqa: ASYNC910


def _piece(batch: Batch, form: Form, asks: Callable[[], bytes]) -> bytes:
    """Return a batch as bytes, in the step in which it was taken: its resync is of this moment."""
    return (b"" if batch.resync is None else asks()) + batch.encode(form)


def _opening(cursor: Cursor, form: Form, boot: str, first: bytes, heartbeat: float) -> bytes:
    """Return the first piece. A reader's place is told only after all that lies before it."""
    if form is Form.CRUSH:
        return first or _HEARTBEATS[form]
    lost = cursor.after < 0
    place = None if lost else str(Position(boot=boot, seq=cursor.after))
    told = b"" if place is None else b"id: %b\n" % place.encode()
    seconds = heartbeat if heartbeat < float("inf") else None
    ready = encode({"position": place, "heartbeat": seconds})
    return b"retry: %d\n%b%bevent: ready\ndata: %b\n\n" % (RETRY, first, told, ready)


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
