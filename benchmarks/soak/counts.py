"""The counts of a soak, and their table."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from attrs import define, field

from benchmarks.figures import percentile

ORDER: Final = (
    "prompts",
    "accepted",
    "refused",
    "prompts sent again",
    "repetitions recognised",
    "sessions",
    "herds",
    "cancels",
    "receipts",
    "queue edits",
    "prompts withdrawn for certain",
    "requests",
    "requests to the model",
    "titles",
    "endings told",
    "endings told again by the next start",
    "resyncs",
    "crush streams read to their end",
    "disk faults",
    "stalls",
    "kills",
    "restarts",
)
"""The first rows of the table, in this order; the others follow by name."""


@define(eq=False)
class Counts:
    """The counts of a soak."""

    number: Counter[str] = field(factory=Counter, init=False)
    """All counts, by name."""
    refused: Counter[str] = field(factory=Counter, init=False)
    """Refused prompts by status and code."""
    endings: Counter[str] = field(factory=Counter, init=False)
    """Runs by their stored ending."""
    accepting: list[float] = field(factory=list, init=False)
    """Seconds that prompts took to be answered, while the server was up."""
    health: list[float] = field(factory=list, init=False)
    """Seconds of the health requests."""
    memory: int = field(default=0, init=False)
    """The most bytes that the server had in memory."""

    def add(self, name: str, by: int = 1) -> None:
        """Count something."""
        self.number[name] += by

    def line(self, seconds: float) -> str:
        """Return a line about the progress."""
        names = (
            "accepted",
            "refused",
            "cancels",
            "queue edits",
            "endings told",
            "kills",
            "restarts",
        )
        said = ", ".join(f"{self.number[name]} {name}" for name in names)
        faults = self.number["disk faults"] + self.number["stalls"]
        return f"{seconds:4.0f} s  {said}, {faults} disk faults and stalls, {self.memory >> 20} MB"

    def table(self, violations: int) -> str:
        """Return all figures, one per line."""
        rows = [*self._rows(), ("violations", str(violations))]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value:>10}" for name, value in rows)

    def _rows(self) -> Iterator[tuple[str, str]]:
        for name in (*ORDER, *sorted(self.number.keys() - set(ORDER))):
            yield name, f"{self.number[name]}"
        for name, value in sorted(self.refused.items()):
            yield f"refused: {name}", f"{value}"
        for name, value in sorted(self.endings.items()):
            yield f"ended: {name}", f"{value}"
        for name, values in (("prompt answered", self.accepting), ("health", self.health)):
            if values:
                for label, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                    yield f"{name}, {label}", f"{percentile(values, part) * 1e3:.1f} ms"
        yield "peak memory of the server", f"{self.memory >> 20} MB"
