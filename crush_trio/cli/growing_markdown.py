"""Markdown that is still being written, shown as far as it has come.

A block that has another one behind it is finished: it is drawn once and never again. Only the last
block is drawn anew when it grows, so an answer costs as much as it is long. What stands on a line that
has not ended does not count yet, because its next letter may make something else of it. If the last
block alone is higher than the screen, its first lines are let go as they are: they would not change any more in all
but the oddest cases, and waiting for the end would hide what is being said.

How much of a block was let go is counted in marks and not in lines, because a terminal may become
wider or narrower in between.
"""

from collections.abc import Callable, Iterator
from typing import Final

from attrs import define, field, frozen
from rich.console import RenderableType
from rich.markdown import Markdown

from crush_trio.cli.render import ink, without_ink
from crush_trio.cli.visible import visible

Draw = Callable[[RenderableType, int], list[str]]
"""Turns a drawing into lines of a width."""


_SLACK: Final = 16
"""By how many marks a drawing may differ from one before, as when an emphasis turns out to be one."""


@frozen
class Shown:
    """Lines that are finished for good, and lines that may still change."""

    done: tuple[str, ...] = ()
    live: tuple[str, ...] = ()


@frozen
class _Gone:
    """What was let go of a drawing: the marks on each of its lines, and its width.

    Width 0 is that of no drawing: then only the sum of the marks means something.
    """

    marks: tuple[int, ...]
    width: int

    @property
    def ink(self) -> int:
        return sum(self.marks)

    def left(self, lines: list[str], width: int) -> list[str]:
        """Return what of *lines* was not let go; all of them, if they are not what they were.

        To say something twice is better than never to say it.
        """
        if width != self.width:
            return list(_without(lines, self.ink))
        count = len(self.marks)
        before, now = sum(self.marks[: len(lines)]), sum(map(ink, lines[:count]))
        return lines[count:] if abs(now - before) <= _SLACK else lines

    def beyond(self, lines: list[str], width: int) -> "_Gone | None":
        """Return what was let go beyond *lines*; None if that is nothing."""
        if width == self.width:
            rest = self.marks[len(lines) :]
            return _Gone(rest, width) if rest else None
        marks = self.ink - sum(map(ink, lines))
        return _Gone((marks,), 0) if marks > 0 else None


@define(eq=False)
class GrowingMarkdown:
    """A text of which some has been let go."""

    _rest: str = field(default="", init=False)
    _begun: bool = field(default=False, init=False)
    """Whether anything was let go."""
    _gone: _Gone | None = field(default=None, init=False)
    """What was let go of the rest, which is still needed to draw what follows."""

    def append(self, text: str) -> None:
        """Add *text* at the end."""
        self._rest += visible(text)

    def advance(self, draw: Draw, width: int, room: int) -> Shown:
        """Return what is finished since the last time, and the rest in *room* lines at most."""
        blocks = list(_blocks(self._rest[: self._rest.rfind("\n") + 1]))
        done = [line for block in blocks[:-1] for line in self._finish(draw, width, block)]
        if not self._rest.strip():
            return Shown(tuple(done))
        whole = self._spaced(draw(_markdown(self._rest), width))
        left = self._left(whole, width)
        excess = max(0, len(left) - max(room, 2))
        if excess:
            done += left[:excess]
            self._gone = _Gone(tuple(map(ink, whole[: len(whole) - len(left) + excess])), width)
        return Shown(tuple(done), tuple(left[excess:]))

    def finish(self, draw: Draw, width: int) -> tuple[str, ...]:
        """Return everything that was not let go yet; nothing more will come."""
        blocks = list(_blocks(self._rest))
        return tuple(line for block in blocks for line in self._finish(draw, width, block))

    def _finish(self, draw: Draw, width: int, block: str) -> list[str]:
        whole = self._spaced(draw(_markdown(block), width))
        left = self._left(whole, width)
        self._rest = self._rest[len(block) :]
        self._begun = True
        self._gone = None if self._gone is None else self._gone.beyond(whole, width)
        return left

    def _left(self, lines: list[str], width: int) -> list[str]:
        return lines if self._gone is None else self._gone.left(lines, width)

    def _spaced(self, lines: list[str]) -> list[str]:
        """Return the lines of a block with an empty one before them, unless it is the first block."""
        lines = _trimmed(lines)
        return ["", *lines] if self._begun and lines else lines


def _markdown(block: str) -> Markdown:
    return Markdown(block, hyperlinks=False)


def _without(lines: list[str], gone: int) -> Iterator[str]:
    for line in lines:
        marks = ink(line)
        if gone == 0:
            yield line
        elif marks > gone:
            yield without_ink(line, gone)
        gone = max(0, gone - marks)


def _trimmed(lines: list[str]) -> list[str]:
    """Return *lines* without the empty ones at both ends; the distance of blocks is our business."""
    while lines and not lines[0].strip():
        lines = lines[1:]
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def _blocks(text: str) -> Iterator[str]:
    """Cut *text* in front of each of its blocks, as those see them who draw it; nothing is left out."""
    starts = [
        token.map[0]
        for token in _markdown(text).parsed
        if token.level == 0 and token.nesting >= 0 and token.map
    ]
    lines = text.splitlines(keepends=True)
    for begin, end in zip([0, *starts[1:]], [*starts[1:], len(lines)], strict=True):
        if block := "".join(lines[begin:end]):
            yield block
