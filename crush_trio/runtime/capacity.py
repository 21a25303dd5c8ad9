"""How many runs may be active at once.

Plain data, as a lane is. A lane that finds no free place leaves its name and is asked again when a
run has ended, in the order in which the lanes came. A place that is given back goes to a lane that waits
before any other can take it, so that a session with a long queue does not keep the others out.
"""

from collections.abc import Callable
from math import inf

from attrs import define, field


@define(eq=False)
class Capacity:
    """The places for active runs. Several workspaces may share one."""

    limit: float = inf
    taken: int = field(default=0, init=False)
    _waiting: dict[Callable[[], bool], None] = field(factory=dict, init=False, repr=False)
    """In the order in which they came; thousands of sessions may wait."""

    def take(self, ask_again: Callable[[], bool]) -> bool:
        """Take a place; if none is free, *ask_again* is called when one is.

        It returns whether it had a use for the place.
        """
        if self.taken < self.limit:
            self.taken += 1
            return True
        self._waiting.setdefault(ask_again)
        return False

    def forget(self, ask_again: Callable[[], bool]) -> None:
        """Ask a lane no more that has no run left that waits."""
        self._waiting.pop(ask_again, None)

    def give_back(self) -> None:
        """Free a place, and give it to the first lane that still has a use for it."""
        self.taken -= 1
        while self._waiting and self.taken < self.limit:
            ask_again = next(iter(self._waiting))
            del self._waiting[ask_again]
            ask_again()
