"""`PostgresWriter`: the group commit of `store.group_commit` on PostgreSQL, for many workspaces.

Every group first checks the leases of its workspaces and locks their rows against a claim (`FOR
SHARE`), in the same transaction. If one of them is gone, the works of that workspace fail with
`LeaseLost` and those of the others are stored.

A connection that breaks before the commit was sent has stored nothing: the group is run again on a new
one. If it breaks in the middle of a commit, only the database knows the outcome. So each group also
writes its number into the row of this writer, and the new connection reads that row. It waits for its
lock, and so for the end of a transaction that the server has not given up yet. No write is lost and
none is done twice.
"""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Any, Final

import psycopg
import trio
from attrs import define, field
from outcome import Error, Value
from typing_extensions import override

from crush_trio.store.errors import LeaseLost, StoreFailed, StoreSlow, StoreUnavailable
from crush_trio.store.group_commit import (
    CLOSE_LIMIT,
    POST_DELAY,
    GroupWriter,
    Result,
    WriteRequest,
)
from crush_trio.store.health import Health
from crush_trio.store.lease import TAKEN
from crush_trio.store.postgres.connection import (
    Connection,
    Cursor,
    Reconnector,
    begin_write,
)
from crush_trio.store.postgres.faults import broken, ends_connection, translate, translated
from crush_trio.store.postgres.place import Place
from crush_trio.store.postgres.transaction import Group, OpenWorkspace, WriteWork

log = logging.getLogger(__name__)

_FENCE: Final = b"""
    SELECT workspace FROM leases
    JOIN unnest(%(workspaces)s::bigint[], %(nodes)s::text[], %(epochs)s::bigint[])
        AS own (number, node, epoch)
    ON workspace = own.number AND node_id = own.node AND leases.epoch = own.epoch
    ORDER BY workspace FOR SHARE OF leases
"""
_MARK: Final = b"UPDATE writers SET commits = %(commits)s, used_at = now() WHERE id = %(id)s"
_MARKED: Final = b"SELECT commits FROM writers WHERE id = %(id)s FOR UPDATE"
_ENTER: Final = b"INSERT INTO writers (id) VALUES (%(id)s) ON CONFLICT (id) DO NOTHING"
_LEAVE: Final = b"DELETE FROM writers WHERE id = %(id)s"
_FORGET: Final = b"""
    DELETE FROM writers WHERE used_at < now() - interval '7 days' AND id <> %(id)s
        AND id NOT IN (SELECT boot FROM nodes)
"""
"""Deletes the rows of writers that are gone; a server that had nothing to write for days is a node."""

_UNCONFIRMED: Final = "01000"
"""The warning with which a COMMIT succeeds that has waited in vain for a synchronous standby. The time limit
of a statement ends that wait, and a failover may then lose what was committed."""

_OUTCOME_ATTEMPTS: Final = 10
_OUTCOME_PAUSE: Final = 1.0


class _BrokenInCommitError(Exception):
    """The connection broke after the commit was sent."""


