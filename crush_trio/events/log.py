"""`EventLog`: a workspace's events in order, pulled by readers.

There is no buffer per reader, so none can overflow, and a slow reader costs a publisher nothing.
`publish` appends and returns. Readers keep a place in the log and are woken together, at most once
per tick, by a task of the log. An ending wakes them at once, and so do the first words of a
message.

Promises:

* ids grow by one per event, and every reader sees events in that order;
* an ending is never skipped: it is remembered beyond the window, so that a reader that fell out of
  the window still learns how each run ended;
* a reader whose place is gone gets a resync with the state of everything under way, taken in the
  same step as the place from which it continues;
* memory is bounded by count and by bytes, whatever readers do. All but the newest events are kept
  as bytes only. A reader that does not read keeps one event alive, the one that it is in the middle
  of;
* a reader that can come back after a crash (native form) sees an ending only after the place of
  that ending is stored. So the store knows which endings such a reader has seen, and can give it
  the others.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from operator import attrgetter
from typing import Final, Protocol

import trio
from attrs import define, field, frozen

from crush_trio.events.cursor import Batch, Cursor, ReaderGroup
from crush_trio.events.entry import ByteMeter, LogEntry
from crush_trio.events.facts import Event, Fact, MessageChange, Position, Resync, RunChange
from crush_trio.events.frames import Form
from crush_trio.events.pieces import JOINED
from crush_trio.events.state import SETTLE_LIMIT, Endings, LiveState
from crush_trio.nursery import open_hidden_nursery

_by_id = attrgetter("id")

SHARED_BATCHES: Final = 32
"""How many batches, for readers at different places, are cached until the next event."""


@frozen(kw_only=True)
class Window:
    """How much a log keeps.

    `events` and `weight` (bytes) bound the window. Beyond it the log keeps up to `endings` endings,
    whose answers have up to `texts` characters together. The newest `fresh` events are kept as
    values with their encoded frames, for readers that keep up; older ones are packed and encoded
    again on demand.

    `batch` is the most events that one read returns; of missed endings, half as many.
    """

    events: int = 8192
    weight: int = 32 * 1024 * 1024
    endings: int = 512
    texts: int = 4 * 1024 * 1024
    fresh: int = 64
    batch: int = 128


class EventKeeper(Protocol):
    """Stores events for longer than a log keeps them."""

    def keep(self, seq: int, event: Event) -> bool:
        """Take an event while it is published.

        True means that it is an ending whose place is not stored yet: native readers see it, and
        the events after it, only when `EventLog.settle` is called.
        """
        ...

    def flush(self) -> None:
        """Write the events taken so far: the log is about to forget an ending."""
        ...


@define(eq=False)
class EventLog:
    """An ordered log of events; see the module. Use `open_event_log`, which runs the log's task."""

    boot: str
    tick: float = 0.005
    window: Window = field(factory=Window)
    keeper: EventKeeper | None = field(default=None, kw_only=True)
    shows_unsettled: bool = field(default=True, init=False)
    """Whether native readers see endings without a stored place when the log closes; not if another server
    may go on with the workspace and tell them of those endings."""
    listeners: list[Callable[[Event], None]] = field(factory=list, init=False, repr=False)
    """Called with each event in the step of its publication; must not raise."""
    head: int = field(default=0, init=False)
    closed: bool = field(default=False, init=False)
    _entries: list[LogEntry] = field(factory=list, init=False)
    _fresh: deque[LogEntry] = field(factory=deque, init=False)
    _endings: Endings = field(init=False)
    _snapshot: Resync | None = field(default=None, init=False)
    _own: ReaderGroup = field(factory=lambda: ReaderGroup(None), init=False)
    _crush: ReaderGroup = field(factory=lambda: ReaderGroup(Form.CRUSH), init=False)
    _native: ReaderGroup = field(factory=lambda: ReaderGroup(Form.NATIVE), init=False)
    _meter: ByteMeter = field(factory=ByteMeter, init=False)
    _live: LiveState = field(factory=LiveState, init=False)
    _woken: int = field(default=0, init=False)
    _urgent: int = field(default=0, init=False)
    _published: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _hurried: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._endings = Endings(self.window.endings, self.window.texts)

    # ── Publishing ──────────────────────────────────────────────────────────────────────────────

    def publish(self, event: Event) -> int:
        """Append *event* and return its id. The cost does not depend on the number of readers.

        A closed log ignores the event.
        """
        if self.closed:
            return self.head
        for hear in self.listeners:
            hear(event)
        entry = self._entry(self.head + 1, event)
        self.head = self._own.head = self._crush.head = entry.id
        self._own.batches.clear()
        self._crush.batches.clear()
        self._snapshot = None
        self._entries.append(entry)
        self._age(entry)
        if self.keeper is not None and self.keeper.keep(self.head, event):
            self._endings.hold(self.head)
        elif self._native.head == self.head - 1:  # else an earlier ending is still unsettled
            self._native.head = self.head
            self._native.batches.clear()
        if len(self._entries) > 2 * self.window.events or self._meter.total > self.window.weight:
            self._trim()
        if entry.urgent:
            self._urgent = self.head
            self._hurried.unpark()
        self._published.unpark()
        return self.head

    def settle(self, upto: int) -> None:
        """Note that the places of all endings up to *upto* are stored, or never will be."""
        self._endings.settle(upto)
        unsettled = self._endings.unsettled
        self._show_native(self.head if unsettled is None else unsettled - 1)
        self._native.wake()

    def close(self) -> None:
        """Close the log: readers get what is left, then `LogClosed`. Closing again does nothing."""
        self.closed = True
        if self.shows_unsettled:
            self._show_native(self.head)
        self._published.unpark()
        self._hurried.unpark()
        for group in (self._own, self._crush, self._native):
            group.waiting.unpark_all()

    def _show_native(self, head: int) -> None:
        """Let native readers see everything up to *head*."""
        if head != self._native.head:
            self._native.head = head
            self._native.batches.clear()

    def _entry(self, seq: int, event: Event) -> LogEntry:
        """Make the entry of *event*, and update the live state with it."""
        match event:
            case MessageChange():
                return self._message_entry(seq, event)
            case RunChange():
                self._live.follow_run(event)
            case Fact():
                for entry in self._live.follow_fact(event):
                    self._let_go(entry)
        return LogEntry(seq, event, self.boot, self._meter)

    def _message_entry(self, seq: int, event: MessageChange) -> LogEntry:
        """Make the entry of a message change, and supersede the message's last plain change."""
        last = self._live.take(event.message_id)
        before = None
        if last is not None:
            assert isinstance(last.event, MessageChange)
            before = last.event.view
            if last.event.plain:
                last.supersede()
            self._let_go(last)
        entry = LogEntry(seq, event, self.boot, self._meter, before)
        self._live.show(event, entry)
        return entry

    def _age(self, newest: LogEntry) -> None:
        """Pack the entry that is no longer among the newest ones.

        An entry that shows an open message is not packed: the next delta is computed against it.
        """
        self._fresh.append(newest)
        if len(self._fresh) > self.window.fresh:
            entry = self._fresh.popleft()
            if not self._live.shows(entry):
                entry.pack()

    def _let_go(self, entry: LogEntry) -> None:
        """Pack an entry that no longer shows an open message, if it is not among the newest."""
        if entry.id <= self.head - self.window.fresh:
            entry.pack()

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────

    def cursor(self, form: Form | None = None, after: Position | None = None) -> Cursor:
        """Return a reader's place: after *after*, or after everything published so far.

        *form* None is for readers in this process that want events as values. A reader whose
        position is from another boot gets the newest endings of this boot, at most
        `Window.endings`.
        """
        group = {None: self._own, Form.CRUSH: self._crush, Form.NATIVE: self._native}[form]
        if after is None:
            return Cursor(self, group, self.head)
        if after.boot != self.boot or after.seq > self.head:
            older = self._endings_after(0)[: -self.window.endings]
            return Cursor(self, group, older[-1].id if older else self.forgotten, lost=True)
        return Cursor(self, group, after.seq, lost=not after.synced)

    @property
    def forgotten(self) -> int:
        """The id of the newest ending that the log no longer remembers."""
        return self._endings.forgotten

    @property
    def position(self) -> Position:
        """The place after the newest event."""
        return Position(boot=self.boot, seq=self.head)

    def take(self, after: int, group: ReaderGroup) -> Batch:
        """Return the events after *after*, which must not be below the floor, up to a full batch.

        Readers at the same place share one batch, and with it its bytes.
        """
        batch = group.batches.get(after)
        if batch is None:
            batch = self._gather(after, group)
            if len(group.batches) >= SHARED_BATCHES:
                group.batches.clear()
            group.batches[after] = batch
        return batch

    def _gather(self, after: int, group: ReaderGroup) -> Batch:
        """Make a batch whose bytes are short enough to be joined, unless it is a single event.

        Native readers get deltas, so they need every change, also the superseded ones.
        """
        entries, chosen, size = self._entries, list[LogEntry](), 0
        form, most = group.form, self.window.batch
        for index in range(bisect_right(entries, after, key=_by_id), len(entries)):
            entry = entries[index]
            if entry.id > group.head:
                break
            if entry.superseded and form is not Form.NATIVE:
                continue
            size += 0 if form is None else len(entry.content(form))
            if chosen and (size > JOINED or len(chosen) == most):
                return Batch(chosen[-1].id, tuple(chosen), more=True)
            chosen.append(entry)
        return Batch(max(after, group.head), tuple(chosen))

    def endings_after(self, after: int) -> Batch:
        """Return the next endings for a lost reader that knows those up to *after*.

        The last batch of them has the present state, too.
        """
        most = (self.window.batch + 1) // 2
        endings = self._endings_after(after, most + 1)
        if len(endings) <= most:
            return Batch(self.head, tuple(endings), self.snapshot())
        del endings[-1]
        return Batch(endings[-1].id, tuple(endings), endings=True, more=True)

    def snapshot(self) -> Resync:
        """Return the state that a reader of the whole log would have now."""
        if self._snapshot is None:
            self._snapshot = self._live.snapshot(self.position)
        return self._snapshot

    async def wait_beyond(self, after: int, group: ReaderGroup) -> bool:
        """Wait until there is an event after *after*, or the log is closed; return which."""
        if group.head > after or self.closed:
            await trio.lowlevel.checkpoint()
        while group.head <= after and not self.closed:
            await group.waiting.park()
        return group.head > after  # noqa: ASYNC910 - one of the two waits has run

    async def wait_settled(self, group: ReaderGroup) -> bool:
        """Wait until readers may see everything, and return whether they may.

        That takes `SETTLE_LIMIT` seconds at most; if unsettled endings are never shown, as long as the
        log is open.
        """
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(SETTLE_LIMIT if self.shows_unsettled else inf):
            while group.head < self.head and not self.closed:
                await group.waiting.park()
        return self.shows_unsettled or group.head == self.head

    def _endings_after(self, after: int, most: int | None = None) -> list[LogEntry]:
        """Return the remembered endings after *after*; at most the oldest *most* of them."""
        found, entries = self._endings.after(after)[:most], self._entries
        for index in range(bisect_right(entries, after, key=_by_id), len(entries)):
            if len(found) == most:
                break
            if entries[index].terminal:
                found.append(entries[index])
        return found

    # ── Memory bounds ───────────────────────────────────────────────────────────────────────────

    def _trim(self) -> None:
        """Drop entries until the window fits again: superseded ones first, then the oldest.

        The newest entries stay, superseded or not: a native reader that is only a little behind
        needs their deltas. Frees half of the window at a time, so that the cost per event is
        constant.
        """
        newest = max(0, len(self._entries) - self.window.events)
        kept = []
        for entry in self._entries[:newest]:
            if entry.superseded:
                self._native.floor = max(self._native.floor, entry.id)
                entry.release()
            else:
                kept.append(entry)
        excess = len(kept) - self.window.events // 2
        kept += self._entries[newest:]
        heavy = self._meter.total > self.window.weight
        start = 0
        while start < excess or (heavy and self._meter.total > self.window.weight // 2):
            if start == len(kept) - 1:
                break
            self._drop(kept[start])
            start += 1
        self._entries = kept[start:]

    def _drop(self, entry: LogEntry) -> None:
        self._own.floor = self._crush.floor = entry.id
        self._native.floor = max(self._native.floor, entry.id)
        entry.release()
        if entry.terminal and self._endings.remember(entry) and self.keeper is not None:
            self.keeper.flush()

    # ── Waking ──────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Wake the readers after an event was published: the first time at once, then per tick.

        An urgent event wakes them without waiting for the tick: a person may be waiting for it.
        Publishing stays cheap because this task, and not the publisher, wakes every reader.
        """
        next_wake = -inf
        while True:
            while self.head == self._woken and not self.closed:
                await self._published.park()
            with trio.move_on_at(next_wake):
                while self._urgent <= self._woken and not self.closed:
                    await self._hurried.park()
            self._woken = self.head
            self._own.wake()
            self._crush.wake()
            if self._endings.unsettled is None:  # else `settle` wakes them when it is stored
                self._native.wake()
            if self.closed:
                return  # noqa: ASYNC910  # the end of the log's own task; all other paths park
            next_wake = trio.current_time() + self.tick


@asynccontextmanager
async def open_event_log(
    boot: str,
    *,
    tick: float = 0.005,
    window: Window | None = None,
    keeper: EventKeeper | None = None,
) -> AsyncIterator[EventLog]:
    """Open a log and run its task; leaving the block closes the log, which ends its readers."""
    log = EventLog(boot, tick, window or Window(), keeper=keeper)
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(log.run)
        try:
            yield log
        finally:
            log.close()
