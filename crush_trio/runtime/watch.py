"""Noticing a cancellation that a turn swallowed.

A turn that catches `Cancelled` and carries on breaks the promise that a cancelled run stops. It
cannot be seen from outside: a turn that returns after a cancel may just as well have been past its
last checkpoint when the cancel came, and then it *is* completed. The difference is whether Trio
handed it the exception. So the turn is driven through `CancelWatch`, which passes every word
between the turn and Trio on unchanged and looks for that one.
"""

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import outcome
import trio
from attrs import define, field
from typing_extensions import override

T = TypeVar("T")


@define(eq=False)
class CancelWatch:
    """Drives an awaitable and remembers whether a cancel with *reason* was delivered to it."""

    reason: str
    delivered: bool = field(default=False, init=False)

    def drive(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """Return an awaitable that behaves as *awaitable* does, and is watched."""
        return _Driven(awaitable, self)

    def saw(self, reply: object) -> None:
        """Look at what Trio answered to a checkpoint."""
        if (
            isinstance(reply, outcome.Error)
            and isinstance(reply.error, trio.Cancelled)
            and reply.error.reason == self.reason
        ):
            self.delivered = True


@define(eq=False)
class _Driven(Awaitable[T]):
    """The awaitable that `CancelWatch.drive` returns."""

    inner: Awaitable[T]
    watch: CancelWatch

    @override
    def __await__(self) -> Generator[Any, Any, T]:
        steps = self.inner.__await__()
        step: Callable[[], Any] = partial(next, steps)
        try:
            while True:
                trap = step()
                try:
                    reply = yield trap
                except GeneratorExit:
                    raise
                except BaseException as exc:  # noqa: ASYNC103, BLE001  # thrown in: the inner one's
                    step = partial(steps.throw, exc)
                else:
                    self.watch.saw(reply)
                    step = partial(steps.send, reply)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            steps.close()


def awaited_through(frame: FrameType) -> object | None:
    """Return what is driven in *frame*, if that is where a watch drives something.

    For those who look at waiting tasks: Python itself cannot see through a hand-driven awaitable.
    """
    if frame.f_code is not _Driven.__await__.__code__:
        return None
    driven: _Driven[object] = frame.f_locals["self"]
    return driven.inner
