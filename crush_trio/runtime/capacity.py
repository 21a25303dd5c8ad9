"""How many runs may be active at once.

Plain data, as a lane is. A lane that finds no free place leaves its name and is asked again when a
run has ended, in the order in which the lanes came.
"""

from collections import deque
from collections.abc import Callable
from math import inf

from attrs import define, field


@define(eq=False)
class Capacity:
    """The places for active runs. Several workspaces may share one."""

    limit: float = inf
    taken: int = field(default=0, init=False)
    _waiting: deque[Callable[[], bool]] = field(factory=deque, init=False, repr=False)

    def take(self, ask_again: Callable[[], bool]) -> bool:
        """Take a place; if none is free, *ask_again* is called when one is.

        It returns whether it had a use for the place.
        """
        if self.taken < self.limit:
            self.taken += 1
            return True
        if ask_again not in self._waiting:
            self._waiting.append(ask_again)
        return False

    def give_back(self) -> None:
        """Free a place, and give it to the first lane that still has a use for it."""
        self.taken -= 1
        while self._waiting and self.taken < self.limit:
            self._waiting.popleft()()
