"""Finds the skills on a disk: where to look, in which order, and what is wrong with what is there.

A skill is a directory with a file `SKILL.md`. The places are gone through from the least to the most
particular, and of two skills with one name the later is used (I7): the user's own, those that are
configured, those of the project. Nothing that is found can make the search fail. What cannot be used
is told, with a sentence that says why.

What a checkout brought along is followed only as far as the checkout goes, as its instruction files
are, and it does not take the place of what the user has. Trusting the project lifts both.

Everything in here touches the disk, and belongs in a thread.

What stands at the head of a skill's file, between two lines of three hyphens.

The block is YAML. Every value is taken as the words it is written with: a skill whose name is `true`
or `1.0` is called so, and nothing in a file can make a program build an object. What is wrong is said in
a sentence, with the line if there is one.
"""

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

from crush_trio.config.files import read_file
from crush_trio.config.sources import Places, Project, real_path
from crush_trio.integrations.base import AgentSkill
from crush_trio.wire.ids import SkillId
from crush_trio.wire.integrations import SkillInfo, SkillLoad, SkillSource, SkillState


FILE_NAME: Final = "SKILL.md"

SKILLS_VARIABLE: Final = "CRUSH_SKILLS_DIR"
"""Names the one directory to look in instead of the user's usual ones."""

PROJECT_DIRECTORIES: Final = (".agents", ".crush", ".claude", ".cursor")
"""Where a project keeps its skills, each in a directory `skills`."""

MAX_FILE_BYTES: Final = 1_000_000
"""Bytes that the file of a skill may have."""

MAX_DEPTH: Final = 4
"""How far below a place a skill may lie."""

MAX_DIRECTORIES: Final = 1000
"""How many directories of one place are looked at."""

_OUTSIDE: Final = "not used: it leads out of a project that is not trusted"
_TAKEN: Final = "not used: there is a skill of yours with this name, and the project is not trusted"
_TOO_MANY: Final = f"not searched to the end: there are more than {MAX_DIRECTORIES} directories"


@frozen(kw_only=True)
class SkillPlace:
    """A directory to look in. What is found in a `confined` one must lie within the project."""

    path: Path
    source: SkillSource
    confined: bool = False


@frozen(kw_only=True)
class FoundSkills:
    """What a search has found: the skills to use, by name, and every file, by path."""

    skills: tuple[AgentSkill, ...] = ()
    states: tuple[SkillState, ...] = ()


class UnusableSkill(Exception):
    """A skill that is there and cannot be used; `name` is empty if not even that is known."""

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(reason)
        self.name = name


def user_places(places: Places) -> tuple[SkillPlace, ...]:
    """Return where the skills of a user are, for all of the user's workspaces."""
    named = Path(places.environment.get(SKILLS_VARIABLE, ""))
    if named.is_absolute():
        return (SkillPlace(path=named, source=SkillSource.USER),)
    configured = Path(places.environment.get("XDG_CONFIG_HOME", ""))
    settings = configured if configured.is_absolute() else places.home / ".config"
    parents = (
        places.user_directory,
        settings / "agents",
        places.home / ".agents",
        places.home / ".claude",
    )
    paths = dict.fromkeys(parent / "skills" for parent in parents)
    return tuple(SkillPlace(path=path, source=SkillSource.USER) for path in paths)


def find_skills(
    places: Iterable[SkillPlace], project: Project, disabled: Iterable[str] = ()
) -> FoundSkills:
    """Look into all *places*, the strongest last; what is *disabled* is as if it were not there."""
    search = _Search(project, frozenset(name.casefold() for name in disabled))
    for place in places:
        search.look_into(place)
    return search.found()


def shown_path(path: Path) -> str:
    """Return a path as text that can be sent, whatever bytes it is made of."""
    return os.fsencode(path).decode("utf-8", "replace")


