"""Figures: measured values with their spread, ratios to the baseline, and promises.

Plain data. A figure has one value per round. Both servers are measured within each round, so that
the ratio of a round is of values under the same conditions. The median of these ratios counts; the
spread says how reliable it is.
"""

from collections.abc import Iterable, Sequence
from math import ceil
from statistics import median
from typing import Final

from attrs import define, field, frozen

MS: Final = "ms"
BYTES: Final = "bytes"
TIMES: Final = "times"
COUNT: Final = "count"
RATE: Final = "per second"


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least *share* of the *values* do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


@frozen(kw_only=True)
class Promise:
    """A limit on a figure: on its own value, or on its ratio to the baseline's."""

    limit: float
    of_ratio: bool = False
    least: bool = False
    """Whether the limit is the lowest and not the highest value."""

    def kept_by(self, value: float) -> bool:
        """Whether *value* is within the limit."""
        return value >= self.limit if self.least else value <= self.limit


def at_most(limit: float) -> Promise:
    """Promise that a value is no more than *limit*, in the unit of its figure."""
    return Promise(limit=limit)


def at_least(limit: float) -> Promise:
    """Promise that a value is no less than *limit*, in the unit of its figure."""
    return Promise(limit=limit, least=True)


def ratio_at_most(limit: float) -> Promise:
    """Promise that a value is no more than *limit* times the baseline's."""
    return Promise(limit=limit, of_ratio=True)


@frozen(kw_only=True)
class Figure:
    """One line of a report: the values of the target, and of the baseline if it was measured."""

    workload: str
    name: str
    unit: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...] = ()
    promise: Promise | None = None

    @property
    def value(self) -> float:
        """The median of the target's values."""
        return median(self.ours)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ratio to the baseline for each round; without rounds where it is not a number.

        A difference of two memory sizes can be zero or negative: the process had free memory left.
        """
        return tuple(a / b for a, b in zip(self.ours, self.theirs, strict=False) if b > 0)

    @property
    def ratio(self) -> float | None:
        """The median of the ratios to the baseline."""
        return median(self.ratios) if self.ratios else None

    @property
    def promised(self) -> float | None:
        """The number that the promise is about; None if there is no promise, or no baseline."""
        if self.promise is None:
            return None
        return self.ratio if self.promise.of_ratio else self.value

    @property
    def met(self) -> bool | None:
        """Whether the promise is kept; None if there is none, or no baseline."""
        if self.promise is None or self.promised is None:
            return None
        return self.promise.kept_by(self.promised)


@define(eq=False)
class Notes:
    """Collects measured values by name and server, and makes figures of them."""

    workload: str
    target: str
    _values: dict[tuple[str, str], list[float]] = field(factory=dict, init=False)

    def add(self, name: str, server: str, value: float | None) -> None:
        """Add one value of one round; None means not measured and is ignored."""
        if value is not None:
            self._values.setdefault((name, server), []).append(value)

    def figure(self, name: str, unit: str, promise: Promise | None = None) -> list[Figure]:
        """Return the values of *name* as a figure; an empty list if the target has none."""
        ours = self._values.get((name, self.target), [])
        theirs = [
            v for (n, server), v in self._values.items() if n == name and server != self.target
        ]
        if not ours:
            return []
        return [
            Figure(
                workload=self.workload,
                name=name,
                unit=unit,
                ours=tuple(ours),
                theirs=tuple(theirs[0]) if theirs else (),
                promise=promise,
            )
        ]

    def values(self, name: str) -> Sequence[float]:
        """Return the target's values under *name*."""
        return self._values.get((name, self.target), [])

    def names(self) -> list[str]:
        """Return all names, in the order in which they were first used."""
        return list(dict.fromkeys(name for name, _ in self._values))
