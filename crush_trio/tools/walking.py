"""Walks through directories: bounded, in a fixed order, and gone soon after a cancel.

A walk runs in a worker thread, because a directory can be slow to read. Between two steps it asks
whether its task was cancelled, so that a run which ends does not wait for it. It goes level by level,
sorted by name: whoever stops early has seen the upper levels whole. Links are reported and never
followed, so there are no loops and no way out of the tree.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from operator import attrgetter
from time import monotonic
from typing import Final

import trio
from attrs import define, field, frozen

from crush_trio.tools.ignoring import Ignoring

STEP: Final = 256
"""Entries of a directory between two questions whether to go on."""


@frozen
class Entry:
    """Something in a directory. `parts` is its path relative to the root of the walk."""

    parts: tuple[str, ...]
    is_dir: bool
    is_file: bool
    """Whether it is a plain file: no directory, link, socket or pipe."""

    @property
    def path(self) -> str:
        """The path relative to the root."""
        return "/".join(self.parts)


@define(eq=False)
class Walk:
    """One walk below the root of *ignoring*. Iterate over `entries` once, in a worker thread.

    The time is real time, not Trio's: the thread works while a virtual clock stands still.
    `cut_short` tells afterwards whether it ran out.
    """

    ignoring: Ignoring
    depth: int | None = None
    seconds: float = inf
    check: Callable[[], None] = trio.from_thread.check_cancelled
    """Called between steps; raises if the walk should end."""
    cut_short: bool = field(default=False, init=False)

    def entries(self) -> Iterator[Entry]:
        """Yield what is not left out, each directory before what is in it."""
        deadline = monotonic() + self.seconds
        waiting: deque[tuple[str, ...]] = deque([()])
        while waiting:
            directory = waiting.popleft()
            for entry in self._in(directory):
                yield entry
                if entry.is_dir and (self.depth is None or len(entry.parts) < self.depth):
                    waiting.append(entry.parts)
            if monotonic() > deadline:
                self.cut_short = True
                return

    def _in(self, directory: tuple[str, ...]) -> Iterator[Entry]:
        self.check()
        for number, raw in enumerate(_sorted("/".join((str(self.ignoring.root), *directory)))):
            if number % STEP == STEP - 1:
                self.check()
            is_dir = raw.is_dir(follow_symlinks=False)
            parts = (*directory, raw.name)
            if not self.ignoring.leaves_out(parts, is_dir=is_dir):
                yield Entry(parts, is_dir=is_dir, is_file=raw.is_file(follow_symlinks=False))


def _sorted(directory: str) -> list[os.DirEntry[str]]:
    """Return what is in a directory; one that cannot be read has nothing in it."""
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=attrgetter("name"))
    except OSError:
        return []
