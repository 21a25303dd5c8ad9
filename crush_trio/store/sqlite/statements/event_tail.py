"""Statements about events that are kept for readers that come back after a restart.

Such a reader gets either the exact continuation of what it has read, or None. It is exact if every
start of the program since then, except the present one, has ended cleanly, and if none of the
events has been trimmed.

Otherwise the reader gets at least the endings of all runs since then. The places of endings are in
the table of runs and are never trimmed.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from crush_trio.store.base import StoredEnding, TailEvent
from crush_trio.store.changes import BootClosed, TailKept, first_page
from crush_trio.store.sqlite.statements import runs

TRIM_SHARE: Final = 100
"""The events are trimmed after a hundredth of those that are kept, because readers wait for each write."""

_END: Final = 2**62
"""A seq after all others."""

_UNCERTAIN: Final = """
    SELECT 1 FROM boots
    WHERE n >= :n AND id <> :ours
    AND (closed_at IS NULL OR (trimmed_seq IS NOT NULL AND (n > :n OR trimmed_seq > :seq)))
"""

_AFTER: Final = """
    SELECT boot_id, seq, terminal, event
    FROM event_tail JOIN boots ON boots.id = boot_id
    WHERE boot_id <> :ours AND (boots.n, seq) > (:n, :seq)
    ORDER BY boots.n, seq
"""


def keep(connection: sqlite3.Connection, events: Sequence[TailKept], boot_id: str) -> None:
    """Store events of the start *boot_id*; storing one again changes nothing."""
    newest = _newest_kept(connection, boot_id)
    for event in events:
        if event.previous > newest:
            connection.execute(
                "UPDATE boots SET trimmed_seq = ? WHERE id = ?", (event.seq - 1, boot_id)
            )
        newest = max(newest, event.seq)
    connection.executemany(
        "INSERT INTO event_tail (boot_id, seq, terminal, event) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (boot_id, seq) DO NOTHING",
        [(boot_id, event.seq, event.terminal, event.event) for event in events],
    )
    connection.executemany(
        "UPDATE runs SET ending_boot = ?, ending_seq = ? WHERE id = ?",
        [(boot_id, event.seq, event.ended) for event in events if event.ended is not None],
    )
    kept = events[-1].keep
    if any(event.seq % max(1, kept // TRIM_SHARE) == 0 for event in events):
        connection.execute(
            "DELETE FROM event_tail WHERE n <= (SELECT max(n) FROM event_tail) - ?", (kept,)
        )


def close(connection: sqlite3.Connection, change: BootClosed, boot_id: str) -> None:
    """Note that a start ended cleanly, unless its last event was not stored."""
    if change.last <= _newest_kept(connection, boot_id):
        connection.execute("UPDATE boots SET closed_at = ? WHERE id = ?", (change.at, boot_id))


def _newest_kept(connection: sqlite3.Connection, boot_id: str) -> int:
    """Return the seq of the newest event of a start that was ever stored; 0 if there was none."""
    (seq,) = connection.execute(
        "SELECT max(coalesce((SELECT max(seq) FROM event_tail WHERE boot_id = id), 0),"
        " coalesce(trimmed_seq, 0)) FROM boots WHERE id = ?",
        (boot_id,),
    ).fetchone()
    return int(seq)


def read_tail_after(
    connection: sqlite3.Connection, boot_id: str, seq: int, ours: str, limit: int, size: int
) -> list[TailEvent] | None:
    """Return the events after a place in an earlier start, or None if some may be missing."""
    row = connection.execute("SELECT n FROM boots WHERE id = ?", (boot_id,)).fetchone()
    if row is None:
        return None
    place = {"n": row[0], "seq": seq, "ours": ours}
    if connection.execute(_UNCERTAIN, place).fetchone():
        return None
    events = (
        TailEvent(boot_id=boot, seq=at, terminal=bool(terminal), event=event)
        for boot, at, terminal, event in connection.execute(_AFTER, place)
    )
    return first_page(events, limit, size, lambda event: len(event.event))


def read_endings_after(
    connection: sqlite3.Connection,
    boot_id: str,
    seq: int,
    ours: tuple[str, int],
    limit: int,
    size: int,
) -> list[StoredEnding] | None:
    """Return the endings after a place, up to the place *ours* in the present start."""
    row = connection.execute("SELECT n FROM boots WHERE id = ?", (boot_id,)).fetchone()
    if row is None:
        return None
    boots = connection.execute("SELECT id FROM boots WHERE n >= ? ORDER BY n", row).fetchall()
    stretches = [
        (name, seq if name == boot_id else 0, ours[1] if name == ours[0] else _END)
        for (name,) in boots
    ]
    endings = (
        ending for stretch in stretches for ending in runs.read_endings(connection, *stretch, size)
    )
    return first_page(
        endings, limit, size, lambda ending: len(ending.run.text) + len(ending.run.error)
    )
