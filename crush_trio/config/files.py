"""Files as this package touches them: read whole and bounded, replaced whole, locked between processes.

A reader needs no lock: a file is replaced in one step, so whoever opens it sees all of the old one or
all of the new one. The lock is for those who read in order to write. It is held within one synchronous
call and released by the kernel even if the process dies in it.

What a configuration file is: JSON of a known shape, in which more may stand than we know.

A value of the wrong type ends the reading with one error that names the file, the way to the value and
what should be there. A key that nobody knows is kept and reported: it may be a typing error, or from a
newer version.
"""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import attrs
import orjson
from attrs import field, frozen

from crush_trio.config.errors import ConfigInvalid
from crush_trio.config.sources import Layers, S, Tree
from crush_trio.errors import DecodeError
from crush_trio.wire.codec import decode, structure
from crush_trio.wire.config import Config
from crush_trio.wire.converters import key_step
from crush_trio.wire.fields import Json, OmitEmpty, wire_fields

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not keep us waiting
_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class LockHeld(Exception):
    """Somebody else is changing the file at this moment."""


def read_file(path: Path, limit: int) -> bytes | None:
    """Return the first *limit* bytes of a regular file, or None if there is nothing of this name."""
    try:
        handle = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Put *content* in the place of *path*, durably and in one step; only the user may read it.

    A link is replaced, not followed: what it leads to is none of ours to change.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, FILE_MODE)
            file.write(content)
            file.flush()
            os.fsync(handle)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that goes with *path*, or raise `LockHeld` at once.

    The lock file stays: a lock on a file that somebody else deletes protects nothing.
    """
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    handle = os.open(path.with_name(f"{path.name}.lock"), _LOCK, FILE_MODE)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld from None
        yield
    finally:
        os.close(handle)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


FILE_LIMIT: Final = 4 * 1024 * 1024
"""How many bytes a configuration file may have."""

OWN_KEY: Final = "crush_trio"

_SECTIONS: Final = {each.key for each in wire_fields(Config) if get_origin(each.type) is Mapping}


@frozen(kw_only=True)
class OwnConfig:
    """What only this program knows. Ignored in files that came with a project."""

    trusted_directories: OmitEmpty[tuple[str, ...]] = ()
    limits: OmitEmpty[Mapping[str, Json]] = field(factory=dict)
    """By the names of `crush_trio.limits.SizeLimits`."""


@frozen(kw_only=True)
class ConfigFile(Config):
    """One configuration file: everything that clients may see, and what is ours alone."""

    crush_trio: OmitEmpty[OwnConfig | None] = None


def read_tree(path: Path) -> Tree | None:
    """Return the object in a file, or None if there is no such file. Touches the disk.

    Raises `ConfigInvalid` for what is no JSON, too large or unreadable.
    """
    try:
        data = read_file(path, FILE_LIMIT + 1)
    except OSError as error:
        raise ConfigInvalid.at(path, "", f"cannot be read: {error.strerror}") from None
    return None if data is None else parse_tree(data, path)


def parse_tree(data: bytes, path: Path) -> Tree:
    """Return the object that *data* is, which stands or is going to stand in *path*."""
    if len(data) > FILE_LIMIT:
        raise ConfigInvalid.at(path, "", f"expected at most {FILE_LIMIT} bytes")
    try:
        tree: Json = decode(data, Any)
    except DecodeError as error:
        raise ConfigInvalid.at(path, "", error.detail) from None
    if tree is not None and not isinstance(tree, dict):
        raise ConfigInvalid.at(path, "", "expected an object")
    return tree or {}


def check_types(tree: Tree, path: Path) -> ConfigFile:
    """Return the values of a file, or raise `ConfigInvalid` for the first of the wrong type."""
    try:
        return structure(tree, ConfigFile)
    except DecodeError as error:
        raise ConfigInvalid.at(path, "", error.detail) from None


def merged_config(layers: Layers[S]) -> tuple[Tree, Config]:
    """Return what checked files amount to, as a tree and as values.

    An entry that is null is none: so a file can take away what one below it added.
    """
    tree = layers.tree()
    for name in _SECTIONS & tree.keys():
        tree[name] = {key: item for key, item in (tree[name] or {}).items() if item is not None}
    return tree, structure(tree, Config)


def write_tree(tree: Tree) -> bytes:
    """Return the bytes of a file: for people too, who may want to edit it."""
    return orjson.dumps(tree, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def unknown_keys(tree: Tree) -> Iterator[str]:
    """Return the way to every key of a file that nobody knows; *tree* has been checked."""
    return (way.removeprefix(".") for way in _unknown(tree, ConfigFile))


def _unknown(value: Json, shape: Any, way: str = "") -> Iterator[str]:  # noqa: ANN401 - a class or an alias
    """Walk value and type side by side; where the type is open, so is the value."""
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
