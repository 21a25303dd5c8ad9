"""A reader of a workspace's events that may have begun before a restart, or fallen far behind.

Most of the time it reads the log. What the log cannot tell comes from the store:

* a reader with a place in an earlier start of the program gets exactly what it missed, if all starts
  since then ended in good order and nothing was trimmed (`missed`);
* a reader that has lost its place gets every ending it has not seen, each once, and then the state of
  now. In the same start these are the endings that the log has forgotten; from an earlier start, all
  since its place, also those that a killed program had stored and could not tell any more.

A place in a start that the store does not know has seen nothing we know of. Such a reader gets the
state of now with the newest endings that the log has.

Everything comes in pages: a reader that does not read holds no more than one.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import orjson
import trio
from attrs import define, field

from crush_trio.agent.record.event_tail import Recall
from crush_trio.events.cursor import Batch, Cursor
from crush_trio.events.entry import ByteMeter, LogEntry
from crush_trio.events.facts import Position, RunChange
from crush_trio.events.frames import Form
from crush_trio.events.log import EventLog
from crush_trio.events.pieces import PIECE
from crush_trio.store.base import MessageReads, RunReads, StoredEnding, TailEvent, TailReads
from crush_trio.wire.events import EventType

PAGE: Final = 32
PAGE_SIZE: Final = 8 * 1024
"""How many rows of the store are read at a time, or how many characters."""


class ReaderStore(MessageReads, RunReads, TailReads, Protocol):
    """What readers need of a store."""


@define(eq=False)
class Reader:
    """One reader's place. Made by `new_reader`."""

    _log: EventLog
    _store: ReaderStore
    _recall: Recall
    _cursor: Cursor
    _exact: Position | None = field(default=None, kw_only=True)
    """The place in an earlier start from which the reader continues exactly; None in this one."""
    _told: Position | None = field(default=None, kw_only=True)
    """The place in an earlier start up to which a lost reader knows all endings."""
    _page: deque[tuple[TailEvent, bool]] = field(factory=deque, init=False, repr=False)
    """Events to be told next, and whether each is about a message that is new to the reader."""
    _recalled: list[LogEntry] = field(factory=list, init=False, repr=False)
    """Long events of the last batch: other readers find them while this one is being sent them."""

    @property
    def form(self) -> Form | None:
        """How the reader wants its events."""
        return self._cursor.form

    @property
    def after(self) -> int:
        """The last event of this start that the reader has read."""
        return self._cursor.after

    @property
    def lost(self) -> bool:
        """Whether the next thing to read is a resync."""
        return self._cursor.lost

    @property
    def lag(self) -> int:
        """How many events of this start were published that this reader has not read."""
        return self._cursor.lag

    @property
    def behind(self) -> bool:
        """Whether there is something to read now."""
        return self._cursor.behind

    def rewind(self, after: int) -> None:
        """Go back to *after*, a place in the batch of this start that was read last."""
        self._cursor.rewind(after)

    async def read(self) -> Batch:
        """Wait for something new and return it; raise `LogClosed` when nothing can come.

        For readers that have read all that was `missed`.
        """
        cursor, self._recalled = self._cursor, []
        while True:
            await cursor.wait()
            if self._told is None and not cursor.forgotten:
                return cursor.take()  # in the step in which it was clear that this is all
            endings = await self._endings()
            if endings:
                return Batch(self.after, endings, endings=True, more=True)

    # ── Endings ─────────────────────────────────────────────────────────────────────────────────

    async def _endings(self) -> tuple[LogEntry, ...]:
        """Return the next endings that the store knows and the log does not; move on behind them."""
        forgotten = self._log.forgotten
        place = self._told or Position(boot=self._log.boot, seq=self.after)
        rows = await self._store.endings_after(
            place.boot, place.seq, upto=forgotten, limit=PAGE, size=PAGE_SIZE
        )
        rows = rows if self.form is Form.NATIVE else _up_to_a_long_one(rows or [])
        entries = [await self._ending(row) for row in rows or ()]
        self._hold(entries)
        if rows and rows[-1].boot_id != self._log.boot:
            self._told = Position(boot=rows[-1].boot_id, seq=rows[-1].seq)
        else:
            self._told = None
            self._cursor.skip_endings(rows[-1].seq if rows else forgotten)
        return tuple(entries)

    async def _ending(self, row: StoredEnding) -> LogEntry:
        if row.cut and self.form is not Form.NATIVE:
            return await self._recall.ending(row)
        await trio.lowlevel.checkpoint()
        return LogEntry(row.seq, RunChange(run=row.run), row.boot_id, ByteMeter())

    # ── Exactly what was missed ─────────────────────────────────────────────────────────────────

    async def missed(self) -> Batch | None:
        """Return the next events of earlier starts that the reader missed; None after the last.

        If it turns out on the way that some are not there any more, the reader is lost.
        """
        await trio.lowlevel.checkpoint()
        entries: list[LogEntry] = []
        size = 0
        while self._exact is not None and size < PIECE // 2:
            if not self._page and not await self._turn(self._exact):
                break
            row, new = self._page[0]
            entry = await self._recall.event(row, new=new)
            self._exact = Position(boot=row.boot_id, seq=row.seq)
            self._page.popleft()
            if entry is not None:
                entries.append(entry)
                size += 0 if self.form is None else len(entry.content(self.form))
        self._hold(entries)
        return Batch(self.after, tuple(entries)) if entries else None

    def _hold(self, entries: Sequence[LogEntry]) -> None:
        form = self.form
        self._recalled = [
            entry for entry in entries if form is not None and len(entry.content(form)) > PIECE
        ]

    async def _turn(self, place: Position) -> bool:
        """Read the next page; return whether there is one."""
        rows = await self._store.tail_after(place.boot, place.seq, limit=PAGE, size=PAGE_SIZE)
        if not rows:
            self._exact = None
            if rows is None:
                self._told = place
                self._cursor.skip_endings(0)
            return False
        self._page.extend(_newest(rows))
        return True


def _up_to_a_long_one(rows: list[StoredEnding]) -> list[StoredEnding]:
    """Return the first of *rows*, with no more than one answer that has to be read from the store."""
    cut = next((index for index, row in enumerate(rows) if row.cut), len(rows))
    return rows[: cut + 1]


def _newest(rows: Sequence[TailEvent]) -> list[tuple[TailEvent, bool]]:
    """Return the rows of a page, of each message only the last, and which messages are new."""
    parsed = [(row, orjson.loads(row.event)) for row in rows]
    last = {named["message"]: row for row, named in parsed if "message" in named}
    created = {named["message"] for _, named in parsed if named.get("change") == EventType.CREATED}
    return [
        (row, named.get("message") in created)
        for row, named in parsed
        if "message" not in named or last[named["message"]] is row
    ]


async def new_reader(
    log: EventLog, store: ReaderStore, recall: Recall, after: Position | None, form: Form | None
) -> Reader:
    """Return a reader that continues after *after*, or begins with what is published from now on."""
    await trio.lowlevel.checkpoint()
    if after is None or after.boot == log.boot:
        return Reader(log, store, recall, log.cursor(form, after))
    begin = Position(boot=log.boot, seq=0)
    if after.synced and await store.tail_after(after.boot, after.seq, limit=1) is not None:
        return Reader(log, store, recall, log.cursor(form, begin), exact=after)
    if await store.endings_after(after.boot, after.seq, upto=0, limit=1) is None:
        return Reader(log, store, recall, log.cursor(form, after))
    lost = Position(boot=log.boot, seq=0, synced=False)
    return Reader(log, store, recall, log.cursor(form, lost), told=after)
