"""The configuration files: which ones, in which order, with which trust; and how they are merged.

From the lowest to the highest (I1): the system's file, the user's, the one that this program writes
for the user, those of the project from the root of its work tree down to the workspace, the one in
the data directory, and the one that this program writes for the user and this workspace. The search
upward ends at the root of the work tree, or at the directory itself if there is none: files further
up do not belong to the project.

A checkout can contain anything, so files in it are not trusted by default. That includes the file
in the data directory if a checkout could contain it. What clients change for a workspace is
therefore kept outside of it, beside the user's own file.

The files are merged deeply, and the later file wins. Objects are merged key by key. Everything else
is replaced: text, numbers, null, and lists, too, since a list that is extended by every file could
never be made shorter. A null restores the default. The layers are kept after merging, because the
origin of a value decides what it may do: a command in the user's file is run, the same command in
an untrusted project is not.
"""

import os
import pwd
import re
import shlex
from collections.abc import Iterator, Mapping
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

import attrs
from attrs import field, frozen

from crush_trio.wire.fields import Json

S = TypeVar("S")

Tree: TypeAlias = Mapping[str, Json]
"""A parsed JSON object. It is never changed in place; a changed copy shares the unchanged parts."""

_ABSENT: Final = object()


SYSTEM_FILE: Final = Path("/etc/crush/crush.json")
CONFIG_NAME: Final = "crush.json"
PROJECT_NAMES: Final = (CONFIG_NAME, ".crush.json")
SCRIPT_NAME: Final = "crushrc"
PROJECT_SCRIPT_NAMES: Final = (SCRIPT_NAME, ".crushrc")
DATA_NAME: Final = ".crush"

GLOBAL_CONFIG_VARIABLE: Final = "CRUSH_GLOBAL_CONFIG"
GLOBAL_DATA_VARIABLE: Final = "CRUSH_GLOBAL_DATA"

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
"""Characters of a directory's name that are replaced in the name of its file."""

Trusted: TypeAlias = tuple[Path, ...]
"""The directories that the user trusts, with everything below them; symbolic links are resolved."""


def account_home() -> Path | None:
    """Return the home directory of the account; None if the user id has none, as in some containers."""
    try:
        home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None
    return home if home.is_absolute() else None


def is_trusted(directory: Path, trusted: Trusted) -> bool:
    """Whether *directory* is one of *trusted*, or inside one."""
    return any(directory.is_relative_to(each) for each in trusted)


class SourceKind(StrEnum):
    """The kind of a configuration file."""

    SYSTEM = "system"
    USER = "user"
    DATA = "data"
    PROJECT = "project"
    WORKSPACE = "workspace"
    """The file in the data directory."""
    USER_WORKSPACE = "user_workspace"


@frozen(kw_only=True)
class Source:
    """One configuration file, which may not exist.

    `user_level` files belong to the user or to the machine's owner. `trusted` ones are in a project
    directory that the user trusts.
    """

    kind: SourceKind
    path: Path
    user_level: bool = False
    trusted: bool = False

    @property
    def may_run(self) -> bool:
        """Whether commands in the file may be run and variables be read."""
        return self.user_level or self.trusted

    @property
    def how_to_trust(self) -> str:
        """Why the file is not trusted, and the command that trusts it."""
        command = f"crush-trio trust {shlex.quote(str(self.path.parent))}"
        return f"because the file came with the project; to trust it: {command}"


@frozen(kw_only=True)
class DataDir:
    """The data directory of a workspace. `user_level` if no checkout can contain it."""

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
    """Raise for a relative path, which would depend on the working directory (L21)."""
    if not path.is_absolute():
        raise ValueError(f"{attribute.name} must be an absolute path, not {path}")


@frozen(kw_only=True)
class Places:
    """What decides which files are read. Nothing is taken from the process itself."""

    directory: Path = field(validator=_absolute)
    """The workspace."""
    home: Path = field(validator=_absolute)
    environment: Mapping[str, str] = field(factory=dict, repr=False)
    data_dir: str = ""
    """The data directory as an argument; empty for the configuration's choice."""
    system_file: Path = SYSTEM_FILE

    @property
    def user_directory(self) -> Path:
        """The user's configuration directory."""
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

    @property
    def workspace_file(self) -> Path:
        """The file that this program writes for the user and this workspace. Reads the disk.

        It belongs to the resolved path of the workspace. The digest makes its name unique; the name
        of the directory is there for people.
        """
        directory = real_path(self.directory)
        digest = sha256(os.fsencode(directory)).hexdigest()[:32]
        name = _UNSAFE.sub("_", directory.name)[:64]
        return self.workspaces / f"{name}-{digest}" / CONFIG_NAME

    @property
    def workspaces(self) -> Path:
        """The directory of the files of `workspace_file`."""
        return self.data_file.parent / "workspaces"

    @property
    def declined_file(self) -> Path:
        """The file that records which projects the user would not trust."""
        return self.data_file.parent / "declined.json"

    def _named_by(self, variable: str) -> Path | None:
        """Return the directory in a variable; a relative path is ignored."""
        path = Path(self.environment.get(variable, ""))
        return path if path.is_absolute() else None

    def expand_home(self, text: str) -> Path:
        """Return a path that may begin with `~/`."""
        if text == "~" or text.startswith("~/"):
            return self.home / text[2:]
        return Path(text)

    def user_sources(self) -> tuple[Source, ...]:
        """Return the files of the user and the system, lowest first."""
        paths = {
            SourceKind.SYSTEM: self.system_file,
            SourceKind.USER: self.user_directory / CONFIG_NAME,
            SourceKind.DATA: self.data_file,
        }
        return tuple(Source(kind=kind, path=path, user_level=True) for kind, path in paths.items())

    def workspace_source(self) -> Source:
        """Return the user's file for this workspace, the highest of all."""
        return Source(kind=SourceKind.USER_WORKSPACE, path=self.workspace_file, user_level=True)


