"""Smaller schedules: the fewest deviations with which a scenario still fails in the same way.

A sampled schedule can have a dozen deviations of which one matters. First parts of them are left out,
as long as the failure stays; then schedules with fewer deviations than are left are tried in turn. A
deviation that is left out renumbers the decisions after it, so the others are followed where they still
fit, and what was really chosen names the result.

Invariant: the result is a schedule that was run and failed in the same way, in a bounded number of runs.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias

from attrs import define
from trio.lowlevel import Task

from crush_trio.testing.explore.places import place_raised
from crush_trio.testing.explore.strategies import HoldBack
from crush_trio.testing.explore.walk import ExplorerBroken, Plan, Walk

Scenario: TypeAlias = Callable[[], Awaitable[object]]

Deviations: TypeAlias = Sequence[tuple[int, int]]

TRIES: Final = 150
"""How many schedules are run at most."""


def shrunk(
    scenario: Scenario, token: str, failure: Exception, *, max_steps: int, tries: int = TRIES
) -> tuple[str, Exception]:
    """Return a schedule with as few deviations as could be found, and its failure.

    It is of the same kind as *failure*: the same types of exceptions from the same lines.
    """
    search = _Search(
        scenario, max_steps, tries, Walk.from_token(token, max_steps=max_steps), failure
    )
    search.leave_out()
    search.try_fewer()
    return search.best.token, search.failure


def leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions in a group, at any depth; of another exception, itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


def kind_of(error: BaseException) -> frozenset[tuple[type[BaseException], object]]:
    """Return what makes two failures the same: their types, and the lines that raised them."""
    return frozenset((type(leaf), place_raised(leaf)) for leaf in leaves(error))


@define(eq=False)
class _Search:
    """Keeps the best schedule so far."""

    _scenario: Scenario
    _max_steps: int
    _tries: int
    best: Walk
    failure: Exception

    def leave_out(self) -> None:
        """Leave out halves of the deviations, then quarters, and so on to single ones."""
        size = (len(self.best.deviations) + 1) // 2
        while size:
            if not any(
                self._better(Walk.picked(Follow(rest), max_steps=self._max_steps))
                for rest in _without(self.best.deviations, size)
            ):
                size //= 2
            size = min(size, len(self.best.deviations))

    def try_fewer(self) -> None:
        """Run schedules with fewer deviations than the best, those with the fewest first."""
        fewer = len(self.best.deviations) - 1
        if fewer >= 0:
            walks = HoldBack(fewer).walks(Plan(self._max_steps))
            any(self._better(walk) for walk in islice(walks, self._tries))

    def _better(self, walk: Walk) -> bool:
        """Run *walk*, and keep it if it fails in the same way with fewer deviations."""
        if not self._tries:
            return False
        self._tries -= 1
        try:
            walk.run(self._scenario)
        except ExplorerBroken:
            return False
        except Exception as exc:  # noqa: BLE001 - the kind of it decides
            fewer = len(walk.deviations) < len(self.best.deviations)
            if fewer and kind_of(exc) == kind_of(self.failure):
                self.best, self.failure = walk, exc
                return True
        return False


def _without(deviations: Deviations, size: int) -> Iterator[Deviations]:
    """Yield *deviations* without each *size* of them in a row, the last ones first."""
    for start in reversed(range(0, len(deviations), size)):
        yield [*deviations[:start], *deviations[start + size :]]


@define(eq=False)
class Follow:
    """Chooses as the deviations say, as far as there are so many tasks and decisions."""

    _wanted: Deviations
    _decision: int = -1

    def __call__(self, options: Sequence[Task]) -> int:
        """Return the choice for the next decision."""
        if len(options) == 1:
            return 0
        self._decision += 1
        return min(dict(self._wanted).get(self._decision, 0), len(options) - 1)
