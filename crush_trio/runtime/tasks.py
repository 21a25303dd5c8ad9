"""Who waits on what: the live tasks of a workspace, as values.

Looking changes nothing and takes no lock: between two checkpoints every other task stands still, so
what is read here is one consistent picture.

A place is the innermost frame that is neither Trio's nor a mere passer-on: "waits in `read_part` at
line 80" helps, "waits in `Event.wait`" does not.

Noticing a cancellation that a turn swallowed.

A turn that catches `Cancelled` and carries on breaks the promise that a cancelled run stops. It
cannot be seen from outside: a turn that returns after a cancel may just as well have been past its
last checkpoint when the cancel came, and then it *is* completed. The difference is whether Trio
handed it the exception. So the turn is driven through `CancelWatch`, which passes every word
between the turn and Trio on unchanged and looks for that one.
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


__all__ = ["TaskTree", "awaited_frames", "task_tree"]

_SILENT: Final = frozenset({"trio", "outcome", "contextlib", "crush_trio.runtime.tasks"})
"""Packages and modules in which a task does not wait on its own account."""

_NEXT: Final = {"cr_frame": "cr_await", "gi_frame": "gi_yieldfrom", "ag_frame": "ag_await"}
"""Where coroutines, generators and asynchronous generators keep what they wait for."""


def task_tree(
    conducting: trio.Nursery, serving: trio.Nursery, runs: Mapping[str, AcceptedRun]
) -> TaskTree:
    """Return the tasks of a workspace's two nurseries; *runs* are by the names of their tasks."""
    return TaskTree(
        runs=_views(conducting.child_tasks, runs), services=_views(serving.child_tasks, {})
    )


def _views(
    tasks: Iterable[trio.lowlevel.Task], runs: Mapping[str, AcceptedRun]
) -> tuple[TaskView, ...]:
    return tuple(sorted((_view(task, runs) for task in tasks), key=_age))


def _age(view: TaskView) -> tuple[float, str]:
    """Sort by how long a task has been as it is, the longest first: that is what one looks for."""
    return (-(view.seconds or 0.0), view.name)


def _view(task: trio.lowlevel.Task, runs: Mapping[str, AcceptedRun]) -> TaskView:
    run = runs.get(task.name)
    return TaskView(
        name=task.name,
        run=None if run is None else run.id,
        session_id=None if run is None else run.session_id,
        state=None if run is None else run.state,
        seconds=None if run is None else round(trio.current_time() - run.moved_time, 3),
        waits_on=_place(task),
        below=tuple(_below(task)),
    )


def _below(task: trio.lowlevel.Task, depth: int = 1) -> Iterator[SubtaskView]:
    """Yield the tasks that *task* started, each followed by its own."""
    children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    for child in sorted(children, key=lambda child: child.name):
        yield SubtaskView(name=child.name, depth=depth, waits_on=_place(child))
        yield from _below(child, depth + 1)


def _place(task: trio.lowlevel.Task) -> WaitView | None:
    """Return the innermost place that says something, or None if all of them are Trio's."""
    place = None
    for frame in awaited_frames(task.coro):
        module = str(frame.f_globals.get("__name__", ""))
        if module not in _SILENT and module.partition(".")[0] not in _SILENT:
            place = WaitView(module=module, function=frame.f_code.co_qualname, line=frame.f_lineno)
    return place


def awaited_frames(awaited: Any) -> Iterator[FrameType]:  # noqa: ANN401  # whatever can be awaited
    """Yield the frames of *awaited* and of what it waits for in turn, the outermost first."""
    while awaited is not None:
        awaited = _inside(awaited)
        name = next((name for name in _NEXT if hasattr(awaited, name)), None)
        if name is None:
            return
        frame = getattr(awaited, name)
        if frame is None:  # it has just ended
            return
        yield frame
        driven = awaited_through(frame)
        awaited = getattr(awaited, _NEXT[name]) if driven is None else driven


def _inside(awaited: Any) -> Any:  # noqa: ANN401  # whatever can be awaited
    """Return the asynchronous generator behind one step of it; anything else is itself.

    The step object has no attribute for it, but the garbage collector knows.
    """
    if type(awaited).__name__ not in {"async_generator_asend", "async_generator_athrow"}:
        return awaited
    return next((r for r in gc.get_referents(awaited) if hasattr(r, "ag_frame")), None)
