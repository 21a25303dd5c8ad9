"""How much a store has to do: counted where the work is done, read by whoever looks.

Nothing in here is told to anybody. Counting costs one search in a short tuple; adding up, comparing
and printing is for the reader.
"""

from bisect import bisect_left
from typing import Final

from attrs import define, field, frozen

COMMIT_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Seconds between which commits are told apart."""


@define(eq=False)
class Timings:
    """How often something took how long: a count for each range, and the sum of all.

    `counts[n]` is how many took at most `bounds[n]` seconds and more than the bound before; the
    last count is for those beyond every bound. Single values are not kept.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def note(self, seconds: float) -> None:
        """Count one more."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def absorb(self, other: "Timings") -> None:
        """Count everything that *other* has counted; its bounds must be the same."""
        assert other.bounds == self.bounds
        self.counts = [
            mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)
        ]
        self.total += other.total


@frozen(kw_only=True)
class Load:
    """What a store has to do: writes that were given and are not durable yet, and its commits.

    A commit may hold many writes. It is timed from its beginning to its end in the store's own
    thread, failed ones included; how long a write waits for its turn shows in `pending`.
    """

    pending: int = 0
    commits: Timings = field(factory=lambda: Timings(COMMIT_BOUNDS))
