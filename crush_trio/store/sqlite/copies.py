"""Copies of a database file: made while a server writes to it, checked, and put back.

A copy is made with SQLite's backup, which reads the file at one moment and through the write-ahead log. It
is written beside its place under another name, checked as a whole, made durable, and only then given its
name: a copy that has its name is complete. The source is opened for reading only.

Every function here blocks; call it in a thread. `store.copies.backup` does.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from crush_trio.store.copies.backup import CopyReport
from crush_trio.store.errors import StoreCorrupt
from crush_trio.store.migrations import missing
from crush_trio.store.sqlite.database import COMPANIONS, DATABASE_NAME
from crush_trio.store.sqlite.directory import Owner, must_be_own, take_lock
from crush_trio.store.sqlite.faults import translated
from crush_trio.store.sqlite.migrations import known_migrations, version

PAGES: Final = 256
"""Pages that are copied at a time; a writer waits for no more than one such step."""

_BUSY: Final = 30.0


def copy_database(source: Path, target: Path) -> CopyReport:
    """Copy the database *source*, which may be in use, to the new file *target*, and check the copy.

    Raises `FileExistsError` if *target* exists, and a `StoreUnavailable` for what is wrong with either file;
    no file is left then.
    """
    with new_file(target) as part:
        with (
            translated(source),
            closing(connect_to_read(source)) as live,
            closing(sqlite3.connect(part, _BUSY)) as copy,
        ):
            live.backup(copy, pages=PAGES)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        return check_database(part)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open the database *path*, which may be in use, for reading alone."""
    must_be_own(path, *(path.with_name(path.name + each) for each in COMPANIONS))
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", _BUSY, uri=True)


def check_database(path: Path) -> CopyReport:
    """Read the whole database at *path*, which nothing else has open, and return what is in it.

    Raises `StoreCorrupt`, or `StoreTooNew` for one that this program does not know.
    """
    with (
        translated(path),
        closing(connect_to_read(path)) as found,
    ):
        findings = [row[0] for row in found.execute("PRAGMA integrity_check(10)")]
        if findings != ["ok"]:
            raise StoreCorrupt(f"{path} ({'; '.join(findings)})")
        schema = version(found)
        missing(known_migrations(), schema, path)
        if not _number(found, "SELECT count(*) FROM sqlite_schema WHERE name = 'sessions'"):
            raise StoreCorrupt(f"{path} is not a database of sessions")
        return CopyReport(
            schema=schema,
            sessions=_number(found, "SELECT count(*) FROM sessions"),
            messages=_number(found, "SELECT count(*) FROM messages"),
            bytes=path.stat().st_size,
        )


def restore_database(copy: Path, directory: Path, owner: Owner) -> tuple[CopyReport, Path | None]:
    """Put a *copy* into a data directory, which must not be in use; return where the former data is now.

    The copy is checked before anything is changed. The files of the former database get another name, and
    together they are still a database. Raises `StoreLocked` while a server has the directory.
    """
    check_database(copy)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    release = take_lock(directory, owner)
    try:
        place = directory / DATABASE_NAME
        part = directory / f"{DATABASE_NAME}.restoring"
        part.unlink(missing_ok=True)
        report = copy_database(copy, part)
        former = put_in_place(part, place)
    finally:
        release()
    return report, former


def put_in_place(part: Path, place: Path) -> Path | None:
    """Make the file *part* the database *place*; return where a former one is now."""
    former = _move_away(place) if place.exists() else None
    part.rename(place)
    _sync(place.parent)
    return former


def _move_away(place: Path) -> Path:
    """Rename a database and the files beside it; return its new path."""
    former = place.with_name(f"crush-trio-before-{time.time_ns() // 1_000_000_000}.db")
    while former.exists():
        former = former.with_name(f"{former.stem}x.db")
    for ending in ("", *COMPANIONS):
        with suppress(FileNotFoundError):
            place.with_name(place.name + ending).rename(former.with_name(former.name + ending))
    return former


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yield a new file beside *target*, for its owner alone, which becomes *target* if the block succeeds."""
    if os.path.lexists(target):
        raise FileExistsError(str(target))
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    with translated(target):
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        yield part
        with translated(target):
            _sync(part)
            _name(part, target)
            _sync(target.parent)
    finally:
        part.unlink(missing_ok=True)


def _name(part: Path, target: Path) -> None:
    """Give *part* its name without replacing a file that came meanwhile.

    A file system without links can only rename; then what was looked up before has to do.
    """
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:
        part.rename(target)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _number(connection: sqlite3.Connection, sql: str) -> int:
    found: int = connection.execute(sql).fetchone()[0]
    return found
