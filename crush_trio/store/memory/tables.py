"""The tables of the in-memory store, and long lists read from them.

Rows are immutable and tables are plain dicts, so a copy of all tables is cheap and changes to the
copy do not show in the original. Changes are applied to a copy (`MemoryStore._apply`), which
replaces the tables if all of them succeed and is dropped if not.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import trio
from attrs import define, evolve, field, frozen

from crush_trio.errors import MessageNotFound, RunNotFound, SessionNotFound
from crush_trio.store.base import (
    UNPLACED,
    PendingAsk,
    StoredEnding,
    StoredMessage,
    StoredRun,
    TailEvent,
    Totals,
)
from crush_trio.store.changes import grown
from crush_trio.store.pages import (
    IDLE_SESSION,
    PAGE_ITEMS,
    FileVersions,
    Hole,
    PagedList,
    PagePiece,
    SessionList,
    SessionMessages,
    UserMessages,
)
from crush_trio.wire.codec import encode
from crush_trio.wire.ids import AskId, FileId, MessageId, RunId, SessionId
from crush_trio.wire.messages import Message, Part, Role
from crush_trio.wire.runs import RunKind
from crush_trio.wire.views import DAY, File, Session, UsageDay, day_of


@frozen(kw_only=True)
class SessionRow:
    """A session, the tokens it has used in total, and the seq of its newest message."""

    n: int
    session: Session
    totals: Totals = field(factory=Totals)
    last_seq: int = 0


@frozen
class PartRow:
    """A part as it was put, and the text appended to it since."""

    put: Part
    appended: str = ""

    @property
    def part(self) -> Part:
        """The part with all its text."""
        return grown(self.put, self.appended) if self.appended else self.put


@frozen(kw_only=True)
class MessageRow:
    """A message; its parts are beside its head, by index."""

    n: int
    seq: int
    head: Message
    parts: Mapping[int, PartRow]
    finished: bool
    run_id: RunId | None = None
    withdrawn: bool = False

    def stored(self) -> StoredMessage:
        """Return the message as readers see it."""
        parts = tuple(self.parts[index].part for index in sorted(self.parts))
        return StoredMessage(message=evolve(self.head, parts=parts), finished=self.finished)


@frozen
class RunRow:
    """A run."""

    n: int
    stored: StoredRun


@frozen
class AskRow:
    """An ask; a resolved one is kept, so that it cannot be opened again."""

    n: int
    ask: PendingAsk
    pending: bool = True


@frozen
class BootRow:
    """A start of the program: whether it ended cleanly, and up to which event it was trimmed."""

    closed: bool = False
    trimmed: int | None = None


@define(eq=False)
class Tables:
    """All tables of a store. `boots` are in the order of the starts of the program.

    `endings` has the start in which each run ended, and the seq of its ending if it has one.
    """

    sessions: dict[SessionId, SessionRow] = field(factory=dict)
    messages: dict[MessageId, MessageRow] = field(factory=dict)
    runs: dict[RunId, RunRow] = field(factory=dict)
    asks: dict[AskId, AskRow] = field(factory=dict)
    files: dict[FileId, File] = field(factory=dict)
    read_marks: dict[tuple[SessionId, str], int] = field(factory=dict)
    boots: dict[str, BootRow] = field(factory=dict)
    tail: list[TailEvent] = field(factory=list)
    endings: dict[RunId, tuple[str, int | None]] = field(factory=dict)
    recordings: dict[tuple[RunId, int], tuple[SessionId, str]] = field(factory=dict)
    usage: dict[int, UsageDay] = field(factory=dict)
    _rows: int = 0

    def copy(self) -> "Tables":
        """Return tables that can be changed without changing these."""
        return Tables(
            sessions=dict(self.sessions),
            messages=dict(self.messages),
            runs=dict(self.runs),
            asks=dict(self.asks),
            files=dict(self.files),
            read_marks=dict(self.read_marks),
            boots=dict(self.boots),
            tail=list(self.tail),
            endings=dict(self.endings),
            recordings=dict(self.recordings),
            usage=dict(self.usage),
            rows=self._rows,
        )

    def used_since(self, since: int) -> list[UsageDay]:
        """Return what the days from *since* on used, in order."""
        days = {day: used for day, used in self.usage.items() if day >= since // DAY}
        for view in (row.stored.view for row in self.runs.values()):
            counts = view.state.terminal and view.started_at and view.kind is not RunKind.TASK
            if counts and view.ended_at >= since:
                day = view.ended_at // DAY
                used = days.get(day) or UsageDay(day=day_of(day * DAY))
                days[day] = evolve(used, runs=used.runs + 1)
        return [days[day] for day in sorted(days)]

    def next_n(self) -> int:
        """Return the insertion number of a new row."""
        self._rows += 1
        return self._rows

    def session(self, session_id: SessionId) -> SessionRow:
        """Return a session's row, or raise `SessionNotFound`."""
        if (row := self.sessions.get(session_id)) is None:
            raise SessionNotFound(session_id)
        return row

    def message(self, message_id: MessageId) -> MessageRow:
        """Return a message's row, or raise `MessageNotFound`."""
        if (row := self.messages.get(message_id)) is None:
            raise MessageNotFound(message_id)
        return row

    def run(self, run_id: RunId) -> RunRow:
        """Return a run's row by our own id, or raise `RunNotFound`."""
        if (row := self.runs.get(run_id)) is None:
            raise RunNotFound(run_id)
        return row

    def run_called(self, run_id: RunId) -> RunRow | None:
        """Return the row of the run with this caller's id."""
        return next((row for row in self.runs.values() if row.stored.view.run_id == run_id), None)

    def messages_of(self, session_id: SessionId) -> list[MessageRow]:
        """Return the rows of a session's messages in their order."""
        found = [row for row in self.messages.values() if row.head.session_id == session_id]
        return sorted(found, key=lambda row: row.seq)

    def messages_of_run(self, run_id: RunId) -> list[MessageRow]:
        """Return the rows of a run's messages in their order."""
        found = [row for row in self.messages.values() if row.run_id == run_id]
        return sorted(found, key=lambda row: row.seq)

    def stored_run(self, row: RunRow) -> StoredRun:
        """Return a run with the id of its prompt's message."""
        prompt = self.messages.get(MessageId(row.stored.view.id))
        return evolve(row.stored, prompt_message_id=None if prompt is None else prompt.head.id)

    def user_messages(self, session_id: SessionId | None) -> list[MessageRow]:
        """Return the rows of the user's messages of a session, or of all, the newest first."""
        if session_id is None:
            rows = sorted(self.messages.values(), key=lambda row: (row.head.created_at, row.n))
        else:
            rows = self.messages_of(session_id)
        return [row for row in reversed(rows) if row.head.role is Role.USER]

    def top_sessions(self) -> list[Session]:
        """Return the sessions without a parent, the most recently updated first."""
        rows = [row for row in self.sessions.values() if not row.session.parent_session_id]
        rows.sort(key=lambda row: (row.session.updated_at, row.n), reverse=True)
        return [row.session for row in rows]

    def files_of(self, session_id: SessionId) -> list[File]:
        """Return every version of every file of a session, by path and version."""
        found = [file for file in self.files.values() if file.session_id == session_id]
        return sorted(found, key=lambda file: (file.path, file.version))

    def newest_kept(self, boot_id: str) -> int:
        """Return the seq of the newest event of a start that was ever stored; 0 if there was none."""
        kept = (event.seq for event in self.tail if event.boot_id == boot_id)
        return max(max(kept, default=0), self.boots[boot_id].trimmed or 0)

    def tail_after(self, boot_id: str, seq: int, *, ours: str) -> list[TailEvent] | None:
        """Return the stored events after a place, or None if some may be missing; see `TailReads`."""
        boots = list(self.boots)
        if boot_id not in boots:
            return None
        since = [name for name in boots[boots.index(boot_id) :] if name != ours]
        for name in since:
            boot = self.boots[name]
            unread = boot.trimmed is not None and (name != boot_id or boot.trimmed > seq)
            if unread or not boot.closed:
                return None
        place = boots.index(boot_id), seq
        events = [
            ((boots.index(event.boot_id), event.seq), event)
            for event in self.tail
            if event.boot_id != ours
        ]
        return [event for at, event in sorted(events, key=lambda pair: pair[0]) if at > place]

    def endings_after(
        self, boot_id: str, seq: int, *, ours: tuple[str, int]
    ) -> list[StoredEnding] | None:
        """Return the endings after a place, up to the place *ours* in the present start."""
        boots = list(self.boots)
        if boot_id not in boots:
            return None
        last = boots.index(ours[0]), ours[1]
        found = []
        for run_id, (boot, placed) in self.endings.items():
            row = self.runs.get(run_id)
            if row is None or not row.stored.view.state.terminal:
                continue
            place = boots.index(boot), UNPLACED + row.n if placed is None else placed
            if (boots.index(boot_id), seq) < place and (place[0] != last[0] or place <= last):
                ending = StoredEnding(boot_id=boot, seq=place[1], run=row.stored.view)
                found.append((place, ending))
        return [ending for _, ending in sorted(found, key=lambda pair: pair[0])]


