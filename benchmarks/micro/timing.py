"""How the questions of this package are measured: by turns, in processor time, and with medians.

A ratio of two costs is only worth something if both were measured under the same weather. So the two
take turns in one process, each round gives a ratio of its own, and the median of those counts.
Processor time leaves out the moments in which the machine did something else.
"""

import gc
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from attrs import frozen

MET: Final = 0
MISSED: Final = 1


def seconds(action: Callable[[], object]) -> float:
    """Return how much processor time *action* took; garbage of earlier ones is not its fault."""
    gc.collect()
    began = time.process_time()
    action()
    return time.process_time() - began


@frozen(kw_only=True)
class Ratio:
    """How many times as much *large* costs as *small*, round by round, and how many are allowed."""

    name: str
    small: Sequence[float]
    large: Sequence[float]
    target: float | None = None
    """None if there is no promise, only a number to know."""

    @property
    def value(self) -> float:
        """The ratio itself."""
        return median(large / small for small, large in zip(self.small, self.large, strict=True))

    @property
    def met(self) -> bool:
        """Whether the ratio is within its target."""
        return self.target is None or self.value <= self.target

    def line(self) -> str:
        """Return one line of a report."""
        promise = "no target" if self.target is None else f"target: at most {self.target:g}"
        verdict = "" if self.met else "  MISSED"
        return (
            f"  {self.name:<8} {median(self.small) * 1e3:>8.2f} ms {median(self.large) * 1e3:>8.2f} ms"
            f"   ratio {self.value:>5.2f}   ({promise}){verdict}"
        )


def report(question: str, ratios: Sequence[Ratio]) -> int:
    """Print what was measured; return `MET`, or `MISSED` if any target was."""
    print(question)
    for ratio in ratios:
        print(ratio.line())
    return MET if all(ratio.met for ratio in ratios) else MISSED
