"""Import of the Go program's database, `crush.db`, so that its sessions can be continued here.

The file is opened read-only and nothing is created beside it. Its content is turned into changes,
which `import_go_database` commits to any store. Its rows have no sequence numbers: messages are
ordered by time, and those of the same second by insertion (J8).

Two things cannot be imported: parts of an unknown kind, which are counted and reported, and a
provider's private data, which is dropped.
"""

import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio
from attrs import define, field, frozen

from crush_trio.errors import BadRequest, CrushError, DecodeError, SessionNotFound
from crush_trio.store.base import Store
from crush_trio.store.changes import (
    Change,
    FileRead,
    MessageCreated,
    SessionCreated,
    SessionEdited,
)
from crush_trio.store.errors import StoreCorrupt
from crush_trio.store.sqlite.faults import translated
from crush_trio.wire.codec import decode, structure
from crush_trio.wire.fields import Json
from crush_trio.wire.ids import NO_SESSION, FileId, MessageId, SessionId
from crush_trio.wire.messages import PARTS, FinishPart, FinishReason, Message, Part, Role
from crush_trio.wire.views import File, Session, Todo

INTERRUPTED: Final = "interrupted"
"""The finish message of an answer that the Go program never finished."""

_TABLES: Final = {"sessions", "messages", "files"}
_ROLES: Final = {role.value for role in Role}
_NOT_BY_A_MODEL: Final = FinishPart(reason=FinishReason.STOP, time=0)


class NotCrushDatabase(BadRequest):
    """The file to import does not have the tables of the Go program."""

    code = "not_a_crush_database"
    message = "the file is not a database of crush"


@frozen(kw_only=True)
class ImportReport:
    """What an import did. `known` sessions were in the store already and were not changed.

    `behind` counts the messages of `known` sessions that are in the file and not in the store. `left_out`
    counts what could not be imported, by kind.
    """

    sessions: int = 0
    known: int = 0
    messages: int = 0
    behind: int = 0
    files: int = 0
    left_out: Mapping[str, int] = field(factory=dict)


