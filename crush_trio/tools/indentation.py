"""From the indentation that a model quoted to the one that the file has.

A model that quotes a block may shift it, or write spaces where the file has tabs. The lines it
quoted and the lines it meant tell how one becomes the other; new lines are translated the same way,
and where they are indented in a way that was not quoted, from the nearest one that was.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import gcd

from attrs import field, frozen


def indent_of(line: str) -> str:
    """Return the white space at the beginning of *line*."""
    return line[: len(line) - len(line.lstrip())]


@frozen(kw_only=True)
class Indentation:
    """Translates indentation. A quoted step of `width` characters is `step` in the file.

    Without a step, what is indented more or less than anything quoted is so by as much in the file.
    Where nothing is known to differ, nothing is translated.
    """

    known: Mapping[str, str] = field(repr=False)
    width: int = 1
    step: str | None = None

    @classmethod
    def between(
        cls, quoted: Sequence[str], meant: Sequence[str], new: Sequence[str] = ()
    ) -> "Indentation":
        """Learn from lines of the file and how they were quoted; *new* lines were quoted alike."""
        known: dict[str, str] = {}
        for line, original in zip(quoted, meant, strict=True):
            if line.strip():
                known.setdefault(indent_of(line), indent_of(original))
        if all(indent == original for indent, original in known.items()):
            return cls(known={})
        width, step = _step(known, [indent_of(line) for line in new if line.strip()])
        return cls(known=known, width=width, step=step)

    def adapted(self, line: str) -> str:
        """Return a new line as the file would have it; of a blank one nothing remains."""
        text = line.lstrip()
        return self._translated(indent_of(line)) + text if text else ""

    def _translated(self, indent: str) -> str:
        if indent in self.known or not self.known:
            return self.known.get(indent, indent)
        shorter = [each for each in self.known if len(each) < len(indent)]
        if shorter:
            nearest = max(shorter, key=len)
            return self.known[nearest] + self._deeper(indent[len(nearest) :])
        nearest = min(self.known, key=len)
        return self._shallower(self.known[nearest], len(nearest) - len(indent))

    def _deeper(self, surplus: str) -> str:
        if self.step is None:
            return surplus
        steps, rest = divmod(len(surplus), self.width)
        return self.step * steps + " " * rest

    def _shallower(self, indent: str, lacking: int) -> str:
        if self.step is not None:
            lacking = len(self.step) * (lacking // self.width)
        return indent[: max(len(indent) - lacking, 0)]


def _step(known: Mapping[str, str], new: Sequence[str]) -> tuple[int, str | None]:
    """Return how wide a step was quoted, and what it is in the file, if that can be told."""
    pairs = sorted(known.items(), key=lambda pair: len(pair[0]))
    for (quoted, original), (deeper, deeper_original) in pairwise(pairs):
        step = deeper_original[len(original) :]
        if step and len(deeper) > len(quoted) and deeper_original.startswith(original):
            return _smallest(len(deeper) - len(quoted), step)
    for quoted, original in pairs:
        if quoted and original and quoted[0] != original[0]:
            return _smallest(len(quoted), original)
    if any(original.startswith("\t") for original in known.values()):
        widths = {len(indent) for indent in new if indent.startswith(" ")}
        return (min(widths), "\t") if widths else (1, None)
    return 1, None


def _smallest(width: int, step: str) -> tuple[int, str]:
    """Return the same translation in smaller steps: eight spaces for two tabs are four for one."""
    if len(set(step)) > 1:
        return width, step
    times = gcd(width, len(step))
    return width // times, step[: len(step) // times]
