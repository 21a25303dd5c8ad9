"""`RosterChanges`: what has changed in the roster, for any number of readers at any speed.

Each row has its newest frame, in the order in which the rows changed. A reader remembers how far it has
read and gets the newest frame of every row that has changed since; there is no buffer per reader. A
reader that is so far behind that it may miss the end of a row gets the whole roster again.

`Beside` is what a stream knows of such a reader.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, Protocol

import trio
from attrs import define, field, frozen

GONE: Final = 256
"""How many rows that are gone are remembered."""


@define(eq=False)
class _Change:
    """A change of a row. Its frame is made when the first reader wants it, and shared by all."""

    version: int
    _make: Callable[[], bytes]
    _frame: bytes | None = field(default=None, init=False)

    @property
    def frame(self) -> bytes:
        """The bytes of the event."""
        if self._frame is None:
            self._frame = self._make()
        return self._frame


@define(eq=False)
class RosterChanges:
    """The newest frame of each row that changed, shared by all readers."""

    version: int = field(default=0, init=False)
    """Grows with each change."""
    _rows: dict[Hashable, _Change] = field(factory=dict, init=False, repr=False)
    _gone: dict[Hashable, int] = field(factory=dict, init=False, repr=False)
    _floor: int = field(default=0, init=False)
    _shared: dict[int, bytes] = field(factory=dict, init=False, repr=False)
    _waiting: set[trio.CancelScope] = field(factory=set, init=False, repr=False)

    def put(self, row: Hashable, make: Callable[[], bytes], *, gone: bool = False) -> None:
        """Note that a row has changed; *make* makes its new frame. *gone* if it is the last one."""
        self.version += 1
        self._shared.clear()
        self._rows.pop(row, None)
        self._rows[row] = _Change(self.version, make)
        self._gone.pop(row, None)
        if gone:
            self._gone[row] = self.version
            if len(self._gone) > GONE:
                oldest = next(iter(self._gone))
                self._floor = self._gone.pop(oldest)
                del self._rows[oldest]

    def forget(self, row: Hashable) -> None:
        """Drop a row that goes without a word, because what it is part of goes."""
        self._rows.pop(row, None)

    def since(self, seen: int) -> bytes | None:
        """Return the frames of what has changed since *seen*; None if that is too long ago."""
        if seen < self._floor:
            return None
        found = self._shared.get(seen)
        if found is None:
            frames = []
            for change in reversed(self._rows.values()):
                if change.version <= seen:
                    break
                frames.append(change.frame)
            found = self._shared[seen] = b"".join(reversed(frames))
        return found

    @contextmanager
    def wakes(self, scope: trio.CancelScope) -> Iterator[None]:
        """Have `ring` cancel *scope* during the block."""
        self._waiting.add(scope)
        try:
            yield
        finally:
            self._waiting.discard(scope)

    def ring(self) -> None:
        """Wake every reader that waits."""
        for scope in self._waiting:
            scope.cancel()


# ── For streams ─────────────────────────────────────────────────────────────────────────────────


class Beside(Protocol):
    """Events that a stream sends beside those of its feed, between two frames."""

    @property
    def news(self) -> bool:
        """Whether there is something to send."""
        ...

    def take(self) -> bytes:
        """Return what there is to send, perhaps nothing; it counts as sent."""
        ...

    def wakes(self, scope: trio.CancelScope) -> AbstractContextManager[None]:
        """Have news cancel *scope* during the block."""
        ...


@frozen
class NothingBeside:
    """Nothing is sent beside the feed."""

    news: bool = False

    def take(self) -> bytes:
        """Return nothing."""
        return b""

    def wakes(self, scope: trio.CancelScope) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()


NOTHING_BESIDE: Final = NothingBeside()
