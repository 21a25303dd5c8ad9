"""`find_edit`: finds the place in a file where an edit applies.

A quoted text that occurs in the file is replaced there. If it does not occur, its lines are searched
ignoring white space, and a single match is taken. Lines that the edit does not change stay as they are
in the file; new lines get the indentation of their surroundings (`Indentation`). Anything else is an
error, with a hint where the quotation differs. All texts here have LF line endings.

A model may quote a block with more or less indentation, or with spaces instead of tabs. Comparing the
quoted lines with the lines of the file shows how to translate the indentation of new lines. An
indentation that was not quoted is translated relative to the nearest one that was.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise, takewhile
from math import gcd
from typing import Final

from attrs import field, frozen

from crush_trio.tools.base import ToolError
from crush_trio.tools.files.text import Splice, edits_between

_NAMED: Final = 5
_SHOWN: Final = 120
_COMPARED: Final = 1000
_NUMBERED: Final = re.compile(r"\s*\d+\|")


@frozen(kw_only=True)
class EditMatch:
    """The replacements of an edit. `note` is a remark for the model, or empty."""

    splices: tuple[Splice, ...]
    note: str = ""


def find_edit(text: str, old: str, new: str, *, replace_all: bool = False) -> EditMatch:
    """Return the replacements that turn *old* into *new* in *text*; raise `ToolError` if unclear."""
    if old == new:
        raise ToolError("old_string and new_string are the same: nothing would change")
    places = _places(text, old, overlapping=not replace_all)
    if len(places) > 1 and not replace_all:
        raise ToolError(_ambiguous(text, places))
    if places:
        return EditMatch(splices=tuple(Splice(at, at + len(old), new) for at in places))
    return _find_loosely(text, old, new)


def _places(text: str, old: str, *, overlapping: bool) -> list[int]:
    places, at = [], text.find(old)
    while at >= 0:
        places.append(at)
        at = text.find(old, at + (1 if overlapping else len(old)))
    return places


def _ambiguous(text: str, places: Sequence[int]) -> str:
    numbers = [text.count("\n", 0, at) + 1 for at in places[:_NAMED]]
    listed = ", ".join(str(number) for number in numbers)
    more = ", …" if len(places) > _NAMED else ""
    return (
        f"old_string is found {len(places)} times (lines {listed}{more}). Add lines around it until "
        "it is unique, or set replace_all to change every one."
    )


# ── Matching that ignores white space ───────────────────────────────────────────────────────────


def _find_loosely(text: str, old: str, new: str) -> EditMatch:
    """Find the one place whose lines differ from those of *old* in white space only."""
    lines, wanted = text.removesuffix("\n").split("\n"), old.removesuffix("\n").split("\n")
    starts = _windows([_squeezed(line) for line in lines], [_squeezed(line) for line in wanted])
    if len(starts) != 1:
        raise ToolError(_not_found(lines, wanted, starts))
    [first] = starts
    last = first + len(wanted)
    splice = _block(text, lines, (first, last), old, new)
    note = (
        f"old_string was found only without regard to white space, at {_span(first, last)}. "
        "The indentation was adapted to the file; view these lines to see whether it is right."
    )
    return EditMatch(splices=(splice,), note=note)


def _block(text: str, lines: Sequence[str], place: tuple[int, int], old: str, new: str) -> Splice:
    """Return the splice that replaces whole lines by *new*."""
    first, last = place
    start = sum(len(line) + 1 for line in lines[:first])
    end = start + sum(len(line) + 1 for line in lines[first:last]) - 1
    if old.endswith("\n"):
        at_end = end == len(text)
        end += not at_end
        new = new.removesuffix("\n") if at_end else new
    return Splice(start, end, _fitted(lines[first:last], old, new))


def _fitted(meant: Sequence[str], old: str, new: str) -> str:
    """Return *new* adapted to the file: unchanged lines as in the file, new ones re-indented."""
    quoted, wanted = old.removesuffix("\n").split("\n"), new.removesuffix("\n").split("\n")
    indentation = Indentation.between(quoted, meant, wanted)
    fitted, at = list[str](), 0
    for edit in edits_between(quoted, wanted):
        fitted += meant[at : edit.old_start]
        fitted += [indentation.adapted(line) for line in wanted[edit.new_start : edit.new_end]]
        at = edit.old_end
    return "\n".join([*fitted, *meant[at:]]) + "\n" * new.endswith("\n")


def _squeezed(line: str) -> str:
    return " ".join(line.split())


def _windows(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return the line numbers where *wanted* occurs; none if it consists of blank lines only."""
    if not any(wanted):
        return []
    size = len(wanted)
    return [
        n
        for n, line in enumerate(lines[: len(lines) - size + 1])
        if line == wanted[0] and lines[n : n + size] == wanted
    ]