@define(eq=False)
class GoDatabase:
    """A `crush.db`, open for reading. Relative paths in it are relative to *root*.

    The methods block; they may be called in any thread, one at a time. `left_out` counts what they
    could not read.
    """

    path: Path
    _root: Path
    _connection: sqlite3.Connection
    left_out: Counter[str] = field(factory=Counter, init=False)

    @classmethod
    def open(cls, path: Path, root: Path) -> "GoDatabase":
        """Open the file at *path*, or raise `StoreUnavailable` or `NotCrushDatabase`."""
        with _not_sqlite_told(path), translated(path), ExitStack() as undo:
            connection = sqlite3.connect(_uri(path), uri=True, check_same_thread=False)
            undo.callback(connection.close)
            connection.row_factory = sqlite3.Row
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
            go = cls(path, root.absolute(), connection)
            if missing := _TABLES - go._tables():
                raise NotCrushDatabase(f"{path} has no table {', '.join(sorted(missing))}")
            undo.pop_all()
            return go

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def session_ids(self) -> list[SessionId]:
        """Return the ids of all sessions, the oldest first."""
        rows = self._rows("SELECT id FROM sessions ORDER BY created_at, rowid")
        return [SessionId(row["id"]) for row in rows]

    def changes(self, session_id: SessionId) -> list[Change]:
        """Return the changes that create a session, its messages and its read marks."""
        row = _Row(self._rows("SELECT * FROM sessions WHERE id = ?", session_id)[0])
        created = Session(
            id=session_id,
            parent_session_id=SessionId(row.text("parent_session_id")) or NO_SESSION,
            title=row.text("title"),
            created_at=row.number("created_at"),
            updated_at=row.number("updated_at"),
        )
        edited = SessionEdited(
            id=session_id,
            at=row.number("updated_at"),
            prompt_tokens=row.number("prompt_tokens"),
            completion_tokens=row.number("completion_tokens"),
            summary_message_id=MessageId(row.text("summary_message_id")),
            cost=row.real("cost"),
            todos=self._todos(row.text("todos")),
        )
        return [
            SessionCreated(session=created),
            *self._messages(session_id),
            *self._read_marks(session_id),
            edited,
        ]

    def main_sessions(self) -> list[SessionId]:
        """Return the ids of the sessions that a person began; those of sub-agents belong to them."""
        rows = self._rows("SELECT * FROM sessions")
        return [SessionId(row["id"]) for row in rows if not _Row(row).text("parent_session_id")]

    def message_ids(self, session_id: SessionId) -> set[MessageId]:
        """Return the ids of the messages of a session."""
        rows = self._rows("SELECT id FROM messages WHERE session_id = ?", session_id)
        return {MessageId(row["id"]) for row in rows}

    def file_ids(self) -> list[FileId]:
        """Return the ids of all versions of files, each path from its oldest to its newest."""
        rows = self._rows(
            "SELECT id FROM files WHERE session_id IN (SELECT id FROM sessions)"
            " ORDER BY path, version, created_at, rowid"
        )
        return [FileId(row["id"]) for row in rows]

    def file(self, file_id: FileId) -> File:
        """Return one version of a file."""
        row = _Row(self._rows("SELECT * FROM files WHERE id = ?", file_id)[0])
        return File(
            id=file_id,
            session_id=SessionId(row.text("session_id")),
            path=self._absolute(row.text("path")),
            content=row.text("content"),
            version=row.number("version"),
            created_at=row.number("created_at"),
            updated_at=row.number("updated_at"),
        )

    def _messages(self, session_id: SessionId) -> list[Change]:
        rows = self._rows(
            "SELECT * FROM messages WHERE session_id = ? ORDER BY created_at, rowid", session_id
        )
        messages = [self._message(_Row(row)) for row in rows]
        return [MessageCreated(message=message) for message in messages if message is not None]

    def _message(self, row: "_Row") -> Message | None:
        role = row.text("role")
        if role not in _ROLES:
            self.left_out[f"message of role {role!r}"] += 1
            return None
        return Message(
            id=MessageId(row.text("id")),
            session_id=SessionId(row.text("session_id")),
            role=Role(role),
            parts=_finished(Role(role), self._parts(row.text("parts")), row.number("updated_at")),
            model=row.text("model"),
            provider=row.text("provider"),
            is_summary_message=bool(row.number("is_summary_message")),
            created_at=row.number("created_at"),
            updated_at=row.number("updated_at"),
        )

    def _parts(self, text: str) -> list[Part]:
        try:
            items = decode(text or "[]", tuple[Json, ...])
        except DecodeError:
            self.left_out["unreadable list of parts"] += 1
            return []
        parts = [self._part(item) for item in items]
        return [part for part in parts if part is not None]

    def _part(self, item: Json) -> Part | None:
        kind = item.get("type") if isinstance(item, dict) else None
        try:
            part: Part = structure(item, Part)  # type: ignore[arg-type]  # a union is no type[T]
        except DecodeError:
            what = "unreadable part" if kind in PARTS else "part"
            self.left_out[f"{what} of type {kind!r}"] += 1
            return None
        return part

    def _todos(self, text: str) -> tuple[Todo, ...]:
        try:
            return decode(text or "[]", tuple[Todo, ...])
        except DecodeError:
            self.left_out["unreadable list of todos"] += 1
            return ()

    def _read_marks(self, session_id: SessionId) -> list[Change]:
        if (
            "read_files" not in self._tables()
        ):  # older versions of the Go program have no such table
            return []
        rows = self._rows("SELECT path, read_at FROM read_files WHERE session_id = ?", session_id)
        return [
            FileRead(session_id=session_id, path=self._absolute(row["path"]), at=row["read_at"])
            for row in rows
        ]

    def _absolute(self, path: str) -> str:
        """Return *path* as an absolute path (J6)."""
        return os.path.normpath(self._root / path)

    def _tables(self) -> set[str]:
        return {row["name"] for row in self._rows("SELECT name FROM sqlite_schema")}

    def _rows(self, query: str, *values: str) -> Sequence[sqlite3.Row]:
        with translated(self.path):
            return self._connection.execute(query, values).fetchall()


