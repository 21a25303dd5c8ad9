"""Schedules as values that Hypothesis chooses and makes simpler.

`explore` runs every schedule within a bound; for a scenario that also takes data, that is every schedule
for each example. Where this is too much, let Hypothesis choose both, and it reports the simplest data
and the fewest deviations that fail together. Hypothesis is imported when `schedules` is called.
"""

from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from attrs import field, frozen

from crush_trio.testing.explore.shrink import Follow
from crush_trio.testing.explore.walk import Walk

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

_MISSING = (
    "schedules() is a strategy for Hypothesis, and the package hypothesis is not installed: "
    "pip install hypothesis. explore() works without."
)


@frozen
class DrawnSchedule:
    """A schedule that fits any scenario: deviations that it has no decision for are left out."""

    deviations: tuple[tuple[int, int], ...] = field()
    """(decision, choice) pairs; see `Walk`."""
    max_steps: int = field(default=10_000, kw_only=True)
    """The task steps after which a run is stopped with `StepLimit`."""

    def run(self, scenario: Callable[[], Awaitable[T]]) -> T:
        """Run *scenario* under this schedule, on a virtual clock, and return its value.

        Raises what it raises, or `Deadlock` or `StepLimit`, with the token of the schedule in a note:
        `explain(scenario, token)` tells the story, `replay(scenario, token)` repeats it.
        """
        __tracebackhide__ = True
        walk = Walk.picked(Follow(self.deviations), max_steps=self.max_steps)
        try:
            return walk.run(scenario)
        except Exception as exc:
            exc.add_note(f'under schedule {walk.token}: explain(scenario, "{walk.token}")')
            raise


def schedules(
    deviations: int = 3, *, apart: int = 20, max_steps: int = 10_000
) -> "SearchStrategy[DrawnSchedule]":
    """Return a Hypothesis strategy of schedules with at most *deviations* deviations.

    They shrink to the usual order: fewer deviations, and earlier ones. *apart* is the largest number
    of decisions from one deviation to the next; raise it for scenarios with long quiet stretches.

    ```python
    @given(schedule=schedules(), amounts=lists(integers(1, 9), max_size=3))
    def test_nothing_is_lost(schedule, amounts):
        schedule.run(partial(scenario, amounts))
    ```
    """
    try:
        from hypothesis import strategies
    except ImportError as exc:
        raise ImportError(_MISSING) from exc

    def schedule(drawn: list[tuple[int, int]]) -> DrawnSchedule:
        places = accumulate(gap for gap, _ in drawn)
        return DrawnSchedule(
            tuple(zip(places, (choice for _, choice in drawn), strict=True)), max_steps=max_steps
        )

    pairs = strategies.tuples(strategies.integers(1, apart), strategies.integers(1, 5))
    first = strategies.tuples(strategies.integers(0, apart), strategies.integers(1, 5))
    more = strategies.lists(pairs, max_size=max(deviations - 1, 0))
    lists = strategies.tuples(first, more).map(lambda parts: [parts[0], *parts[1]])
    if deviations < 1:
        return strategies.just(schedule([]))
    return (strategies.just([]) | lists).map(schedule)
