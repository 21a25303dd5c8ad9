"""Statements about asks."""

from typing import Final, TypeAlias, assert_never

from crush_trio.store.base import PendingAsk
from crush_trio.store.changes import AskOpened, AskResolved
from crush_trio.store.postgres.transaction import Transaction

AskChange: TypeAlias = AskOpened | AskResolved
"""The changes that `apply` takes."""

_COLUMNS: Final = ("id", "kind", "session_id", "run_id", "tool_call_id", "payload", "created_at")

_OPEN: Final = f"""
    INSERT INTO asks (workspace, n, {", ".join(_COLUMNS)})
    VALUES (%(w)s, %(n)s, {", ".join(f"%({name})s" for name in _COLUMNS)})
    ON CONFLICT (workspace, id) DO NOTHING
"""

_RESOLVE: Final = """
    UPDATE asks SET resolved_at = %(at)s, resolution = %(resolution)s
    WHERE workspace = %(w)s AND id = %(id)s AND resolved_at IS NULL
"""


def apply(transaction: Transaction, change: AskChange) -> None:
    """Apply *change*. The first resolution counts; opening an ask again changes nothing."""
    match change:
        case AskOpened():
            transaction.run(
                _OPEN,
                n=transaction.next_n(),
                id=change.id,
                kind=change.kind,
                session_id=change.session_id,
                run_id=change.run_id,
                tool_call_id=change.tool_call_id,
                payload=change.payload,
                created_at=change.at,
            )
        case AskResolved():
            transaction.run(_RESOLVE, id=change.id, at=change.at, resolution=change.resolution)
        case _:
            assert_never(change)


def read_pending(transaction: Transaction) -> list[PendingAsk]:
    """Return the asks without an answer, the oldest first."""
    rows = transaction.run(
        f"SELECT {', '.join(_COLUMNS)} FROM asks"
        " WHERE workspace = %(w)s AND resolved_at IS NULL ORDER BY created_at, n"
    )
    return [PendingAsk(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]
