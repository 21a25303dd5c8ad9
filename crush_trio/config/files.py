"""Configuration files: reading, parsing and type checks.

A value of the wrong type raises an error that names the file, the key and the expected type; a
provider, MCP server or language server with such a value is left out, with a warning. An unknown
key is kept and gives a warning: it may be a typing error, or from a newer version.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import reduce
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin

import attrs
import orjson
from attrs import field, frozen

from crush_trio.config.errors import ConfigInvalid
from crush_trio.config.secrets.command_env import CommandEnv
from crush_trio.config.sources import Layers, S, Tree, merge
from crush_trio.errors import DecodeError
from crush_trio.net.address import Url
from crush_trio.net.errors import BadUrl
from crush_trio.nofollow import NotRegular
from crush_trio.private_files import read_file, read_plain_file
from crush_trio.wire.codec import decode, structure
from crush_trio.wire.config import Config
from crush_trio.wire.converters import key_step
from crush_trio.wire.fields import Json, OmitEmpty, wire_fields

T = TypeVar("T")

_NAMED: Final = ("providers", "mcp", "lsp")
"""The sections with entries that do not need each other."""

FILE_LIMIT: Final = 4 * 1024 * 1024
"""The most bytes of a configuration file."""

OWN_KEY: Final = "crush_trio"


class SandboxMode(StrEnum):
    """Whether commands run in a sandbox: if there is one, always or not at all, never."""

    AUTO = "auto"
    REQUIRE = "require"
    OFF = "off"


class SandboxNetwork(StrEnum):
    """The network of approved commands."""

    ON = "on"
    OFF = "off"
    LOOPBACK = "loopback"


class CommandPolicy(StrEnum):
    """Whether a person is asked before a command runs in the sandbox."""

    ASK = "ask"
    ALLOW = "allow"


@frozen(kw_only=True)
class SandboxConfig:
    """The sandbox of commands, as the user's files set it. `writable` and `hidden` are more paths."""

    mode: OmitEmpty[SandboxMode] = SandboxMode.AUTO
    network: OmitEmpty[SandboxNetwork] = SandboxNetwork.ON
    commands: OmitEmpty[CommandPolicy] = CommandPolicy.ASK
    writable: OmitEmpty[tuple[str, ...]] = ()
    hidden: OmitEmpty[tuple[str, ...]] = ()


class NotifyEvent(StrEnum):
    """What people who are away are told."""

    NEEDS_PERSON = "needs_person"
    """A permission or an answer is needed."""
    RUN_ENDED = "run_ended"


@frozen(kw_only=True)
class NotifyConfig:
    """What is called when a person is needed and when a run ends; without `events`, for both."""

    command: OmitEmpty[str] = ""
    webhook: OmitEmpty[str] = field(default="", repr=False)
    events: OmitEmpty[tuple[NotifyEvent, ...]] = ()

    def wants(self, event: NotifyEvent) -> bool:
        """Whether anything is called for *event*."""
        return bool(self.command or self.webhook) and (not self.events or event in self.events)


@frozen(kw_only=True)
class RetentionConfig:
    """How long data is kept; 0 is for ever."""

    sessions: OmitEmpty[int] = 0
    """Days since a session was last used after which it is deleted."""


_SECTIONS: Final = {each.key for each in wire_fields(Config) if get_origin(each.type) is Mapping}


@frozen(kw_only=True)
class OwnConfig:
    """Settings of this program only. Ignored in files of a project."""

    trusted_directories: OmitEmpty[tuple[str, ...]] = ()
    limits: OmitEmpty[Mapping[str, Json]] = field(factory=dict)
    """Keyed by the names of `crush_trio.limits.SizeLimits`."""
    sandbox: OmitEmpty[SandboxConfig] = SandboxConfig()
    command_env: OmitEmpty[CommandEnv | None] = None
    """Variables that the agent's commands get, or do not get, in spite of their names."""
    record: OmitEmpty[bool | None] = None
    """Whether every run is recorded, as `record` in a submission asks for one."""
    notify: OmitEmpty[NotifyConfig | None] = None
    """What is called for people who are away."""
    retention: OmitEmpty[RetentionConfig | None] = None


@frozen(kw_only=True)
class ConfigFile(Config):
    """One configuration file: the wire's `Config`, and our own settings."""

    crush_trio: OmitEmpty[OwnConfig | None] = None


def read_tree(path: Path, resolved: Path | None = None) -> Tree | None:
    """Return the object in a file, or None if there is no such file. Touches the disk.

    *resolved* is where the path leads, if the caller has judged that; then no link is followed any
    more. An empty directory is no file: a sandbox reserves the name by one while a command runs. Raises
    `ConfigInvalid` if the file is not JSON, too large or unreadable.
    """
    try:
        if resolved is None:
            data = read_file(path, FILE_LIMIT + 1)
        else:
            data = read_plain_file(resolved, FILE_LIMIT + 1)
    except OSError as error:
        if isinstance(error, NotRegular) and _is_empty_directory(path):
            return None
        raise ConfigInvalid.at(
            path, "", f"cannot be read: {error.strerror}{_access(error)}"
        ) from None
    return None if data is None else parse_tree(data, path)


def _is_empty_directory(path: Path) -> bool:
    try:
        return not any(path.iterdir())
    except OSError:
        return False


def _access(error: OSError) -> str:
    """Return what to do if *error* is a missing permission; otherwise nothing."""
    return "; allow reading it, or move it away" if isinstance(error, PermissionError) else ""


