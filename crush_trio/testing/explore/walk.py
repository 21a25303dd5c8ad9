"""One run of a scenario under one schedule.

A `Walk` takes one task step at a time. Wherever two or more of the scenario's tasks could go next
it meets a *decision*; choice 0 is the default, any other choice a *deviation*, so a schedule is
named by its deviations alone. The default lets the running task go on until it waits, and the
others line up, first come first served. Compared with taking turns step by step, far more can be
reached with few deviations, since one of them lets a task be overtaken for as long as the others
need.

Invariants: no task is passed over for ever while the default is followed, because a task that goes
on and on while others are ready loses its turn (a polling loop must not starve the task it polls
for); and a run that is not the schedule it claims to be ends in `ExplorerBroken`, whatever the
scenario did.
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
"""Steps a task may take in a row while others are ready, unless a deviation says otherwise."""

_MARK: Final = "x1"


class ExplorerBroken(Exception):
    """The exploration cannot be trusted: Trio failed, or the scenario is not deterministic."""


class Deadlock(Exception):
    """Every task of the scenario waits, and no deadline is left that could wake one."""


class StepLimit(Exception):
    """The scenario did not end within the number of task steps allowed."""


@define(eq=False)
class Walk:
    """Follows its deviations, keeps to the default elsewhere, and notes the decisions it meets."""

    deviations: tuple[tuple[int, int], ...]
    """(decision, choice) pairs in order; every choice not named is 0."""
    _max_steps: int = field(kw_only=True)
    _expected: Sequence[int] = field(default=(), kw_only=True)
    widths: list[int] = field(factory=list, init=False)
    """How many tasks could go next, at each decision."""
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
        """Make the walk that *token* names; raises ValueError if it names none."""
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
        """The schedules with one deviation more, at a decision after all of this one's."""
        first = self.deviations[-1][0] + 1 if self.deviations else 0
        for index in range(first, len(self.widths)):
            for choice in range(1, self.widths[index]):
                deviations = (*self.deviations, (index, choice))
                expected = self.widths[: index + 1]
                yield type(self)(deviations, max_steps=self._max_steps, expected=expected)

    def run(self, scenario: Callable[[], Awaitable[T]]) -> T:
        """Run *scenario*, once; raises what it raised, or the problem for which it was stopped."""
        __tracebackhide__ = True
        values: list[T] = []

        @wraps(scenario)  # so that the main task bears the scenario's name
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
            self._current = None  # it holds on to everything else of the run
        if self._killed:
            self._bury()
        if self._problem is not None:
            raise self._problem
        self._check()
        return values[0]

    def choose(self, runnable: Sequence[Task]) -> Sequence[Task]:
        """Take one step, of the task that this schedule wants next."""
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
        """Stop a scenario that nothing can wake; on a virtual clock it would spin for ever."""
        now = trio.lowlevel.current_statistics()
        if now.seconds_to_next_deadline == math.inf and not now.run_sync_soon_queue_size:
            self._stop(Deadlock(f"nothing can ever wake these tasks:{_whereabouts()}"))

    def _options(self, runnable: Sequence[Task]) -> Sequence[Task]:
        """Who could go next, the default first."""
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
        """End the run for *problem*: by cancelling it or, if it goes on anyway, by force."""
        if self._problem is not None:
            self._killed = True
            raise RuntimeError("the scenario ignores cancellation")  # Trio gives up the run
        self._problem = problem
        self._steps = 0
        self._scope.cancel()

    def _bury(self) -> None:
        """Collect the tasks of a run ended by force, deaf to their complaints about it."""
        self._scope = trio.CancelScope()
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            gc.collect()
        finally:
            sys.unraisablehook = hook

    def _check(self) -> None:
        if not self._steps:
            raise ExplorerBroken(
                "Trio's scheduler took no notice of the walk; is this another Trio?"
            )
        if self.deviations and self.deviations[-1][0] >= len(self.widths):
            raise self._unmet()

    def _unmet(self) -> ExplorerBroken:
        return ExplorerBroken(
            f"schedule {self.token} does not fit: the scenario left it after {len(self.widths)}"
            " decisions; it has changed since, or is not deterministic"
        )


def _whereabouts() -> str:
    """One line for each task: its name, and the line outside Trio that it waits in."""
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
