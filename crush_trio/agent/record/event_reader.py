"""`ResumableReader`: reads a workspace's events, also from before a restart or far behind the log.

Usually it reads the log. Events that the log no longer has come from the store:

* A reader with a position in an earlier start of the program gets exactly the events it missed, if all
  starts since then ended cleanly and nothing was trimmed (`missed`).
* A reader that has lost its position gets every ending it has not seen, each once, and then a resync
  with the current state. Within one start these are the endings that the log has dropped; from an
  earlier start, all endings since its position, including those that a killed program had stored but
  not published.

If the store does not know the start of a position, the reader gets the current state with the newest
endings that the log has.

The store is read in pages, so a reader that does not read holds at most one page.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import orjson
import trio
from attrs import define, field

from crush_trio.agent.record.event_tail import StoredEventCache
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
"""The size of a page of rows from the store, in rows and in characters."""


class ReaderStore(MessageReads, RunReads, TailReads, Protocol):
    """What readers need from a store."""


@define(eq=False)
class ResumableReader:
    """One reader and its position. Made by `new_reader`."""

    _log: EventLog
    _store: ReaderStore
    _recall: StoredEventCache
    _cursor: Cursor
    _exact: Position | None = field(default=None, kw_only=True)
    """The position in an earlier start from which the reader continues exactly; else None."""
    _endings_seen: Position | None = field(default=None, kw_only=True)
    """The position in an earlier start up to which a lost reader has seen all endings; else None."""
    _page: deque[tuple[TailEvent, bool]] = field(factory=deque, init=False, repr=False)
    """The next events, and whether each is about a message that is new to the reader."""
    _held: list[LogEntry] = field(factory=list, init=False, repr=False)
    """Long events of the last batch. The reference keeps them in `StoredEventCache` for other readers."""

    @property
    def form(self) -> Form | None:
        """The format of the reader's events."""
        return self._cursor.form

    @property
    def after(self) -> int:
        """The last event of this start that the reader has read."""
        return self._cursor.after

    @property
    def lost(self) -> bool:
        """Whether the next batch is a resync."""
        return self._cursor.lost

    @property
    def lag(self) -> int:
        """How many published events of this start the reader has not read."""
        return self._cursor.lag

    @property
    def behind(self) -> bool:
        """Whether there is something to read now."""
        return self._cursor.behind

    def rewind(self, after: int) -> None:
        """Go back to *after*, a position in the last batch of this start."""
        self._cursor.rewind(after)

    async def read(self) -> Batch:
        """Wait for new events and return them; raise `LogClosed` at the end.

        To be called after `missed` has returned None.
        """
        cursor, self._held = self._cursor, []
        while True:
            await cursor.wait()
            if self._endings_seen is None and not cursor.forgotten:
                return (
                    cursor.take()
                )  # no checkpoint since the test above, so nothing was dropped since
            endings = await self._endings()
            if endings:
                return Batch(self.after, endings, endings=True, more=True)

    # ── Endings ─────────────────────────────────────────────────────────────────────────────────

    async def _endings(self) -> tuple[LogEntry, ...]:
        """Return the next endings that only the store has, and advance after them."""
        forgotten = self._log.forgotten
        place = self._endings_seen or Position(boot=self._log.boot, seq=self.after)
        rows = await self._store.endings_after(
            place.boot, place.seq, upto=forgotten, limit=PAGE, size=PAGE_SIZE
        )
        rows = rows if self.form is Form.NATIVE else _up_to_a_long_one(rows or [])
        entries = [await self._ending(row) for row in rows or ()]
        self._hold(entries)
        if rows and rows[-1].boot_id != self._log.boot:
            self._endings_seen = Position(boot=rows[-1].boot_id, seq=rows[-1].seq)
        else:
            self._endings_seen = None
            self._cursor.skip_endings(rows[-1].seq if rows else forgotten)
        return tuple(entries)

    async def _ending(self, row: StoredEnding) -> LogEntry:
        if row.cut and self.form is not Form.NATIVE:
            return await self._recall.ending(row)
        await trio.lowlevel.checkpoint()
        return LogEntry(row.seq, RunChange(run=row.run), row.boot_id, ByteMeter())

    # ── Missed events ───────────────────────────────────────────────────────────────────────────

    async def missed(self) -> Batch | None:
        """Return the next missed events of earlier starts; None after the last.

        If some turn out to be trimmed meanwhile, the reader becomes lost.
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
        self._held = [
            entry for entry in entries if form is not None and len(entry.content(form)) > PIECE
        ]

    async def _turn(self, place: Position) -> bool:
        """Read the next page; return whether there is one."""
        rows = await self._store.tail_after(place.boot, place.seq, limit=PAGE, size=PAGE_SIZE)
        if not rows:
            self._exact = None
            if rows is None:
                self._endings_seen = place
                self._cursor.skip_endings(0)
            return False
        self._page.extend(_shown(rows, self.form))
        return True


def _up_to_a_long_one(rows: list[StoredEnding]) -> list[StoredEnding]:
    """Return the first of *rows*, with at most one answer that must be read from the store."""
    cut = next((index for index, row in enumerate(rows) if row.cut), len(rows))
    return rows[: cut + 1]


def _shown(rows: Sequence[TailEvent], form: Form | None) -> list[tuple[TailEvent, bool]]:
    """Return the rows of a page to show, and whether each is about a message that is new.

    Only the last row of each message is shown, because it includes the others. In native form also the
    last one before another message of the session begins: a call comes before its result, and the finish
    of the answer after it.
    """
    shown: list[tuple[TailEvent, str | None]] = []
    created, later = set[str](), dict[str, set[str]]()
    for row in reversed(rows):
        named = orjson.loads(row.event)
        message: str | None = named.get("message")
        if message is not None:
            known = later.setdefault(named["session"], set())
            begins = named["change"] == EventType.CREATED
            covered = message in known
            if begins:
                created.add(message)
                if form is Form.NATIVE:
                    known.clear()
            known.add(message)
            if covered:
                continue
        shown.append((row, message))
    answer = []
    for row, message in reversed(shown):
        answer.append((row, message in created))
        created.discard(message or "")
    return answer


async def new_reader(
    log: EventLog,
    store: ReaderStore,
    recall: StoredEventCache,
    after: Position | None,
    form: Form | None,
) -> ResumableReader:
    """Return a reader that continues after *after*, or with the next event if that is None."""
    await trio.lowlevel.checkpoint()
    if after is None or after.boot == log.boot:
        return ResumableReader(log, store, recall, log.cursor(form, after))
    begin = Position(boot=log.boot, seq=0)
    if after.synced and await store.tail_after(after.boot, after.seq, limit=1) is not None:
        return ResumableReader(log, store, recall, log.cursor(form, begin), exact=after)
    if await store.endings_after(after.boot, after.seq, upto=0, limit=1) is None:
        return ResumableReader(log, store, recall, log.cursor(form, after))
    lost = Position(boot=log.boot, seq=0, synced=False)
    return ResumableReader(log, store, recall, log.cursor(form, lost), endings_seen=after)
