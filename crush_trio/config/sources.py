"""Where configuration comes from: which files, in which order, and on whose word.

From the lowest to the highest (I1): the system's file, the user's, the one that this program writes for
the user, those that came with the project from the root of its work tree down to the workspace, and
the one in the data directory. Searching upward ends at the root of the work tree, or at the directory
itself where there is none: a file further up belongs to something else.

A checkout can contain anything, so files in it are not the user's word. That holds for the file in the
data directory too, wherever a checkout could have brought it along.

Several files as one: a deep merge in which the later file wins.

Objects are merged key by key. Everything else replaces what was there: text, numbers, null, and lists
too. A list that grew with every file could never be made shorter again, and where one file ends and
the next begins would be anybody's guess; so whoever writes a list writes all of it. A null puts the
default back.

The layers stay at hand after merging, because where a value comes from decides what it may do: a
command in a file of the user's is run, the same command in somebody else's project is not.
"""

import os
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

import attrs
from attrs import field, frozen

from crush_trio.wire.fields import Json

S = TypeVar("S")

Tree: TypeAlias = Mapping[str, Json]
"""A parsed JSON object. Nobody changes one; a changed copy shares what did not change."""

_ABSENT: Final = object()


def merge(below: Tree, above: Tree) -> dict[str, Json]:
    """Return *below* with everything that *above* says put over it. Neither is changed."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


@frozen(kw_only=True)
class Layer(Generic[S]):
    """What one source says."""

    source: S
    tree: Tree = field(repr=False)


@frozen
class Layers(Generic[S]):
    """All that is said, lowest layer first."""

    layers: tuple[Layer[S], ...]

    def tree(self) -> dict[str, Json]:
        """Return everything merged."""
        merged: dict[str, Json] = {}
        for layer in self.layers:
            merged = merge(merged, layer.tree)
        return merged

    def origin(self, *keys: str | int) -> S | None:
        """Return the source of the value at *keys*: for an object the last one that has a say.

        None if no layer says anything about it.
        """
        return next(iter(self.contributors(*keys)), None)

    def contributors(self, *keys: str | int) -> tuple[S, ...]:
        """Return every source that has a say in the value at *keys*, the last one first."""
        return tuple(self._from_above(keys))

    def _from_above(self, keys: tuple[str | int, ...]) -> Iterator[S]:
        for layer in reversed(self.layers):
            found, whole = _look(layer.tree, keys)
            if found is not _ABSENT:
                yield layer.source
            if whole:
                return


def _look(tree: Json, keys: tuple[str | int, ...]) -> tuple[Json, bool]:
    """Return what is at *keys*, and whether nothing below this layer can be seen through it.

    A way that ends early, in a list or in plain text, leads to whatever it ends in.
    """
    value = tree
    for key in keys:
        if not isinstance(value, Mapping):
            break
        value = value.get(key, _ABSENT)
        if value is _ABSENT:
            return _ABSENT, False
    return value, not isinstance(value, Mapping)


SYSTEM_FILE: Final = Path("/etc/crush/crush.json")
CONFIG_NAME: Final = "crush.json"
PROJECT_NAMES: Final = (CONFIG_NAME, ".crush.json")
SCRIPT_NAME: Final = "crushrc"
PROJECT_SCRIPT_NAMES: Final = (SCRIPT_NAME, ".crushrc")
DATA_NAME: Final = ".crush"

GLOBAL_CONFIG_VARIABLE: Final = "CRUSH_GLOBAL_CONFIG"
GLOBAL_DATA_VARIABLE: Final = "CRUSH_GLOBAL_DATA"

Trusted: TypeAlias = tuple[Path, ...]
"""The directories whose files the user trusts, links followed; with everything below them."""


def is_trusted(directory: Path, trusted: Trusted) -> bool:
    """Whether *directory* is one of those, or lies in one; names are compared whole."""
    return any(directory.is_relative_to(each) for each in trusted)


class SourceKind(StrEnum):
    """Who wrote a file, and for whom."""

    SYSTEM = "system"
    USER = "user"
    DATA = "data"
    PROJECT = "project"
    WORKSPACE = "workspace"


@frozen(kw_only=True)
class Source:
    """One file that may have something to say.

    `user_level` files are the word of the user or of the machine's owner. `trusted` ones came with a
    project, in a directory that the user trusts.
    """

    kind: SourceKind
    path: Path
    user_level: bool = False
    trusted: bool = False

    @property
    def may_run(self) -> bool:
        """Whether the file is the user's word: commands in it may be run, variables be used."""
        return self.user_level or self.trusted

    def how_to_trust(self, data_file: Path) -> str:
        """Return why the file was not obeyed, and what the user can write into *data_file*."""
        return (
            f'because the file came with the project; to trust it, add "{self.path.parent}" to '
            f"crush_trio.trusted_directories in {data_file}"
        )


@frozen(kw_only=True)
class DataDir:
    """Where a workspace keeps its things. `user_level` if no checkout can have put a file there."""

    path: Path
    user_level: bool = False

    def source(self, trusted: Trusted) -> Source:
        """Return the workspace's own configuration file."""
        return Source(
            kind=SourceKind.WORKSPACE,
            path=self.path / CONFIG_NAME,
            user_level=self.user_level,
            trusted=is_trusted(self.path, trusted),
        )


