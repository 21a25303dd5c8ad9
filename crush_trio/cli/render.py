"""From what rich can draw to lines that a terminal can show, one string each.

Every line carries its own styles and leaves none behind, so lines can be kept, cut off and put
together in any order.
"""

import io
import re
from typing import Any, Final, cast

from attrs import define, field
from rich.cells import cell_len
from rich.console import Console, RenderableType

WIDEST: Final = 4096
"""How many cells a line has at most, wherever it is to be shown."""

_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
_SPACES: Final = re.compile(r" +\Z")


@define(eq=False)
class Renderer:
    """Draws for one terminal, without touching it: whoever wants lines to be seen writes them."""

    _console: Console = field(repr=False)

    @classmethod
    def like(cls, console: Console) -> "Renderer":
        """Return what draws with the colours that *console* can show."""
        colours = cast("Any", console.color_system)  # the names are a type of their own
        paper = Console(
            file=io.StringIO(),
            width=WIDEST,
            force_terminal=console.is_terminal,
            color_system=colours,
            no_color=console.no_color,
        )
        return cls(paper)

    def lines(self, drawing: RenderableType, width: int) -> list[str]:
        """Return *drawing* as lines of *width* cells at most."""
        with self._console.capture() as captured:
            self._console.print(drawing, width=width, highlight=False)
        text = captured.get()
        return (
            [_SPACES.sub("", line) for line in text.removesuffix("\n").split("\n")] if text else []
        )


def plain(line: str) -> str:
    """Return a line without its styles."""
    return _STYLE.sub("", line)


def width_of(line: str) -> int:
    """Return how many cells a line takes."""
    return cell_len(plain(line))


def ink(line: str) -> int:
    """Return how many characters of a line leave a mark; that does not depend on where it is broken."""
    return sum(not letter.isspace() for letter in plain(line))


def without_ink(line: str, amount: int) -> str:
    """Return a line without its first *amount* marks; its styles stay."""
    kept, place = [], 0
    for match in [*_STYLE.finditer(line), None]:
        end = len(line) if match is None else match.start()
        for index in range(place, end):
            if amount == 0:
                kept.append(line[index:end])
                break
            amount -= not line[index].isspace()
        if match is not None:
            kept.append(match[0])
            place = match.end()
    return "".join(kept)
