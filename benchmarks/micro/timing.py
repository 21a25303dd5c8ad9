"""Timing of micro benchmarks: in alternation, in CPU time, and with medians.

A ratio of two costs is only reliable if both were measured under the same conditions. So the two
alternate in one process, each round gives a ratio, and the median of those counts. Processor time
leaves out the moments in which the machine did something else.
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
    """Return the CPU time of *action*; garbage is collected before."""
    gc.collect()
    began = time.process_time()
    action()
    return time.process_time() - began


@frozen(kw_only=True)
class Ratio:
    """The ratio of the costs of *large* and *small*, round by round, with its target."""

    name: str
    small: Sequence[float]
    large: Sequence[float]
    target: float | None = None
    """None if there is no target."""

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
    """Print the ratios; return `MISSED` if a target was missed, else `MET`."""
    print(question)
    for ratio in ratios:
        print(ratio.line())
    return MET if all(ratio.met for ratio in ratios) else MISSED
