"""Task inspection: the task tree of a workspace, and detection of swallowed cancellations.

`task_tree` reads the live tasks and where each one waits. It needs no lock: no other task runs
between two checkpoints, so the result is one consistent snapshot. The reported place is the
innermost frame that is neither Trio's nor a wrapper's: "waits in `read_part` at line 80" helps,
"waits in `Event.wait`" does not.

`CancelWatch` detects a turn that catches `Cancelled` and goes on. The result alone does not show
it: a turn that returns after a cancel may have been past its last checkpoint when the cancel came,
and then it *is* completed. The difference is whether Trio delivered the exception to it. So the
turn is driven through `CancelWatch`, which passes everything between the turn and Trio on unchanged
and looks for that exception.
"""

import gc
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import Any, Final, TypeVar

import outcome
import trio
from attrs import define, field
from typing_extensions import override

from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.wire.runs import SubtaskView, TaskTree, TaskView, WaitView

__all__ = ["TaskTree", "awaited_frames", "task_tree"]

T = TypeVar("T")


_SKIPPED: Final = frozenset({"trio", "outcome", "contextlib", "crush_trio.runtime.tasks"})
"""Packages and modules whose frames are never reported as the place where a task waits."""

_AWAITS_BY_FRAME: Final = {
    "cr_frame": "cr_await",
    "gi_frame": "gi_yieldfrom",
    "ag_frame": "ag_await",
}
"""Frame attribute → attribute with the awaited object, of coroutines and both kinds of generators."""


def task_tree(
    conducting: trio.Nursery, serving: trio.Nursery, runs: Mapping[str, AcceptedRun]
) -> TaskTree:
    """Return the tasks of a workspace's two nurseries; the keys of *runs* are task names."""
    return TaskTree(
        runs=_views(conducting.child_tasks, runs), services=_views(serving.child_tasks, {})
    )


def _views(
    tasks: Iterable[trio.lowlevel.Task], runs: Mapping[str, AcceptedRun]
) -> tuple[TaskView, ...]:
    return tuple(sorted((_view(task, runs) for task in tasks), key=_longest_first))


def _longest_first(view: TaskView) -> tuple[float, str]:
    """Sort key: tasks whose run has been in its state the longest come first."""
    return (-(view.seconds or 0.0), view.name)


def _view(task: trio.lowlevel.Task, runs: Mapping[str, AcceptedRun]) -> TaskView:
    run = runs.get(task.name)
    return TaskView(
        name=task.name,
        run=None if run is None else run.id,
        session_id=None if run is None else run.session_id,
        state=None if run is None else run.state,
        seconds=None if run is None else round(trio.current_time() - run.moved_time, 3),
        waits_on=_wait_view(task),
        below=tuple(_subtasks(task)),
    )


def _subtasks(task: trio.lowlevel.Task, depth: int = 1) -> Iterator[SubtaskView]:
    """Yield the tasks that *task* started, each followed by its own subtasks."""
    children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    for child in sorted(children, key=lambda child: child.name):
        yield SubtaskView(name=child.name, depth=depth, waits_on=_wait_view(child))
        yield from _subtasks(child, depth + 1)


def _wait_view(task: trio.lowlevel.Task) -> WaitView | None:
    """Return the innermost frame that is worth reporting, or None if all of them are skipped."""
    place = None
    for frame in awaited_frames(task.coro):
        module = str(frame.f_globals.get("__name__", ""))
        if module not in _SKIPPED and module.partition(".")[0] not in _SKIPPED:
            place = WaitView(module=module, function=frame.f_code.co_qualname, line=frame.f_lineno)
    return place


def awaited_frames(awaited: Any) -> Iterator[FrameType]:  # noqa: ANN401  # whatever can be awaited
    """Yield the frames of *awaited* and of everything it awaits, the outermost first."""
    while awaited is not None:
        awaited = _generator_behind(awaited)
        name = next((name for name in _AWAITS_BY_FRAME if hasattr(awaited, name)), None)
        if name is None:
            return
        frame = getattr(awaited, name)
        if frame is None:  # the coroutine has ended
            return
        yield frame
        driven = awaited_through(frame)
        awaited = getattr(awaited, _AWAITS_BY_FRAME[name]) if driven is None else driven


def _generator_behind(awaited: Any) -> Any:  # noqa: ANN401  # whatever can be awaited
    """Return the generator behind an `asend()` or `athrow()` object; anything else as it is.

    These objects have no attribute for their generator, but the garbage collector lists it.
    """
    if type(awaited).__name__ not in {"async_generator_asend", "async_generator_athrow"}:
        return awaited
    return next((r for r in gc.get_referents(awaited) if hasattr(r, "ag_frame")), None)


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
