"""Answers that are JSON arrays of any length, made and sent a page at a time.

Nothing that a client can ask for may hold up the others. An array is put together page by page, with
a turn for others after each, and a page is made only when the one before has been taken. An array
that is one page is an ordinary answer.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

import trio
from attrs import define, field

from crush_trio.store.pages import Hole, PagePiece, Pages, fill_holes
from crush_trio.wire.codec import encode

_VALUES_AT_ONCE: Final = 200
"""Values that are encoded in one step: a few milliseconds, where they are large."""


def _as_stored(hole: Hole) -> bytes:
    return hole.default


@define(eq=False)
class JsonPages:
    """An array that is about to be sent. *fill* says what belongs into the holes of its pages."""

    _pages: Pages
    _fill: Callable[[Hole], bytes] = _as_stored
    _joint: bytes = field(default=b"[", init=False)
    """What comes before the next item."""

    @property
    def more(self) -> bool:
        """Whether there is another piece of it."""
        return self._pages.more

    async def read(self) -> bytes:
        """Return the next piece of the array; the last one closes it."""
        items = fill_holes(await self._pages.read(), self._fill)
        end = b"" if self._pages.more else b"]"
        if not items and end:
            return b"[]" if self._joint == b"[" else end
        piece = self._joint + items + end
        self._joint = b","
        return piece

    # ASYNC900: the framework sends nothing but a generator piece by piece, and this one holds no scope.
    # ASYNC911: after the last piece there is nothing left to wait for.
    async def following(  # noqa: ASYNC900, ASYNC911
        self, first: bytes
    ) -> AsyncGenerator[bytes, None]:
        """Give *first* and then the rest, for a server that is given a generator."""
        await trio.lowlevel.checkpoint()
        yield first
        while self.more:
            yield await self.read()


@define(eq=False)
class ValuePages:
    """The pages of values that are all at hand. Satisfies `Pages`."""

    _values: Sequence[object]
    _at: int = field(default=0, init=False)

    @property
    def more(self) -> bool:
        """Whether there is another page; an empty list has one, too."""
        return self._at < max(len(self._values), 1)

    async def read(self) -> Sequence[PagePiece]:
        """Return the next page."""
        await trio.lowlevel.checkpoint()
        values = self._values[self._at : self._at + _VALUES_AT_ONCE]
        self._at += _VALUES_AT_ONCE
        return (encode(values)[1:-1],)
