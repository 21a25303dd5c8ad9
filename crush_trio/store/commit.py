"""A commit: work that was handed to a store, and whether it is done.

A store does its commits in the order in which they were handed over, each as a whole or not at all.
Handing over never waits. A caller that has to keep an order hands over in the very step in which it
decides, and waits afterwards.
"""

from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

import trio
from attrs import define, field
from outcome import Error, Value

from crush_trio.store.errors import StoreSlow, StoreUnavailable

T = TypeVar("T")


@define(eq=False)
class Commit(Generic[T]):
    """Work on its way into a store, and its result once that is known.

    *lost* is called with a failure that comes when no task waits for it any more.
    """

    lost: Callable[[BaseException], None] = field(repr=False)
    awaited: bool = field(default=True, kw_only=True)
    """Whether a task waits for the result, or is going to."""
    _result: Value[T] | Error | None = field(default=None, init=False)
    _known: trio.Event = field(factory=trio.Event, init=False, repr=False)

    @property
    def known(self) -> bool:
        """Whether it is known how the commit went."""
        return self._result is not None

    @property
    def stored(self) -> bool:
        """Whether it is known that the work is stored."""
        return isinstance(self._result, Value)

    async def wait(self) -> T:
        """Wait until the work is durable and return its result; raise what was wrong with it.

        Cancelling the wait changes nothing about the commit.
        """
        try:
            await self._until_known()
        except trio.Cancelled:
            self.awaited = False
            if isinstance(self._result, Error):  # it came after the cancel and before this
                self.lost(self._result.error)
            raise
        return self.unwrap()

    async def known_within(self, seconds: float) -> bool:
        """Wait at most *seconds*, also through a cancel; return whether the result is known."""
        with trio.move_on_after(seconds, shield=True):
            await self._until_known()
        return self.known  # noqa: ASYNC910  # the wait above is a checkpoint

    async def certain(self, within: float = inf) -> T:
        """Wait through a cancel: afterwards it is certain whether the work is stored.

        Without an answer *within* so many seconds the work is withdrawn and `StoreSlow` is raised.
        It is then never done, unless the store was in the middle of it.
        """
        if not await self.known_within(within):
            self.withdraw()
        return self.unwrap()

    def withdraw(self, reason: StoreUnavailable | None = None) -> bool:
        """Take the work back; return whether that came in time, so that it is never done.

        *reason* is what is raised where the result is waited for.
        """
        if self.known:
            return False
        in_time = self._take_back()
        self.settle(Error(StoreSlow() if reason is None else reason))
        return in_time

    def settle(self, result: Value[T] | Error) -> None:
        """Note how the commit went; for the store. The first result stands."""
        if self._result is None:
            self._result = result
            self._known.set()
            if isinstance(result, Error) and not self.awaited:
                self.lost(result.error)

    async def _until_known(self) -> None:
        await self._known.wait()

    def _take_back(self) -> bool:
        """Keep the work from being done; return whether that is certain. For the store."""
        return False

    @property
    def result(self) -> Value[T] | Error:
        """How the commit went; ask only once that is known."""
        assert self._result is not None, "the commit is still under way"
        return self._result

    def unwrap(self) -> T:
        """Return the result, or raise what was wrong; ask only once that is known.

        May be called any number of times, which an outcome itself does not allow.
        """
        match self.result:
            case Value(value=value):
                return value
            case Error(error=error):
                raise error
