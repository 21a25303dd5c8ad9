"""Path patterns with `*`, `?`, `[…]`, `**` and braces `{a,b}`.

The same matching serves the patterns of a model and the lines of an ignore file. Both are untrusted
input, and matching runs in threads, which cannot be interrupted. So its time must be at most
proportional to the length of the pattern times the length of the path. Within a name, each star
matches up to the first place where the following text fits (an atomic group); `**` in a path likewise.
A regular expression with `.*` for each star would try every combination.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from attrs import field, frozen

LONGEST: Final = 1000
"""Maximum characters of a pattern."""

MOST_ALTERNATIVES: Final = 256
"""How many patterns the braces of one pattern may expand to."""

SPECIAL: Final = re.compile(r"[*?\[{\\]")
"""Characters that make a pattern different from a plain name."""

CLASSES: Final = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r" \t-\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


class BadPattern(ValueError):
    """An invalid pattern; the text says why."""


# ── Names ───────────────────────────────────────────────────────────────────────────────────────


def name_regex(pattern: str) -> str:
    """Return the regular expression for a pattern of one path part; use it with `fullmatch`."""
    first, *rest = _runs(pattern)
    if not rest:
        return first
    between = "".join(f"(?>.*?{run})" for run in rest[:-1] if run)
    return f"{first}{between}.*{rest[-1]}"


def _runs(pattern: str) -> list[str]:
    """Split a pattern at its stars into regular expressions of fixed length."""
    runs = [""]
    place = 0
    while place < len(pattern):
        character = pattern[place]
        place += 1
        match character:
            case "*":
                runs.append("")
            case "?":
                runs[-1] += "."
            case "[":
                regex, place = _bracket(pattern, place)
                runs[-1] += regex
            case "\\":
                if place == len(pattern):
                    raise BadPattern("the pattern ends with a backslash")
                runs[-1] += re.escape(pattern[place])
                place += 1
            case _:
                runs[-1] += re.escape(character)
    return runs


def _bracket(pattern: str, place: int) -> tuple[str, int]:
    """Parse the bracket set that begins at *place*; return its regular expression and its end."""
    negated = pattern[place : place + 1] in {"!", "^"}
    place += negated
    members = ""
    first = True
    while first or pattern[place : place + 1] != "]":
        first = False
        if named := re.compile(r"\[:([a-z]+):\]").match(pattern, place):
            members += _named(named[1])
            place = named.end()
            continue
        low, place = _member(pattern, place)
        high = low
        if pattern[place : place + 1] == "-" and pattern[place + 1 : place + 2] != "]":
            high, place = _member(pattern, place + 1)
        if low <= high:
            members += f"{_exactly(low)}-{_exactly(high)}"
    if not members:
        return ("." if negated else "(?!)"), place + 1
    return f"[{'^' * negated}{members}]", place + 1


def _member(pattern: str, place: int) -> tuple[str, int]:
    place += pattern[place : place + 1] == "\\"
    if place >= len(pattern):
        raise BadPattern("a [ is never closed")
    return pattern[place], place + 1


def _named(name: str) -> str:
    if name not in CLASSES:
        raise BadPattern(f"there is no set [:{name}:]")
    return CLASSES[name]


def _exactly(character: str) -> str:
    return f"\\U{ord(character):08x}"


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(name_regex(pattern), re.DOTALL)


# ── Paths ───────────────────────────────────────────────────────────────────────────────────────


_ANY_DEPTH: Final = "**"


def _depth(part: str) -> str:
    return _ANY_DEPTH if len(part) > 1 and not part.strip("*") else part


@frozen
class PathPattern:
    """A pattern for the parts of a relative path, without braces; `Patterns.parse` expands those.

    `**` matches any number of directories. At the end it matches everything inside a directory, but not
    the directory itself.
    """

    parts: tuple[str, ...]
    _regexes: tuple[re.Pattern[str] | None, ...] = field(init=False, repr=False, eq=False)

    @_regexes.default
    def _compile(self) -> tuple[re.Pattern[str] | None, ...]:
        return tuple(None if part == _ANY_DEPTH else _compiled(part) for part in self.parts)

    @classmethod
    def parse(cls, pattern: str) -> "PathPattern":
        """Parse a pattern; raise `BadPattern` if it is invalid or cannot match anything."""
        if len(pattern) > LONGEST:
            raise BadPattern(f"the pattern is longer than {LONGEST} characters")
        parts = [_depth(part) for part in pattern.split("/") if part not in {"", "."}]
        if not parts:
            raise BadPattern("the pattern is empty")
        if ".." in parts:
            raise BadPattern("the pattern goes up with .. after a wildcard")
        if parts[-1] == _ANY_DEPTH:
            parts.append("*")
        return cls(tuple(parts))

    def matches(self, path: Sequence[str]) -> bool:
        """Whether the whole of *path* matches."""
        # On a mismatch only the last `**` is tried one part further: the linear algorithm for globs.
        here = there = 0
        retry: tuple[int, int] | None = None
        while there < len(path):
            if here < len(self.parts) and self._regexes[here] is None:
                here += 1
                retry = here, there
            elif here < len(self.parts) and self._fits(here, path[there]):
                here, there = here + 1, there + 1
            elif retry is not None:
                retry = here, there = retry[0], retry[1] + 1
            else:
                return False
        return all(regex is None for regex in self._regexes[here:])

    def _fits(self, place: int, name: str) -> bool:
        regex = self._regexes[place]
        return regex is not None and regex.fullmatch(name) is not None

    @property
    def depth(self) -> int | None:
        """How deep the deepest match can be; None if there is no limit."""
        return None if _ANY_DEPTH in self.parts else len(self.parts)


@frozen
class Patterns:
    """The expansions of one pattern with braces; a path matches if it matches any of them."""

    alternatives: tuple[PathPattern, ...]

    @classmethod
    def parse(cls, pattern: str) -> "Patterns":
        """Parse a pattern that is relative to the searched directory."""
        return cls(tuple(PathPattern.parse(each) for each in expand(pattern)))

    @classmethod
    def parse_anywhere(cls, pattern: str) -> "Patterns":
        """Parse a pattern that matches at any depth if it contains no slash: `*.py`."""
        anchored = "/" in pattern.rstrip("/")
        return cls.parse(pattern if anchored else f"{_ANY_DEPTH}/{pattern}")

    def matches(self, path: Sequence[str]) -> bool:
        """Whether *path* matches one of the alternatives."""
        return any(each.matches(path) for each in self.alternatives)

    @property
    def depth(self) -> int | None:
        """How deep the deepest match can be; None if there is no limit."""
        depths = [each.depth for each in self.alternatives]
        return None if None in depths else max(depth or 0 for depth in depths)


def split_base(pattern: str) -> tuple[str, str]:
    """Split off the leading directories without wildcards: `a/b` of `a/b/*.py`."""
    special = SPECIAL.search(pattern)
    plain = pattern if special is None else pattern[: special.start()]
    base, slash, _ = plain.rpartition("/")
    return base or slash, pattern[len(base + slash) :]


# ── Braces ──────────────────────────────────────────────────────────────────────────────────────


def expand(pattern: str) -> tuple[str, ...]:
    """Expand the braces of a pattern. Unbalanced braces are literal."""
    if "\0" in pattern:
        raise BadPattern("there is a null character in the pattern")
    if len(pattern) > LONGEST:
        raise BadPattern(f"the pattern is longer than {LONGEST} characters")
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        each = waiting.pop()
        group = _first_group(each)
        if group is None:
            done.append(each)
        else:
            begin, commas, end = group
            cuts = (begin, *commas, end)
            choices = [each[a + 1 : b] for a, b in pairwise(cuts)]
            waiting += [each[:begin] + choice + each[end + 1 :] for choice in reversed(choices)]
        if len(done) + len(waiting) > MOST_ALTERNATIVES:
            raise BadPattern(f"the braces stand for more than {MOST_ALTERNATIVES} patterns")
    return tuple(dict.fromkeys(done))


def _first_group(pattern: str) -> tuple[int, list[int], int] | None:
    """Return start, commas and end of the first balanced pair of braces."""
    open_at: list[int] = []
    commas: dict[int, list[int]] = {}
    closed: dict[int, int] = {}
    for place, character in _unquoted(pattern):
        match character:
            case "{":
                open_at.append(place)
                commas[place] = []
            case "," if open_at:
                commas[open_at[-1]].append(place)
            case "}" if open_at:
                closed[open_at.pop()] = place
    if not closed:
        return None
    begin = min(closed)
    return begin, commas[begin], closed[begin]


def _unquoted(pattern: str) -> Iterator[tuple[int, str]]:
    """Yield the characters that are not escaped, with their offsets."""
    quoted = False
    for place, character in enumerate(pattern):
        if quoted or character != "\\":
            if not quoted:
                yield place, character
            quoted = False
        else:
            quoted = True
