"""The task tree of a workspace.

`task_tree` reads the live tasks and where each one waits. It needs no lock: no other task runs
between two checkpoints, so the result is one consistent snapshot. The reported place is the
innermost frame that is neither Trio's nor a wrapper's: "waits in `read_part` at line 80" helps,
"waits in `Event.wait`" does not.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Final

import trio

from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.watch import awaited_through
from crush_trio.wire.answers import SubtaskView, TaskTree, TaskView, WaitView

_SKIPPED: Final = frozenset({"trio", "outcome", "contextlib", "crush_trio.runtime.watch"})
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