def _span(first: int, last: int) -> str:
    return f"line {last}" if last == first + 1 else f"lines {first + 1} to {last}"


# ── Hints ───────────────────────────────────────────────────────────────────────────────────────


def _not_found(lines: Sequence[str], wanted: Sequence[str], starts: Sequence[int]) -> str:
    if starts:
        return (
            f"old_string is not in the file, and {len(starts)} places differ from it in white space "
            "only. View the one you mean and copy it exactly."
        )
    if any(_NUMBERED.match(line) for line in wanted) and all(
        _NUMBERED.match(line) for line in wanted if line.strip()
    ):
        return (
            "old_string is not in the file: its lines begin with the numbers that view shows. "
            "Leave out everything up to and including the vertical bar."
        )
    return f"old_string is not in the file. {_nearest(lines, wanted)}"


def _nearest(lines: Sequence[str], wanted: Sequence[str]) -> str:
    """Return a hint: the place with the longest match, and the first line that differs."""
    have, want = [_squeezed(line) for line in lines], [_squeezed(line) for line in wanted]
    starts = islice((n for n, line in enumerate(have) if line == want[0] != ""), _COMPARED)
    agreeing = {n: _agreeing(have[n : n + len(want)], want) for n in starts}
    if not agreeing:
        return "No line of the file is its first line. View the file and copy the text exactly."
    start = max(agreeing, key=lambda n: agreeing[n])
    after = agreeing[start]
    if start + after >= len(lines):
        return f"From line {start + 1} on the file agrees with it, but it ends after line {len(lines)}."
    return (
        f"From line {start + 1} on the file agrees with it, but line {start + after + 1} is "
        f"{_shown(lines[start + after])} and not {_shown(wanted[after])}."
    )


def _agreeing(have: Sequence[str], want: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(have, want, strict=False)))


def _shown(line: str) -> str:
    return repr(line if len(line) <= _SHOWN else line[:_SHOWN] + "…")


def indent_of(line: str) -> str:
    """Return the white space at the beginning of *line*."""
    return line[: len(line) - len(line.lstrip())]


@frozen(kw_only=True)
class Indentation:
    """Translates indentation. One quoted level of `width` characters is `step` in the file.

    If the step is unknown, an indentation deeper or shallower than all quoted ones differs by the same
    number of characters in the file. If quoted and actual indentation are equal, `known` is empty and
    nothing is translated.
    """

    known: Mapping[str, str] = field(repr=False)
    width: int = 1
    step: str | None = None

    @classmethod
    def between(
        cls, quoted: Sequence[str], meant: Sequence[str], new: Sequence[str] = ()
    ) -> "Indentation":
        """Compare the quoted lines with the lines *meant*; *new* lines are indented like the quoted."""
        known: dict[str, str] = {}
        for line, original in zip(quoted, meant, strict=True):
            if line.strip():
                known.setdefault(indent_of(line), indent_of(original))
        if all(indent == original for indent, original in known.items()):
            return cls(known={})
        width, step = _step(known, [indent_of(line) for line in new if line.strip()])
        return cls(known=known, width=width, step=step)

    def adapted(self, line: str) -> str:
        """Return a new line with the indentation of the file; a blank line becomes empty."""
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
    """Return the width of one quoted level, and that level in the file if it can be derived."""
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
    """Reduce a step: eight spaces for two tabs become four spaces for one."""
    if len(set(step)) > 1:
        return width, step
    times = gcd(width, len(step))
    return width // times, step[: len(step) // times]