# ── Pages ───────────────────────────────────────────────────────────────────────────────────────

_Item = Sequence[PagePiece]


@define(eq=False)
class MemoryPages:
    """Satisfies `Pages`; the whole list is a snapshot taken with its first page."""

    wanted: PagedList
    _tables: Callable[[], Tables]
    """Returns the tables as they are now."""
    _items: list[_Item] | None = field(default=None, init=False)
    _at: int = field(default=0, init=False)
    more: bool = field(default=True, init=False)

    async def read(self) -> Sequence[PagePiece]:
        """Return the next page."""
        tables = self._tables()
        await trio.lowlevel.checkpoint()
        if self._items is None:
            self._items = list(_items(tables, self.wanted))
        page: list[PagePiece] = []
        for item in self._items[self._at : self._at + PAGE_ITEMS]:
            page.extend((b",", *item) if page else item)
        self._at += PAGE_ITEMS
        self.more = self._at < len(self._items)
        return page


def _items(tables: Tables, wanted: PagedList) -> Iterable[_Item]:
    match wanted:
        case SessionMessages():
            return map(_message_item, _message_rows(tables, wanted))
        case UserMessages(session_id=session_id):
            return map(_message_item, tables.user_messages(session_id))
        case FileVersions(session_id=session_id):
            return [(encode(file),) for file in tables.files_of(session_id)]
        case SessionList():
            return [_session_item(session) for session in tables.top_sessions()]


def _message_rows(tables: Tables, wanted: SessionMessages) -> list[MessageRow]:
    rows = tables.messages_of(wanted.session_id)
    if wanted.before is not None:
        places = [place for place, row in enumerate(rows) if row.head.id == wanted.before]
        if not places:
            raise MessageNotFound(wanted.before)
        rows = rows[: places[0]]
    return rows if wanted.limit is None else rows[-wanted.limit :]


def _message_item(row: MessageRow) -> _Item:
    encoded = encode(row.stored().message)
    return (encoded,) if row.finished else (Hole(row.head.id, encoded),)


def _session_item(session: Session) -> _Item:
    whole = encode(session)
    assert whole.endswith(IDLE_SESSION + b"}")
    return whole.removesuffix(IDLE_SESSION + b"}"), Hole(session.id, IDLE_SESSION), b"}"
