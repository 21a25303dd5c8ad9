"""`Writer`: the group commit of `store.group_commit` on a SQLite connection.

A group that fails is rolled back and run again one by one. Savepoints would not avoid that: after a
full disk or an I/O error SQLite rolls back the whole transaction, including its savepoints.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio
from attrs import define
from outcome import Error, Value
from typing_extensions import override

from crush_trio.store.errors import StoreFailed, StoreUnavailable
from crush_trio.store.group_commit import (
    CLOSE_LIMIT,
    POST_DELAY,
    GroupWriter,
    Result,
    WriteRequest,
)
from crush_trio.store.health import Health
from crush_trio.store.sqlite.faults import translate

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


def _nothing_to_check() -> None:
    """Do nothing: the default for connections without files to check."""


@define(eq=False)
class Writer(GroupWriter):
    """Runs work on the write connection, in order, in groups. Made by `open_writer`.

    *Work* is a function of the connection. It is called inside a transaction, which belongs to the
    writer: no `commit`, no `with connection`.
    """

    _connection: sqlite3.Connection
    _path: Path
    _health: Health
    _token: trio.lowlevel.TrioToken
    _close_limit: float = CLOSE_LIMIT
    _post_delay: float = POST_DELAY
    _check: Callable[[], None] = _nothing_to_check

    async def transact(self, work: Work[T]) -> T:
        """Run *work* in a transaction and return its result once that is committed.

        An exception of the work is raised as it is, and nothing was written. A fault of the disk or
        the file is raised as a `StoreUnavailable`; after a full disk the next call simply tries
        again.

        Cancelling stops the wait, not the write: the work was submitted and will be applied
        completely or fail. A caller that has to know which must use a shielded scope with a
        deadline.
        """
        return await self.submit(work).wait()

    def submit(self, work: Work[T]) -> WriteRequest[T]:
        """Hand *work* over. Never waits and never raises: a refusal is the result of the request."""
        return self.hand_over(work, self._health, awaited=True)

    def post(self, work: Work[object]) -> int:
        """Submit *work* without waiting; return its number. It runs later, after all earlier work.

        Never raises: a failure is logged and shows in the store's `degraded`. To wait for posted
        work, `transact` any work: the order is kept.
        """
        return self.hand_over(work, self._health, awaited=False).number

    @property
    @override
    def _name(self) -> str:
        return str(self._path)

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
    def _close_connection(self) -> None:
        self._connection.close()

    @override
    def _attempt(self, group: Sequence[WriteRequest[Any]]) -> list[Result[Any]] | None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as exc:
            return [Error(self._refused(exc)) for _ in group]
        try:
            with self._connection:  # commits; rolls back if anything raises, even the commit
                self._check()
                results: list[Result[Any]] = [Value(self._call(request)) for request in group]
                if self._abandoned:
                    raise StoreFailed(f"{self._path}: closed in the middle of a write")
                return results
        except Exception as exc:  # noqa: BLE001  it is the answer for the caller of the work
            return [Error(translate(exc, self._path))] if len(group) == 1 else None

    def _refused(self, exc: sqlite3.Error) -> StoreUnavailable:
        """Return the fault that prevented a transaction from beginning.

        The group is not run one by one then: each would wait as long for the same lock. Any other
        error means that the connection is in an unknown state, and ends the thread.
        """
        fault = translate(exc, self._path)
        if not isinstance(fault, StoreUnavailable):
            raise exc
        return fault

    def _call(self, request: WriteRequest[T]) -> T | None:
        result = request.run(self._connection)
        if not self._connection.in_transaction:
            raise RuntimeError("the work ended the transaction it was run in")
        return result


@asynccontextmanager
async def open_writer(
    connection: sqlite3.Connection,
    *,
    path: Path,
    health: Health,
    close_limit: float = CLOSE_LIMIT,
    post_delay: float = POST_DELAY,
    check: Callable[[], None] = _nothing_to_check,
) -> AsyncIterator[Writer]:
    """Start a thread that owns *connection* and closes it in the end.

    The connection must have been opened with `isolation_level=None` and `check_same_thread=False`.
    Leaving the block writes all posted work first, even if it is cancelled. A thread that hangs is
    abandoned after *close_limit* seconds, which is logged; it is a daemon thread, so it does not
    keep the process alive.

    *check* is called in the thread in each transaction, before its works; an error of it fails
    them.
    """
    token = trio.lowlevel.current_trio_token()
    writer = Writer(connection, path, health, token, close_limit, post_delay, check)
    writer._start()
    try:
        yield writer
    finally:
        with trio.move_on_after(close_limit, shield=True):
            await writer._stop()
