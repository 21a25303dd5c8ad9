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
    """One line of a report: the values of this server, and of the others that were measured."""

    workload: str
    name: str
    unit: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...] = ()
    """The values of the baseline."""
    others: tuple[float, ...] = ()
    """The values of a third server."""
    promise: Promise | None = None

    @property
    def value(self) -> float:
        """The median of this server's values."""
        return median(self.ours)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ratio to the baseline for each round; without rounds where it is not a number.

        A difference of two memory sizes can be zero or negative: the process had free memory left.
        """
        return _ratios(self.ours, self.theirs)

    @property
    def others_ratios(self) -> tuple[float, ...]:
        """The same ratios for the third server."""
        return _ratios(self.others, self.theirs)

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


def _ratios(values: Sequence[float], to: Sequence[float]) -> tuple[float, ...]:
    return tuple(a / b for a, b in zip(values, to, strict=False) if b > 0)


@define(eq=False)
class Notes:
    """Collects measured values by name and server, and makes figures of them."""

    workload: str
    own: str
    """The name of this project's server."""
    baseline: str
    other: str = ""
    """The name of a third server, if there is one."""
    _values: dict[tuple[str, str], list[float]] = field(factory=dict, init=False)

    def add(self, name: str, server: str, value: float | None) -> None:
        """Add one value of one round; None means not measured and is ignored."""
        if value is not None:
            self._values.setdefault((name, server), []).append(value)

    def figure(self, name: str, unit: str, promise: Promise | None = None) -> list[Figure]:
        """Return the values of *name* as a figure; an empty list if this server has none."""
        ours = self._values_of(name, self.own)
        if not ours:
            return []
        return [
            Figure(
                workload=self.workload,
                name=name,
                unit=unit,
                ours=ours,
                theirs=self._values_of(name, self.baseline),
                others=self._values_of(name, self.other),
                promise=promise,
            )
        ]

    def _values_of(self, name: str, server: str) -> tuple[float, ...]:
        return tuple(self._values.get((name, server), ()))

    def names(self) -> list[str]:
        """Return all names, in the order in which they were first used."""
        return list(dict.fromkeys(name for name, _ in self._values))
