"""Where tasks are: the source line of a task, what it waits for, and what Trio does not control.

A place is the innermost line outside Trio and this package, since that is the line its reader wrote.
"""

import ctypes
import linecache
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Final, TypeAlias

from attrs import frozen
from trio.lowlevel import Task

from crush_trio.testing.explore.schedule import birth, waits_in

Label: TypeAlias = Callable[[Task], str]
"""Names a task for a reader."""

_MACHINERY: Final = (
    *("trio.", "outcome.", "contextlib.", "_pytest."),
    *("crush_trio.testing.plugin.", "crush_trio.testing.controlled_tests."),
    f"{__package__}.",
)
_SOURCE: Final = 64
"""How many characters of a source line are shown."""

_ADVICE: Final = "An exploration decides the order of Trio's tasks, and nothing outside Trio waits for its turn. "
_PROCESS: Final = "trio._subprocess"
_OUTSIDE: Final = {
    "trio._threads": (
        "a thread",
        "Give the scenario an async function in place of the thread's, and call the blocking one "
        "outside of the scenario.",
    ),
    _PROCESS: (
        "a process",
        "Put an async function in its place that does in memory what the process would.",
    ),
    "trio._signals": (
        "a signal",
        "Let the scenario wait for a trio.Event, and set it from a task of its own.",
    ),
}
_FILE: Final = (
    "a socket or a pipe",
    "Use trio.testing.memory_stream_pair() or a memory channel in its place.",
)


@frozen
class Place:
    """A line of source."""

    file: str
    line: int

    @property
    def source(self) -> str:
        """The text of the line, without its indent; empty if it cannot be read."""
        text = linecache.getline(self.file, self.line).strip()
        return text if len(text) <= _SOURCE else f"{text[: _SOURCE - 1]}…"

    def shown(self) -> str:
        """Return "file:line", as short as it can be opened from the current directory."""
        path = Path(self.file)
        here = Path.cwd()
        return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{self.line}"

    __str__ = shown


def is_machinery(frame: FrameType) -> bool:
    """Whether *frame* belongs to Trio or to the explorer, and is of no interest to a reader."""
    return f"{frame.f_globals.get('__name__', '')}.".startswith(_MACHINERY)


def short_name(task: Task) -> str:
    """Return the name of *task* without its module and the functions around it; own names as they are."""
    name = task.name.rpartition("<locals>.")[2]
    if not all(part.isidentifier() for part in name.split(".")):
        return name
    *around, last = name.split(".")
    return f"{around[-1]}.{last}" if around and around[-1][0].isupper() else last


def frames_of(task: Task) -> Iterable[tuple[FrameType, int]]:
    """Return the frames in which *task* waits, the outermost first; none if it has ended.

    The lowest supported Trio fails for such a task.
    """
    return () if getattr(task.coro, "cr_frame", task) is None else task.iter_await_frames()


def place_of(task: Task) -> Place | None:
    """Return where *task* waits; None if it has not started, has ended, or waits in Trio's code only."""
    place = None
    for frame, line in frames_of(task):
        if not is_machinery(frame):
            place = Place(frame.f_code.co_filename, line)
    return place


def place_of_own(task: Task) -> Place | None:
    """Return where *task* waits; in Trio's code, if its function is Trio's own. None if it has ended."""
    if place := place_of(task):
        return place
    return next((Place(frame.f_code.co_filename, line) for frame, line in frames_of(task)), None)


def is_own(frame: FrameType, task: Task | None) -> bool:
    """Whether *frame* is that of the function of *task*, and may be told although it is Trio's."""
    ours = f"{frame.f_globals.get('__name__', '')}.".startswith(_MACHINERY[-3:])
    return not ours and frame is getattr(getattr(task, "coro", None), "cr_frame", None)


def place_raised(error: BaseException) -> Place | None:
    """Return the innermost line of a reader's code that *error* passed through."""
    place = None
    for frame, line in walk_tb(error.__traceback__):
        if not is_machinery(frame):
            place = Place(frame.f_code.co_filename, line)
    return place


def shorten(error: BaseException | None, seen: frozenset[int] = frozenset()) -> None:
    """Leave the reader's own lines in the traceback of *error* and of what it is made of or follows."""
    if error is None or id(error) in seen:
        return
    seen |= {id(error)}
    error.__traceback__ = _own_lines(error.__traceback__)
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    if inner:
        error.__context__ = None  # a nursery raises while it handles what is in the group anyway
    for other in (*inner, error.__cause__, error.__context__):
        shorten(other, seen)


