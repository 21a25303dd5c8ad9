"""`LeasedMemoryStore`: the store of one workspace of a `MemoryDatabase`, written under a lease.

It behaves like `store.postgres.store`: what is handed over is written later, in order, over the `Link` to the
database. The lease is checked twice: here, by time, before anything is sent; and in the database, by node and
epoch, in the same step as the write.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import trio
from attrs import define, field
from outcome import Error, Value, capture
from typing_extensions import override

from crush_trio.store.base import TailEvent
from crush_trio.store.commit import Commit
from crush_trio.store.errors import LeaseLost, StoreFailed, StoreUnavailable
from crush_trio.store.lease import TAKEN, Lease
from crush_trio.store.memory.store import Kept, MemoryStore

T = TypeVar("T")

CATCH_UP_SECONDS: Final = 2.0
"""Seconds that a read waits for earlier writes before it reads what is stored."""


@define(eq=False)
class LinkedWrite(Commit[T]):
    """A write that was handed to a link."""

    _work: Callable[[], T] = field(kw_only=True, repr=False)
    _answered: Callable[["LinkedWrite[Any]", Value[Any] | Error], None] = field(
        kw_only=True, repr=False
    )
    _begun: bool = field(default=False, init=False)
    _withdrawn: bool = field(default=False, init=False)

    def run(self) -> Value[T] | Error:
        """Do the work in the database, unless it was withdrawn, and return its result."""
        if self._withdrawn:
            return Error(StoreFailed())
        self._begun = True
        return capture(self._work)

    @override
    def settle(self, result: Value[T] | Error) -> None:
        """Take the result, as the node learns it."""
        if not self.known:
            self._answered(self, result)
        super().settle(result)

    @override
    def _take_back(self) -> bool:
        self._withdrawn = not self._begun
        return self._withdrawn


class Link(Protocol):
    """How a node reaches the database. *work* is one transaction: it runs there in one step."""

    def call(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run *work* and return its result; raises `StoreUnavailable`."""
        ...

    def write(self, request: LinkedWrite[Any]) -> None:
        """Run a write after the ones before, and settle it. Never waits."""
        ...


class DirectLink:
    """A link without distance: everything happens at the call."""

    async def call(self, work: Callable[[], T]) -> T:
        """Run *work* after a checkpoint."""
        await trio.lowlevel.checkpoint()
        return work()

    def write(self, request: LinkedWrite[Any]) -> None:
        """Run a write."""
        request.settle(request.run())


@define(eq=False)
class LeasedMemoryStore(MemoryStore):
    """A `Store` whose writes need a lease; *fence* raises in the database if that is another's."""

    _lease: Lease = field(kw_only=True)
    _fence: Callable[[], None] = field(kw_only=True, repr=False)
    _link: Link = field(kw_only=True, repr=False)
    _under_way: dict[LinkedWrite[Any], None] = field(factory=dict, init=False, repr=False)

    @override
    def __attrs_post_init__(self) -> None:
        """Write nothing yet: `begin` does."""

    async def begin(self) -> None:
        """Store the row of this start of the program: the first write of every store."""
        await self._hand_over(self._begin).wait()

    async def flush(self) -> None:  # noqa: ASYNC910  # a refusal was waited for too
        """Wait until everything that was handed over is stored, or refused."""
        with suppress(StoreUnavailable):
            await self._hand_over(_nothing).wait()

    @property
    @override
    def degraded(self) -> str | None:
        return self._trouble

    @override
    def abandon(self) -> None:
        self._abandoned = True
        for write in tuple(self._under_way):
            write.withdraw(StoreFailed("its workspace has closed"))

    @override
    def _hand_over(self, work: Callable[[], T], *, awaited: bool = True) -> Commit[T]:
        write = LinkedWrite(
            self._lose, awaited=awaited, work=partial(self._fenced, work), answered=self._answered
        )
        self._under_way[write] = None
        refusal: StoreUnavailable | None = self._lease.refusal(trio.current_time())
        if self._abandoned:
            refusal = StoreFailed("its workspace has closed")
        if refusal is not None:
            write.settle(Error(refusal))
        else:
            self._link.write(write)
        return write

    def _fenced(self, work: Callable[[], T]) -> T:
        """Check the lease and do *work*, in one step of the database."""
        self._fence()
        return work()

    def _answered(self, write: LinkedWrite[Any], result: Value[Any] | Error) -> None:
        """Note what a write has come to."""
        self._under_way.pop(write, None)
        match result:
            case Value():
                self._trouble = None
            case Error(error=LeaseLost(detail=detail)) if detail == TAKEN:
                self._lease.lost()
            case Error(error=StoreUnavailable() as error):
                self._trouble = str(error)

    @override
    async def _reach(self) -> None:
        await self._catch_up()
        await self._link.call(_nothing)

    async def _catch_up(self) -> bool:
        """Wait for the writes that were handed over; return False if that took too long."""
        with trio.move_on_after(CATCH_UP_SECONDS) as patience:
            if self._under_way:
                await self.flush()
        return not patience.cancelled_caught  # noqa: ASYNC910  # a caller reaches the tables next

    @override
    async def tail_after(
        self, boot_id: str, seq: int, *, limit: int = 10_000, size: int = 2**30
    ) -> list[TailEvent] | None:
        if not await self._catch_up():
            return None
        return await super().tail_after(boot_id, seq, limit=limit, size=size)


def read_only(kept: Kept, lease: Lease, link: Link) -> LeasedMemoryStore:
    """Return a store that only reads: *lease* is lost."""
    return LeasedMemoryStore("", kept, lease=lease, fence=_nothing, link=link)


def _nothing() -> None:
    """Do nothing in the database: what waits for this waits for what was handed over before."""
