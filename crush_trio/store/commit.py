"""`Commit`: a write that was handed to a store, and its result.

A store does its commits in the order in which they were handed over, each completely or not at all.
Handing over never waits. A caller that has to keep an order hands the write over in the same step
in which it decides, and waits afterwards.
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
    """A write under way, and its result once that is known.

    *lost* is called with a failure that no task waits for.
    """

    lost: Callable[[BaseException], None] = field(repr=False)
    awaited: bool = field(default=True, kw_only=True)
    """Whether a task waits for the result, or is going to."""
    _result: Value[T] | Error | None = field(default=None, init=False)
    _known: trio.Event = field(factory=trio.Event, init=False, repr=False)

    @property
    def known(self) -> bool:
        """Whether the result is known."""
        return self._result is not None

    @property
    def stored(self) -> bool:
        """Whether the write is known to be stored."""
        return isinstance(self._result, Value)

    async def wait(self) -> T:
        """Wait until the write is durable and return its result, or raise its error.

        Cancelling the wait does not affect the write.
        """
        try:
            await self._until_known()
        except trio.Cancelled:
            self.awaited = False
            if isinstance(self._result, Error):  # it came between the cancel and this line
                self.lost(self._result.error)
            raise
        return self.unwrap()

    async def known_within(self, seconds: float) -> bool:
        """Wait at most *seconds*, shielded from cancellation; return whether the result is known."""
        with trio.move_on_after(seconds, shield=True):
            await self._until_known()
        return self.known  # noqa: ASYNC910  # the wait above is a checkpoint

    async def certain(self, within: float = inf) -> T:
        """Wait, shielded from cancellation, until it is certain whether the write is stored.

        Without an answer *within* so many seconds the write is withdrawn and `StoreSlow` is raised.
        It is then never done, unless the store was in the middle of it.
        """
        if not await self.known_within(within):
            self.withdraw()
        return self.unwrap()

    def withdraw(self, reason: StoreUnavailable | None = None) -> bool:
        """Take the write back; return whether that was in time, so that it is never done.

        *reason* becomes the error of the commit.
        """
        if self.known:
            return False
        in_time = self._take_back()
        self.settle(Error(StoreSlow() if reason is None else reason))
        return in_time

    def settle(self, result: Value[T] | Error) -> None:
        """Set the result; called by the store. Only the first call counts."""
        if self._result is None:
            self._result = result
            self._known.set()
            if not self.awaited and isinstance(result, Error):
                self.lost(result.error)

    async def _until_known(self) -> None:
        await self._known.wait()

    def _take_back(self) -> bool:
        """Keep the write from being done; return whether that is certain. Overridden by stores."""
        return False

    @property
    def result(self) -> Value[T] | Error:
        """The result; only to be read once it is known."""
        assert self._result is not None, "the commit is still under way"
        return self._result

    def unwrap(self) -> T:
        """Return the value or raise the error; only to be called once the result is known.

        May be called any number of times; `outcome.Value.unwrap` may be called only once.
        """
        match self.result:
            case Value(value=value):
                return value
            case Error(error=error):
                raise error
