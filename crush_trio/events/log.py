"""The workspace's events: one ordered log that readers pull from.

There is no buffer per reader, so none can overflow and a slow reader costs a publisher nothing.
`publish` appends and returns; readers keep a place in the log and are woken together, at most once
per tick, by a task of the log's own. An ending wakes them at once, and so do the first words of a
message.

What the log keeps:

* ids grow by one per event, and every reader sees events in that order;
* an ending is never skipped: it outlives even the window, so that a reader who fell out of it
  still learns how each run ended;
* a reader whose place is gone is told so, with the state of everything that is still going on,
  taken in the same step as the place it continues from;
* memory is bounded by count and by bytes, whatever readers do. All but the newest events are kept
  as bytes alone. A reader that does not read keeps alive the one event that it is in the middle of,
  which it shares with all readers that are there too;
* a reader that can come back after a crash sees an ending when the place of that ending is stored. So
  the store knows which endings such a reader has seen, and can tell it the others.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from operator import attrgetter
from typing import Final, Protocol

import trio
from attrs import define, field, frozen

from crush_trio.events.cursor import Audience, Batch, Cursor
from crush_trio.events.entry import Entry, Meter
from crush_trio.events.facts import Event, Fact, MessageChange, Position, Resync, RunChange
from crush_trio.events.frames import Form
from crush_trio.events.pieces import JOINED
from crush_trio.events.state import SETTLE_LIMIT, Endings, Live
from crush_trio.nursery import open_hidden_nursery

_by_id = attrgetter("id")

SHARED_BATCHES: Final = 32
"""How many batches, for readers at as many places, are kept until the next event."""


@frozen(kw_only=True)
class Window:
    """How much a log remembers: events, bytes, and endings beyond either.

    Endings are remembered up to their own number and `texts`, the characters of their answers.
    `fresh` is how many of the newest events are kept as they were published. Readers who keep up
    find them encoded; what is older is put together again for the few that come back to it.

    `batch` is how many events a reader is given at a time; of endings that it missed, half as many.
    """

    events: int = 8192
    weight: int = 32 * 1024 * 1024
    endings: int = 512
    texts: int = 4 * 1024 * 1024
    fresh: int = 64
    batch: int = 128


class Keeper(Protocol):
    """Remembers events for longer than a log does."""

    def keep(self, seq: int, event: Event) -> bool:
        """Take an event in as it is published.

        True means that it is an ending whose place is not stored yet: readers in native form see it,
        and what comes after it, when `EventLog.settle` is called.
        """
        ...

    def flush(self) -> None:
        """Hand over what was taken in, since the log forgets some of it now."""
        ...


@define(eq=False)
class EventLog:
    """See the module. Use `open_event_log`, which runs the log's own task."""

    boot: str
    tick: float = 0.005
    window: Window = field(factory=Window)
    keeper: Keeper | None = field(default=None, kw_only=True)
    head: int = field(default=0, init=False)
    closed: bool = field(default=False, init=False)
    _entries: list[Entry] = field(factory=list, init=False)
    _fresh: deque[Entry] = field(factory=deque, init=False)
    _endings: Endings = field(init=False)
    _snapshot: Resync | None = field(default=None, init=False)
    _own: Audience = field(factory=lambda: Audience(None), init=False)
    _crush: Audience = field(factory=lambda: Audience(Form.CRUSH), init=False)
    _native: Audience = field(factory=lambda: Audience(Form.NATIVE), init=False)
    _meter: Meter = field(factory=Meter, init=False)
    _live: Live = field(factory=Live, init=False)
    _woken: int = field(default=0, init=False)
    _urgent: int = field(default=0, init=False)
    _published: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _hurried: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._endings = Endings(self.window.endings, self.window.texts)

    # ── Publishing ──────────────────────────────────────────────────────────────────────────────

    def publish(self, event: Event) -> int:
        """Append *event* and return its id. Costs the same whoever and however many read.

        A closed log takes nothing in.
        """
        if self.closed:
            return self.head
        entry = self._entry(self.head + 1, event)
        self.head = self._own.head = self._crush.head = entry.id
        self._own.batches.clear()
        self._crush.batches.clear()
        self._snapshot = None
        self._entries.append(entry)
        self._age(entry)
        if self.keeper is not None and self.keeper.keep(self.head, event):
            self._endings.hold(self.head)
        elif self._native.head == self.head - 1:  # else there is an ending before it that is held
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
        """Take note that the places of all endings up to *upto* are stored, or never will be."""
        self._endings.settle(upto)
        unsettled = self._endings.unsettled
        self._show_native(self.head if unsettled is None else unsettled - 1)
        self._native.wake()

    def close(self) -> None:
        """End the log: readers get what is left and then `LogClosed`. Closing again does nothing."""
        self.closed = True
        self._show_native(self.head)
        self._published.unpark()
        self._hurried.unpark()
        for audience in (self._own, self._crush, self._native):
            audience.waiting.unpark_all()

    def _show_native(self, head: int) -> None:
        """Let native readers see everything up to *head*."""
        if head != self._native.head:
            self._native.head = head
            self._native.batches.clear()

    def _entry(self, seq: int, event: Event) -> Entry:
        """Make the entry of *event*, and follow it in what the log knows of the present state."""
        match event:
            case MessageChange():
                return self._message_entry(seq, event)
            case RunChange():
                self._live.follow_run(event)
            case Fact():
                for entry in self._live.follow_fact(event):
                    self._let_go(entry)
        return Entry(seq, event, self.boot, self._meter)

    def _message_entry(self, seq: int, event: MessageChange) -> Entry:
        """Make the entry of a message change, and retire the plain one it says all of."""
        last = self._live.take(event.message_id)
        before = None
        if last is not None:
            assert isinstance(last.event, MessageChange)
            before = last.event.view
            if last.event.plain:
                last.supersede()
            self._let_go(last)
        entry = Entry(seq, event, self.boot, self._meter, before)
        self._live.show(event, entry)
        return entry

    def _age(self, newest: Entry) -> None:
        """Pack the entry that is no longer among the newest.

        One that has an open message to show stays as it is: the next change is told against it.
        """
        self._fresh.append(newest)
        if len(self._fresh) > self.window.fresh:
            entry = self._fresh.popleft()
            if not self._live.shows(entry):
                entry.pack()

    def _let_go(self, entry: Entry) -> None:
        """Pack an entry that no longer shows an open message, if its turn has passed already."""
        if entry.id <= self.head - self.window.fresh:
            entry.pack()

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────

    def cursor(self, form: Form | None = None, after: Position | None = None) -> Cursor:
        """Return a reader's place: after *after*, or after everything published so far.

        *form* None is for readers in this process that want the events themselves. A reader from
        another start of the program is told the newest endings of this one, at most as many as the
        window keeps beyond its events.
        """
        audience = {None: self._own, Form.CRUSH: self._crush, Form.NATIVE: self._native}[form]
        if after is None:
            return Cursor(self, audience, self.head)
        if after.boot != self.boot or after.seq > self.head:
            older = self._endings_after(0)[: -self.window.endings]
            return Cursor(self, audience, older[-1].id if older else self.forgotten, lost=True)
        return Cursor(self, audience, after.seq, lost=not after.synced)

    @property
    def forgotten(self) -> int:
        """The id of the newest ending that the log does not remember any more."""
        return self._endings.forgotten

    @property
    def position(self) -> Position:
        """The place after the newest event."""
        return Position(boot=self.boot, seq=self.head)

    def take(self, after: int, audience: Audience) -> Batch:
        """Return what comes after *after*, which must not be below the floor, up to a full batch.

        Readers at the same place share one batch, and with it its bytes.
        """
        batch = audience.batches.get(after)
        if batch is None:
            batch = self._gather(after, audience)
            if len(audience.batches) >= SHARED_BATCHES:
                audience.batches.clear()
            audience.batches[after] = batch
        return batch

    def _gather(self, after: int, audience: Audience) -> Batch:
        """Make a batch. Its bytes can be joined, unless it is a single event.

        A reader of deltas gets every link of a chain, also the plain changes that later ones supersede.
        """
        entries, chosen, size = self._entries, list[Entry](), 0
        form, most = audience.form, self.window.batch
        for index in range(bisect_right(entries, after, key=_by_id), len(entries)):
            entry = entries[index]
            if entry.id > audience.head:
                break
            if entry.superseded and form is not Form.NATIVE:
                continue
            size += 0 if form is None else len(entry.content(form))
            if chosen and (size > JOINED or len(chosen) == most):
                return Batch(chosen[-1].id, tuple(chosen), more=True)
            chosen.append(entry)
        return Batch(max(after, audience.head), tuple(chosen))

    def endings_after(self, after: int) -> Batch:
        """Return endings that a reader has not seen which lost its place and knows those up to *after*.

        With the last of them comes the state of now.
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

    async def wait_beyond(self, after: int, audience: Audience) -> bool:
        """Wait until there is an event after *after*, or the log is closed; return which."""
        if audience.head > after or self.closed:
            await trio.lowlevel.checkpoint()
        while audience.head <= after and not self.closed:
            await audience.waiting.park()
        return audience.head > after  # noqa: ASYNC910 - one wait or the other

    async def wait_settled(self, audience: Audience) -> None:
        """Wait until readers may see everything, or have waited for long enough."""
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(SETTLE_LIMIT):
            while audience.head < self.head:
                await audience.waiting.park()

    def _endings_after(self, after: int, most: int | None = None) -> list[Entry]:
        """Return the endings after *after* that the log remembers; the oldest *most* of them."""
        found, entries = self._endings.after(after)[:most], self._entries
        for index in range(bisect_right(entries, after, key=_by_id), len(entries)):
            if len(found) == most:
                break
            if entries[index].terminal:
                found.append(entries[index])
        return found

    # ── Keeping within bounds ───────────────────────────────────────────────────────────────────

    def _trim(self) -> None:
        """Drop entries until the window fits again: superseded ones first, then the oldest.

        The newest entries stay, superseded or not: a reader of deltas who is only a little behind
        needs them. Frees a good part of the window at a time, so that its cost per event is
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

    def _drop(self, entry: Entry) -> None:
        self._own.floor = self._crush.floor = entry.id
        self._native.floor = max(self._native.floor, entry.id)
        entry.release()
        if entry.terminal and self._endings.remember(entry) and self.keeper is not None:
            self.keeper.flush()

    # ── Waking ──────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Wake the readers after something was published: the first time at once, then per tick.

        What is urgent wakes them whenever it comes: somebody sits there and waits for it.
        Publishing stays cheap because this task, and not the publisher, touches every reader.
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
            if self._endings.unsettled is None:  # else they will be woken for that too, in a moment
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
    keeper: Keeper | None = None,
) -> AsyncIterator[EventLog]:
    """Open a log and run its task; on the way out close it, so that readers end by themselves."""
    log = EventLog(boot, tick, window or Window(), keeper=keeper)
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(log.run)
        try:
            yield log
        finally:
            log.close()
