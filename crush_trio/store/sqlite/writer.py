"""`Writer`: the thread that owns the write connection, with group commit.

Every write goes through one queue to one operating-system thread. The thread takes everything that
was queued while it was busy, runs all of it in one transaction, commits, and wakes Trio once for
the whole group. A commit costs the same for one write as for a hundred, so writes get cheaper the
busier the store is, without a batch size to tune. Posted work, which no task waits for, is delayed:
it goes along with the next work that a task waits for, or alone after `POST_DELAY`.

Invariants:

* Work is run, committed and answered in the order in which it was submitted.
* A waiter is answered after the commit with its write, never before.
* Submitted work is applied completely or not at all, even if the task that waits for it is
  cancelled.
* Work that was withdrawn before the thread began with it is never run.
* The thread only reads requests and returns results; requests, events and health are changed in
  Trio's thread.
* No task waits for a thread that has ended: its end fails all pending work and all later work.

A group that fails is rolled back and run again one by one. Savepoints would not avoid that: after a
full disk or an I/O error SQLite rolls back the whole transaction, including its savepoints.
"""

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import trio
from attrs import define, field
from outcome import Error, Value
from typing_extensions import override

from crush_trio.store.base import COMMIT_BOUNDS, StoreLoad, Timings
from crush_trio.store.commit import Commit
from crush_trio.store.errors import StoreFailed, StoreUnavailable
from crush_trio.store.sqlite.faults import Health, translate

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
_Result = Value[T] | Error

GROUP_LIMIT: Final = 100

POST_DELAY: Final = 0.05
"""Seconds for which posted work waits for other work to share a commit with. It is longer than the
interval at which a growing answer is stored, so during an answer posted work needs no commit of its
own."""

CLOSE_LIMIT: Final = 10.0

ABANDONED_LIMIT: Final = 0.5
"""Seconds that closing waits for the thread after the disk was given up."""


def _nothing_to_check() -> None:
    """Do nothing: the default for connections without files to check."""


@define(eq=False)
class WriteRequest(Commit[T]):
    """One submitted work. `number` counts in the order of submission."""

    number: int
    _work: Work[T] = field(repr=False)
    _unclaimed: list[None] = field(factory=lambda: [None], init=False, repr=False)
    """Holds one item. The thread pops it before it begins, and a withdrawal pops it to prevent that.

    Popping from a list is atomic between threads, so exactly one of the two succeeds, without a
    lock.
    """
    _begun: bool = field(default=False, init=False)

    @override
    def _take_back(self) -> bool:
        return self._claim()

    def _claim(self) -> bool:
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    def run(self, connection: sqlite3.Connection) -> T | None:
        """Do the work, in the thread, unless it was withdrawn.

        May be called again after a failure.
        """
        self._begun = self._begun or self._claim()
        return self._work(connection) if self._begun else None


