"""What stands at the head of a skill's file, between two lines of three hyphens.

The block is YAML. What a skill needs of it is one `key: value` per line, so that much is read here, and
strictly: whatever YAML would take for something else than the words on the line is refused, with a
sentence that says what to write instead. Keys that mean nothing here may hold anything.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import orjson
from attrs import frozen

NAME_LIMIT: Final = 64
DESCRIPTION_LIMIT: Final = 1024
COMPATIBILITY_LIMIT: Final = 500
"""Characters that each may have (I7)."""

_FENCE: Final = "---"
_TEXTS: Final = frozenset({"name", "description", "license", "compatibility"})
_SWITCHES: Final = frozenset({"user-invocable", "disable-model-invocation"})
_READ: Final = _TEXTS | _SWITCHES

_KEY: Final = re.compile(r"([\w.-]+)[ \t]*:(?:[ \t]+(.*))?")
_NAME: Final = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")
_DOUBLE: Final = re.compile(r'("(?:[^"\\]|\\.)*")[ \t]*(?:[ \t]#.*)?')
_SINGLE: Final = re.compile(r"'((?:[^']|'')*)'[ \t]*(?:[ \t]#.*)?")
_COMMENT: Final = re.compile(r"(?:^|[ \t])#.*")
_SPECIAL: Final = re.compile(r"[\[\]{}&*!%@`,]|[-?:](?:[ \t]|$)")


class BadFrontMatter(ValueError):
    """The head of a skill's file cannot be read, or says too little or too much."""


@frozen(kw_only=True)
class FrontMatter:
    """What a skill says about itself."""

    name: str
    description: str
    user_invocable: bool = False
    """Whether people are offered to start it."""
    advertised: bool = True
    """Whether models are told of it."""


def read_front_matter(text: str) -> FrontMatter:
    """Return what the head of a skill's file says, or raise `BadFrontMatter`."""
    said = _fields(_block(text))
    switches = {key: _switch(key, said[key]) for key in _SWITCHES & said.keys()}
    front = FrontMatter(
        name=said.get("name", ""),
        description=said.get("description", ""),
        user_invocable=switches.get("user-invocable", False),
        advertised=not switches.get("disable-model-invocation", False),
    )
    _check("name", front.name, NAME_LIMIT)
    _check("description", front.description, DESCRIPTION_LIMIT)
    if not _NAME.fullmatch(front.name):
        raise BadFrontMatter("name may only have letters, digits and single hyphens between them")
    if len(said.get("compatibility", "")) > COMPATIBILITY_LIMIT:
        raise BadFrontMatter(f"compatibility has more than {COMPATIBILITY_LIMIT} characters")
    return front


def _check(key: str, text: str, limit: int) -> None:
    if not text.strip():
        raise BadFrontMatter(f"{key} is missing")
    if len(text) > limit:
        raise BadFrontMatter(f"{key} has more than {limit} characters")


# ── Lines ───────────────────────────────────────────────────────────────────────────────────────


def _block(text: str) -> list[str]:
    """Return the lines between the fences."""
    lines = [line.rstrip() for line in text.removeprefix("\ufeff").split("\n")]
    if lines[0] != _FENCE:
        raise BadFrontMatter("the file does not begin with a line of three hyphens")
    try:
        return lines[1 : lines.index(_FENCE, 1)]
    except ValueError:
        raise BadFrontMatter("the second line of three hyphens is missing") from None


def _fields(lines: Sequence[str]) -> Mapping[str, str]:
    """Return the values of the keys that are read here; each key may be there once."""
    found: dict[str, str] = {}
    for number, key, text in _entries(lines):
        if key in found:
            raise BadFrontMatter(f"line {number}: {key} is there twice")
        found[key] = _scalar(number, key, text) if key in _READ else ""
    return found


def _entries(lines: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Return the number, key and value of every line that has some, checking the others."""
    key = ""
    for number, line in enumerate(lines, 2):
        if not line or line.lstrip().startswith("#"):
            continue
        if line[0] in " \t-" and key and key not in _READ:
            continue  # it belongs to a key that nobody reads here
        if line[0] in " \t-" and key:
            raise BadFrontMatter(f"line {number}: write {key} in one line, in quotes if need be")
        match = _KEY.fullmatch(line)
        if match is None:
            raise BadFrontMatter(f"line {number}: expected a key, a colon, a space and a value")
        key = match[1]
        yield number, key, match[2] or ""


# ── Values ──────────────────────────────────────────────────────────────────────────────────────


def _scalar(number: int, key: str, text: str) -> str:
    """Return the words that a value is, without their quotes."""
    text = text.strip()
    if text.startswith('"'):
        return _double(number, key, text)
    if text.startswith("'"):
        if match := _SINGLE.fullmatch(text):
            return match[1].replace("''", "'")
        raise _unreadable(number, key)
    plain = _COMMENT.sub("", text).strip()
    if plain.startswith(("|", ">")):
        raise BadFrontMatter(f"line {number}: write {key} in one line, in quotes if need be")
    if _SPECIAL.match(plain) or ": " in plain or plain.endswith(":"):
        raise BadFrontMatter(f"line {number}: put the value of {key} in quotes")
    return plain


def _double(number: int, key: str, text: str) -> str:
    """Return what is in double quotes; of the escapes there are, those of JSON are known."""
    match = _DOUBLE.fullmatch(text)
    if match is None:
        raise _unreadable(number, key)
    try:
        return str(orjson.loads(match[1]))
    except orjson.JSONDecodeError:
        raise _unreadable(number, key) from None


def _unreadable(number: int, key: str) -> BadFrontMatter:
    return BadFrontMatter(f"line {number}: what is in the quotes of {key} cannot be read")


def _switch(key: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise BadFrontMatter(f"{key} must be true or false")
    return text.lower() == "true"