def parse_tree(data: bytes, path: Path) -> Tree:
    """Return the object in *data*, the present or future content of *path*."""
    if len(data) > FILE_LIMIT:
        raise ConfigInvalid.at(path, "", f"expected at most {FILE_LIMIT} bytes")
    try:
        tree: Json = decode(data, Any)
    except DecodeError as error:
        raise ConfigInvalid.at(path, "", error.detail) from None
    if tree is not None and not isinstance(tree, dict):
        raise ConfigInvalid.at(path, "", "expected an object")
    if rb"\u0000" in data and (key := _key_of_null(tree)) is not None:
        raise ConfigInvalid.at(path, key, "expected text without a null character")
    return tree or {}


def _key_of_null(tree: Json) -> str | None:
    """Return where *tree* has a null character, which no path, command or header can have."""
    waiting: list[tuple[str, Json]] = [("", tree)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, str) and "\0" in value:
            return key
        if isinstance(value, dict):
            waiting += ((key, name) for name in value)
            waiting += ((f"{key}.{name}" if key else name, each) for name, each in value.items())
        elif isinstance(value, list):
            waiting += ((key, each) for each in value)
    return None


def check_types(tree: Tree, path: Path) -> ConfigFile:
    """Return the values of a file, or raise `ConfigInvalid` for the first that cannot be right."""
    try:
        content = structure(tree, ConfigFile)
    except DecodeError as error:
        raise ConfigInvalid.at(path, "", error.detail) from None
    own = content.crush_trio
    wrong = None if own is None or own.command_env is None else own.command_env.invalid_name()
    if wrong is not None:
        key, name = wrong
        expectation = f"expected names of variables, in which * stands for anything, got {name!r}"
        raise ConfigInvalid.at(path, f"{OWN_KEY}.command_env.{key}", expectation)
    if own is not None and own.notify is not None and own.notify.webhook:
        try:
            Url.parse(own.notify.webhook)
        except BadUrl as error:
            raise ConfigInvalid.at(path, f"{OWN_KEY}.notify.webhook", error.detail) from None
    if own is not None and own.retention is not None and own.retention.sessions < 0:
        expectation = "expected a number of days, or 0 to keep everything"
        raise ConfigInvalid.at(path, f"{OWN_KEY}.retention.sessions", expectation)
    return content


def without_malformed(tree: Tree) -> tuple[Tree, list[tuple[str, str, str]]]:
    """Return *tree* without the named entries that have a value of the wrong type.

    Each of them is null then, as if the file removed it; with section, name and the problem. What
    else is wrong is left for `check_types`.
    """
    problems: list[tuple[str, str, str]] = []
    for section in _NAMED:
        entries = tree.get(section)
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            try:
                structure({section: {name: entry}}, ConfigFile)
            except DecodeError as error:
                problems.append((section, name, error.detail))
    mended = dict(tree)
    for section, name, _ in problems:
        mended[section] = {**mended[section], name: None}
    return mended, problems


def command_env(files: Iterable[ConfigFile]) -> CommandEnv:
    """Return what *files* of the user say about the environment of commands, all together."""
    whole = CommandEnv()
    for each in files:
        if each.crush_trio is not None and each.crush_trio.command_env is not None:
            whole = whole.added(each.crush_trio.command_env)
    return whole


def own_setting(files: Iterable[ConfigFile], name: str, default: T) -> T:
    """Return what the user's *files*, lowest first, set at *name* of our settings; the last to say wins."""
    own = [getattr(each.crush_trio, name) for each in files if each.crush_trio is not None]
    return next((value for value in reversed(own) if value is not None), default)


def merged_config(layers: Layers[S]) -> tuple[Tree, Config]:
    """Return checked files merged, as a tree and as values.

    An entry that is null is removed, so a file can take away what a lower one has added.
    """
    tree = layers.tree()
    for name in _SECTIONS & tree.keys():
        tree[name] = {key: item for key, item in (tree[name] or {}).items() if item is not None}
    return tree, structure(tree, Config)


def merged_sandbox(own: Iterable[Tree]) -> SandboxConfig:
    """Return the sandbox that the user's own files set, lowest file first."""
    nothing: dict[str, Json] = {}
    content = structure(reduce(merge, own, nothing), ConfigFile).crush_trio
    return SandboxConfig() if content is None else content.sandbox


def write_tree(tree: Tree) -> bytes:
    """Return the bytes of a file, indented for people who edit it."""
    return orjson.dumps(tree, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def unknown_keys(tree: Tree) -> Iterator[str]:
    """Yield the path of every unknown key of a file; *tree* has been checked."""
    return (way.removeprefix(".") for way in _unknown(tree, ConfigFile))


def _unknown(value: Json, shape: Any, way: str = "") -> Iterator[str]:  # noqa: ANN401 - a class or an alias
    """Walk value and type side by side; an open type accepts any key."""
    origin, args = get_origin(shape), get_args(shape)
    if value is None:
        return
    if origin in {Union, UnionType}:
        inner = next(arg for arg in args if arg is not NoneType)
        yield from _unknown(value, inner, way)
    elif origin is tuple:
        for index, item in enumerate(value):
            yield from _unknown(item, args[0], f"{way}[{index}]")
    elif origin is Mapping:
        for key, item in value.items():
            yield from _unknown(item, args[1], way + key_step(key))
    elif attrs.has(shape):
        known = {each.key: each.type for each in wire_fields(shape)}
        for key, item in value.items():
            if key in known:
                yield from _unknown(item, known[key], way + key_step(key))
            else:
                yield way + key_step(key)
