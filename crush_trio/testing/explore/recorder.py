"""A record of one run: every step of every task, and in which one it went wrong.

Trio's instruments tell of steps, starts and wake-ups. Where an exception was raised, only Python's trace
function knows: at the end of a run it may have travelled through many steps.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, cast

import trio
from attrs import define, field
from trio.abc import Instrument
from trio.lowlevel import Task

from crush_trio.testing.explore.places import (
    Place,
    is_machinery,
    is_own,
    place_of_own,
    short_name,
)
from crush_trio.testing.explore.shrink import leaves
from crush_trio.testing.explore.walk import Deadlock, StepLimit, in_default_order

INJECTED: Final = "injected"
"""The reason of a cancellation that comes from the explorer and not from a task."""

WAKER: Final = trio.lowlevel.RunVar[str | None]("crush_trio_waker", default=None)
"""What wakes tasks now, if it is the explorer itself."""


@define(eq=False)
class Step:
    """One step of one task: from where it continued to where it waits next."""

    number: int
    """Counted from 1."""
    task: str
    """The name of the task; a second one of the same name is `name (2)`."""
    time: float
    """The virtual time, in seconds since the scenario began."""
    instead_of: str | None
    """The task that would have run in the usual order; None if it is this one."""
    begin: Place | None
    """Where the task waited before; None in its first step."""
    end: Place | None = field(default=None, init=False)
    """Where it waits now; None if it has ended."""
    notes: list[str] = field(factory=list, init=False)
    """What else happened: "starts worker", "wakes worker", "is cancelled (deadline)"."""
    cancelled: bool = field(default=False, init=False)
    """Whether a cancellation reached the task."""
    bad: bool = field(default=False, init=False)
    """Whether this is the step in which the scenario went wrong."""
    raised: Place | None = field(default=None, init=False)
    """Where a bad step raised."""

    @property
    def remarkable(self) -> bool:
        """Whether this step is told however long the story is."""
        return bool(self.instead_of or self.cancelled or self.bad)


@define(eq=False)
class Recorder:
    """A Trio instrument that writes down the steps of a walk."""

    steps: list[Step] = field(factory=list, init=False)
    _step: Step | None = field(default=None, init=False)
    _next: tuple[Task, Task] | None = field(default=None, init=False)
    _labels: dict[Task, str] = field(factory=dict, init=False)
    _began: set[Task] = field(factory=set, init=False)
    _ended: set[Task] = field(factory=set, init=False)
    _woken: dict[Task, str] = field(factory=dict, init=False)
    _raised: list[tuple[BaseException, Step, Place]] = field(factory=list, init=False)
    _in_trio: bool = field(default=False, init=False)
    _runnable: Sequence[Task] = field(default=(), init=False)
    _current: Task | None = field(default=None, init=False)
    _in_a_row: int = field(default=0, init=False)

    def label(self, task: Task) -> str:
        """Return the name of *task*, with a number if it is not the first of that name."""
        if task not in self._labels:
            name = short_name(task)
            same = sum(short_name(other) == name for other in self._labels)
            self._labels[task] = f"{name} ({same + 1})" if same else name
        return self._labels[task]

    @property
    def instruments(self) -> Sequence[Instrument]:
        """This one."""
        return [cast("Instrument", self)]

    def between(self, runnable: Sequence[Task]) -> None:
        """Take note of the tasks that could run now."""
        self._runnable = runnable

    def chosen(self, task: Task) -> None:
        """Take note of a decision; the walk makes none any more when it has stopped the scenario."""
        default = in_default_order(self._runnable, self._current, self._in_a_row)[0]
        self._next = (task, default)
        again = self._in_a_row + 1 if task is self._current else 1
        self._in_a_row = again if len(self._runnable) > 1 else 0
        self._current = task

    def task_spawned(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        self._note(f"starts {self.label(task)}")

    def task_scheduled(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        if task not in self._began:
            return
        if self._step is None:
            self._woken[task] = self._waker()
        elif self.label(task) != self._step.task:
            self._note(f"wakes {self.label(task)}")

    def before_task_step(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        if self._next is None or task is not self._next[0]:
            self._in_trio = True
            return
        default, self._next = self._next[1], None
        instead = None if default is task else self.label(default)
        begin = place_of_own(task) if task in self._began else None
        step = Step(len(self.steps) + 1, self.label(task), trio.current_time(), instead, begin)
        if waker := self._woken.pop(task, None):
            step.notes.append(waker)
        self._began.add(task)
        self._step = step
        self.steps.append(step)

    def task_exited(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        self._ended.add(task)

    def after_task_step(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        if self._step is not None and task not in self._ended:
            self._step.end = place_of_own(task)
        self._step, self._in_trio = None, False

    @contextmanager
    def run(self) -> Iterator[None]:
        """Note where exceptions are raised, as a debugger does; a debugger has a rest meanwhile."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def blame(self, failure: Exception) -> None:
        """Mark the step in which *failure* began; the last one if it was not raised by a task."""
        inner = leaves(failure)
        # Or what it was raised in place of: the plugin does so with the failures of pytest.
        for wanted in (inner, [leaf.__context__ for leaf in inner]):
            for error, step, place in self._raised:
                if any(error is leaf for leaf in wanted):
                    step.bad, step.raised = True, place
                    step.notes.append(f"raises {_short(described(error))}")
                    return
        if self.steps:
            self.steps[-1].bad = True
            if isinstance(failure, Deadlock):
                self.steps[-1].notes.append("now all tasks wait")
            elif isinstance(failure, StepLimit):
                self.steps[-1].notes.append("stopped")

    def _note(self, text: str) -> None:
        if self._step is not None and text not in self._step.notes:
            self._step.notes.append(text)

    def _waker(self) -> str:
        """Say who wakes a task now, when no task of the scenario runs."""
        if (waker := WAKER.get()) is not None:
            return waker
        if self._in_trio:
            return "woken by run_sync_soon"
        passed = not self.steps or trio.current_time() > self.steps[-1].time
        return "woken by the clock" if passed else "woken because all tasks waited"

    def _enter(self, frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        """Trace a call if it is one of the scenario's."""
        if self._step is None or (is_machinery(frame) and not is_own(frame, self._current)):
            return None
        return (
            self._trace
        )  # of lines as well: a debugger that `breakpoint()` enters here needs them

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:  # noqa: ANN401
        if event == "exception" and self._step is not None:
            error = arg[1]
            if not any(error is known for known, _, _ in self._raised):
                place = Place(frame.f_code.co_filename, frame.f_lineno)
                self._raised.append((error, self._step, place))
                if isinstance(error, trio.Cancelled):
                    self._step.cancelled = True
                    self._note(f"is cancelled {self._cause(error)}at line {place.line}")
        return self._trace

    def _cause(self, error: trio.Cancelled) -> str:
        """Say by whom a task was cancelled, where this Trio knows it."""
        if getattr(error, "reason", None) == INJECTED:
            return ""
        source, task = getattr(error, "source", None), getattr(error, "source_task", None)
        by = next((label for known, label in self._labels.items() if repr(known) == task), None)
        if source == "deadline":
            return "by a deadline "
        return f"by {by} " if by else ""


def described(error: BaseException) -> str:
    """Return the type and text of *error*; of a group, those of what is in it."""
    inner = leaves(error)
    texts = [
        f"{type(leaf).__name__}: {leaf}" if str(leaf) else type(leaf).__name__ for leaf in inner
    ]
    return "; ".join(texts)


def _short(text: str) -> str:
    text = text.split("\n", 1)[0]
    return text if len(text) <= 80 else f"{text[:79]}…"
