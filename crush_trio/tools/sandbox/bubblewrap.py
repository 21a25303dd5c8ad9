"""`bubblewrap_argv`: the arguments that run a command in bubblewrap; the command's own follow them.

The command gets its own mount, PID and IPC namespaces, and its own network namespace unless the network
is on; if it is off, a filter of system calls refuses every socket as well. /proc shows only its own
processes, so it cannot read the server's environment. /dev has the usual harmless devices. /run is empty except for what name resolution and program search need, because its
sockets (D-Bus, systemd, containers) let a program have others do what it may not; so do those of tmux and
X11, which are hidden. Other Unix sockets can be reached unless the network is off. The mounts are `nodev`
and `nosuid`, and bubblewrap always sets "no new privileges".

Bubblewrap is the leader that the guard sees. Below it, an init of the PID namespace starts the command.
When bubblewrap ends, so does the init (`--die-with-parent`), and when the init ends, the kernel kills
everything else in the namespace.

A server that runs as root uses no user namespace: the command stays root, with capabilities for files of
other owners only. /proc is then read-only, because its files belong to root. An ordinary user needs user
namespaces, in which the command has no capability.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from attrs import evolve

from crush_trio.tools.sandbox.confinement import Confinement, Network
from crush_trio.tools.sandbox.layout import Layout, Role
from crush_trio.tools.shell.guard.restriction import FILTER_DESCRIPTOR

PROGRAM_PATH: Final = "/usr/bin:/bin:/usr/local/bin:/run/wrappers/bin:/run/current-system/sw/bin"
"""Where bubblewrap is looked for. Not the PATH of a command, which a workspace may set."""

EMPTY_FILE: Final = Path(__file__).parents[2] / "py.typed"
"""An empty file, which is mounted over hidden files."""

RUN: Final = Path("/run")

RUN_KEPT: Final = (
    *("systemd/resolve", "resolvconf", "NetworkManager/resolv.conf", "nscd"),
    *("current-system", "booted-system", "opengl-driver", "wrappers"),
)
"""What stays visible below /run: name resolution, and the programs of NixOS."""

CONTROL_SOCKETS: Final = (Path(f"/tmp/tmux-{os.getuid()}"), Path("/tmp/.X11-unix"))
"""Directories with sockets that take keystrokes for programs outside. Hidden unless writable."""

FILE_CAPABILITIES: Final = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID")
"""The capabilities that a command of a root server keeps.

CAP_DAC_READ_SEARCH is not one of them: it would allow to open any file by its handle, past all mounts.
"""


def find_bubblewrap() -> str | None:
    """Return the path of bubblewrap; None if it is not installed."""
    return shutil.which("bwrap", path=PROGRAM_PATH)


def with_control_sockets_hidden(confinement: Confinement) -> Confinement:
    """Return *confinement* with `CONTROL_SOCKETS` among what is hidden."""
    more = (path for path in CONTROL_SOCKETS if path not in confinement.writable)
    return evolve(confinement, hidden=(*confinement.hidden, *more))


def bubblewrap_argv(
    program: str,
    working_dir: Path,
    confinement: Confinement,
    layout: Layout,
    *,
    is_root: bool | None = None,
) -> tuple[str, ...]:
    """Return the beginning of a vector: *program*, which is bubblewrap, with its options."""
    root = os.geteuid() == 0 if is_root is None else is_root
    namespaces = ("--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session")
    network: tuple[str, ...] = () if confinement.network is Network.ON else ("--unshare-net",)
    if confinement.network is Network.OFF:
        network = (*network, "--seccomp", str(FILTER_DESCRIPTOR))
    privileges = tuple(_privileges()) if root else ()
    mounts = tuple(_mounts(layout, root=root))
    place = ("--chdir", str(working_dir), "--")
    return (program, *namespaces, *network, *privileges, *mounts, *place)


def _privileges() -> Iterator[str]:
    yield from ("--cap-drop", "ALL")
    for name in FILE_CAPABILITIES:
        yield from ("--cap-add", name)


def _mounts(layout: Layout, *, root: bool) -> Iterator[str]:
    """Yield the options for all mounts, parents first."""
    roles = dict(layout.roles)
    top = roles.pop(Path("/"), Role.READ_ONLY)
    yield from ("--bind" if top is Role.WRITABLE else "--ro-bind", "/", "/")
    yield from ("--dev", "/dev", "--proc", "/proc")
    if RUN.is_dir() and RUN not in roles:
        yield from ("--tmpfs", str(RUN))
        for name in RUN_KEPT:
            yield from ("--ro-bind-try", str(RUN / name), str(RUN / name))
    for path, role in roles.items():
        yield from _mount(str(path), role)
    # A directory that hides another becomes read-only last: mount points are made in it before.
    hidden = [path for path, role in roles.items() if role is Role.HIDDEN and path.is_dir()]
    emptied = [*hidden, RUN] if RUN.is_dir() and RUN not in roles else hidden
    for path in [*emptied, Path("/proc")] if root else emptied:
        yield from ("--remount-ro", str(path))


def _mount(path: str, role: Role) -> tuple[str, ...]:
    if role is Role.WRITABLE:
        return ("--bind", path, path)
    if role is Role.READ_ONLY:
        return ("--ro-bind", path, path)
    if Path(path).is_dir():
        return ("--tmpfs", path)
    return ("--ro-bind", str(EMPTY_FILE), path)
