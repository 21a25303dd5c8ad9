"""Landlock: rules of the kernel about files, which a process applies to itself before it runs a command.

It is the second choice, for machines where bubblewrap cannot run. What each mechanism enforces:

| | bubblewrap | Landlock |
|---|---|---|
| writing only below writable directories | yes | yes; also modes, owners, times and attributes if nothing is writable, else these can be changed everywhere |
| protected paths below a writable directory | yes | no: rules can only allow more, for whole trees |
| hidden directories | yes, they look empty | yes, they cannot be read; names, sizes and times of known paths can. Not below a writable directory |
| directories that contain a hidden one | as usual | cannot be listed |
| network off | yes | yes, by a filter of system calls |
| network loopback only | yes | no |
| sockets of other programs, network on | all but those below /run | reachable, abstract ones from version 6 on not |
| the server's environment in /proc | not visible | not readable |
| other processes | not visible | visible; cannot be signalled from version 6 on |
| processes left by the command | the kernel kills them | the guard kills them |

Version 3 is the first that counts: older ones cannot stop a program from truncating files.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from attrs import evolve

from crush_trio.tools.sandbox.confinement import Confinement, Network
from crush_trio.tools.shell.guard.restriction import can_filter, landlock_version

MIN_VERSION: Final = 3

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = (1 << bit for bit in range(4))
CHANGE_DIRECTORY: Final = sum(1 << bit for bit in range(4, 14))
"""Removing and making entries of every kind, and moving them between directories (`REFER`)."""
TRUNCATE: Final = 1 << 14
IOCTL_DEV: Final = 1 << 15
TCP: Final = 0b11
SCOPES: Final = 0b11
"""Abstract Unix sockets and signals."""

READ: Final = EXECUTE | READ_FILE | READ_DIR
WRITE: Final = WRITE_FILE | CHANGE_DIRECTORY | TRUNCATE
ON_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""The accesses that a rule about a file may name."""

DEVICES: Final = tuple(
    Path("/dev", name) for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
)
"""Devices that a command may always write to."""


def reduced_for_landlock(confinement: Confinement) -> tuple[Confinement, tuple[str, ...]]:
    """Return the part of *confinement* that Landlock can enforce, and sentences about the rest."""
    roots = [path.resolve() for path in confinement.writable]
    lost: list[str] = []
    hidden: list[Path] = []
    for path in confinement.hidden:
        if _is_below(path.resolve(), roots):
            lost.append(f"{path} is not hidden, because it is below a writable directory")
        else:
            hidden.append(path)
    lost += [
        f"{path} is not protected, because it is below a writable directory"
        for path in confinement.protected
        if _is_below(path, [*roots, *confinement.writable]) and path not in confinement.writable
    ]
    network = confinement.network
    if network is Network.LOOPBACK:
        network = Network.ON
        lost.append("the network is on, because it cannot be limited to loopback")
    if network is Network.OFF and not can_filter():
        network = Network.ON
        lost.append("the network is on, because this machine has no filter for it")
    protected = [path for path in confinement.protected if path in confinement.writable]
    less = evolve(confinement, protected=protected, hidden=hidden, network=network)
    return less, tuple(lost)


def landlock_orders(confinement: Confinement) -> dict[str, Any]:
    """Return the orders for the guard: the accesses that are handled, and the rules that allow some.

    The confinement must be one that Landlock can enforce.
    """
    version = landlock_version()
    hidden = [path.resolve() for path in confinement.hidden if path.exists()]
    off = confinement.network is Network.OFF
    devices = IOCTL_DEV if version >= 5 else 0
    handled = WRITE | devices | (READ if hidden else 0)
    rules = [
        (path, handled & READ if path in confinement.protected else handled)
        for path in _outermost(confinement.writable)
        if path.exists()
    ]
    rules += [(path, (WRITE_FILE | devices) & handled) for path in DEVICES if path.exists()]
    rules.append((Path("/dev/pts"), (WRITE_FILE | devices) & handled))
    fitting = [*_fitting(rules)]
    if hidden:
        fitting += _visible(hidden)
    return {
        "landlock": (
            handled,
            TCP if off and version >= 4 else 0,
            SCOPES if version >= 6 else 0,
            fitting,
        ),
        "no_sockets": off,
        "no_metadata": {*confinement.writable} <= {*confinement.protected} and can_filter(),
    }


def _visible(hidden: list[Path]) -> Iterator[tuple[str, int]]:
    """Yield rules that let everything be read but what is *hidden*, which has no links in its paths.

    Every command waits for this, and a home directory may have hundreds of entries: so these are texts,
    and nothing is asked of the file system that listing a directory does not tell.
    """
    left_out = {str(path) for path in hidden}
    listed = ["/"] if "/" not in left_out else []
    above = {str(parent) for path in hidden for parent in path.parents}
    while listed:
        with suppress(OSError), os.scandir(listed.pop()) as entries:
            for entry in entries:
                if entry.is_symlink() or entry.path in left_out:
                    continue
                if entry.path in above:
                    listed.append(entry.path)
                else:
                    yield entry.path, READ if entry.is_dir() else READ & ON_FILES


def _outermost(paths: tuple[Path, ...]) -> list[Path]:
    """Return the paths that are not below others.

    Those below could have become links, made by a command that may write there.
    """
    return [path for path in paths if not any(each in paths for each in path.parents)]


def _fitting(rules: list[tuple[Path, int]]) -> Iterator[tuple[str, int]]:
    """Yield *rules* as the kernel takes them: no links, no rights of directories for files."""
    for path, access in rules:
        real = path.resolve()
        possible = access if real.is_dir() else access & ON_FILES
        if possible:
            yield str(real), possible


def _is_below(path: Path, roots: list[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)
