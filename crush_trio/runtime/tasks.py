"""Who waits on what: the live tasks of a workspace, as values.

Looking changes nothing and takes no lock: between two checkpoints every other task stands still, so
what is read here is one consistent picture.

A place is the innermost frame that is neither Trio's nor a mere passer-on: "waits in `read_part` at
line 80" helps, "waits in `Event.wait`" does not.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Final

import trio

from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.watch import awaited_through
from crush_trio.wire.native import SubtaskView, TaskTree, TaskView, WaitView

__all__ = ["TaskTree", "awaited_frames", "task_tree"]

_SILENT: Final = frozenset({"trio", "outcome", "contextlib", "crush_trio.runtime.watch"})
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
