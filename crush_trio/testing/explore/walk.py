"""One run of a scenario under one schedule.

A `Walk` runs one task step at a time. A point where two or more tasks of the scenario are runnable
is a *decision*; choice 0 is the default, any other choice is a *deviation*, and a schedule is named
by its deviations alone. By default the running task continues until it waits, and the others queue in
order of arrival. Compared with running the tasks in turn, few deviations reach far more orders,
because after one of them a task can be overtaken for as long as the others need.

Invariants: no task waits for ever under the default, because a task that has run many steps while
others are ready goes to the end of the queue (a polling loop must not starve the task it polls for);
and a run that does not follow its schedule raises `ExplorerBroken`, whatever the scenario did.
"""

import gc
import math
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from itertools import pairwise
from typing import Final, Self, TypeVar

import trio
from attrs import define, field
from trio.lowlevel import Task
from trio.testing import MockClock

from crush_trio.testing.explore.schedule import controlled

T = TypeVar("T")

TURN: Final = 10
"""Steps that a task may take in a row by default while others are ready."""

_MARK: Final = "x1"


class ExplorerBroken(Exception):
    """The exploration cannot be trusted: Trio failed, or the scenario is not deterministic."""


class Deadlock(Exception):
    """All tasks of the scenario wait, and no deadline can wake one."""


class StepLimit(Exception):
    """The scenario did not end within the allowed number of task steps."""


