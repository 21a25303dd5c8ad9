"""`CancelWatch` detects a turn that catches `Cancelled` and goes on.

The result alone does not show it: a turn that returns after a cancel may have been past its last
checkpoint when the cancel came, and then it *is* completed. The difference is whether Trio delivered
the exception to it. So the turn is driven through `CancelWatch`, which passes everything between the
turn and Trio on unchanged and looks for that exception.
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
        """Return an awaitable that behaves exactly as *awaitable* and is watched."""
        return _WatchedAwaitable(awaitable, self)

    def observe(self, reply: object) -> None:
        """Note whether *reply*, Trio's answer to a checkpoint, is the cancellation."""
        if (
            isinstance(reply, outcome.Error)
            and isinstance(reply.error, trio.Cancelled)
            and reply.error.reason == self.reason
        ):
            self.delivered = True


@define(eq=False)
class _WatchedAwaitable(Awaitable[T]):
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
                except BaseException as exc:  # noqa: ASYNC103, BLE001  # passed on to the inner one
                    step = partial(steps.throw, exc)
                else:
                    self.watch.observe(reply)
                    step = partial(steps.send, reply)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            steps.close()


def awaited_through(frame: FrameType) -> object | None:
    """Return the awaitable that a `CancelWatch` drives in *frame*; None for any other frame.

    `cr_await` ends at an awaitable that is written by hand, so the task tree needs this to go on.
    """
    if frame.f_code is not _WatchedAwaitable.__await__.__code__:
        return None
    driven: _WatchedAwaitable[object] = frame.f_locals["self"]
    return driven.inner
