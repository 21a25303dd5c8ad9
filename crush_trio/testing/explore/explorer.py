"""Systematic exploration of task orders.

A passing test shows that one order of steps works. `explore` runs a scenario, on a virtual clock,
under every order that a bounded number of deviations from the default can produce. The first failure
has a token with which `replay` repeats it. `walk.py` defines deviations.

Invariant: a failure of the scenario raises `ScheduleFailure`; a problem of the exploration itself
raises `ExplorerBroken`. Neither is counted as an outcome.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

import trio
from attrs import frozen

from crush_trio.testing.explore.walk import Deadlock, ExplorerBroken, StepLimit, Walk

__all__ = [
    "Deadlock",
    "Exploration",
    "ExplorerBroken",
    "ScheduleFailure",
    "StepLimit",
    "explore",
    "find_violation",
    "replay",
]

T = TypeVar("T")


class ScheduleFailure(Exception):
    """The scenario failed under one schedule; the cause is what it raised."""

    def __init__(self, token: str, schedules: int, cause: Exception) -> None:
        super().__init__(
            f"schedule {token}, number {schedules} tried, failed: {type(cause).__name__}: {cause}\n"
            f'To repeat it: replay(scenario, "{token}")'
        )
        self.token = token
        """Names the schedule; see `replay`."""
        self.schedules = schedules
        """How many schedules were run, this one included."""


@frozen(kw_only=True)
class Exploration:
    """The result of an exploration without a failure."""

    schedules: int
    """How many schedules were run."""
    exhaustive: bool
    """True if that was every schedule within the bound on deviations."""
    outcomes: Mapping[Hashable, int]
    """The return values of the scenario, with the number of schedules for each."""
    decision_points: int
    """The largest number of decisions in one schedule."""
    deviations: int | None
    """The bound on deviations; None for no bound."""

    def summary(self) -> str:
        """Return one line: "163 schedules, exhaustive at 2 deviations, 3 outcomes"."""
        covered = "exhaustive" if self.exhaustive else "stopped by the limit"
        bound = "" if self.deviations is None else f" at {_count(self.deviations, 'deviation')}"
        schedules = _count(self.schedules, "schedule")
        return f"{schedules}, {covered}{bound}, {_count(len(self.outcomes), 'outcome')}"

    __str__ = summary


def explore(
    scenario: Callable[[], Awaitable[Hashable]],
    *,
    deviations: int | None = 2,
    limit: int | None = None,
    max_steps: int = 10_000,
    part: tuple[int, int] = (0, 1),
) -> Exploration:
    """Run *scenario* under every schedule with at most *deviations* deviations.

    Call it from a plain function or a sync test, not inside `trio.run`. The scenario must be
    deterministic for a given order: no threads, no sockets, no wall clock, no state that survives from
    one run to the next. Time is virtual, so sleeping costs nothing.

    Schedules with fewer deviations come first, so the first failure is a simple one. Two deviations
    suffice for most races, at a few hundred schedules. `deviations=None` runs them all, for two or
    three tasks with a few checkpoints each and no polling loop. *limit* caps the number of
    schedules, *max_steps* the task steps of one.

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
    if deviations is not None and deviations < 0:
        raise ValueError(f"deviations must be 0 or more, or None for all: {deviations}")
    if not 0 <= part[0] < part[1]:
        raise ValueError(f"not a part: {part} (they look like (2, 5), the third of five)")
    outcomes: Counter[Hashable] = Counter()
    decision_points = 0
    exhaustive = True
    for walk in _walks(deviations, max_steps, part):
        if outcomes.total() == limit:
            exhaustive = False
            break
        try:
            outcome = walk.run(scenario)
        except ExplorerBroken:
            raise
        except Exception as exc:
            raise ScheduleFailure(walk.token, outcomes.total() + 1, exc) from exc
        except BaseException as exc:  # an interrupt, or an outcome of pytest: not wrapped
            exc.add_note(f"under schedule {walk.token}")
            raise
        outcomes[outcome] += 1
        decision_points = max(decision_points, len(walk.widths))
    return Exploration(
        schedules=outcomes.total(),
        exhaustive=exhaustive,
        outcomes=dict(outcomes),
        decision_points=decision_points,
        deviations=deviations,
    )


def find_violation(
    scenario: Callable[[], Awaitable[Hashable]],
    *,
    deviations: int | None = 2,
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
        explore(scenario, deviations=deviations, limit=limit, max_steps=max_steps)
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
    return Walk.from_token(token, max_steps=max_steps).run(scenario)


def _refuse_inside_trio() -> None:
    if trio.lowlevel.in_trio_run():
        raise RuntimeError("each schedule needs its own trio.run: call this from a sync test")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _walks(bound: int | None, max_steps: int, part: tuple[int, int]) -> Iterator[Walk]:
    """Yield a walk for every schedule within *bound*; run each before asking for the next.

    A part has every n-th of the schedules with one deviation, and what descends from these.
    """
    root = Walk((), max_steps=max_steps)
    yield root
    frontier = deque([root] if bound != 0 else [])
    while frontier:
        # Fewest deviations first; without a bound that could need much memory, so depth first then.
        parent = frontier.popleft() if bound is not None else frontier.pop()
        children = parent.children()
        for child in islice(children, part[0], None, part[1]) if parent is root else children:
            yield child
            if len(child.deviations) != bound:
                frontier.append(child)