@define(eq=False)
class Walk:
    """Runs a scenario with its deviations, the default elsewhere, and records the decisions."""

    deviations: tuple[tuple[int, int], ...]
    """(decision, choice) pairs in order; every choice not named is 0."""
    _max_steps: int = field(kw_only=True)
    _expected: Sequence[int] = field(default=(), kw_only=True)
    widths: list[int] = field(factory=list, init=False)
    """The number of runnable tasks at each decision."""
    _choices: dict[int, int] = field(init=False)
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _problem: Exception | None = field(default=None, init=False)
    _killed: bool = field(default=False, init=False)
    _steps: int = field(default=0, init=False)
    _current: Task | None = field(default=None, init=False)
    _in_a_row: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._choices = dict(self.deviations)

    @classmethod
    def from_token(cls, token: str, *, max_steps: int) -> Self:
        """Return the walk that *token* names; raises ValueError if it is not a token."""
        mark, *pairs = token.split("-")
        with suppress(ValueError):
            split = [pair.split(".") for pair in pairs]
            deviations = tuple((int(index), int(choice)) for index, choice in split)
            rising = all(a[0] < b[0] for a, b in pairwise(deviations))
            if mark == _MARK and rising and all(choice > 0 for _, choice in deviations):
                return cls(deviations, max_steps=max_steps)
        raise ValueError(f"not a schedule token: {token!r} (they look like {_MARK}-3.1-17.2)")

    @property
    def token(self) -> str:
        """The name of this schedule."""
        return "-".join([_MARK, *(f"{index}.{choice}" for index, choice in self.deviations)])

    def children(self) -> Iterator[Self]:
        """Yield the schedules with one more deviation, after the deviations of this one."""
        first = self.deviations[-1][0] + 1 if self.deviations else 0
        for index in range(first, len(self.widths)):
            for choice in range(1, self.widths[index]):
                deviations = (*self.deviations, (index, choice))
                expected = self.widths[: index + 1]
                yield type(self)(deviations, max_steps=self._max_steps, expected=expected)

    def run(self, scenario: Callable[[], Awaitable[T]]) -> T:
        """Run *scenario* once; raises its exception, or the problem for which it was stopped."""
        __tracebackhide__ = True
        values: list[T] = []

        @wraps(scenario)  # so that the main task has the scenario's name
        async def main() -> None:
            with self._scope:
                values.append(await scenario())

        try:
            with controlled(self.choose):
                trio.run(main, clock=MockClock(autojump_threshold=0))
        except trio.TrioInternalError as exc:
            if not self._killed:
                raise ExplorerBroken(f"Trio failed under schedule {self.token}") from exc
        except Exception as exc:
            if self._problem is None and len(self.widths) < len(self._expected):
                raise self._unmet() from exc
            if self._problem is None:
                raise
        finally:
            self._current = None  # it would keep all objects of the run alive
        if self._killed:
            self._bury()
        if self._problem is not None:
            raise self._problem
        self._check()
        return values[0]

    def choose(self, runnable: Sequence[Task]) -> Sequence[Task]:
        """Choose the task of the next step."""
        if not runnable:
            self._check_for_deadlock()
            return ()
        self._steps += 1
        if self._steps > self._max_steps:
            self._stop(StepLimit(f"not finished after {self._max_steps} task steps"))
        if len(runnable) == 1:
            task, self._in_a_row = runnable[0], 0
        else:
            task = self._options(runnable)[self._decide(len(runnable))]
            self._in_a_row = self._in_a_row + 1 if task is self._current else 1
        self._current = task
        return (task,)

    def _check_for_deadlock(self) -> None:
        """Stop a scenario that nothing can wake; with a virtual clock it would loop for ever."""
        now = trio.lowlevel.current_statistics()
        if now.seconds_to_next_deadline == math.inf and not now.run_sync_soon_queue_size:
            self._stop(Deadlock(f"nothing can wake these tasks:{_whereabouts()}"))

    def _options(self, runnable: Sequence[Task]) -> Sequence[Task]:
        """Return the runnable tasks, the default first."""
        if self._current is None or self._current not in runnable:
            return runnable
        others = [task for task in runnable if task is not self._current]
        if self._in_a_row < TURN:
            return [self._current, *others]
        return [*others, self._current]

    def _decide(self, width: int) -> int:
        if self._problem is not None:
            return 0
        index = len(self.widths)
        choice = self._choices.get(index, 0)
        if index < len(self._expected) and width != self._expected[index]:
            text = f"{width} tasks at decision {index}, {self._expected[index]} in the run before"
            self._stop(ExplorerBroken(f"the scenario is not deterministic: {text} ({self.token})"))
            return 0
        if choice >= width:
            self._stop(self._unmet())
            return 0
        self.widths.append(width)
        return choice

    def _stop(self, problem: Exception) -> None:
        """End the run with *problem*: cancel it, or abort Trio's run if it ignores that."""
        if self._problem is not None:
            self._killed = True
            raise RuntimeError("the scenario ignores cancellation")  # Trio gives up the run
        self._problem = problem
        self._steps = 0
        self._scope.cancel()

    def _bury(self) -> None:
        """Collect the tasks of an aborted run, without their warnings about it."""
        self._scope = trio.CancelScope()
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            gc.collect()
        finally:
            sys.unraisablehook = hook

    def _check(self) -> None:
        if not self._steps:
            raise ExplorerBroken(
                "Trio's scheduler ignored the walk; is this an unsupported version of Trio?"
            )
        if self.deviations and self.deviations[-1][0] >= len(self.widths):
            raise self._unmet()

    def _unmet(self) -> ExplorerBroken:
        return ExplorerBroken(
            f"schedule {self.token} does not fit: the scenario had only {len(self.widths)} decisions; "
            "it has changed, or is not deterministic"
        )


def _whereabouts() -> str:
    """Return a line per task: its name, and the line outside Trio in which it waits."""
    root = trio.lowlevel.current_root_task()
    lines = []
    tasks = _children(root) if root is not None else []
    while tasks:
        task = tasks.pop()
        tasks.extend(_children(task))
        for frame, line in reversed(list(task.iter_await_frames())):
            if not frame.f_globals.get("__name__", "").startswith(("trio.", __name__)):
                lines.append(f"\n  {task.name}: {frame.f_code.co_filename}:{line}")
                break
    return "".join(sorted(lines))


def _children(task: Task) -> list[Task]:
    return [child for nursery in task.child_nurseries for child in nursery.child_tasks]
