"""`GroupWriter`: a thread that owns a write connection and commits in groups.

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

A group that fails is rolled back and run again one by one. How a group is run in one transaction is
left to the kind of store: `store.sqlite.writer`, `store.postgres.writer`.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import trio
from attrs import define, field
from outcome import Error, Value
from typing_extensions import override

from crush_trio.store.base import COMMIT_BOUNDS, StoreLoad, Timings
from crush_trio.store.commit import Commit
from crush_trio.store.errors import StoreFailed, StoreUnavailable
from crush_trio.store.health import Health

log = logging.getLogger(__name__)

T = TypeVar("T")
Result = Value[T] | Error

GROUP_LIMIT: Final = 100

POST_DELAY: Final = 0.05
"""Seconds for which posted work waits for other work to share a commit with. It is longer than the
interval at which a growing answer is stored, so during an answer posted work needs no commit of its
own."""

CLOSE_LIMIT: Final = 10.0

ABANDONED_LIMIT: Final = 0.5
"""Seconds that closing waits for the thread after the disk was given up."""


@define(eq=False)
class WriteRequest(Commit[T]):
    """One submitted work. `number` counts in the order of submission."""

    number: int
    work: Callable[[Any], T] = field(repr=False)
    health: Health = field(repr=False)
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

    def run(self, connection: Any) -> T | None:  # noqa: ANN401 - each kind of store has its own
        """Do the work, in the thread, unless it was withdrawn.

        May be called again after a failure.
        """
        self._begun = self._begun or self._claim()
        return self.work(connection) if self._begun else None


@define(eq=False)
class GroupWriter(ABC):
    """Runs work on a write connection, in order, in groups; subclasses own the connection.

    A work is called inside a transaction, which belongs to the writer. It may be called twice, if
    its group has failed, so it must have no side effects besides those in the database.
    """

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

    # ── What a kind of store adds ───────────────────────────────────────────────────────────────

    @property
    @abstractmethod
    def _name(self) -> str:
        """What errors call the database."""

    @property
    @abstractmethod
    def _trio_token(self) -> trio.lowlevel.TrioToken:
        """Where results are delivered."""

    @property
    @abstractmethod
    def _limits(self) -> tuple[float, float]:
        """`CLOSE_LIMIT` and `POST_DELAY`, or what a test has in their place."""

    @property
    @abstractmethod
    def _own_health(self) -> Health:
        """Where failures of the thread itself are noted."""

    @abstractmethod
    def _attempt(self, group: Sequence[WriteRequest[Any]]) -> list[Result[Any]] | None:
        """Run a group in one transaction, in the thread.

        None means: nothing was written, run them one by one. A group of one always has a result. An
        exception means that the connection is in an unknown state, and ends the thread.
        """

    @abstractmethod
    def _close_connection(self) -> None:
        """Close the connection, in the thread, when it ends."""

    # ── For its owner ───────────────────────────────────────────────────────────────────────────

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
    def hand_over(
        self, work: Callable[[Any], T], health: Health, *, awaited: bool
    ) -> WriteRequest[T]:
        """Hand *work* over; its failures are noted in *health*.

        Never waits and never raises: a refusal is the result of the request.
        """
        number = self.answered if self._refusal is not None else next(self._numbers)
        request = WriteRequest(health.lost, number, work, health, awaited=awaited)
        if self._refusal is not None:
            request.settle(Error(own_copy(self._refusal)))
            if not awaited:
                health.failed("post", self._refusal)
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
        self._give_up(StoreFailed(f"{self._name}: {why}"))

    # ── In Trio's thread ────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="crush-trio-writer", daemon=True)
        self._thread.start()

    async def _stop(self) -> None:
        """Refuse new work, let the thread finish its queue, and wait for its end, with a time limit.

        The limit is that of `join`, in real time. A deadline of Trio would not do: a test's virtual
        clock would jump to it while the thread is still writing.
        """
        self._refuse(StoreFailed(f"{self._name} is closed"))
        self._queue.put(None)
        limit = ABANDONED_LIMIT if self._abandoned else self._limits[0]
        await trio.to_thread.run_sync(self._thread.join, limit, limiter=trio.CapacityLimiter(1))
        if not self.stopped:
            log.error("store.writer_stuck", extra={"path": self._name})
            self._abandon("the writer did not stop in time")

    def _deliver(self, results: Sequence[Result[Any]], seconds: float) -> None:
        """Answer the oldest requests. Called once per group, with the duration of its commit."""
        self._commits.note(seconds)
        if not self._pending:
            return  # the thread was given up as stuck, all requests were failed, and it came back
        for result in results:
            request = self._pending.popleft()
            self.answered = request.number
            match result:
                case Value():
                    request.health.succeeded("write")
                    if not request.awaited:
                        request.health.succeeded("post")
                case Error(error=StoreUnavailable() as exc):
                    request.health.failed("write", exc)
            request.settle(result)

    def _died(self, cause: BaseException) -> None:
        """Fail everything: the thread has ended by an error."""
        log.error("store.writer_died", exc_info=cause)
        refusal = StoreFailed(f"{self._name}: the writer ended with {cause!r}")
        refusal.__cause__ = cause
        self._give_up(refusal)

    def _give_up(self, refusal: StoreFailed) -> None:
        """Fail all pending work and all later work."""
        self._refuse(refusal)
        self._own_health.failed("write", refusal)
        while self._pending:
            request = self._pending.popleft()
            self.answered = request.number
            request.withdraw(own_copy(refusal))

    def _refuse(self, refusal: StoreFailed) -> None:
        self._refusal = self._refusal or refusal

    # ── In the writer's thread ──────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        """Write until told to stop.

        If an error ends this, Trio is told, so that no task waits on.
        """
        with suppress(trio.RunFinishedError):
            try:
                try:
                    while group := self._take():
                        self._run(group)
                finally:
                    self._close_connection()
            except BaseException as exc:  # noqa: ASYNC103, BLE001  the outermost frame of a thread
                self._trio_token.run_sync_soon(self._died, exc)

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
                    latest = time.monotonic() + self._limits[1]
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
            self._trio_token.run_sync_soon(self._deliver, results, seconds)
            return
        for request in group:
            self._run((request,))


def own_copy(refusal: StoreFailed) -> StoreFailed:
    """Return a copy of *refusal* for one caller: a shared error would collect all tracebacks."""
    own = StoreFailed(refusal.detail)
    own.__cause__ = refusal.__cause__
    return own
