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

import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import wraps
from itertools import pairwise
from typing import Final, Protocol, Self, TypeAlias, TypeVar

import trio
from attrs import define, field
from trio.abc import Instrument
from trio.lowlevel import Task, current_root_task

from crush_trio.testing.explore.places import (
    Label,
    keep_for_ever,
    not_under_control,
    outside,
    outside_anywhere,
    short_name,
    threads_since,
    whereabouts,
)
from crush_trio.testing.explore.schedule import controlled, slow_down, virtual_clock

T = TypeVar("T")

Picker: TypeAlias = Callable[[Sequence[Task]], int]
"""Chooses one of the runnable tasks, the default first; also called where there is only one."""

TURN: Final = 10
"""Steps that a task may take in a row by default while others are ready."""

_MARK: Final = "x1"

_PATIENCE: Final = 30.0
"""Seconds of real time that a thread or a process has to end, when a walk was stopped for it."""


DEVIATED: Final = trio.lowlevel.RunVar[Callable[[], bool]]("crush_trio_deviated")
"""Whether the schedule of the current run has left the usual order so far."""


class ExplorerBroken(Exception):
    """The exploration cannot be trusted: Trio failed, or the scenario is not deterministic."""


class NotUnderControl(ExplorerBroken):
    """The scenario waits for a thread, a process, a socket or a signal, whose order the explorer does not control."""


class Deadlock(Exception):
    """All tasks of the scenario wait, and no deadline can wake one."""


class StepLimit(Exception):
    """The scenario did not end within the allowed number of task steps."""


@define(eq=False)
class Plan:
    """What an exploration asks of its strategy, and what it is told."""

    max_steps: int
    """The task steps after which a walk is stopped."""
    part: tuple[int, int] = (0, 1)
    """The number of this part, and how many parts there are."""
    equivalent: int = field(default=0, init=False)
    """Schedules that were not run because an equivalent one was."""


class Observer(Protocol):
    """Sees the steps of a walk."""

    @property
    def instruments(self) -> Sequence[Instrument]:
        """Trio instruments for the run."""
        ...

    def run(self) -> AbstractContextManager[None]:
        """Return a context manager for the time of the run."""
        ...

    def between(self, runnable: Sequence[Task]) -> None:
        """Take note that the last step has ended, and which tasks could run now."""
        ...

    def chosen(self, task: Task) -> None:
        """Take note that the next step is of *task*."""
        ...


