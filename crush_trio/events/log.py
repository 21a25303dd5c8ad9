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
  as bytes alone.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from math import inf
from operator import attrgetter

import trio
from attrs import define, field, frozen

from crush_trio.events.cursor import Batch, Cursor
from crush_trio.events.facts import Event, Fact, MessageChange, Position, Resync, RunChange
from crush_trio.events.forms import Entry, Form, Meter
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import MessageId, RunId
from crush_trio.wire.native import RunView

_by_id = attrgetter("id")

SHARED_BATCHES = 32
"""How many batches, for readers at as many places, are kept until the next event."""


@frozen(kw_only=True)
class Window:
    """How much a log remembers: events, bytes, and endings beyond either.

    `fresh` is how many of the newest events are kept as they were published. Readers who keep up
    find them encoded; what is older is put together again for the few that come back to it.
    """

    events: int = 8192
    weight: int = 32 * 1024 * 1024
    endings: int = 512
    fresh: int = 64


@define(eq=False)
class EventLog:
    """See the module. Use `open_event_log`, which runs the log's own task.

    *keep* is called with each event as it is published, for whoever remembers events longer.
    """

    boot: str
    tick: float = 0.005
    window: Window = field(factory=Window)
    keep: Callable[[int, Event], None] | None = field(default=None, kw_only=True)
    head: int = field(default=0, init=False)
    closed: bool = field(default=False, init=False)
    _entries: list[Entry] = field(factory=list, init=False)
    _fresh: deque[Entry] = field(factory=deque, init=False)
    _endings: deque[Entry] = field(init=False)
    _meter: Meter = field(factory=Meter, init=False)
    _floor: int = field(default=0, init=False)
    _delta_floor: int = field(default=0, init=False)
    _live_runs: dict[RunId, RunView] = field(factory=dict, init=False)
    _live_messages: dict[MessageId, Entry] = field(factory=dict, init=False)
    _batches: dict[tuple[int, bool], Batch] = field(factory=dict, init=False)
    _woken: int = field(default=0, init=False)
    _urgent: int = field(default=0, init=False)
    _readers: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _published: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _hurried: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._endings = deque(maxlen=self.window.endings)

    # ── Publishing ──────────────────────────────────────────────────────────────────────────────

    def publish(self, event: Event) -> int:
        """Append *event* and return its id. Costs the same whoever and however many read.

        A closed log takes nothing in.
        """
        if self.closed:
            return self.head
        entry = self._entry(self.head + 1, event)
        self.head = entry.id
        self._batches.clear()
        self._entries.append(entry)
        self._age(entry)
        if len(self._entries) > 2 * self.window.events or self._meter.total > self.window.weight:
            self._trim()
        if entry.urgent:
            self._urgent = self.head
            self._hurried.unpark()
        self._published.unpark()
        if self.keep is not None:
            self.keep(self.head, event)
        return self.head

    def close(self) -> None:
        """End the log: readers get what is left and then `LogClosed`. Closing again does nothing."""
        self.closed = True
        self._published.unpark()
        self._hurried.unpark()
        self._readers.unpark_all()

    def _entry(self, seq: int, event: Event) -> Entry:
        """Make the entry of *event*, and follow it in what the log knows of the present state."""
        match event:
            case MessageChange():
                return self._message_entry(seq, event)
            case RunChange():
                self._follow_run(event)
            case Fact():
                self._follow_fact(event)
        return Entry(seq, event, self.boot, self._meter)

    def _message_entry(self, seq: int, event: MessageChange) -> Entry:
        """Make the entry of a message change, and retire the plain one it says all of."""
        last = self._live_messages.pop(event.message_id, None)
        before = None
        if last is not None:
            assert isinstance(last.event, MessageChange)
            before = last.event.view
            if last.event.plain:
                last.supersede()
            self._let_go(last)
        entry = Entry(seq, event, self.boot, self._meter, before)
        if event.change is not EventType.DELETED and not event.view.finished:
            self._live_messages[event.message_id] = entry
        return entry

    def _follow_run(self, event: RunChange) -> None:
        if event.terminal:
            self._live_runs.pop(event.run.id, None)
        else:
            self._live_runs[event.run.id] = event.run

    def _follow_fact(self, event: Fact) -> None:
        """Forget the open messages of a session that is deleted; no event says so one by one (J4)."""
        if event.payload_type is PayloadType.SESSION and event.change is EventType.DELETED:
            session_id = getattr(event.entity, "id", None)
            for message_id, entry in list(self._live_messages.items()):
                assert isinstance(entry.event, MessageChange)
                if entry.event.view.head.session_id == session_id:
                    del self._live_messages[message_id]
                    self._let_go(entry)

    def _age(self, newest: Entry) -> None:
        """Pack the entry that is no longer among the newest.

        One that has an open message to show stays as it is: the next change is told against it.
        """
        self._fresh.append(newest)
        if len(self._fresh) > self.window.fresh:
            entry = self._fresh.popleft()
            event = entry.event
            live = isinstance(event, MessageChange) and (
                self._live_messages.get(event.message_id) is entry
            )
            if not live:
                entry.pack()

    def _let_go(self, entry: Entry) -> None:
        """Pack an entry that no longer shows an open message, if its turn has passed already."""
        if entry.id <= self.head - self.window.fresh:
            entry.pack()

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────

    def cursor(self, form: Form | None = None, after: Position | None = None) -> Cursor:
        """Return a reader's place: after *after*, or after everything published so far.

        *form* None is for readers in this process that want the events themselves.
        """
        if after is None:
            return Cursor(self, form, self.head)
        lost = after.boot != self.boot or after.seq > self.head
        return Cursor(self, form, -1 if lost else after.seq)

    @property
    def position(self) -> Position:
        """The place after the newest event."""
        return Position(boot=self.boot, seq=self.head)

    def take(self, after: int, *, deltas: bool) -> Batch:
        """Return everything after *after* in one step; a negative *after* has lost its place.

        With *deltas* also the plain changes that later ones supersede: a reader of deltas needs
        every link of the chain. Readers at the same place share one batch, and with it its bytes.
        """
        batch = self._batches.get((after, deltas))
        if batch is None:
            floor = max(self._floor, self._delta_floor) if deltas else self._floor
            if after < floor or after < 0:
                batch = Batch(self.head, self._missed_endings(after), self.snapshot())
            else:
                batch = Batch(self.head, self._since(after, deltas=deltas))
            if len(self._batches) >= SHARED_BATCHES:
                self._batches.clear()
            self._batches[after, deltas] = batch
        return batch

    def snapshot(self) -> Resync:
        """Return the state that a reader of the whole log would have now."""
        views = []
        for entry in self._live_messages.values():
            assert isinstance(entry.event, MessageChange)
            views.append(entry.event.view)
        return Resync(
            position=self.position, runs=tuple(self._live_runs.values()), messages=tuple(views)
        )

    async def wait_beyond(self, after: int) -> None:  # noqa: ASYNC910 - one wait or the other
        """Wait until there is an event after *after*, or the log is closed."""
        if self.head > after or self.closed:
            await trio.lowlevel.checkpoint()
        while self.head <= after and not self.closed:
            await self._readers.park()

    def _since(self, after: int, *, deltas: bool) -> tuple[Entry, ...]:
        start = bisect_right(self._entries, after, key=_by_id)
        return tuple(e for e in self._entries[start:] if deltas or not e.superseded)

    def _missed_endings(self, after: int) -> tuple[Entry, ...]:
        """Return the endings that a reader which lost its place has not seen.

        One from another start of the program has seen none of ours.
        """
        kept: Iterable[Entry] = (*self._endings, *self._entries)
        return tuple(entry for entry in kept if entry.terminal and entry.id > after)

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
                self._delta_floor = entry.id
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
        self._floor = entry.id
        entry.release()
        if entry.terminal:
            self._endings.append(entry)

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
            self._readers.unpark_all()
            if self.closed:
                return  # noqa: ASYNC910  # the end of the log's own task; all other paths park
            next_wake = trio.current_time() + self.tick


@asynccontextmanager
async def open_event_log(
    boot: str,
    *,
    tick: float = 0.005,
    window: Window | None = None,
    keep: Callable[[int, Event], None] | None = None,
) -> AsyncIterator[EventLog]:
    """Open a log and run its task; on the way out close it, so that readers end by themselves."""
    log = EventLog(boot, tick, window or Window(), keep=keep)
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(log.run)
        try:
            yield log
        finally:
            log.close()