@frozen
class _Row:
    """A row of which some columns may be NULL, or missing in an older file."""

    _row: sqlite3.Row

    def text(self, name: str) -> str:
        return str(self._get(name) or "")

    def number(self, name: str) -> int:
        return int(self._get(name) or 0)

    def real(self, name: str) -> float:
        return float(self._get(name) or 0)

    def _get(self, name: str) -> Json:
        return self._row[name] if name in self._row.keys() else None  # noqa: SIM118  # no mapping


def _uri(path: Path) -> str:
    """Return the URI that opens *path* without creating files.

    A database in WAL mode is read together with its log. If there is no log, SQLite would create
    one even for reading, unless the URI says that the file is immutable.
    """
    log = path.with_name(f"{path.name}-wal")
    alone = not log.exists() or log.stat().st_size == 0
    return f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if alone else ''}"


def _finished(role: Role, parts: Sequence[Part], at: int) -> tuple[Part, ...]:
    """Return the parts of a message with a finish part: an imported message does not change."""
    if any(isinstance(part, FinishPart) for part in parts):
        return tuple(parts)
    if role is Role.ASSISTANT:
        return *parts, FinishPart(reason=FinishReason.ERROR, time=at, message=INTERRUPTED)
    return *parts, _NOT_BY_A_MODEL


async def import_go_database(path: Path, store: Store, *, root: Path) -> ImportReport:
    """Import the sessions of the `crush.db` at *path*, with their messages and files.

    Each session is one commit, so it is imported completely or not at all. A session that is in the
    store already is not changed, even if it has changed on either side since; missing versions of
    its files are added. So an import can be repeated, and an interrupted one continues where it
    stopped. Versions of files get the numbers of this store (J5), in the old order.

    Relative paths are relative to *root*, where the Go program was started.
    """
    go = await trio.to_thread.run_sync(GoDatabase.open, path, root)
    with closing(go):
        done = Counter[str]()
        here = set[FileId]()
        for session_id in await trio.to_thread.run_sync(go.session_ids):
            if await _is_known(store, session_id):
                done["known"] += 1
                stored = {message.id for message in await store.messages(session_id)}
                there = await trio.to_thread.run_sync(go.message_ids, session_id)
                done["behind"] += len(there - stored)
                here |= {file.id for file in await store.files(session_id)}
                continue
            changes = await trio.to_thread.run_sync(go.changes, session_id)
            await store.commit(*changes)
            done["sessions"] += 1
            done["messages"] += sum(isinstance(change, MessageCreated) for change in changes)
        for file_id in await trio.to_thread.run_sync(go.file_ids):
            if file_id in here:
                continue
            file = await trio.to_thread.run_sync(go.file, file_id)
            await store.add_file(file.id, file.session_id, file.path, file.content, file.created_at)
            done["files"] += 1
        return ImportReport(**done, left_out=dict(go.left_out))


def count_sessions(path: Path, known: Collection[str]) -> int:
    """Return how many sessions of the `crush.db` at *path* are not *known*, without those of sub-agents.

    0 for a file that cannot be read. Blocks.
    """
    try:
        with closing(GoDatabase.open(path, path.parent)) as go:
            return sum(each not in known for each in go.main_sessions())
    except (CrushError, OSError):
        return 0


@contextmanager
def _not_sqlite_told(path: Path) -> Iterator[None]:
    """Raise `NotCrushDatabase` for a file that no SQLite has written: it is not a damaged store of ours."""
    try:
        yield
    except StoreCorrupt as error:
        raise NotCrushDatabase(f"{path} is not a database, or is damaged") from error


async def _is_known(store: Store, session_id: SessionId) -> bool:
    try:
        await store.session(session_id)
    except SessionNotFound:
        return False  # noqa: ASYNC910  # `session` has waited
    return True