@define(eq=False)
class Walk:
    """Runs a scenario with its deviations, the default elsewhere, and records the decisions."""

    deviations: tuple[tuple[int, int], ...]
    """(decision, choice) pairs in order; every choice not named is 0."""
    _max_steps: int = field(kw_only=True)
    _expected: Sequence[int] = field(default=(), kw_only=True)
    _pick: Picker | None = field(default=None, kw_only=True)
    _observer: Observer | None = field(default=None, kw_only=True)
    _label: Label = field(default=short_name, kw_only=True)
    value: object = field(default=None, init=False)
    """What the scenario returned."""
    widths: list[int] = field(factory=list, init=False)
    """The number of runnable tasks at each decision."""
    _choices: dict[int, int] = field(init=False)
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _problem: Exception | None = field(default=None, init=False)
    _killed: bool = field(default=False, init=False)
    steps: int = field(default=0, init=False)
    """The number of task steps."""
    _main: Task | None = field(default=None, init=False)
    _threads: Sequence[threading.Thread] = field(default=(), init=False)
    _until: float | None = field(default=None, init=False)
    _passed: str | None = field(default=None, init=False)
    _current: Task | None = field(default=None, init=False)
    _in_a_row: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._choices = dict(self.deviations)

    @classmethod
    def picked(cls, pick: Picker, *, max_steps: int) -> Self:
        """Return a walk on which *pick* chooses; its deviations are recorded while it runs."""
        return cls((), max_steps=max_steps, pick=pick)

    @classmethod
    def from_token(
        cls,
        token: str,
        *,
        max_steps: int,
        observer: Observer | None = None,
        label: Label = short_name,
    ) -> Self:
        """Return the walk that *token* names; raises ValueError if it is not a token."""
        mark, *pairs = token.split("-")
        with suppress(ValueError):
            split = [pair.split(".") for pair in pairs]
            deviations = tuple((int(index), int(choice)) for index, choice in split)
            rising = all(a[0] < b[0] for a, b in pairwise(deviations))
            if mark == _MARK and rising and all(choice > 0 for _, choice in deviations):
                return cls(deviations, max_steps=max_steps, observer=observer, label=label)
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
        self._threads = threading.enumerate()

        @wraps(scenario)  # so that the main task has the scenario's name
        async def main() -> None:
            self._main = trio.lowlevel.current_task()
            DEVIATED.set(lambda: bool(self.deviations))
            with self._scope:
                values.append(await scenario())

        observer = self._observer
        try:
            look = self._look_outside
            with (
                controlled(self.choose, look),
                nullcontext() if observer is None else observer.run(),
            ):
                instruments = () if observer is None else observer.instruments
                trio.run(main, clock=virtual_clock(), instruments=instruments)
        except trio.TrioInternalError as exc:
            if not self._killed:
                raise ExplorerBroken(f"Trio failed under schedule {self.token}") from exc
        except Exception as exc:
            if self._problem is None and len(self.widths) < len(self._expected):
                raise self._unmet() from exc
            if self._problem is None and self._passed is not None:
                raise NotUnderControl(self._passed) from exc
            if self._problem is None:
                raise
        finally:
            self._current = self._main = None  # they would keep all objects of the run alive
        if self._problem is not None:
            raise self._problem
        self._check()
        self.value = values[0]
        return values[0]

    def choose(self, runnable: Sequence[Task]) -> Sequence[Task]:
        """Choose the task of the next step."""
        self._look_outside()
        if self._observer is not None and self._problem is None:
            try:
                self._observer.between(runnable)
            except ExplorerBroken as exc:
                self._stop(exc)
        if not runnable:
            self._check_for_deadlock()
            return ()
        self.steps += 1
        if self.steps > self._max_steps:
            self._stop(StepLimit(f"not finished after {self._max_steps} task steps"))
        if len(runnable) == 1:
            task, self._in_a_row = runnable[0], 0
            if self._pick is not None:
                self._pick(runnable)
        else:
            options = in_default_order(runnable, self._current, self._in_a_row)
            task = options[self._decide(options)]
            self._in_a_row = self._in_a_row + 1 if task is self._current else 1
        self._current = task
        if self._observer is not None and self._problem is None:
            self._observer.chosen(task)
        return (task,)

    def _look_outside(self) -> None:
        """Stop when the last step ended in a wait for what no schedule controls."""
        task = self._current
        if task is not None and self._problem is None and (found := outside(task)):
            self._stop(NotUnderControl(not_under_control(task, found, self._label)))

    def _check_for_deadlock(self) -> None:
        """Stop a scenario that nothing can wake; with a virtual clock it would loop for ever."""
        now = trio.lowlevel.current_statistics()
        later = now.seconds_to_next_deadline < math.inf or now.run_sync_soon_queue_size
        if later or self._main is None:
            # The clock now jumps to a deadline, perhaps past what a thread was about to do.
            self._passed = self._passed or threads_since(self._threads)
            return
        if isinstance(self._problem, NotUnderControl) and self._waited():
            return
        if cause := outside_anywhere(self._main, self._label, self._threads):
            self._stop(NotUnderControl(cause))
        else:
            waiting = whereabouts(self._main, self._label)
            self._stop(Deadlock(f"nothing can wake these tasks:{waiting}"))

    def _waited(self) -> bool:
        """Whether what is outside of Trio still has time to end; called when Trio has waited a moment."""
        self._until = self._until or time.monotonic() + _PATIENCE
        return time.monotonic() < self._until

    def _decide(self, options: Sequence[Task]) -> int:
        if self._problem is not None:
            return 0
        index, width = len(self.widths), len(options)
        if self._pick is None:
            choice = self._choices.get(index, 0)
        elif choice := self._pick(options):
            self.deviations = (*self.deviations, (index, choice))
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
            keep_for_ever(current_root_task())
            raise RuntimeError("the scenario ignores cancellation")  # Trio gives up the run
        if isinstance(problem, NotUnderControl):
            slow_down()
        self._problem = problem
        self.steps = 0
        self._scope.cancel()

    def _check(self) -> None:
        if not self.steps:
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


def in_default_order(runnable: Sequence[T], current: T | None, in_a_row: int) -> Sequence[T]:
    """Return the runnable tasks, the default first: *current*, unless it has had its turn."""
    if current is None or current not in runnable:
        return runnable
    others = [task for task in runnable if task != current]
    return [current, *others] if in_a_row < TURN else [*others, current]
