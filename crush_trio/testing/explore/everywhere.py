"""A cancellation, or an exception, at every checkpoint of a scenario.

Code can be cancelled at each of its checkpoints, and a test usually cancels it at one. `cancel_everywhere`
runs a scenario once, counts its steps, and runs it again for each of them with a cancellation after that
step; `fail_everywhere` does the same with an exception. What must not happen is told as a failing
schedule is, with its story: an exception that is not the one expected, a deadlock, a loop that does not
end, a `Cancelled` that was caught and not raised again, a task that outlives the scenario.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Final, cast, get_args

from attrs import frozen

from crush_trio.testing.explore.disturbance import (
    Cancellation,
    CancelSwallowed,
    Disturbance,
    Injection,
    Scenario,
    Scopes,
    Spot,
    Survey,
    TasksLeft,
    check_error,
    disturbed,
    target,
)
from crush_trio.testing.explore.explorer import ScheduleFailure, explore, replay
from crush_trio.testing.explore.recorder import described

__all__ = [
    "CancelSwallowed",
    "Everywhere",
    "PlaceFailure",
    "Spot",
    "TasksLeft",
    "cancel_everywhere",
    "cancelled_at",
    "fail_everywhere",
    "failing_at",
    "target",
]

_ERROR: Final = OSError("disturbed by fail_everywhere")


class PlaceFailure(ScheduleFailure):
    """The scenario failed when it was disturbed at one place; its cause is what was raised."""

    def __init__(
        self, failure: ScheduleFailure, spot: Spot, told: tuple[str, str], before: int
    ) -> None:
        did, repeat = told
        cause = cast("Exception", failure.__cause__)
        super().__init__(failure.token, before + failure.schedules, cause, failure.story)
        command = repeat.format(place=spot.token, token=failure.token)
        self.args = (
            f"{did} at place {spot.token}, {spot}: {described(cause)}\n{failure.story}\n"
            f"To repeat it: {command}",
        )
        self.place = spot.token
        """Names the place; see `cancelled_at` and `failing_at`."""


@frozen(kw_only=True)
class Everywhere:
    """The result of a `cancel_everywhere` or `fail_everywhere` without a failure."""

    places: int
    """At how many places the scenario was disturbed."""
    schedules: int
    """How often it was run for that; more than `places` with deviations."""
    outcomes: Mapping[Hashable, int]
    """What the scenario returned, "cancelled" or the name of the exception, and how often."""

    def summary(self) -> str:
        """Return one line: "47 places, 3 outcomes"."""
        runs = f" in {self.schedules} schedules" if self.schedules > self.places else ""
        return f"{_count(self.places, 'place')}{runs}, {_count(len(self.outcomes), 'outcome')}"

    __str__ = summary


def cancel_everywhere(
    scenario: Scenario,
    *,
    scopes: Scopes = "scenario",
    deviations: int = 0,
    where: Callable[[Spot], bool] = lambda _spot: True,
    max_steps: int = 10_000,
) -> Everywhere:
    """Run *scenario* once for each of its steps, with a cancellation after that step.

    Cancelled is what the scenario does inside of `target` blocks, at every step of any task while the
    block is open. Without such blocks it is the whole scenario, or other *scopes*. What the scenario
    does and checks afterwards must hold. *deviations* explores the orders of tasks at each place as
    `explore` does; 0 is the usual order alone. *where* leaves out places for which it returns False.
    The places are those of the usual order.

    Raises a `PlaceFailure` at the first place where the scenario raises anything, deadlocks, does not
    end, swallows the cancellation (`CancelSwallowed`) or leaves tasks behind (`TasksLeft`), and a
    `ScheduleFailure` if it fails without a cancellation. Call it from a sync test:

    ```python
    def test_transfer_is_whole_or_not_at_all():
        print(cancel_everywhere(transfer))  # 47 places, 3 outcomes
    ```
    """
    __tracebackhide__ = True
    if scopes not in get_args(Scopes):
        raise ValueError(f"scopes must be one of {', '.join(get_args(Scopes))}: {scopes!r}")
    survey = _survey(scenario, max_steps)
    strict = not survey.left
    return _everywhere(
        scenario,
        filter(where, survey.spots(scopes)),
        lambda spot: Cancellation(spot, strict),
        ("cancelled", 'replay(cancelled_at(scenario, "{place}"), "{token}")'),
        deviations,
        max_steps,
    )


def fail_everywhere(
    scenario: Scenario,
    error: Exception = _ERROR,
    *,
    deviations: int = 0,
    where: Callable[[Spot], bool] = lambda _spot: True,
    max_steps: int = 10_000,
) -> Everywhere:
    """Run *scenario* once for each of its checkpoints, with a copy of *error* raised there.

    It is raised where Trio could raise `Cancelled`, but for the end of a nursery block. The scenario
    may handle it or let it out; anything else that comes out is a failure, told as by
    `cancel_everywhere`. *where* chooses places, such as those in which a file is written:
    `where=lambda spot: "write" in spot.where`.

    ```python
    def test_a_failing_disk():
        fail_everywhere(save_and_check, OSError("disk full"))
    ```
    """
    __tracebackhide__ = True
    check_error(error)
    survey = _survey(scenario, max_steps)
    strict = not survey.left
    return _everywhere(
        scenario,
        filter(where, survey.checkpoints),
        lambda spot: Injection(spot, error, strict),
        (
            f"{type(error).__name__} raised",
            'replay(failing_at(scenario, "{place}", error), "{token}")',
        ),
        deviations,
        max_steps,
    )


def cancelled_at(scenario: Scenario, place: str) -> Scenario:
    """Return *scenario* with a cancellation at *place*, for `replay`, `explain` and `explore`."""
    spot = Spot.from_token(place)
    return disturbed(scenario, lambda: Cancellation(spot))


def failing_at(scenario: Scenario, place: str, error: Exception = _ERROR) -> Scenario:
    """Return *scenario* with *error* raised at *place*, for `replay`, `explain` and `explore`."""
    check_error(error)
    spot = Spot.from_token(place)
    return disturbed(scenario, lambda: Injection(spot, error))


def _survey(scenario: Scenario, max_steps: int) -> Survey:
    """Run *scenario* undisturbed, and return its places; raises `ScheduleFailure` if it fails."""
    __tracebackhide__ = True
    explore(scenario, deviations=0, max_steps=max_steps)
    survey = Survey()
    replay(disturbed(scenario, lambda: survey), "x1", max_steps=max_steps)
    return survey


def _everywhere(
    scenario: Scenario,
    spots: Iterable[Spot],
    make: Callable[[Spot], Disturbance],
    told: tuple[str, str],
    deviations: int,
    max_steps: int,
) -> Everywhere:
    __tracebackhide__ = True
    outcomes: Counter[Hashable] = Counter()
    places = 0
    for spot in spots:
        there = disturbed(scenario, partial(make, spot))
        try:
            outcomes.update(explore(there, deviations=deviations, max_steps=max_steps).outcomes)
        except ScheduleFailure as failure:
            raise PlaceFailure(failure, spot, told, outcomes.total()) from failure.__cause__
        places += 1
    return Everywhere(places=places, schedules=outcomes.total(), outcomes=dict(outcomes))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
