"""What stands at the head of a skill's file, between two lines of three hyphens.

The block is YAML. Every value is taken as the words it is written with: a skill whose name is `true`
or `1.0` is called so, and nothing in a file can make a program build an object. What is wrong is said in
a sentence, with the line if there is one.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from attrs import frozen

NAME_LIMIT: Final = 64
DESCRIPTION_LIMIT: Final = 1024
COMPATIBILITY_LIMIT: Final = 500
"""Characters that each may have (I7)."""

BLOCK_LIMIT: Final = 8192
"""Characters that the whole block may have."""

_FENCE: Final = "---"
_NAME: Final = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")


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
    return _read_block(_block(text))


@lru_cache(maxsize=256)  # skills are looked at before every run, and hardly ever change
def _read_block(block: str) -> FrontMatter:
    said = _parsed(block)
    front = FrontMatter(
        name=_text(said, "name", NAME_LIMIT),
        description=_text(said, "description", DESCRIPTION_LIMIT),
        user_invocable=_switch(said, "user-invocable"),
        advertised=not _switch(said, "disable-model-invocation"),
    )
    _text(said, "compatibility", COMPATIBILITY_LIMIT)
    for key, text in (("name", front.name), ("description", front.description)):
        if not text:
            raise BadFrontMatter(f"{key} is missing")
    if not _NAME.fullmatch(front.name):
        raise BadFrontMatter("name may only have letters, digits and single hyphens between them")
    return front


def _block(text: str) -> str:
    """Return what is between the fences."""
    lines = [line.rstrip() for line in text.removeprefix("\ufeff").split("\n")]
    if lines[0] != _FENCE:
        raise BadFrontMatter("the file does not begin with a line of three hyphens")
    try:
        block = "\n".join(lines[1 : lines.index(_FENCE, 1)])
    except ValueError:
        raise BadFrontMatter("the second line of three hyphens is missing") from None
    if len(block) > BLOCK_LIMIT:
        raise BadFrontMatter(f"what stands before the text has more than {BLOCK_LIMIT} characters")
    return block


def _parsed(block: str) -> Mapping[str, object]:
    """Return the keys and values of a block, all words left as they are."""
    import yaml  # most workspaces have no skills, and need none of it

    try:
        said = yaml.load(block, Loader=yaml.BaseLoader)  # it makes texts, nothing else
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 2}: " if error.problem_mark else ""
        raise BadFrontMatter(
            f"{where}this is not YAML: {error.problem}; a text with a colon in it needs quotes"
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise BadFrontMatter("what stands before the text is not YAML") from None
    if not isinstance(said, dict):
        raise BadFrontMatter("expected lines with a key, a colon, a space and a value")
    return said


def _text(said: Mapping[str, object], key: str, limit: int) -> str:
    """Return a value in words, without the space around it; nothing if it is not there."""
    value = said.get(key, "")
    if not isinstance(value, str):
        raise BadFrontMatter(f"{key} must be a text")
    if len(value.strip()) > limit:
        raise BadFrontMatter(f"{key} has more than {limit} characters")
    return value.strip()


def _switch(said: Mapping[str, object], key: str) -> bool:
    value = _text(said, key, DESCRIPTION_LIMIT).lower() or "false"
    if value not in {"true", "false"}:
        raise BadFrontMatter(f"{key} must be true or false")
    return value == "true"
