"""The race table: how many schedules and seconds each strategy needs for each seeded bug."""

from collections.abc import Callable, Generator, Mapping, Sequence
from time import perf_counter
from typing import Final, TypeAlias

import trio
from attrs import frozen
from trio.testing import MockClock

from benchmarks.races.bugs import Bug, Scenario
from benchmarks.races.endings import ENDINGS
from benchmarks.races.orders import ORDERS
from crush_trio.testing.explore import (
    PCT,
    Everywhere,
    Exploration,
    HoldBack,
    Random,
    ScheduleFailure,
    Strategy,
    cancel_everywhere,
    explore,
)
from crush_trio.testing.explore.walk import Plan, Walk

BUGS: Final = (*ORDERS, *ENDINGS)

SCHEDULES: Final = 1000
"""After how many schedules a strategy gives up."""

SECONDS: Final = 5.0
"""After how many seconds it gives up."""


@frozen
class Cell:
    """What one strategy did with one bug."""

    found: bool
    schedules: int
    seconds: float

    def text(self) -> str:
        """Return the schedules and the time until the bug was found; a dash if it was not."""
        if not self.found:
            return "-"
        return f"{self.schedules} ({milliseconds(self.seconds)})"


@frozen
class Within:
    """A strategy that stops after `SECONDS`."""

    _strategy: Strategy

    @property
    def exhaustive(self) -> bool:
        """Not if it was stopped; what is counted here are failures."""
        return False

    @property
    def bound(self) -> str:
        """The bound of the strategy itself."""
        return self._strategy.bound

    def walks(self, plan: Plan) -> Generator[Walk, None, None]:
        """Yield the walks until time is up."""
        until = perf_counter() + SECONDS
        for walk in self._strategy.walks(plan):
            if perf_counter() > until:
                return
            yield walk


def once(scenario: Scenario, clock: MockClock) -> bool:
    """Run *scenario* as a plain test does, in Trio's own order; return whether it failed."""

    async def main() -> None:
        with trio.fail_after(1e6):  # a deadlock ends too, because the clock is virtual
            await scenario()

    try:
        trio.run(main, clock=clock)
    except Exception:  # noqa: BLE001 - every failure counts
        return True
    return False


def in_trios_order(times: int) -> Callable[[Scenario], Cell]:
    """Return a function that runs a scenario so often, with the order left to Trio."""

    def run(scenario: Scenario) -> Cell:
        began = perf_counter()
        number = 0
        while number < times and perf_counter() - began < SECONDS:
            number += 1
            if once(scenario, MockClock(autojump_threshold=0)):
                return Cell(True, number, perf_counter() - began)
        return Cell(False, number, perf_counter() - began)

    return run


def _measured(run: Callable[[Scenario], Exploration | Everywhere]) -> Callable[[Scenario], Cell]:
    def measured(scenario: Scenario) -> Cell:
        began = perf_counter()
        try:
            schedules = run(scenario).schedules
        except ScheduleFailure as failure:
            return Cell(True, failure.schedules, perf_counter() - began)
        return Cell(False, schedules, perf_counter() - began)

    return measured


def _by(strategy: Strategy, schedules: int) -> Callable[[Scenario], Cell]:
    return _measured(lambda scenario: explore(scenario, strategy=Within(strategy), limit=schedules))


def strategies(
    schedules: int = SCHEDULES, samples: int = SCHEDULES
) -> Mapping[str, Callable[[Scenario], Cell]]:
    """Return the columns of the table; *samples* are the schedules where chance decides."""
    reducing = HoldBack(3, reduce=True, watched=("benchmarks.races",))
    return {
        "one run": in_trios_order(1),
        "Trio's order": in_trios_order(samples),
        "HoldBack(1)": _by(HoldBack(1), schedules),
        "HoldBack(2)": _by(HoldBack(2), schedules),
        "HoldBack(3)": _by(HoldBack(3), schedules),
        "HoldBack(3, reduce)": _by(reducing, schedules),
        "Random": _by(Random(samples), samples),
        "PCT": _by(PCT(samples), samples),
        "cancel_everywhere": _measured(cancel_everywhere),
    }


Table: TypeAlias = Mapping[str, Mapping[str, Cell]]
"""The cells by bug and strategy."""


def measure(
    bugs: Sequence[Bug] = BUGS, schedules: int = SCHEDULES, samples: int = SCHEDULES
) -> Table:
    """Run every strategy on every bug."""
    columns = strategies(schedules, samples)
    return {bug.name: {name: run(bug.broken) for name, run in columns.items()} for bug in bugs}


def page(table: Table) -> str:
    """Return the table as Markdown."""
    columns = list(next(iter(table.values())))
    rows = [
        ["", *columns],
        ["---"] * (len(columns) + 1),
        *([name, *(cell.text() for cell in cells.values())] for name, cells in table.items()),
    ]
    sums = [[cells[column] for cells in table.values()] for column in columns]
    seconds = [sum(cell.seconds for cell in cells) for cells in sums]
    schedules = [sum(cell.schedules for cell in cells) for cells in sums]
    rows += [
        [f"**found of {len(table)}**", *(f"**{sum(c.found for c in cells)}**" for cells in sums)],
        ["time in total", *map(milliseconds, seconds)],
        [
            "schedules per second",
            *(f"{n / s:.0f}" for n, s in zip(schedules, seconds, strict=True)),
        ],
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def about(bugs: Sequence[Bug] = BUGS) -> str:
    """Return the list of bugs as Markdown."""
    return "".join(f"* **{bug.name}**: {bug.about}\n" for bug in bugs)


def milliseconds(seconds: float) -> str:
    """Return a time as "12 ms" or "1.4 s"."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