@define(eq=False)
class Writer:
    """Runs work on the write connection, in order, in groups. Made by `open_writer`.

    *Work* is a function of the connection. It is called inside a transaction, which belongs to the
    writer: no `commit`, no `with connection`. It may be called twice, if its group has failed, so
    it must have no side effects besides those in the database.
    """

    _connection: sqlite3.Connection
    _path: Path
    _health: Health
    _token: trio.lowlevel.TrioToken
    _close_limit: float = CLOSE_LIMIT
    _post_delay: float = POST_DELAY
    _check: Callable[[], None] = _nothing_to_check
    _queue: SimpleQueue[WriteRequest[Any] | None] = field(factory=SimpleQueue, init=False)
    """Work for the thread; None ends it."""
    _pending: deque[WriteRequest[Any]] = field(factory=deque, init=False)
    _numbers: "count[int]" = field(factory=lambda: count(1), init=False)
    answered: int = field(default=0, init=False)
    """The number of the newest request that is answered; all before it are, too."""
    _commits: Timings = field(factory=lambda: Timings(COMMIT_BOUNDS), init=False)
    _refusal: StoreFailed | None = field(default=None, init=False)
    _abandoned: bool = field(default=False, init=False)
    _thread: threading.Thread = field(init=False)

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

    def post(self, work: Work[object]) -> int:
        """Submit *work* without waiting; return its number. It runs later, after all earlier work.

        Never raises: a failure is logged and shows in the store's `degraded`. To wait for posted
        work, `transact` any work: the order is kept.
        """
        request = self.submit(work, awaited=False)
        if self._refusal is not None:
            self._health.failed("post", self._refusal)
        return request.number

    @property
    def load(self) -> StoreLoad:
        """The submitted work that is not answered yet, and the times of the commits."""
        return StoreLoad(pending=len(self._pending), commits=self._commits)

    @property
    def stopped(self) -> bool:
        """Whether the thread has ended, so that the connection is no longer used."""
        return not self._thread.is_alive()

    # Protected: a KeyboardInterrupt between `append` and `put` would give every later answer to the
    # wrong request.
    @trio.lowlevel.enable_ki_protection
    def submit(self, work: Work[T], *, awaited: bool = True) -> WriteRequest[T]:
        """Hand *work* over.

        Never waits and never raises: a refusal is the result of the request.
        """
        number = self.answered if self._refusal is not None else next(self._numbers)
        request = WriteRequest(self._lose, number, work, awaited=awaited)
        if self._refusal is not None:
            request.settle(Error(_own_copy(self._refusal)))
        else:
            self._pending.append(request)
            self._queue.put(request)
        return request

    def abandon(self) -> None:
        """Give up on a disk that does not answer: fail all pending work and all later work.

        Work that the thread has not begun is never run, and what it has not committed is rolled
        back. Only a commit that hangs in the operating system at this moment may still be written.
        """
        self._abandon("it did not answer, and its workspace has closed")

    def _abandon(self, why: str) -> None:
        self._abandoned = True
        self._give_up(StoreFailed(f"{self._path}: {why}"))

    # ── In Trio's thread ────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="crush-trio-writer", daemon=True)
        self._thread.start()

    async def _stop(self) -> None:
        """Refuse new work, let the thread finish its queue, and wait for its end, with a time limit.

        The limit is that of `join`, in real time. A deadline of Trio would not do: a test's virtual
        clock would jump to it while the thread is still writing.
        """
        self._refuse(StoreFailed(f"{self._path} is closed"))
        self._queue.put(None)
        limit = ABANDONED_LIMIT if self._abandoned else self._close_limit
        await trio.to_thread.run_sync(self._thread.join, limit, limiter=trio.CapacityLimiter(1))
        if not self.stopped:
            log.error("store.writer_stuck", extra={"path": str(self._path)})
            self._abandon("the writer did not stop in time")

    def _deliver(self, results: Sequence[_Result[Any]], seconds: float) -> None:
        """Answer the oldest requests. Called once per group, with the duration of its commit."""
        self._commits.note(seconds)
        if not self._pending:
            return  # the thread was given up as stuck, all requests were failed, and it came back
        for result in results:
            request = self._pending.popleft()
            self.answered = request.number
            match result:
                case Value():
                    self._health.succeeded("write")
                    if not request.awaited:
                        self._health.succeeded("post")
                case Error(error=StoreUnavailable() as exc):
                    self._health.failed("write", exc)
            request.settle(result)

    def _lose(self, exc: BaseException) -> None:
        """Log a failure that no task waits for; `_deliver` has noted faults of the disk already."""
        if not isinstance(exc, StoreUnavailable):
            log.error("store.write_lost", exc_info=exc)
            self._health.failed("post", exc)

    def _died(self, cause: BaseException) -> None:
        """Fail everything: the thread has ended by an error."""
        log.error("store.writer_died", exc_info=cause)
        refusal = StoreFailed(f"{self._path}: the writer ended with {cause!r}")
        refusal.__cause__ = cause
        self._give_up(refusal)

    def _give_up(self, refusal: StoreFailed) -> None:
        """Fail all pending work and all later work."""
        self._refuse(refusal)
        self._health.failed("write", refusal)
        while self._pending:
            request = self._pending.popleft()
            self.answered = request.number
            request.withdraw(_own_copy(refusal))

    def _refuse(self, refusal: StoreFailed) -> None:
        self._refusal = self._refusal or refusal

    # ── In the writer's thread ──────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        """Write until told to stop.

        If an error ends this, Trio is told, so that no task waits on.
        """
        with suppress(trio.RunFinishedError):
            try:
                with closing(self._connection):
                    while group := self._take():
                        self._run(group)
            except BaseException as exc:  # noqa: ASYNC103, BLE001  the outermost frame of a thread
                self._token.run_sync_soon(self._died, exc)

    def _take(self) -> list[WriteRequest[Any]]:
        """Wait for work, then take all of the queue, up to `GROUP_LIMIT`. An empty group means stop.

        While all of it is posted work, wait for more, but no longer than `POST_DELAY`.
        """
        group: list[WriteRequest[Any]] = []
        latest: float | None = None
        with suppress(Empty):
            while len(group) < GROUP_LIMIT:
                left = None if latest is None else max(0.0, latest - time.monotonic())
                submitted = self._queue.get(timeout=left)
                if submitted is None:
                    self._queue.put(None)  # put it back: the next call has to find it
                    break
                group.append(submitted)
                if submitted.awaited:
                    latest = 0.0
                elif latest is None:
                    latest = time.monotonic() + self._post_delay
        return group

    def _run(self, group: Sequence[WriteRequest[Any]]) -> None:
        """Run a group in one transaction; if that fails, each of its works in its own transaction.

        Trio is told of each commit at once. So if a work ends the thread, all committed writes have
        been answered, and the requests that are failed because of it were not committed.
        """
        began = time.perf_counter()
        results = self._attempt(group)
        if results is not None:
            seconds = time.perf_counter() - began
            self._token.run_sync_soon(self._deliver, results, seconds)
            return
        for request in group:
            self._run((request,))

    def _attempt(self, group: Sequence[WriteRequest[Any]]) -> list[_Result[Any]] | None:
        """Run a group in one transaction. None means: nothing was written, run them one by one."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as exc:
            return [Error(self._refused(exc)) for _ in group]
        try:
            with self._connection:  # commits; rolls back if anything raises, even the commit
                self._check()
                results: list[_Result[Any]] = [Value(self._call(request)) for request in group]
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


def _own_copy(refusal: StoreFailed) -> StoreFailed:
    """Return a copy of *refusal* for one caller: a shared error would collect all tracebacks."""
    own = StoreFailed(refusal.detail)
    own.__cause__ = refusal.__cause__
    return own


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