@define(eq=False)
class PostgresWriter(GroupWriter):
    """Runs works of any workspace, in order, in groups. Made by `open_writer`."""

    _place: Place
    _id: str
    """The id of its row in `writers`."""
    _reconnector: Reconnector
    _token: trio.lowlevel.TrioToken
    _post_delay: float = POST_DELAY
    _close_limit: float = CLOSE_LIMIT
    _health: Health = field(factory=Health)
    _connection: Connection | None = field(default=None, init=False)
    _committed: int = field(default=0, init=False)
    """The number of the last group that may have been committed."""

    def abandon_workspace(self, workspace: OpenWorkspace) -> None:
        """Fail everything of one workspace that is not stored yet, because it has to close.

        What the thread has not begun is never run. What it is committing may still be written.
        """
        for request in self._pending:
            work = request.work
            if isinstance(work, WriteWork) and work.workspace is workspace:
                request.withdraw(
                    StoreFailed(f"{self._name}: it did not answer, and its workspace has closed")
                )

    @property
    def trouble(self) -> str | None:
        """What ended the thread, if it has ended by an error."""
        return self._health.degraded

    # ── What group commit asks for ──────────────────────────────────────────────────────────────

    @property
    @override
    def _name(self) -> str:
        return self._place.label

    @property
    @override
    def _trio_token(self) -> trio.lowlevel.TrioToken:
        return self._token

    @property
    @override
    def _limits(self) -> tuple[float, float]:
        return self._close_limit, self._post_delay

    @property
    @override
    def _own_health(self) -> Health:
        return self._health

    @override
    def _deliver(self, results: Sequence[Result[Any]], seconds: float) -> None:
        owners = [_work_of(each).workspace for each in islice(self._pending, len(results))]
        for workspace in owners:
            workspace.pending -= 1
        for workspace in owners[:1]:
            workspace.commits.note(seconds)
        super()._deliver(results, seconds)

    @override
    def _close_connection(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.execute(_LEAVE, {"id": self._id})
            self._connection.close()

    @override
    def _attempt(self, group: Sequence[WriteRequest[Any]]) -> list[Result[Any]] | None:
        try:
            return self._attempt_connected(group)
        except StoreUnavailable as exc:
            return [Error(_own_copy(exc)) for _ in group]

    # ── In the writer's thread ──────────────────────────────────────────────────────────────────

    def _attempt_connected(self, group: Sequence[WriteRequest[Any]]) -> list[Result[Any]] | None:
        """Run a group; once more if the connection turns out to be broken.

        Raises a `StoreUnavailable` if none of the group is stored because of the connection.
        """
        fresh = self._connection is None
        while True:
            connection = self._connected()
            try:
                return self._run_on(connection, group)
            except _BrokenInCommitError as cut_off:
                self._drop()
                if self._outcome():
                    # Its works were run: they are not run again, only their results are made.
                    results: list[Result[Any]] = cut_off.args[0]
                    return results
            except psycopg.Error as exc:
                self._drop()
                if fresh:
                    raise broken(exc, self._place) from exc
            fresh = True

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._reconnector.connect()
            with translated(self._place):
                connection.execute(_ENTER, {"id": self._id})
            self._connection = connection
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _run_on(
        self, connection: Connection, group: Sequence[WriteRequest[Any]]
    ) -> list[Result[Any]] | None:
        """Run a group in one transaction. Raises only if the connection has broken."""
        alone = len(group) == 1
        try:
            results = self._statements(connection, group, pipelined=not alone)
            if results is None or self._abandoned:
                connection.execute(b"ROLLBACK")
                return self._closed(group) if self._abandoned else None
        except Exception as exc:
            if connection.closed:
                raise
            connection.execute(b"ROLLBACK")
            return [Error(translate(exc, self._place))] if alone else None
        return self._commit(connection, results)

    def _statements(
        self, connection: Connection, group: Sequence[WriteRequest[Any]], *, pipelined: bool
    ) -> list[Result[Any]] | None:
        """Run the statements of a group; None if its works have to be run one by one."""
        workspaces = {id(work.workspace): work.workspace for work in map(_work_of, group)}
        made = Group(connection, pipelined)
        connection.execute(begin_write(self._id))
        self._committed += 1
        if pipelined:
            with connection.pipeline():
                fenced = self._prologue(connection, list(workspaces.values()))
                finishes = [request.run(made) for request in group]
        else:
            fenced = self._prologue(connection, list(workspaces.values()))
            if fenced.rowcount < len(workspaces):
                [workspace] = workspaces.values()
                self._token.run_sync_soon(workspace.lease.lost)
                raise LeaseLost(TAKEN)
            finishes = [request.run(made) for request in group]
        if fenced.rowcount < len(workspaces) or made.doubtful:
            return None
        return [Value(None if finish is None else finish()) for finish in finishes]

    def _prologue(self, connection: Connection, workspaces: Sequence[OpenWorkspace]) -> Cursor:
        leases = [workspace.lease for workspace in workspaces]
        fence = {
            "workspaces": [lease.workspace for lease in leases],
            "nodes": [lease.node for lease in leases],
            "epochs": [lease.epoch for lease in leases],
        }
        fenced = connection.execute(_FENCE, fence)
        connection.execute(_MARK, {"id": self._id, "commits": self._committed})
        return fenced

    def _commit(self, connection: Connection, results: list[Result[Any]]) -> list[Result[Any]]:
        notices: list[str | None] = []
        note = lambda diagnostic: notices.append(diagnostic.sqlstate)  # noqa: E731 - removed by identity
        connection.add_notice_handler(note)
        try:
            status = connection.execute(b"COMMIT").statusmessage
        except psycopg.Error as exc:
            if connection.closed or ends_connection(exc):
                raise _BrokenInCommitError(results) from exc
            # A deferred constraint, or no room for the commit: the server has rolled back.
            return [Error(translate(exc, self._place)) for _ in results]
        finally:
            connection.remove_notice_handler(note)
        if _UNCONFIRMED in notices:
            text = f"{self._name}: no standby has confirmed the commit, which may be stored"
            return [Error(StoreSlow(text)) for _ in results]
        if status != "COMMIT":  # a server that gave up before answers ROLLBACK, and no error
            return [Error(StoreFailed(f"{self._name}: rolled back")) for _ in results]
        return results

    def _closed(self, group: Sequence[WriteRequest[Any]]) -> list[Result[Any]]:
        return [Error(StoreFailed(f"{self._name}: closed in the middle of a write")) for _ in group]

    def _outcome(self) -> bool:
        """Whether the group whose commit was cut off is stored. Waits until that is certain.

        Raises a `StoreUnavailable` if the database does not come back in time: then the group may be
        stored, and this is the one case in which a caller is told of a failure that may not be one.
        """
        attempts = _OUTCOME_ATTEMPTS
        while True:
            attempts -= 1
            try:
                found = self._connected().execute(_MARKED, {"id": self._id}).fetchone()
            except (psycopg.Error, StoreUnavailable) as exc:
                self._drop()
                if not attempts or self._abandoned:
                    log.error(  # noqa: TRY400 - the cause is in the error below
                        "store.commit_unknown", extra={"place": self._place.label}
                    )
                    if isinstance(exc, StoreUnavailable):
                        raise
                    raise broken(exc, self._place) from exc
                time.sleep(_OUTCOME_PAUSE)
            else:
                return found is not None and found[0] == self._committed


def _work_of(request: WriteRequest[Any]) -> WriteWork[Any]:
    assert isinstance(request.work, WriteWork)
    return request.work


def _own_copy(exc: StoreUnavailable) -> StoreUnavailable:
    """Return a copy for one caller: a shared error would collect all tracebacks."""
    own = type(exc)(exc.detail)
    own.__cause__ = exc.__cause__
    return own


@asynccontextmanager
async def open_writer(
    connection: Connection,
    place: Place,
    *,
    writer_id: str,
    reconnector: Reconnector,
    post_delay: float = POST_DELAY,
    close_limit: float = CLOSE_LIMIT,
) -> AsyncIterator[PostgresWriter]:
    """Start a thread that owns *connection*, and opens others if it breaks.

    Leaving the block writes all posted work first, even if it is cancelled. A thread that hangs is
    abandoned after *close_limit* seconds, which is logged.
    """
    token = trio.lowlevel.current_trio_token()
    writer = PostgresWriter(place, writer_id, reconnector, token, post_delay, close_limit)
    await trio.to_thread.run_sync(_enter, connection, place, writer_id)
    writer._connection = connection
    writer._start()
    try:
        yield writer
    finally:
        with trio.move_on_after(close_limit, shield=True):
            await writer._stop()


def _enter(connection: Connection, place: Place, writer_id: str) -> None:
    try:
        with translated(place):
            connection.execute(_ENTER, {"id": writer_id})
            connection.execute(_FORGET, {"id": writer_id})
    except StoreUnavailable:
        connection.close()
        raise