def _absolute(_instance: object, attribute: "attrs.Attribute[Path]", path: Path) -> None:
    """Insist: a relative path would depend on where the process happens to stand (L21)."""
    if not path.is_absolute():
        raise ValueError(f"{attribute.name} must be an absolute path, not {path}")


@frozen(kw_only=True)
class Places:
    """Everything that decides which files are read. Nothing is taken from the process itself."""

    directory: Path = field(validator=_absolute)
    """The workspace."""
    home: Path = field(validator=_absolute)
    environment: Mapping[str, str] = field(factory=dict, repr=False)
    data_dir: str = ""
    """The data directory as an argument; empty leaves the choice to the configuration."""
    system_file: Path = SYSTEM_FILE

    @property
    def user_directory(self) -> Path:
        """Where the user writes configuration."""
        return (
            self._named_by(GLOBAL_CONFIG_VARIABLE)
            or (self._named_by("XDG_CONFIG_HOME") or self.home / ".config") / "crush"
        )

    @property
    def data_file(self) -> Path:
        """The file that this program writes for the user, for every workspace."""
        directory = (
            self._named_by(GLOBAL_DATA_VARIABLE)
            or (self._named_by("XDG_DATA_HOME") or self.home / ".local" / "share") / "crush"
        )
        return directory / CONFIG_NAME

    def _named_by(self, variable: str) -> Path | None:
        """Return the directory a variable names; a relative one would mean another one everywhere."""
        path = Path(self.environment.get(variable, ""))
        return path if path.is_absolute() else None

    def expand_home(self, text: str) -> Path:
        """Return a path that may begin with `~/`."""
        if text == "~" or text.startswith("~/"):
            return self.home / text[2:]
        return Path(text)

    def user_sources(self) -> tuple[Source, ...]:
        """Return the files whose word is the user's, lowest first."""
        paths = {
            SourceKind.SYSTEM: self.system_file,
            SourceKind.USER: self.user_directory / CONFIG_NAME,
            SourceKind.DATA: self.data_file,
        }
        return tuple(Source(kind=kind, path=path, user_level=True) for kind, path in paths.items())


@frozen(kw_only=True)
class Project:
    """A workspace among the directories that belong to it, from the work tree's root down."""

    directories: tuple[Path, ...]

    @property
    def root(self) -> Path:
        """The boundary: nothing above it belongs to the project."""
        return self.directories[0]

    @property
    def directory(self) -> Path:
        """The workspace itself."""
        return self.directories[-1]

    def sources(self, trusted: Trusted) -> Iterator[Source]:
        """Return the files that may have come with the project, lowest first."""
        for directory in self.directories:
            trust = is_trusted(directory, trusted)
            for name in PROJECT_NAMES:
                yield Source(kind=SourceKind.PROJECT, path=directory / name, trusted=trust)

    def contains(self, path: Path) -> bool:
        """Whether *path* leads to something within the project, links followed. Touches the disk."""
        return real_path(path).is_relative_to(self.root)


def find_project(directory: Path) -> Project:
    """Return the project around *directory*. Touches the disk."""
    resolved = real_path(directory)
    upward = [resolved, *resolved.parents]
    for depth, candidate in enumerate(upward):
        if _exists(candidate / ".git"):
            return Project(directories=tuple(reversed(upward[: depth + 1])))
    return Project(directories=(resolved,))


def find_scripts(places: Places, project: Project) -> tuple[Path, ...]:
    """Return the configuration scripts there are; they are not run. Touches the disk."""
    candidates = [places.user_directory / SCRIPT_NAME]
    candidates += [each / name for each in project.directories for name in PROJECT_SCRIPT_NAMES]
    return tuple(path for path in candidates if _exists(path))


def choose_data_dir(
    places: Places, project: Project, configured: str, origin: Source | None, trusted: Trusted = ()
) -> DataDir | None:
    """Return the data directory (I2), or None if *configured* is a place the project may not choose.

    The order is: the argument, what the configuration says (*configured*, by *origin*), the closest
    `.crush` there is within the project, `.crush` in the workspace. A project that nobody trusts may
    not lead us out of itself, nor may a link in it: see `straying_data_dirs`. Touches the disk.
    """
    if places.data_dir:
        return _data_dir(places, project, places.data_dir, by_user=True)
    if configured:
        chosen = _data_dir(
            places, project, configured, by_user=origin is not None and origin.user_level
        )
        allowed = origin is None or origin.may_run or project.contains(chosen.path)
        return chosen if allowed else None
    straying = straying_data_dirs(project, trusted)
    closest = (each / DATA_NAME for each in reversed(project.directories))
    there = (path for path in closest if path.is_dir() and path not in straying)
    return DataDir(path=next(there, project.directory / DATA_NAME))


def straying_data_dirs(project: Project, trusted: Trusted) -> tuple[Path, ...]:
    """Return every `.crush` that is a link out of a project nobody trusts. Touches the disk."""
    paths = (each / DATA_NAME for each in project.directories if not is_trusted(each, trusted))
    return tuple(path for path in paths if not project.contains(path))


def _data_dir(places: Places, project: Project, text: str, *, by_user: bool) -> DataDir:
    path = real_path(project.directory / places.expand_home(text))
    return DataDir(path=path, user_level=by_user and not project.contains(path))


def real_path(path: Path) -> Path:
    """Return where *path* leads, links followed as far as they go; a loop of links is no error."""
    return Path(os.path.realpath(path))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