def _own_lines(trace: TracebackType | None) -> TracebackType | None:
    if trace is None:
        return None
    rest = _own_lines(trace.tb_next)
    if is_machinery(trace.tb_frame):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def whereabouts(main: Task, label: Label) -> str:
    """Return a line for *main* and each task below it: its name, where it waits, and for what."""
    lines = []
    for task in _tasks(main):
        if place := place_of_own(task):
            wanted = _wanted(task, label)
            lines.append(f"\n  {label(task)}: {place}: {place.source}{wanted and f' ({wanted})'}")
    return "".join(lines)


def outside(task: Task) -> tuple[str, str] | None:
    """Return what outside of Trio *task* waits for, and what to do instead; None if for nothing.

    Called after every step of an exploration, so it looks at the one attribute that tells. Only
    waits for a signal look like others and are missed; `outside_anywhere` sees these.
    """
    module = waits_in(task)
    if module is None:
        return None
    return _FILE if module.startswith("trio._core._io_") else _OUTSIDE.get(module)


def outside_anywhere(main: Task, label: Label, before: Collection[threading.Thread]) -> str | None:
    """Say what *main* or a task below it waits for outside of Trio; None if for nothing.

    A thread that was not there *before* may be what they wait for, too.
    """
    for task in _tasks(main):
        modules = {frame.f_globals.get("__name__") for frame, _ in frames_of(task)}
        found = outside(task) or next((_OUTSIDE[m] for m in _OUTSIDE if m in modules), None)
        if found is not None:
            return not_under_control(task, found, label)
    return threads_since(before)


def threads_since(before: Collection[threading.Thread]) -> str | None:
    """Say which threads were started since *before*; None if none was."""
    if new := set(threading.enumerate()).difference(before):
        names = ", ".join(sorted(thread.name for thread in new))
        kind, advice = _OUTSIDE["trio._threads"]
        return f"the scenario started {kind} ({names}) and all its tasks wait. {_ADVICE}{advice}"
    return None


def not_under_control(task: Task, found: tuple[str, str], label: Label) -> str:
    """Return the text of the error about *task*, which waits for what `outside` *found*."""
    if any(frame.f_globals.get("__name__") == _PROCESS for frame, _ in frames_of(task)):
        found = _OUTSIDE[_PROCESS]
    # A task that Trio started itself, say to read from a process, has no line but its parent's.
    while place_of(task) is None and task.parent_nursery is not None:
        task = task.parent_nursery.parent_task
    place = place_of(task)
    where = "" if place is None else f" in {place}: {place.source}"
    return f"{label(task)} waits for {found[0]}{where}\n{_ADVICE}{found[1]}"


def keep_for_ever(root: Task | None) -> None:
    """Never let go of *root* and the tasks below it, not even when Python ends.

    A task that is collected is closed by an exception where it waits. One that catches everything in a
    loop catches that too, and would then loop without end.
    """
    for task in [] if root is None else _tasks(root):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))


def _wanted(task: Task, label: Label) -> str:
    """Say what *task* waits for: "Lock.acquire, held by other", "its tasks a and b"."""
    for frame, _ in _innermost(task):
        thing, name = frame.f_locals.get("self"), frame.f_code.co_name
        if name == "__aexit__" and task.child_nurseries:
            children = sorted(task.child_nurseries[-1].child_tasks, key=birth)
            return f"for its tasks {', '.join(map(label, children))}"
        if not name.startswith("_"):
            what = name if thing is None else f"{type(thing).__name__}.{name}"
            statistics = getattr(thing, "statistics", None)
            owner = getattr(statistics(), "owner", None) if callable(statistics) else None
            return f"{what}, held by {label(owner)}" if isinstance(owner, Task) else what
    return ""


def _innermost(task: Task) -> list[tuple[FrameType, int]]:
    """Return the frames of *task* below its place: those of Trio, in which it waits."""
    frames: list[tuple[FrameType, int]] = []
    for frame, line in frames_of(task):
        frames = [*frames, (frame, line)] if is_machinery(frame) else []
    return frames


def _tasks(main: Task) -> Iterator[Task]:
    """Yield *main* and the tasks below it, parents first."""
    waiting = [main]
    while waiting:
        task = waiting.pop(0)
        yield task
        children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        waiting.extend(sorted(children, key=birth))
