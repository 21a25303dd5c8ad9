"""Translates a regular expression from ripgrep's syntax to Python's, so that both find the same lines.

Most of the syntax is common. What only ripgrep has is rewritten, or refused with a `NotTranslatable` that
names it; what only Python has, such as look-around, stays as it is. Expressions match single lines.
"""

import re
from typing import Final

from attrs import define, field

from crush_trio.tools.search.patterns import CLASSES

_HEX: Final = re.compile(r"\\[xuU]\{([0-9A-Fa-f]{1,6})\}")
_FLAGS: Final = re.compile(r"\(\?([a-zA-Z]*(?:-[a-zA-Z]+)?)([:)])")
_NAMED: Final = re.compile(r"\(\?<(?=[A-Za-z_])")
_POSIX: Final = re.compile(r"\[:(\^?)(\w+):\]")
_POSIX_ALONE: Final = re.compile(r"\[(\^?)\[:(\^?)(\w+):\]\]")
_SETS: Final = {**CLASSES, "word": "0-9A-Za-z_", "ascii": r"\x00-\x7f"}
_ESCAPES: Final = {r"\z": r"\Z", r"\<": r"\b(?=\w)", r"\>": r"\b(?<=\w)"}


class NotTranslatable(ValueError):
    """An expression contains something that Python does not have; the text names it."""


class SpansLines(ValueError):
    """An expression contains a line feed, which no line has."""


@define
class _Group:
    """An open group: the flags that were set in it, as beginnings of the groups they became."""

    flags: list[str] = field(factory=list)


def to_python(pattern: str) -> str:
    """Return *pattern* for `re.compile`; raises `NotTranslatable` or `SpansLines`.

    Flags in the midst of a group, such as `a(?i)b|c`, apply to the rest of it. Python wants a group of
    its own for them, which ends and begins again at each `|`.
    """
    out: list[str] = []
    groups = [_Group()]
    at = 0
    while at < len(pattern):
        token, at = _next(pattern, at)
        flags = _flags(token)
        match token[0]:
            case "\n":
                raise SpansLines
            case "(" if flags is not None and token.endswith(")"):
                token = f"(?{flags}:" if flags else "(?:"
                groups[-1].flags.append(token)
            case "(":
                token = token if flags is None else f"(?{flags}:"
                groups.append(_Group())
            case ")" if len(groups) > 1:
                token += ")" * len(groups.pop().flags)
            case "|":
                opened = groups[-1].flags
                token = ")" * len(opened) + token + "".join(opened)
        out.append(token)
    return "".join(out) + ")" * len(groups[0].flags)


def _next(pattern: str, at: int) -> tuple[str, int]:
    """Return the next token of *pattern*, translated if it needs no context, and its end."""
    if pattern[at] == "\\":
        return _escape(pattern, at)
    if pattern[at] == "[":
        return _set(pattern, at)
    if (flags := _FLAGS.match(pattern, at)) is not None:
        return flags[0], flags.end()
    if (named := _NAMED.match(pattern, at)) is not None:
        return "(?P<", named.end()
    return pattern[at], at + 1


def _flags(token: str) -> str | None:
    """Return the flags of a token that sets some, as Python has them; None if it sets none."""
    found = _FLAGS.fullmatch(token)
    if found is None or (not found[1] and found[2] == ":"):
        return None
    added, _, removed = found[1].partition("-")
    for flag in added + removed:
        if flag not in "imsxu" or (flag == "u" and flag in removed):
            raise NotTranslatable(token)
    added = added.replace("u", "")
    return f"{added}-{removed}" if removed else added


def _escape(pattern: str, at: int) -> tuple[str, int]:
    if (code := _HEX.match(pattern, at)) is not None:
        number = int(code[1], 16)
        if number > 0x10FFFF:
            raise NotTranslatable(code[0])
        return re.escape(chr(number)), code.end()
    token = pattern[at : at + 2]
    if token in {r"\p", r"\P"}:
        raise NotTranslatable(token + r"{…}")
    if token == r"\n":
        raise SpansLines
    return _ESCAPES.get(token, token), at + len(token)


def _set(pattern: str, at: int) -> tuple[str, int]:
    """Translate the set that begins at *at*, such as `[a-z]`."""
    if (alone := _POSIX_ALONE.match(pattern, at)) is not None and alone[3] in _SETS:
        negated = bool(alone[1]) != bool(alone[2])
        return f"[{'^' * negated}{_SETS[alone[3]]}]", alone.end()
    begin = at
    at += 2 if pattern[at + 1 : at + 2] == "^" else 1
    out = [pattern[begin:at]]
    if pattern[at : at + 1] == "]":  # a bracket at the beginning is a member
        out.append(r"\]")
        at += 1
    while at < len(pattern) and pattern[at] != "]":
        posix = _POSIX.match(pattern, at)
        if posix is not None and posix[2] in _SETS and not posix[1]:
            out.append(_SETS[posix[2]])
            at = posix.end()
        elif pattern[at] == "[" or pattern[at : at + 2] in {"&&", "--", "~~"}:
            raise NotTranslatable(
                f"a set inside {pattern[begin : at + 1]}… (write \\[ for a bracket)"
            )
        elif pattern[at] == "\\" and pattern[at : at + 2] not in {r"\n", *_ESCAPES}:
            token, at = _escape(pattern, at)
            out.append(token)
        elif pattern[at] == "\\":
            out.append(pattern[at : at + 2])
            at += 2
        else:
            out.append(pattern[at])
            at += 1
    return "".join([*out, pattern[at : at + 1]]), at + 1
