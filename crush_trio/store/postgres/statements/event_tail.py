"""Statements about events that are kept for readers that come back after a restart.

Such a reader gets either the exact continuation of what it has read, or None. It is exact if every
start of the program since then, except the present one, has ended cleanly, and if none of the
events has been trimmed. Otherwise the reader gets at least the endings of all runs since then, whose
places are in the table of runs and are never trimmed.
"""

from collections.abc import Sequence
from typing import Final

from crush_trio.store.base import StoredEnding, TailEvent
from crush_trio.store.changes import BootClosed, TailKept, first_page
from crush_trio.store.postgres.statements import runs
from crush_trio.store.postgres.transaction import Transaction

_END: Final = 2**62
"""A seq after all others."""

_NEWEST: Final = """
    greatest(coalesce(trimmed_seq, 0), coalesce((
        SELECT max(seq) FROM event_tail
        WHERE event_tail.workspace = %(w)s AND event_tail.boot_id = boots.id
    ), 0))
"""
"""SQL: the seq of the newest event of a start that was ever stored."""

_GAP: Final = f"""
    UPDATE boots SET trimmed_seq = %(seq)s - 1
    WHERE workspace = %(w)s AND id = %(boot)s AND {_NEWEST} < %(previous)s
"""

_KEEP: Final = """
    INSERT INTO event_tail (workspace, n, boot_id, seq, terminal, event)
    SELECT %(w)s, coalesce(max(n), 0) + 1, %(boot)s, %(seq)s, %(terminal)s, %(event)s
    FROM event_tail WHERE workspace = %(w)s
    ON CONFLICT (workspace, boot_id, seq) DO NOTHING
"""

_PLACE: Final = """
    UPDATE runs SET ending_boot = %(boot)s, ending_seq = %(seq)s
    WHERE workspace = %(w)s AND id = %(ended)s
"""

_TRIM: Final = """
    WITH gone AS (
        DELETE FROM event_tail
        WHERE workspace = %(w)s
        AND n <= (SELECT max(n) FROM event_tail WHERE workspace = %(w)s) - %(keep)s
        RETURNING boot_id, seq
    )
    UPDATE boots SET trimmed_seq = greatest(coalesce(trimmed_seq, last.seq), last.seq)
    FROM (SELECT boot_id, max(seq) AS seq FROM gone GROUP BY boot_id) AS last
    WHERE boots.workspace = %(w)s AND boots.id = last.boot_id
"""

_CLOSE: Final = f"""
    UPDATE boots SET closed_at = %(at)s
    WHERE workspace = %(w)s AND id = %(boot)s AND %(last)s <= {_NEWEST}
"""

_UNCERTAIN: Final = """
    SELECT 1 FROM boots
    WHERE workspace = %(w)s AND n >= %(n)s AND id <> %(ours)s
    AND (
        closed_at IS NULL OR (trimmed_seq IS NOT NULL AND (n > %(n)s OR trimmed_seq > %(seq)s))
    )
"""

_AFTER: Final = """
    SELECT event_tail.boot_id, event_tail.seq, event_tail.terminal, event_tail.event
    FROM event_tail
    JOIN boots ON boots.workspace = event_tail.workspace AND boots.id = event_tail.boot_id
    WHERE event_tail.workspace = %(w)s AND event_tail.boot_id <> %(ours)s
    AND (boots.n, event_tail.seq) > (%(n)s, %(seq)s)
    ORDER BY boots.n, event_tail.seq
    LIMIT %(limit)s
"""


def keep(transaction: Transaction, events: Sequence[TailKept]) -> None:
    """Store events of this start; storing one again changes nothing."""
    stored, boot = 0, transaction.boot_id
    for event in events:
        if event.previous > stored:
            transaction.run(_GAP, boot=boot, seq=event.seq, previous=event.previous)
        stored = max(stored, event.seq)
        transaction.run(_KEEP, boot=boot, seq=event.seq, terminal=event.terminal, event=event.event)
        if event.ended is not None:
            transaction.run(_PLACE, boot=boot, seq=event.seq, ended=event.ended)
    transaction.run(_TRIM, keep=events[-1].keep)


def close(transaction: Transaction, change: BootClosed) -> None:
    """Note that this start ended cleanly, unless its last event was not stored."""
    transaction.run(_CLOSE, boot=transaction.boot_id, at=change.at, last=change.last)


def read_tail_after(
    transaction: Transaction, boot_id: str, seq: int, ours: str, limit: int, size: int
) -> list[TailEvent] | None:
    """Return the events after a place in an earlier start, or None if some may be missing."""
    row = transaction.one("SELECT n FROM boots WHERE workspace = %(w)s AND id = %(id)s", id=boot_id)
    if row is None:
        return None
    place = {"n": row[0], "seq": seq, "ours": ours}
    if transaction.one(_UNCERTAIN, **place) is not None:
        return None
    events = (
        TailEvent(boot_id=boot, seq=at, terminal=terminal, event=event)
        for boot, at, terminal, event in transaction.stream(_AFTER, **place, limit=limit)
    )
    return first_page(events, limit, size, lambda event: len(event.event))


def read_endings_after(
    transaction: Transaction,
    boot_id: str,
    seq: int,
    ours: tuple[str, int],
    limit: int,
    size: int,
) -> list[StoredEnding] | None:
    """Return the endings after a place, up to the place *ours* in the present start."""
    row = transaction.one("SELECT n FROM boots WHERE workspace = %(w)s AND id = %(id)s", id=boot_id)
    if row is None:
        return None
    boots = transaction.run(
        "SELECT id FROM boots WHERE workspace = %(w)s AND n >= %(n)s ORDER BY n", n=row[0]
    ).fetchall()
    stretches = [
        (name, seq if name == boot_id else 0, ours[1] if name == ours[0] else _END)
        for (name,) in boots
    ]
    endings = (
        ending for stretch in stretches for ending in runs.read_endings(transaction, *stretch, size)
    )
    return first_page(
        endings, limit, size, lambda ending: len(ending.run.text) + len(ending.run.error)
    )