@define(eq=False)
class _Search:
    """One search. A file to which several ways lead counts where it was found first."""

    project: Project
    disabled: frozenset[str]
    _skills: dict[str, AgentSkill] = field(factory=dict, init=False)
    _states: dict[str, SkillState] = field(factory=dict, init=False)
    _seen: set[Path] = field(factory=set, init=False)

    def found(self) -> FoundSkills:
        """Return the outcome, in an order that has nothing to do with the disk."""
        by_name = sorted(self._skills)
        by_path = sorted(self._states)
        return FoundSkills(
            skills=tuple(self._skills[name] for name in by_name),
            states=tuple(self._states[path] for path in by_path),
        )

    def look_into(self, place: SkillPlace) -> None:
        """Take note of every skill in *place*."""
        try:
            for file in self._files(place):
                real = real_path(file)
                if real not in self._seen:
                    self._seen.add(real)
                    self._take(file, real, place)
        except ValueError:  # a null character, or half of a surrogate pair
            self._tell(place.path, error="not used: no file can have this name")

    def _take(self, file: Path, real: Path, place: SkillPlace) -> None:
        """Take note of one file: of the skill that it is, or of what is wrong with it."""
        try:
            if place.confined and not real.is_relative_to(self.project.root):
                raise UnusableSkill(_OUTSIDE)
            front = _read(file, real)
            name = front.name.casefold()
            if name in self.disabled:
                return
            held = self._skills.get(name)
            if place.confined and held is not None and held.info.source is not SkillSource.PROJECT:
                raise UnusableSkill(_TAKEN, front.name)
        except UnusableSkill as unusable:
            self._tell(file, unusable.name, str(unusable))
        else:
            self._tell(file, front.name)
            self._skills[name] = _skill(file, real, front, place.source)

    def _tell(self, path: Path, name: str = "", error: str = "") -> None:
        load = SkillLoad.ERROR if error else SkillLoad.OK
        shown = shown_path(path)
        self._states[shown] = SkillState(name=name, path=shown, state=load, error=error)

    def _files(self, place: SkillPlace) -> Iterator[Path]:
        """Return the skill files of a place, nearest first; links are followed, no way goes in circles.

        What lies within a skill belongs to it, and is not searched.
        """
        entered: set[Path] = set()
        waiting = deque([(place.path, 0)])
        while waiting:
            directory, depth = waiting.popleft()
            real = real_path(directory)
            if real in entered or not _is_directory(directory):
                continue
            if place.confined and not real.is_relative_to(self.project.root):
                self._tell(directory, error=_OUTSIDE)
                continue
            if len(entered) == MAX_DIRECTORIES:
                self._tell(place.path, error=_TOO_MANY)
                return
            entered.add(real)
            names = _names(directory)
            if FILE_NAME in names:
                yield directory / FILE_NAME
            elif depth < MAX_DEPTH:
                inner = (name for name in names if not name.startswith("."))
                waiting.extend((directory / name, depth + 1) for name in inner)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir())
    except OSError:
        return []


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


def _skill(file: Path, real: Path, front: FrontMatter, source: SkillSource) -> AgentSkill:
    info = SkillInfo(
        id=SkillId(shown_path(file)),
        name=front.name,
        description=" ".join(front.description.split()),
        label=f"{source}:{front.name}",
        source=source,
        user_invocable=front.user_invocable,
    )
    return AgentSkill(info=info, file=real, advertised=front.advertised)


def _read(file: Path, real: Path) -> FrontMatter:
    """Return what the head of a skill's file says, or raise `UnusableSkill`."""
    try:
        front = read_front_matter(read_skill(real).decode())
    except UnicodeDecodeError:
        raise UnusableSkill("the file is not UTF-8 text") from None
    except BadFrontMatter as bad:
        raise UnusableSkill(str(bad)) from None
    directories = {each.parent.name.casefold() for each in (file, real)}
    if front.name.casefold() not in directories:
        raise UnusableSkill("name differs from the name of the directory", front.name)
    return front


def read_skill(file: Path) -> bytes:
    """Return the whole file of a skill, or raise `UnusableSkill`."""
    try:
        content = read_file(file, MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UnusableSkill(f"the file cannot be read: {error.strerror}") from None
    if content is None:
        raise UnusableSkill("the file is a link to nowhere")
    if len(content) > MAX_FILE_BYTES:
        raise UnusableSkill(f"the file has more than {MAX_FILE_BYTES} bytes")
    return content


NAME_LIMIT: Final = 64
DESCRIPTION_LIMIT: Final = 1024
COMPATIBILITY_LIMIT: Final = 500
"""Characters that each may have (I7)."""

BLOCK_LIMIT: Final = 8192
"""Characters that the whole block may have."""

_FENCE: Final = "---"
_NAME: Final = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")


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
