"""`read_front_matter`: the name and description at the beginning of a skill file.

The front matter is YAML between two lines of three hyphens. Values are taken as text: a skill may be
called `true` or `1.0`, and the file cannot make the parser construct objects.

Skills are written for several programs, and many have a small flaw. A flaw that leaves no doubt about
what is meant is corrected and reported, and the skill is used: a colon without quotes, a missing name, a
name with other characters, a text that is too long, no front matter at all.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from attrs import define, field, frozen

NAME_LIMIT: Final = 64
DESCRIPTION_LIMIT: Final = 1024
COMPATIBILITY_LIMIT: Final = 500
"""Maximum characters of each value (I7)."""

BLOCK_LIMIT: Final = 8192
"""Maximum characters of the whole block."""

_FENCE: Final = "---"
_NAME: Final = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9]+")
_LINE: Final = re.compile(r"([A-Za-z][\w-]*):(?:\s+(.*))?")
_SWITCH: Final = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off", ""), False),
}


class BadFrontMatter(ValueError):
    """A skill file has no usable front matter; the text says why."""


@frozen(kw_only=True)
class FrontMatter:
    """The front matter of a skill file."""

    name: str
    description: str
    user_invocable: bool = False
    """Whether clients offer it as a command."""
    advertised: bool = True
    """Whether the system prompt mentions it."""
    flaws: tuple[str, ...] = ()
    """What was wrong and has been corrected."""


def read_front_matter(text: str, directory: str = "") -> FrontMatter:
    """Parse the front matter of a skill file in a *directory*, or raise `BadFrontMatter`."""
    lines = [line.rstrip() for line in text.removeprefix("\ufeff").split("\n")]
    if lines[0] != _FENCE:
        return _read_block(None, directory, _opening(lines))
    try:
        end = lines.index(_FENCE, 1)
    except ValueError:
        raise BadFrontMatter("the second line of three hyphens is missing") from None
    block = "\n".join(lines[1:end])
    if len(block) > BLOCK_LIMIT:
        raise BadFrontMatter(f"the front matter has more than {BLOCK_LIMIT} characters")
    return _read_block(block, directory, _opening(lines[end + 1 :]))


def _opening(lines: list[str]) -> str:
    """Return the first paragraph of the instructions, or their first heading."""
    heading = ""
    paragraph: list[str] = []
    for line in map(str.strip, lines):
        if line.startswith("#"):
            heading = heading or line.lstrip("# ")
        elif line:
            paragraph.append(line)
        if paragraph and (not line or line.startswith("#")):
            break
    return " ".join(paragraph)[:DESCRIPTION_LIMIT] or heading


@lru_cache(maxsize=256)  # skills are searched before every run and hardly ever change
def _read_block(block: str | None, directory: str, opening: str) -> FrontMatter:
    reader = _Reader()
    if block is None:
        reader.flaws.append("the file does not begin with a line of three hyphens")
    said = {} if block is None else reader.parsed(block)
    name = reader.name(reader.text(said, "name", NAME_LIMIT), directory)
    description = reader.text(said, "description", DESCRIPTION_LIMIT)
    if not description:
        if not opening:
            raise BadFrontMatter("description is missing")
        reader.flaws.append("description is missing: the first words of the text are used")
    reader.text(said, "compatibility", COMPATIBILITY_LIMIT)
    return FrontMatter(
        name=name,
        description=description or opening,
        user_invocable=reader.switch(said, "user-invocable"),
        advertised=not reader.switch(said, "disable-model-invocation"),
        flaws=tuple(reader.flaws),
    )


@define(eq=False)
class _Reader:
    """Reads the values of one file, and collects its flaws."""

    flaws: list[str] = field(factory=list)

    def parsed(self, block: str) -> Mapping[str, object]:
        """Return the keys and values of a block; all scalars are text."""
        import yaml  # most workspaces have no skills and do not need it

        try:
            said = yaml.load(block, Loader=yaml.BaseLoader)  # makes only texts, lists and dicts
        except yaml.MarkedYAMLError as error:
            where = f"line {error.problem_mark.line + 2}: " if error.problem_mark else ""
            self.flaws.append(
                f"{where}this is not YAML: {error.problem}; a text with a colon in it needs quotes"
            )
            return _by_line(block)
        except (yaml.YAMLError, RecursionError, ValueError):
            self.flaws.append("the front matter is not YAML")
            return _by_line(block)
        if not isinstance(said, dict):
            self.flaws.append("expected lines with a key, a colon, a space and a value")
            return {}
        return said

    def name(self, written: str, directory: str) -> str:
        """Return the name of a skill: as written if it can be used, else one that is close to it."""
        if _NAME.fullmatch(written):
            return written
        name = _FOREIGN.sub("-", written or directory)[:NAME_LIMIT].strip("-")
        if not name:
            raise BadFrontMatter("name is missing")
        wrong = "name is missing"
        if written:
            wrong = "name may only have letters, digits and single hyphens between them"
        self.flaws.append(f"{wrong}: {name} is used")
        return name

    def text(self, said: Mapping[str, object], key: str, limit: int) -> str:
        """Return a value as stripped text, at most *limit* characters; empty if there is none."""
        value = said.get(key, "")
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            self.flaws.append(f"{key} must be a text, not a list")
            value = ", ".join(value)
        if not isinstance(value, str):
            self.flaws.append(f"{key} must be a text")
            return ""
        if len(value.strip()) > limit:
            self.flaws.append(f"{key} has more than {limit} characters: the rest is ignored")
        return value.strip()[:limit].strip()

    def switch(self, said: Mapping[str, object], key: str) -> bool:
        """Return a value that is true or false."""
        value = _SWITCH.get(self.text(said, key, DESCRIPTION_LIMIT).lower())
        if value is None:
            self.flaws.append(f"{key} must be true or false: false is used")
        return value or False


def _by_line(block: str) -> dict[str, object]:
    """Return the lines `key: value` of a block that is not YAML; indented lines go on with a value."""
    found: dict[str, str] = {}
    key = ""
    for line in block.split("\n"):
        if match := _LINE.fullmatch(line):
            key = match[1]
            found[key] = (match[2] or "").strip().strip("\"'")
        elif line[:1].isspace() and key:
            found[key] = f"{found[key]} {line.strip()}".strip()
    return {
        key: "".join(each for each in value if each.isprintable()) for key, value in found.items()
    }
