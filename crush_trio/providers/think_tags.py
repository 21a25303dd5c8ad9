"""`ThinkTags`: separates the reasoning that a model writes into its text, between `<think>` tags.

Models with open weights reason so, and a server that does not parse the tags sends them on as text. Only an
answer that begins with the tag is meant: later ones may be part of a file that the model quotes. A model
that never closes the tag has reasoned and not answered.

Invariant: however the text is cut into pieces, the result is the same. What may be the beginning of a tag
is held back until the next piece decides it.
"""

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final

from attrs import define, field

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


class _Place(Enum):
    BEGINNING = auto()
    REASONING = auto()
    TEXT = auto()


@define(eq=False)
class ThinkTags:
    """The text of one answer, split into reasoning and text."""

    _place: _Place = field(default=_Place.BEGINNING, init=False)
    _held: str = field(default="", init=False)
    _trim: bool = field(default=False, init=False)
    """Whether blanks are dropped here: those after a tag belong to the tag."""

    def split(self, text: str) -> Iterator[tuple[bool, str]]:
        """Yield the pieces of *text*, each with whether it is reasoning."""
        text, self._held = self._held + text, ""
        if self._place is _Place.BEGINNING:
            start = text.lstrip()
            if OPEN.startswith(start):
                self._held = text
                if start == OPEN:
                    self._enter(_Place.REASONING)
                    self._held = ""
                return
            if not start.startswith(OPEN):
                self._place = _Place.TEXT
            else:
                self._enter(_Place.REASONING)
                text = start.removeprefix(OPEN)
        if self._place is _Place.REASONING:
            thought, closed, rest = text.partition(CLOSE)
            if not closed:
                whole = len(thought) - _tag_begun(thought)
                thought, self._held = thought[:whole], thought[whole:]
            yield from self._said(thought)
            if not closed:
                return
            self._enter(_Place.TEXT)
            text = rest
        yield from self._said(text)

    def rest(self) -> Iterator[tuple[bool, str]]:
        """Yield what was held back: no more text follows here."""
        held, self._held = self._held, ""
        yield from self._said(held)

    def _enter(self, place: _Place) -> None:
        self._place, self._trim = place, True

    def _said(self, text: str) -> Iterator[tuple[bool, str]]:
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        if text:
            yield self._place is _Place.REASONING, text


def _tag_begun(text: str) -> int:
    """Return how many characters at the end of *text* may be the beginning of the closing tag."""
    return next((n for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), 0)
