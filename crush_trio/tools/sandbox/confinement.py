"""`Confinement`: what a command may write, read and reach. `SandboxKind`: the mechanism that enforces it."""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from attrs import field, frozen


class Network(StrEnum):
    """What a command can reach over the network."""

    ON = "on"
    """Everything the server can reach."""
    OFF = "off"
    """Nothing: the command cannot make a socket, not even one for a Unix socket of another program."""
    LOOPBACK = "loopback"
    """Its own loopback interface, which no other command shares, and Unix sockets."""


class SandboxKind(StrEnum):
    """The mechanism that enforces a confinement."""

    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"


class NotConfined(OSError):
    """The command did not start, because its confinement cannot be enforced."""


def _tuple(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(paths)


def _absolute(instance: object, attribute: object, paths: tuple[Path, ...]) -> None:
    for path in paths:
        if not path.is_absolute() or ".." in path.parts or "\0" in str(path):
            raise ValueError(f"a sandbox needs absolute paths without '..', not {str(path)!r}")


@frozen(kw_only=True)
class Confinement:
    """What a command may touch. The rest of the file system is read-only.

    *writable* are directories and files that it may change. *protected* are read-only although they
    are below a writable one; this includes names that do not exist yet. *hidden* are directories that
    look empty and files that look empty, wherever they are. Where these overlap, the longest path
    decides, but nothing below a hidden directory is visible except what is writable. A path that is
    writable and protected is read-only, and visible below a hidden directory. A writable path or a
    hidden path that does not exist is ignored.

    *watched* are names that do not exist and cannot be protected. `CommandEnd.made` tells which of them
    the command has made.
    """

    writable: tuple[Path, ...] = field(default=(), converter=_tuple, validator=_absolute)
    protected: tuple[Path, ...] = field(default=(), converter=_tuple, validator=_absolute)
    hidden: tuple[Path, ...] = field(default=(), converter=_tuple, validator=_absolute)
    watched: tuple[Path, ...] = field(default=(), converter=_tuple, validator=_absolute)
    network: Network = Network.ON
