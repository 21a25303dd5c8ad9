"""`find_skills`: searches directories for skills.

A skill is a directory with a file `SKILL.md`. Directories are searched in order: the user's, the
configured ones, the project's; of two skills with the same name the later one is used (I7). Nothing on
disk can make the search fail. A skill that cannot be used is reported with the reason; one with a flaw is
used, and reported with a warning (`front_matter.py`).

In a project that is not trusted, links are followed only inside the project, and a skill of the project
does not replace one of the user's. Trusting the project lifts both limits.

Everything here reads the disk and must run in a thread.
"""

import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from attrs import define, evolve, field, frozen

from crush_trio.config.sources import Places, Project, real_path
from crush_trio.integrations.base import AgentSkill
from crush_trio.integrations.front_matter import BadFrontMatter, FrontMatter, read_front_matter
from crush_trio.private_files import read_file
from crush_trio.tools.files.text import UTF16
from crush_trio.wire.ids import SkillId
from crush_trio.wire.integrations import SkillInfo, SkillLoad, SkillSource, SkillState

FILE_NAME: Final = "SKILL.md"

SKILLS_VARIABLE: Final = "CRUSH_SKILLS_DIR"
"""The variable that names one directory to search instead of the user's default ones."""

PROJECT_DIRECTORIES: Final = (".agents", ".crush", ".claude", ".cursor")
"""The directories of a project that contain a directory `skills`."""

MAX_FILE_BYTES: Final = 1_000_000
"""Maximum bytes of a skill file."""

MAX_DEPTH: Final = 4
"""Maximum depth of a skill below a searched directory."""

MAX_DIRECTORIES: Final = 1000
"""Maximum directories searched below one place."""

_OUTSIDE: Final = "not used: it leads out of a project that is not trusted"
_TAKEN: Final = "not used: there is a skill of yours with this name, and the project is not trusted"
_TOO_MANY: Final = f"not searched to the end: there are more than {MAX_DIRECTORIES} directories"


@frozen(kw_only=True)
class SkillPlace:
    """A directory to search. Skills in a `confined` one must lie inside the project."""

    path: Path
    source: SkillSource
    confined: bool = False


@frozen(kw_only=True)
class FoundSkills:
    """The result of a search: the usable skills by name, and the state of every file by path."""

    skills: tuple[AgentSkill, ...] = ()
    states: tuple[SkillState, ...] = ()


class UnusableSkill(Exception):
    """A skill that cannot be used; `name` is empty if it could not be read."""

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(reason)
        self.name = name


def user_places(places: Places) -> tuple[SkillPlace, ...]:
    """Return the directories with the user's skills, for all workspaces."""
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
    """Search all *places*; later ones override earlier ones, and *disabled* skills are skipped."""
    search = _Search(project, frozenset(name.casefold() for name in disabled))
    for place in places:
        search.look_into(place)
    return search.found()


def shown_path(path: Path) -> str:
    """Return a path as valid Unicode; bytes that are not UTF-8 become replacement characters."""
    return os.fsencode(path).decode("utf-8", "replace")


@define(eq=False)
class _Search:
    """One search. A file that is found by several paths counts only the first time."""

    project: Project
    disabled: frozenset[str]
    _skills: dict[str, AgentSkill] = field(factory=dict, init=False)
    _states: dict[str, SkillState] = field(factory=dict, init=False)
    _seen: set[Path] = field(factory=set, init=False)

    def found(self) -> FoundSkills:
        """Return the result, sorted."""
        by_name = sorted(self._skills)
        by_path = sorted(self._states)
        return FoundSkills(
            skills=tuple(self._skills[name] for name in by_name),
            states=tuple(self._states[path] for path in by_path),
        )

    def look_into(self, place: SkillPlace) -> None:
        """Record every skill in *place*."""
        try:
            for file in self._files(place):
                real = real_path(file)
                if real not in self._seen:
                    self._seen.add(real)
                    self._take(file, real, place)
        except ValueError:  # a null character, or half of a surrogate pair
            self._tell(place.path, error="not used: no file can have this name")

    def _take(self, file: Path, real: Path, place: SkillPlace) -> None:
        """Record one file: its skill, or its error."""
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
            self._tell(file, front.name, warning="; ".join(front.flaws))
            self._skills[name] = _skill(file, real, front, place.source)

    def _tell(self, path: Path, name: str = "", error: str = "", warning: str = "") -> None:
        load = SkillLoad.ERROR if error else SkillLoad.OK
        shown = shown_path(path)
        self._states[shown] = SkillState(
            name=name, path=shown, state=load, error=error, warning=warning
        )

    def _files(self, place: SkillPlace) -> Iterator[Path]:
        """Yield the skill files of a place, nearest first. Links are followed, each target once.

        The directory of a skill is not searched for further skills.
        """
        entered: set[Path] = set()
        waiting = deque([(place.path, 0)])
        while waiting:
            directory, depth = waiting.popleft()
            if not _is_directory(directory) or (real := real_path(directory)) in entered:
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
    """Whether *path* leads to a directory; raises `ValueError` for one that no file can have."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def _names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir())
    except OSError:
        return []


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
    """Return the front matter of a skill file, or raise `UnusableSkill`."""
    content = read_skill(real)
    wide = UTF16.get(content[:2])
    text = content.decode(wide or "utf-8", "replace")
    if "\0" in text:
        raise UnusableSkill("the file is not text; save it as UTF-8")
    try:
        front = read_front_matter(text, shown_path(Path(file.parent.name)))
    except BadFrontMatter as bad:
        raise UnusableSkill(str(bad)) from None
    flaws = []
    if wide or "\ufffd" in text:
        flaws.append("the file is not UTF-8 text")
    if front.name.casefold() not in {each.parent.name.casefold() for each in (file, real)}:
        flaws.append("name differs from the name of the directory")
    return evolve(front, flaws=(*flaws, *front.flaws))


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
