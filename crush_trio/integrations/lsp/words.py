"""Where a name stands in the files of a workspace.

A model knows a symbol by its name, a server by a place. So the name is looked for as a whole word, in the
files that some server is for; the server then says whether it is a symbol there. Places that look like a
definition come first. Synchronous, and belongs in a worker thread, which notices a cancel.

The search begins at the directory of the workspace or at what the model names, never at the directory of
the process (L21).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import trio
from attrs import field, frozen

from crush_trio.tools.base import ToolError
from crush_trio.tools.disk import read_file
from crush_trio.tools.searches import Place
from crush_trio.tools.text import BOM
from crush_trio.tools.walking import Walk

LARGEST: Final = 1024 * 1024
"""Bytes of a file that is searched."""

FILES: Final = 5000
"""Files that are searched."""

PER_FILE: Final = 20
PLACES: Final = 200
"""Places of a file, and in all, that are taken."""

SECONDS: Final = 5.0

_DEFINING: Final = re.compile(
    r"\b(?:class|const|def|enum|fn|func|function|impl|interface|let|mod|module|namespace|static"
    r"|struct|trait|type|union|val|var)\s+(?:\([^()]*\)\s*)?$"
)
"""What stands before a name where it is defined, in most languages."""


@frozen(kw_only=True)
class Spot:
    """A place where a name stands: the line counts from 0, `column` is an index into its text."""

    path: Path
    line: int
    column: int
    text: str = field(repr=False)

    @property
    def defines(self) -> bool:
        """Whether it looks like the definition."""
        return _DEFINING.search(self.text[: self.column]) is not None


def find_spots(place: Place, symbol: str, wanted: Callable[[Path], bool]) -> list[Spot]:
    """Return where *symbol* stands, best first. If it has parts, such as `a.b`, the last one is meant.

    Where the whole is not written out, as with a method, its last part alone is looked for.
    """
    files = list(_files(place, wanted))
    parts = [part for part in re.split(r"\.|::|#|->", symbol) if part]
    for text in dict.fromkeys([symbol, parts[-1] if parts else symbol]):
        last = len(parts[-1]) if parts else len(text)
        spots = list(_spots(files, _word(text), last))
        if spots:
            return sorted(spots, key=lambda spot: not spot.defines)
    return []


def _word(text: str) -> re.Pattern[str]:
    """Return what finds *text* as a whole word; at an end that is no letter there is no word to end."""
    before = r"(?<!\w)" if text[:1].isalnum() or text[:1] == "_" else ""
    after = r"(?!\w)" if text[-1:].isalnum() or text[-1:] == "_" else ""
    return re.compile(before + re.escape(text) + after)


def _files(place: Place, wanted: Callable[[Path], bool]) -> Iterator[Path]:
    if place.file is not None:
        yield place.root / place.file
        return
    entries = Walk(place.ignoring, seconds=SECONDS).entries()
    paths = (place.root / entry.path for entry in entries if entry.is_file)
    for path, _ in zip(filter(wanted, paths), range(FILES), strict=False):
        yield path


def _spots(files: Iterable[Path], word: re.Pattern[str], last: int) -> Iterator[Spot]:
    left = PLACES
    for path in files:
        trio.from_thread.check_cancelled()
        for spot, _ in zip(_in_file(path, word, last), range(PER_FILE), strict=False):
            yield spot
            left -= 1
            if not left:
                return


def _in_file(path: Path, word: re.Pattern[str], last: int) -> Iterator[Spot]:
    for number, text in enumerate(_lines(path)):
        for match in word.finditer(text):
            yield Spot(path=path, line=number, column=match.end() - last, text=text)


def _lines(path: Path) -> list[str]:
    """Return the lines of a text file, as servers count them; another file has none."""
    try:
        snapshot = read_file(path, LARGEST)
        text = "" if snapshot is None else snapshot.data.decode("utf-8")
    except (ToolError, UnicodeDecodeError):
        return []
    return re.split("\r\n|\n|\r", text.removeprefix(BOM))
