"""`Cursor`: a reader's place in an event log; `Batch`: what one read returns.

A cursor belongs to one reader. It moves in the same step in which a batch is returned, so a read
that is cancelled has read nothing. All readers of one form are a `ReaderGroup`: they may see the
same events, wait at the same place and share batches.

A reader that lost its place gets a resync: first the endings that it missed, in several batches if
there are many, then the last endings together with the state of everything that is still under way.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import trio
from attrs import define, evolve, field, frozen

from crush_trio.errors import LogClosed
from crush_trio.events.entry import LogEntry
from crush_trio.events.facts import Event, Position, Resync, RunChange
from crush_trio.events.frames import Form, crush_frame, encode_run, message_change, native_frame
from crush_trio.events.growing_message import MessageView
from crush_trio.events.pieces import (
    JOINED,
    PIECE,
    Chunk,
    Content,
    assemble,
    grains_of,
    joined,
    pieces_after,
)
from crush_trio.wire.codec import encode
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import SessionId
from crush_trio.wire.runs import RunView

if TYPE_CHECKING:
    from crush_trio.events.log import EventLog

_RUN_SIZE: Final = 400
"""An upper estimate of the bytes of one run's JSON."""


@define(eq=False)
class ReaderGroup:
    """All readers of a log that want events in the same form; None is for events as values.

    `head` is the newest event that they may see. `floor` is the newest event that the log can no
    longer give them. Readers at the same place share a batch until the next event is published.
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
        """Wake the waiting readers if there are new events since they were woken last."""
        if self.head > self._woken:
            self._woken = self.head
            self.waiting.unpark_all()


@define(eq=False)
class Batch:
    """What one read returns: entries in order, of bounded size.

    A reader that lost its place gets the endings it missed: batches with `endings` set hold nothing
    else, and the last batch also has the `resync`.
    """

    upto: int
    entries: tuple[LogEntry, ...]
    resync: Resync | None = None
    endings: bool = field(default=False, kw_only=True)
    more: bool = field(default=False, kw_only=True)
    """Whether there was more to read than this."""
    _crush: Content | None = field(default=None, init=False, repr=False)
    _native: Content | None = field(default=None, init=False, repr=False)
    _narrowed: "dict[Hashable, Batch | None]" = field(factory=dict, init=False, repr=False)
    """What `narrow` made; None where it is the whole batch, which must not refer to itself."""

    def narrowed(self, key: Hashable) -> "Batch | None":
        """Return what `narrow` made under *key*; None if it was not called yet."""
        if key not in self._narrowed:
            return None
        return self._narrowed[key] or self

    def narrow(self, key: Hashable, keeps: Callable[[SessionId], bool]) -> "Batch":
        """Return the batch without the transcripts of sessions that *keeps* is false for.

        Readers with the same *key* share it with its bytes; *keeps* must be the same for all of them.
        """
        entries = tuple(e for e in self.entries if (owner := e.owner) is None or keeps(owner))
        resync = self.resync
        if resync is not None:
            views = tuple(view for view in resync.messages if keeps(view.head.session_id))
            resync = evolve(resync, messages=views)
        if len(entries) == len(self.entries) and resync is None:
            self._narrowed[key] = None
            return self
        kept = Batch(self.upto, entries, resync, endings=self.endings, more=self.more)
        self._narrowed[key] = kept
        return kept

    @property
    def events(self) -> tuple[Event, ...]:
        """The events as values, for readers in this process; without those that are merged."""
        return tuple(entry.event for entry in self.entries if not entry.merged)

    def content(self, form: Form) -> Content:
        """Return the bytes of the batch, shared by all readers; may be empty in crush form."""
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
        """Return the same bytes as unjoined sources, for readers that send them piece by piece."""
        if self.resync is not None or self.endings:
            return (self.content(form),)
        return (chunk for entry in self.entries for chunk in entry.sources(form))

    def rest(self, form: Form, sent: int) -> tuple[int, Iterator[bytes]]:
        """Return what to send next to a reader that stalled after *sent* bytes.

        That is the rest of the frame it is in the middle of, and further frames that fit into a
        piece; with the id of the last event among them. The reader reads what follows again later,
        perhaps in a newer state, so it does not keep the whole batch alive while it stalls.
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
        """Return the batch as one bytes object, however long it is; see `content`."""
        return joined(self.content(form))


