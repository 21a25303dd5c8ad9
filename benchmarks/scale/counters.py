"""`Counters`: what the database and the nodes have used so far, seen from outside.

The write-ahead log and the transactions that write are counted exactly, by positions. All transactions are
counted by `pg_stat_database`, to which a silent connection reports after ten seconds: so a load is followed by
a pause. What is stored is measured without dead rows, after a `VACUUM FULL`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from attrs import define, frozen

from benchmarks.driver.postgres import PostgresServer
from benchmarks.driver.process import Gauge
from benchmarks.scale.constants import Cost

if TYPE_CHECKING:
    import psycopg

OPTIONS: Final = (
    "full_page_writes=off",
    "autovacuum=off",
    "checkpoint_timeout=1h",
    "max_wal_size=8GB",
)
"""Settings of the database under which a difference of two counts is the work of the load alone."""

REPORTED: Final = 10.5
"""Seconds after which a silent connection has reported its transactions."""

_COUNTS: Final = """
    SELECT
        (SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()),
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
        pg_current_wal_insert_lsn() - '0/0'::pg_lsn
"""
_STORED: Final = """
    SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables
"""
_TICKS: Final = 100
"""Parts of a second in which the kernel counts the time of ended children."""


@frozen(kw_only=True)
class _Counts:
    at: float
    transactions: int
    writes: int
    wal: int
    database: float
    nodes: float


@define(eq=False)
class Counters:
    """Measures loads of a database and its nodes."""

    server: PostgresServer
    nodes: Sequence[Gauge]
    connection: "psycopg.Connection[tuple[int, ...]]"
    _stored: int = 0

    async def begin(self) -> _Counts:
        """Count what there is before a load; the nodes must have been idle for `REPORTED`."""
        self._stored = await trio.to_thread.run_sync(self._live_bytes)
        return await self._count()

    async def cost_since(self, before: _Counts) -> tuple[Cost, float]:
        """Return what was used since *before*, and in how many seconds."""
        await trio.sleep(REPORTED)
        now, before_stored = await self._count(), self._stored
        stored = await trio.to_thread.run_sync(self._live_bytes)
        used = Cost(
            transactions=now.transactions - before.transactions - 1,  # one for the count itself
            writes=now.writes - before.writes,
            wal=now.wal - before.wal,
            stored=stored - before_stored,
            database=now.database - before.database,
            nodes=now.nodes - before.nodes,
        )
        return used, now.at - before.at

    async def _count(self) -> _Counts:
        row = await trio.to_thread.run_sync(
            lambda: self.connection.execute(_COUNTS).fetchone(), limiter=trio.CapacityLimiter(1)
        )
        assert row is not None
        return _Counts(
            at=trio.current_time(),
            transactions=row[0],
            writes=row[1],
            wal=int(row[2]),
            database=processor_time(self.server.pid),
            nodes=sum(gauge.cpu() for gauge in self.nodes),
        )

    def _live_bytes(self) -> int:
        """Return the bytes of all tables without dead rows; called in a thread."""
        self.connection.execute("VACUUM FULL")
        self.connection.execute("SELECT pg_stat_force_next_flush()")
        row = self.connection.execute(_STORED).fetchone()
        assert row is not None
        return row[0]


def processor_time(postmaster: int) -> float:
    """Return the seconds that a PostgreSQL server has used in all its processes, ended ones included."""
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text(encoding="ascii")
    alive = sum(Gauge(int(pid)).cpu() for pid in children.split())
    fields = Path(f"/proc/{postmaster}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    ended = sum(map(int, fields[13:15])) / _TICKS
    return alive + ended + Gauge(postmaster).cpu()
