"""A reader's place in an event log, and what it reads from there.

A cursor belongs to one reader. It moves only when a batch is handed out, in the same step, so a
read that is cancelled has read nothing.

The readers of one form: what they may see, and where they wait.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from crush_trio.errors import LogClosed
from crush_trio.events.entry import Entry
from crush_trio.events.facts import Event, Resync
from crush_trio.events.frames import Form
from crush_trio.events.pieces import JOINED, PIECE, Chunk, Content, assemble, joined, pieces_after
from crush_trio.events.resync import ending_frames, resync_frames

if TYPE_CHECKING:
    from crush_trio.events.log import EventLog


@define(eq=False)
class Audience:
    """All readers of a log that want their events in the same form; None is for the events themselves.

    `head` is the newest event that they may see, and `floor` the newest one that they cannot be told
    any more. Readers at the same place share a batch until the next event is published.
    """

    form: Form | None
    head: int = field(default=0, init=False)
    floor: int = field(default=0, init=False)
    batches: "dict[int, Batch]" = field(factory=dict, init=False, repr=False)
    waiting: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )
    _woken: int = field(default=0, init=False)

    def wake(self) -> None:
        """Wake the readers that wait, if there is something for them since they were woken last."""
        if self.head > self._woken:
            self._woken = self.head
            self.waiting.unpark_all()


@define(eq=False)
class Batch:
    """What one read brings: entries in order, no more than can be sent in a moment.

    A reader that lost its place is given the endings it missed, in batches that are `endings` alone,
    and with the last of them the `resync`, which has the rest.
    """

    upto: int
    entries: tuple[Entry, ...]
    resync: Resync | None = None
    endings: bool = field(default=False, kw_only=True)
    more: bool = field(default=False, kw_only=True)
    """Whether there was more to read than this."""
    _crush: Content | None = field(default=None, init=False, repr=False)
    _native: Content | None = field(default=None, init=False, repr=False)

    @property
    def events(self) -> tuple[Event, ...]:
        """The events themselves, for readers in this process who are not too far behind to want all."""
        return tuple(entry.event for entry in self.entries if not entry.merged)

    def content(self, form: Form) -> Content:
        """Return all of it as it is sent, shared by all readers. Empty if *form* has no word."""
        content = self._crush if form is Form.CRUSH else self._native
        if content is None:
            content = self._assembled(form)
            if form is Form.CRUSH:
                self._crush = content
            else:
                self._native = content
        return content

    def _assembled(self, form: Form) -> Content:
        if self.resync is not None:
            return resync_frames(self.resync, self.entries, form)
        if self.endings:
            return ending_frames(self.entries, form)
        return assemble([entry.content(form) for entry in self.entries], JOINED)

    def chunks(self, form: Form) -> Iterable[Chunk]:
        """Return the same bytes as they are kept, for readers that are sent them piece by piece."""
        if self.resync is not None or self.endings:
            return (self.content(form),)
        return (chunk for entry in self.entries for chunk in entry.sources(form))

    def rest(self, form: Form, sent: int) -> tuple[int, Iterator[bytes]]:
        """Return what a reader is to be sent next that has taken *sent* bytes and then stalled.

        That is the rest of the frame it is in the middle of, and what else fits a piece, with the id
        of the last event in it. What follows is read again later, perhaps in a newer state.
        """
        chunks: list[Chunk] = []
        offset = room = upto = 0
        for entry in self.entries:
            length = len(entry.content(form))
            if chunks and length > room:
                return upto, pieces_after(chunks, offset)
            upto = entry.id
            if chunks:
                chunks.append(entry.content(form))
                room -= length
            elif sent < length:
                chunks, offset, room = entry.sources(form), sent, PIECE - (length - sent)
            else:
                sent -= length
        return self.upto, pieces_after(chunks, offset)

    def encode(self, form: Form) -> bytes:
        """Return all of it as one bytes object, however long it is; see `content`."""
        return joined(self.content(form))


@define(eq=False)
class Cursor:
    """One reader's place. Iterating yields batches until the log is closed and read to its end.

    While a reader is `lost`, it has not been told the state of now, and `after` is the last event up
    to which it knows all endings.
    """

    _log: "EventLog"
    _audience: Audience
    after: int
    _lost: bool = False

    @property
    def form(self) -> Form | None:
        """How the reader wants its events."""
        return self._audience.form

    @property
    def lost(self) -> bool:
        """Whether the log cannot continue from this place: the next thing to read is a resync."""
        return self._lost or self.after < self._audience.floor

    @property
    def lag(self) -> int:
        """How many events were published that this reader has not read."""
        return self._log.head - self.after

    @property
    def behind(self) -> bool:
        """Whether there is something to read now."""
        return self._lost or self._audience.head > self.after or self.lost

    @property
    def forgotten(self) -> int:
        """The last ending that this reader missed and the log does not remember; 0 if there is none.

        A reader with a store is told the endings up to there from the store (`skip_endings`). For
        others they are lost.
        """
        forgotten = self._log.forgotten
        return forgotten if self.after < forgotten and self.lost else 0

    def skip_endings(self, upto: int) -> None:
        """Take note that a lost reader has been told all endings up to *upto*."""
        self.after, self._lost = max(self.after, upto), True

    def rewind(self, after: int) -> None:
        """Go back to *after*, a place in the batch that was taken last."""
        self.after = after

    def take(self) -> Batch:
        """Return what there is now, without waiting; perhaps an empty batch.

        What is there and does not fit into the batch is in the next one.
        """
        if self.lost:
            batch = self._log.endings_after(self.after)
            self._lost = batch.resync is None
        else:
            batch = self._log.take(self.after, self._audience)
        self.after = batch.upto
        return batch

    async def wait(self) -> None:
        """Wait for something new; raise `LogClosed` when nothing can come."""
        if self.lost:
            await self._log.wait_settled(self._audience)
        elif not await self._log.wait_beyond(self.after, self._audience):
            raise LogClosed

    async def read(self) -> Batch:
        """Wait for something new and return it; raise `LogClosed` when nothing can come."""
        await self.wait()
        return self.take()

    def __aiter__(self) -> "Cursor":
        return self

    async def __anext__(self) -> Batch:
        try:
            return await self.read()
        except LogClosed:
            raise StopAsyncIteration from None
