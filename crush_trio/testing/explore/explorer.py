"""Systematic exploration of task orders.

A passing test shows that one order of steps works. `explore` runs a scenario, on a virtual clock,
under every order that a bounded number of deviations from the default can produce. The first failure
has a token with which `replay` repeats it. `walk.py` defines deviations.

Invariant: a failure of the scenario raises `ScheduleFailure`; a problem of the exploration itself
raises `ExplorerBroken`. Neither is counted as an outcome.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import closing
from time import perf_counter
from typing import TypeVar

import trio
from attrs import frozen

from crush_trio.testing.explore.recorder import described
from crush_trio.testing.explore.shrink import kind_of, leaves, shrunk
from crush_trio.testing.explore.story import explain
from crush_trio.testing.explore.strategies import HoldBack, Strategy
from crush_trio.testing.explore.walk import (
    Deadlock,
    ExplorerBroken,
    NotUnderControl,
    Plan,
    StepLimit,
    Walk,
)

__all__ = [
    "Deadlock",
    "Exploration",
    "ExplorerBroken",
    "NotUnderControl",
    "ScheduleFailure",
    "StepLimit",
    "explore",
    "find_violation",
    "replay",
]

T = TypeVar("T")


class ScheduleFailure(Exception):
    """The scenario failed under one schedule; its text tells what happened, its cause is what was raised."""

    def __init__(self, token: str, schedules: int, cause: Exception, story: str) -> None:
        super().__init__(
            f"schedule {token}, number {schedules} tried, failed: {described(cause)}\n{story}\n"
            f'To repeat it: replay(scenario, "{token}")'
        )
        self.token = token
        """Names the schedule; see `replay`."""
        self.schedules = schedules
        """How many schedules were run until the failure was found."""
        self.story = story
        """What happened under the schedule; see `explain`."""

    def repeat_with(self, command: str) -> None:
        """Name the command that repeats the failure, where it is not a call of `replay`."""
        text: str = self.args[0]
        self.args = (f"{text.rpartition('To repeat it: ')[0]}To repeat it:\n    {command}",)


@frozen(kw_only=True)
class Exploration:
    """The result of an exploration without a failure."""

    schedules: int
    """How many schedules were run."""
    exhaustive: bool
    """True if that was every schedule within the bound of the strategy."""
    outcomes: Mapping[Hashable, int]
    """The return values of the scenario, with the number of schedules for each."""
    decision_points: int
    """The largest number of decisions in one schedule."""
    strategy: Strategy
    """What chose the schedules."""
    stopped: bool
    """True if the limit ended the exploration before the strategy did."""
    equivalent: int
    """Further schedules that a reducing strategy did not run, because an equivalent one was run;
    those that descend from them are not counted."""
    seconds: float
    """How long it took."""

    @property
    def deviations(self) -> int | None:
        """The bound on deviations; None for no bound."""
        return self.strategy.deviations if isinstance(self.strategy, HoldBack) else None

    @property
    def rate(self) -> float:
        """Schedules per second."""
        return self.schedules / self.seconds if self.seconds else 0.0

    def summary(self, *, rate: bool = False) -> str:
        """Return one line: "163 schedules, exhaustive at 2 deviations, 3 outcomes".

        With *rate* it ends in the schedules per second, which differ from run to run.
        """
        covered = "sampled" if not self.stopped else "stopped by the limit"
        covered = "exhaustive" if self.exhaustive else covered
        schedules, outcomes = (
            _count(self.schedules, "schedule"),
            _count(len(self.outcomes), "outcome"),
        )
        line = f"{schedules}, {covered}{self.strategy.bound}, {outcomes}"
        return f"{line}, {self.rate:.0f} schedules/s" if rate else line

    __str__ = summary


def explore(
    scenario: Callable[[], Awaitable[Hashable]],
    *,
    deviations: int | None = 2,
    strategy: Strategy | None = None,
    limit: int | None = None,
    max_steps: int = 10_000,
    part: tuple[int, int] = (0, 1),
) -> Exploration:
    """Run *scenario* under every schedule with at most *deviations* deviations, or as *strategy* says.

    Call it from a plain function or a sync test, not inside `trio.run`. The scenario must be
    deterministic for a given order: no threads, no sockets, no wall clock, no state that survives from
    one run to the next. Time is virtual, so sleeping costs nothing.

    Schedules with fewer deviations come first, so the first failure is a simple one. Two deviations
    suffice for most races, at a few hundred schedules. `deviations=None` runs them all, for two or
    three tasks with a few checkpoints each and no polling loop. *limit* caps the number of
    schedules, *max_steps* the task steps of one.

    `strategy=Random(schedules=1000)` or `PCT(…)` samples instead, where there are too many schedules
    to run them all; `deviations=2` is short for `strategy=HoldBack(2)`.

    `part=(2, 5)` runs only the third of five parts, so that tests can share a large exploration.
    The parts are of about the same size; together they run every schedule, the default one in each.

    Raises `ScheduleFailure` from the first exception that leaves the scenario, also when it
    deadlocks or runs out of steps, and `ExplorerBroken` when the result would not be valid.

    ```python
    async def scenario() -> int:
        counter = Counter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counter.increment)
            nursery.start_soon(counter.increment)
        assert counter.value == 2
        return counter.value

    print(explore(scenario))  # 5 schedules, exhaustive at 2 deviations, 1 outcome
    ```
    """
    __tracebackhide__ = True
    _refuse_inside_trio()
    _check_scenario(scenario)
    if strategy is None:
        strategy = HoldBack(deviations)
    elif isinstance(strategy, type) or not hasattr(strategy, "walks"):
        raise TypeError(f"not a strategy: {strategy!r} (they look like HoldBack(3), Random(1000))")
    elif deviations != 2:
        raise ValueError("give deviations or a strategy, not both: HoldBack(3) is a strategy")
    _check(limit, max_steps, part)
    outcomes: Counter[Hashable] = Counter()
    schedules = 0
    decision_points = 0
    stopped = False
    began = perf_counter()
    failed: tuple[Walk, Exception] | None = None
    plan = Plan(max_steps, part)
    with closing(strategy.walks(plan)) as walks:
        for walk in walks:
            if schedules == limit:
                stopped = True
                break
            try:
                outcome = walk.run(scenario)
            except ExplorerBroken:
                raise
            except Exception as exc:  # noqa: BLE001 - told below, where it is no longer handled
                failed = walk, exc
                break
            except BaseException as exc:  # noqa: BLE001 - an interrupt, or an outcome of pytest
                interrupt = _interrupt_in(exc)
                interrupt.add_note(f"under schedule {walk.token}")
                raise interrupt from exc.__cause__
            _add(outcome, outcomes)
            schedules += 1
            decision_points = max(decision_points, len(walk.widths))
    if failed is not None:
        shrink = part[1] > 1 or not _finds_fewest_first(strategy)
        token, cause, story = _told(scenario, *failed, max_steps, shrink=shrink)
        raise ScheduleFailure(token, schedules + 1, cause, story) from cause
    return Exploration(
        schedules=schedules,
        exhaustive=strategy.exhaustive and not stopped,
        outcomes=dict(outcomes),
        decision_points=decision_points,
        strategy=strategy,
        stopped=stopped,
        equivalent=plan.equivalent,
        seconds=perf_counter() - began,
    )


def find_violation(
    scenario: Callable[[], Awaitable[Hashable]],
    *,
    deviations: int | None = 2,
    strategy: Strategy | None = None,
    limit: int | None = None,
    max_steps: int = 10_000,
) -> ScheduleFailure | None:
    """Explore as `explore` does, but return the failure; None if there is none.

    For tests that plant a bug to show that it is found:

    ```python
    assert find_violation(scenario_with_the_fix_removed) is not None
    ```
    """
    __tracebackhide__ = True
    try:
        explore(
            scenario, deviations=deviations, strategy=strategy, limit=limit, max_steps=max_steps
        )
    except ScheduleFailure as failure:
        return failure
    return None


def replay(scenario: Callable[[], Awaitable[T]], token: str, *, max_steps: int = 10_000) -> T:
    """Run *scenario* under the one schedule that *token* names.

    Returns the scenario's value, or raises its exception with its own traceback. A token fits only the
    scenario it was made from: raises `ExplorerBroken` if the scenario does not reach the decisions in
    it, and ValueError if it is not a token.

    ```python
    replay(scenario, "x1-3.1")
    ```
    """
    __tracebackhide__ = True
    _refuse_inside_trio()
    _check_scenario(scenario)
    return Walk.from_token(token, max_steps=max_steps).run(scenario)


def _check(limit: int | None, max_steps: int, part: tuple[int, int]) -> None:
    """Raise for arguments with which an exploration would not end, or not begin."""
    counts: tuple[object, ...] = (0 if limit is None else limit, max_steps)
    if not all(isinstance(count, int) for count in counts):
        raise TypeError(f"limit and max_steps are whole numbers, not {limit!r} and {max_steps!r}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit must be 0 or more, or None for no limit: {limit}")
    if max_steps < 1:
        raise ValueError(f"max_steps must be 1 or more: {max_steps}")
    if not 0 <= part[0] < part[1]:
        raise ValueError(f"not a part: {part} (they look like (2, 5), the third of five)")


def _check_scenario(scenario: object) -> None:
    """Raise TypeError for what cannot be run once per schedule, such as a coroutine."""
    if callable(scenario):
        return
    if isinstance(scenario, Coroutine):
        scenario.close()
    raise TypeError(
        f"the scenario is a {type(scenario).__name__}, not a function: it is called once per schedule, so "
        "write `explore(scenario)`, or `explore(partial(scenario, …))` if it takes arguments"
    )


def _interrupt_in(error: BaseException) -> BaseException:
    """Return the interrupt in a group, so that Ctrl-C ends the test run also when it hits a child task."""
    return next((leaf for leaf in leaves(error) if isinstance(leaf, KeyboardInterrupt)), error)


def _add(outcome: Hashable, outcomes: Counter[Hashable]) -> None:
    try:
        outcomes[outcome] += 1
    except TypeError:
        raise TypeError(
            f"outcomes are counted, so they must be hashable, and this one is not: {outcome!r:.80}; "
            "return a tuple or a string instead"
        ) from None


def _finds_fewest_first(strategy: Strategy) -> bool:
    """Whether no schedule with fewer deviations fails than the first one that does."""
    if not isinstance(strategy, HoldBack):
        return False
    return strategy.deviations is not None and not strategy.reduce


def _told(
    scenario: Callable[[], Awaitable[object]],
    walk: Walk,
    failure: Exception,
    max_steps: int,
    *,
    shrink: bool,
) -> tuple[str, Exception, str]:
    """Return the token, the failure and the story of the simplest schedule that fails as *walk* did."""
    token = walk.token
    if shrink:
        token, failure = shrunk(scenario, token, failure, max_steps=max_steps)
    try:
        story = explain(scenario, token, shrink=False, max_steps=max_steps)
    except ExplorerBroken as exc:
        text = f"It cannot be told how, because the scenario did not repeat itself: {exc}"
        return token, failure, text
    if story.failure is None or kind_of(story.failure) != kind_of(failure):
        text = (
            f"When it was run again for its story it did not fail so ({story.failure!r}): the "
            "scenario keeps something from one run to the next, or is not deterministic."
        )
        return token, failure, text
    return token, story.failure, str(story)


def _refuse_inside_trio() -> None:
    if trio.lowlevel.in_trio_run():
        raise RuntimeError("each schedule needs its own trio.run: call this from a sync test")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
