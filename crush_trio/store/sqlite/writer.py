"""One thread writes, many tasks wait: the owner of the write connection.

Every write goes through one queue to one operating-system thread. The thread takes whatever has
gathered while it was busy, runs all of it in one transaction, commits, and wakes Trio once for the
lot. A commit costs the same for one write as for a hundred, so the busier the store, the cheaper a
write; nobody has to choose a batch size. Work that nobody waits for is in no hurry: it goes along with
the next work that somebody waits for, or by itself if there is none for a while.

Invariants:

* Work is run, committed and answered in the order in which it was submitted.
* A waiter is answered after the commit that holds its write, never before.
* Submitted work is applied as a whole or not at all, whatever becomes of the task that waits for it.
* Work that was withdrawn before the thread began with it is never run.
* The thread sees work and answers in order; requests, events and health belong to Trio's thread.
* Nobody waits for a thread that is gone: its end fails whatever is pending and all that comes later.

A group that fails is rolled back and run again one by one. Savepoints would not spare us that: for a
full disk or an I/O error SQLite gives up the whole transaction, savepoints and all.
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

from crush_trio.store.base import COMMIT_BOUNDS, Load, Timings
from crush_trio.store.commit import Commit
from crush_trio.store.errors import StoreFailed, StoreUnavailable
from crush_trio.store.sqlite.faults import Health, translate

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
_Result = Value[T] | Error

GROUP_LIMIT: Final = 100

PATIENCE: Final = 0.05
"""Seconds for which posted work waits for company. Longer than the pace at which an answer is stored,
so that while one is, nothing that is posted needs a commit of its own."""

CLOSE_LIMIT: Final = 10.0

ABANDONED_LIMIT: Final = 0.5
"""Seconds for a thread to end whose disk was given up already."""


def _nothing_to_check() -> None:
    """Stand in for `InPlace.check` where a connection has no files."""


@define(eq=False)
class Request(Commit[T]):
    """One piece of submitted work. `number` is its place in the order of submission."""

    number: int
    _work: Work[T] = field(repr=False)
    _unclaimed: list[None] = field(factory=lambda: [None], init=False, repr=False)
    """Holds one item, which the thread pops before it begins, and a withdrawal before that.

    Popping from a list is atomic between threads, so exactly one of the two succeeds.
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
        """Do the work in the thread, unless it was withdrawn; a group that failed runs again."""
        self._begun = self._begun or self._claim()
        return self._work(connection) if self._begun else None