@frozen(kw_only=True)
class Project:
    """The directories of a project, from the work tree's root down to the workspace."""

    directories: tuple[Path, ...]

    @property
    def root(self) -> Path:
        """The root of the work tree."""
        return self.directories[0]

    @property
    def directory(self) -> Path:
        """The workspace itself."""
        return self.directories[-1]

    def sources(self, trusted: Trusted) -> Iterator[Source]:
        """Yield the configuration files of the project, lowest first."""
        for directory in self.directories:
            trust = is_trusted(directory, trusted)
            for name in PROJECT_NAMES:
                yield Source(kind=SourceKind.PROJECT, path=directory / name, trusted=trust)

    def contains(self, path: Path) -> bool:
        """Whether *path* is inside the project after resolving links. Reads the disk."""
        return real_path(path).is_relative_to(self.root)


def find_project(directory: Path) -> Project:
    """Return the project around *directory*. Reads the disk."""
    resolved = real_path(directory)
    upward = [resolved, *resolved.parents]
    for depth, candidate in enumerate(upward):
        if _exists(candidate / ".git"):
            return Project(directories=tuple(reversed(upward[: depth + 1])))
    return Project(directories=(resolved,))


def find_scripts(places: Places, project: Project) -> tuple[Path, ...]:
    """Return the configuration scripts that exist; they are not run. Reads the disk."""
    candidates = [places.user_directory / SCRIPT_NAME]
    candidates += [each / name for each in project.directories for name in PROJECT_SCRIPT_NAMES]
    return tuple(path for path in candidates if _exists(path))


def choose_data_dir(
    places: Places, project: Project, configured: str, origin: Source | None, trusted: Trusted = ()
) -> DataDir | None:
    """Return the data directory (I2), or None if the project may not choose *configured*.

    The order is: the argument, the configuration (*configured*, by *origin*), the closest existing
    `.crush` inside the project, `.crush` in the workspace. An untrusted project may not choose a
    directory outside of itself, nor by a link: see `outside_data_dirs`. Reads the disk.
    """
    if places.data_dir:
        return _data_dir(places, project, places.data_dir, by_user=True)
    if configured:
        chosen = _data_dir(
            places, project, configured, by_user=origin is not None and origin.user_level
        )
        allowed = origin is None or origin.may_run or project.contains(chosen.path)
        return chosen if allowed else None
    straying = outside_data_dirs(project, trusted)
    closest = (each / DATA_NAME for each in reversed(project.directories))
    there = (path for path in closest if path not in straying and _may_be_dir(path))
    return DataDir(path=next(there, project.directory / DATA_NAME))


def outside_data_dirs(project: Project, trusted: Trusted) -> tuple[Path, ...]:
    """Return every `.crush` that is a link out of an untrusted project. Reads the disk."""
    paths = (each / DATA_NAME for each in project.directories if not is_trusted(each, trusted))
    return tuple(path for path in paths if not project.contains(path))


def _data_dir(places: Places, project: Project, text: str, *, by_user: bool) -> DataDir:
    path = real_path(project.directory / places.expand_home(text))
    return DataDir(path=path, user_level=by_user and not project.contains(path))


def real_path(path: Path) -> Path:
    """Return *path* with links resolved as far as possible; a loop of links is not an error."""
    return Path(os.path.realpath(path))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _may_be_dir(path: Path) -> bool:
    """Whether *path* is a directory, or something that the user may not look at.

    The latter is chosen, too: reading its configuration file then says which path is the problem.
    Skipping it would silently keep sessions in another directory than before.
    """
    try:
        return path.is_dir()
    except OSError:
        return True


# ── Merging ──────────────────────────────────────────────────────────────────────────────────────


def merge(below: Tree, above: Tree) -> dict[str, Json]:
    """Return *below* overridden by *above*. Neither is changed."""
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
    """The content of one source."""

    source: S
    tree: Tree = field(repr=False)


@frozen
class Layers(Generic[S]):
    """The content of all sources, lowest first."""

    layers: tuple[Layer[S], ...]

    def tree(self) -> dict[str, Json]:
        """Return everything merged."""
        merged: dict[str, Json] = {}
        for layer in self.layers:
            merged = merge(merged, layer.tree)
        return merged

    def origin(self, *keys: str | int) -> S | None:
        """Return the source of the value at *keys*: for an object, the last one that sets some of it.

        None if no layer sets it.
        """
        return next(iter(self.contributors(*keys)), None)

    def contributors(self, *keys: str | int) -> tuple[S, ...]:
        """Return every source that sets some of the value at *keys*, the last one first."""
        return tuple(self._from_above(keys))

    def _from_above(self, keys: tuple[str | int, ...]) -> Iterator[S]:
        for layer in reversed(self.layers):
            found, whole = _look(layer.tree, keys)
            if found is not _ABSENT:
                yield layer.source
            if whole:
                return


def _look(tree: Json, keys: tuple[str | int, ...]) -> tuple[Json, bool]:
    """Return the value at *keys*, and whether it hides all lower layers.

    If the path ends early, in a list or in plain text, that is the value.
    """
    value = tree
    for key in keys:
        if not isinstance(value, Mapping):
            break
        value = value.get(key, _ABSENT)
        if value is _ABSENT:
            return _ABSENT, False
    return value, not isinstance(value, Mapping)