@define(eq=False)
class Cursor:
    """One reader's place. Iterating yields batches until the log is closed and read to its end.

    While a reader is `lost`, it does not have the present state, and `after` is the last event up
    to which it knows all endings.
    """

    _log: "EventLog"
    _group: ReaderGroup
    after: int
    _lost: bool = False

    @property
    def form(self) -> Form | None:
        """The form in which the reader gets its events."""
        return self._group.form

    @property
    def lost(self) -> bool:
        """Whether the log cannot continue from this place: the next thing to read is a resync."""
        return self._lost or self.after < self._group.floor

    @property
    def lag(self) -> int:
        """The number of published events that this reader has not read."""
        return self._log.head - self.after

    @property
    def behind(self) -> bool:
        """Whether there is something to read now."""
        return self._lost or self._group.head > self.after or self.lost

    @property
    def forgotten(self) -> int:
        """The last ending that this reader missed and the log does not remember; 0 if there is none.

        A reader with a store reads the endings up to there from the store and then calls
        `skip_endings`. For other readers they are lost.
        """
        forgotten = self._log.forgotten
        return forgotten if self.after < forgotten and self.lost else 0

    def skip_endings(self, upto: int) -> None:
        """Note that a lost reader knows all endings up to *upto*."""
        self.after, self._lost = max(self.after, upto), True

    def rewind(self, after: int) -> None:
        """Go back to *after*, a place inside the batch that was taken last."""
        self.after = after

    def take(self) -> Batch:
        """Return a batch without waiting; it may be empty. `Batch.more` says if there is another."""
        if self.lost:
            batch = self._log.endings_after(self.after)
            self._lost = batch.resync is None
        else:
            batch = self._log.take(self.after, self._group)
        self.after = batch.upto
        return batch

    async def wait(self) -> None:
        """Wait for something to read; raise `LogClosed` at the end of a closed log."""
        if self.lost:
            if not await self._log.wait_settled(self._group):
                raise LogClosed
        elif not await self._log.wait_beyond(self.after, self._group):
            raise LogClosed

    async def read(self) -> Batch:
        """Wait for a batch and return it; raise `LogClosed` at the end of a closed log."""
        await self.wait()
        return self.take()

    def __aiter__(self) -> "Cursor":
        return self

    async def __anext__(self) -> Batch:
        try:
            return await self.read()
        except LogClosed:
            raise StopAsyncIteration from None


# ── The bytes of a resync ───────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class _RunList:
    """The JSON of many runs, separated by commas; a source of `events.pieces`."""

    runs: tuple[RunView, ...]

    def __len__(self) -> int:
        return _RUN_SIZE * len(self.runs)

    def grains(self) -> Iterator[bytes | memoryview]:
        """Yield the JSON of one run after the other."""
        for number, run in enumerate(self.runs):
            yield from grains_of(b"%b%b" % (b"," if number else b"", encode_run(run)))


def resync_frames(resync: Resync, missed: Sequence[LogEntry], form: Form) -> Content:
    """Return the last endings that a reader *missed* and the state of everything under way.

    In native form that is one frame: a stream that is cut has either all of it or none, so a reader
    that resumes after it has lost nothing. The crush form has no ids and no such event; its readers
    take every message frame as the newest state of that message.
    """
    if form is Form.CRUSH:
        return assemble(_crush_resync(resync, missed))
    ended = b",".join(
        encode_run(entry.event.run) for entry in missed if isinstance(entry.event, RunChange)
    )
    return assemble(
        native_frame(
            str(resync.position),
            "resync",
            b'{"position":%b,"ended":[%b],"runs":[' % (encode(str(resync.position)), ended),
            _RunList(resync.runs),
            b'],"messages":[',
            *_joined_messages(resync.messages),
            b"]}",
        )
    )


def _crush_resync(resync: Resync, missed: Sequence[LogEntry]) -> Iterator[Chunk]:
    for entry in missed:
        yield entry.content(Form.CRUSH)
    for view in resync.messages:
        changed = message_change(EventType.UPDATED, *view.sources())
        yield from crush_frame(PayloadType.MESSAGE, *changed)


def _joined_messages(views: Sequence[MessageView]) -> Iterator[Chunk]:
    for number, view in enumerate(views):
        if number:
            yield b","
        yield from view.sources()


def ending_frames(missed: Sequence[LogEntry], form: Form) -> Content:
    """Return endings that a lost reader *missed*, which are sent before the present state.

    In native form their ids are marked as not synced (`Position.synced`): a reader that resumes
    from one gets the endings after it, and then the state of that moment.
    """
    return assemble(source for entry in missed for source in _ending_frame(entry, form))


def _ending_frame(entry: LogEntry, form: Form) -> Iterator[Chunk]:
    if form is Form.CRUSH:
        yield entry.content(form)
    elif isinstance(entry.event, RunChange):
        place = Position(boot=entry.boot, seq=entry.id, synced=False)
        yield from native_frame(str(place), "run", encode_run(entry.event.run))