@define(eq=False)
class Writer:
    """Runs work on the write connection, in order, in groups. Made by `open_writer`.

    *Work* is a function of the connection. It is called inside a transaction and must leave that to
    the writer: no `commit`, no `with connection`. It may be called twice, when a group it was in has
    failed, so it reads and writes the database and returns a value, and touches nothing else.
    """

    _connection: sqlite3.Connection
    _path: Path
    _health: Health
    _token: trio.lowlevel.TrioToken
    _close_limit: float = CLOSE_LIMIT
    _patience: float = PATIENCE
    _check: Callable[[], None] = _nothing_to_check
    _queue: SimpleQueue[Request[Any] | None] = field(factory=SimpleQueue, init=False)
    """What there is to do; None is the last word."""
    _pending: deque[Request[Any]] = field(factory=deque, init=False)
    _numbers: "count[int]" = field(factory=lambda: count(1), init=False)
    answered: int = field(default=0, init=False)
    """The number of the newest request that has its answer, and with it all before it."""
    _commits: Timings = field(factory=lambda: Timings(COMMIT_BOUNDS), init=False)
    _refusal: StoreFailed | None = field(default=None, init=False)
    _abandoned: bool = field(default=False, init=False)
    _thread: threading.Thread = field(init=False)

    async def transact(self, work: Work[T]) -> T:
        """Run *work* in a transaction and return its result once that is committed.

        An exception of the work's own comes back as it is, and nothing was written. Trouble with the
        disk or the file comes back as a `StoreUnavailable`; after a full disk the next call simply
        tries again.

        Cancelling stops the waiting, not the writing: the work was submitted and will be applied, or
        fail, as a whole. A caller that has to know which shields the call and bounds it.
        """
        return await self.submit(work).wait()

    def post(self, work: Work[object]) -> int:
        """Submit *work* and do not wait; return its number. It runs after all before it, in a while.

        Never raises: a failure is logged and shows in the store's `degraded`. To wait for what was
        posted, `transact` anything at all: the order is kept.
        """
        request = self.submit(work, awaited=False)
        if self._refusal is not None:
            self._health.trouble("post", self._refusal)
        return request.number

    @property
    def load(self) -> Load:
        """How much there is to do, as Trio knows it: what was submitted and has no answer yet."""
        return Load(pending=len(self._pending), commits=self._commits)

    @property
    def stopped(self) -> bool:
        """Whether the thread has ended and with it every use of the connection."""
        return not self._thread.is_alive()

    @trio.lowlevel.enable_ki_protection  # a Ctrl-C between the two lines would shift all answers
    def submit(self, work: Work[T], *, awaited: bool = True) -> Request[T]:
        """Hand *work* over. Never waits and never raises: a refusal is the result of the request."""
        number = self.answered if self._refusal is not None else next(self._numbers)
        request = Request(self._lose, number, work, awaited=awaited)
        if self._refusal is not None:
            request.settle(Error(_like(self._refusal)))
        else:
            self._pending.append(request)
            self._queue.put(request)
        return request

    def abandon(self) -> None:
        """Stop waiting for a disk that does not answer: fail what is pending and all that comes later.

        What the thread has not begun is never run, and what it has not committed is rolled back. Only
        a commit that hangs in the operating system at this moment may still land.
        """
        self._abandon("it did not answer, and its workspace has closed")

    def _abandon(self, why: str) -> None:
        self._abandoned = True
        self._give_up(StoreFailed(f"{self._path}: {why}"))

    # ── Trio's side: answers arrive ─────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="crush-trio-writer", daemon=True)
        self._thread.start()

    async def _stop(self) -> None:
        """Refuse new work, let the thread finish what it has, and wait for it, within limits.

        The limit that counts is that of the join, in real time, which no deadline of Trio's can
        shorten: a test's virtual clock would run out while the thread is still writing.
        """
        self._refuse(StoreFailed(f"{self._path} is closed"))
        self._queue.put(None)
        limit = ABANDONED_LIMIT if self._abandoned else self._close_limit
        await trio.to_thread.run_sync(self._thread.join, limit, limiter=trio.CapacityLimiter(1))
        if not self.stopped:
            log.error("store.writer_stuck", extra={"path": str(self._path)})
            self._abandon("the writer did not stop in time")

    def _deliver(self, results: Sequence[_Result[Any]], seconds: float) -> None:
        """Answer the oldest requests. Called once per group, with the time that it took."""
        self._commits.note(seconds)
        if not self._pending:
            return  # a writer that was given up as stuck has come back
        for result in results:
            request = self._pending.popleft()
            self.answered = request.number
            match result:
                case Value():
                    self._health.well("write")
                    if not request.awaited:
                        self._health.well("post")
                case Error(error=StoreUnavailable() as exc):
                    self._health.trouble("write", exc)
            request.settle(result)

    def _lose(self, exc: BaseException) -> None:
        """Log a failure that no task waits for; trouble with the disk shows in the store's health."""
        if not isinstance(exc, StoreUnavailable):
            log.error("store.write_lost", exc_info=exc)
            self._health.trouble("post", exc)

    def _died(self, cause: BaseException) -> None:
        """The thread has ended, and not because it was told to."""
        log.error("store.writer_died", exc_info=cause)
        refusal = StoreFailed(f"{self._path}: the writer ended with {cause!r}")
        refusal.__cause__ = cause
        self._give_up(refusal)

    def _give_up(self, refusal: StoreFailed) -> None:
        """Fail all that is pending and all that comes later."""
        self._refuse(refusal)
        self._health.trouble("write", refusal)
        while self._pending:
            request = self._pending.popleft()
            self.answered = request.number
            request.withdraw(_like(refusal))

    def _refuse(self, refusal: StoreFailed) -> None:
        self._refusal = self._refusal or refusal

    # ── The thread's side: work is done ─────────────────────────────────────────────────────────

    def _serve(self) -> None:
        """Write until told to stop. Whatever ends this tells Trio, so that nobody waits in vain."""
        with suppress(trio.RunFinishedError):
            try:
                with closing(self._connection):
                    while group := self._take():
                        self._run(group)
            except BaseException as exc:  # noqa: ASYNC103, BLE001  a thread: nobody is above
                self._token.run_sync_soon(self._died, exc)

    def _take(self) -> list[Request[Any]]:
        """Wait for work, then take all there is, within the limit. Empty means stop.

        As long as nobody waits for any of it, more is waited for, but no longer than is bearable.
        """
        group: list[Request[Any]] = []
        latest: float | None = None
        with suppress(Empty):
            while len(group) < GROUP_LIMIT:
                left = None if latest is None else max(0.0, latest - time.monotonic())
                submitted = self._queue.get(timeout=left)
                if submitted is None:
                    self._queue.put(None)  # the last word: leave it for the next call
                    break
                group.append(submitted)
                if submitted.awaited:
                    latest = 0.0
                elif latest is None:
                    latest = time.monotonic() + self._patience
        return group

    def _run(self, group: Sequence[Request[Any]]) -> None:
        """Run a group in one transaction, or else each of its works in one of its own.

        Trio hears of each commit at once. So when work takes the thread down with it, those whose
        writes are already committed have been told, and those who are told of the end have none.
        """
        began = time.perf_counter()
        results = self._attempt(group)
        if results is not None:
            seconds = time.perf_counter() - began
            self._token.run_sync_soon(self._deliver, results, seconds)
            return
        for request in group:
            self._run((request,))

    def _attempt(self, group: Sequence[Request[Any]]) -> list[_Result[Any]] | None:
        """Run a group in one transaction. None: it failed, nothing was written, try one by one."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as exc:
            return [Error(self._refused(exc)) for _ in group]
        try:
            with self._connection:  # commits; rolls back if anything raises, the commit included
                self._check()
                results: list[_Result[Any]] = [Value(self._call(request)) for request in group]
                if self._abandoned:
                    raise StoreFailed(f"{self._path}: closed in the middle of a write")
                return results
        except Exception as exc:  # noqa: BLE001  it belongs to whoever submitted the work
            return [Error(translate(exc, self._path))] if len(group) == 1 else None

    def _refused(self, exc: sqlite3.Error) -> StoreUnavailable:
        """Return the fault that kept a transaction from beginning.

        The group is not tried one by one: each would wait as long for the same lock. Anything but a
        fault means that the connection is not in a state we understand, and ends the thread.
        """
        fault = translate(exc, self._path)
        if not isinstance(fault, StoreUnavailable):
            raise exc
        return fault

    def _call(self, request: Request[T]) -> T | None:
        result = request.run(self._connection)
        if not self._connection.in_transaction:
            raise RuntimeError("the work ended the transaction it was run in")
        return result


def _like(refusal: StoreFailed) -> StoreFailed:
    """Return an error of its own for each caller: a shared one would collect all their tracebacks."""
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
    patience: float = PATIENCE,
    check: Callable[[], None] = _nothing_to_check,
) -> AsyncIterator[Writer]:
    """Give *connection* to a thread of its own, and take it back to close it.

    The connection must have been opened with `isolation_level=None` and `check_same_thread=False`;
    from here on it belongs to the thread. On leaving, what was posted is written first; cancelling
    does not hurry that, but a thread that hangs is left behind after *close_limit* seconds, and the
    log says so. It is a daemon: it cannot keep the process alive.

    *check* is called in the thread within each transaction, before its works; what it raises fails them.
    """
    token = trio.lowlevel.current_trio_token()
    writer = Writer(connection, path, health, token, close_limit, patience, check)
    writer._start()
    try:
        yield writer
    finally:
        with trio.move_on_after(close_limit, shield=True):
            await writer._stop()
