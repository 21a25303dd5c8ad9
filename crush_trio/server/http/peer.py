"""`Peer`: the process at the other end of a connection, as far as the kernel knows it.

A command that the agent runs can connect to the server like any program of its user. It may read, but it
must not grant permissions, send prompts or change the configuration: the user did not. So a request that
changes something is refused if its peer is a process below one of this server's guards:

* On a Unix socket the kernel keeps the process that connected (`SO_PEERPIDFD`, else `SO_PEERCRED`).
* Over TCP the kernel's table of connections has the inode of the peer's socket, if the peer is on this
  machine. It is looked for among the open files of the commands' processes.

A peer that has ended counts as a process of a command: it may have sent its request just before. A
connection that was accepted while there were no commands, and had not been for a while, is not looked at. Any
other is looked at once, in a thread, when it first asks for a change. A process outside of our PID
namespace, or on another machine, is below no guard.
"""

import os
import socket
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from errno import ENOPROTOOPT
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, field, frozen

from crush_trio.net.unix_socket import ROOT, credentials_of
from crush_trio.server.http.outgoing import CARRIER
from crush_trio.tools.shell.guard.descendants import GUARDS, Family

_SO_PEERPIDFD: Final = 77
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENING: Final = "0A"

_Ip = IPv4Address | IPv6Address
_End = tuple[_Ip, int]


@define(eq=False)
class Peer:
    """The peer of one connection. Without a socket (a test's) nothing is known of it."""

    _socket: trio.socket.SocketType | None = field(repr=False)
    _suspect: bool = field(factory=lambda: GUARDS.active, init=False)
    """Whether the peer may be a process of a command: whether there were any when it was accepted."""
    _own: bool | None = field(default=None, init=False)
    pid: int | None = field(default=None, init=False)
    """The process that connected through a Unix socket; 0 if it is outside of our PID namespace."""
    uid: int | None = field(default=None, init=False)
    """The user of that process."""
    _private: bool | None = field(default=None, init=False)
    """Whether our socket file was open to its owner only when it was last looked at."""

    def __attrs_post_init__(self) -> None:
        if self._socket is not None and self._socket.family == socket.AF_UNIX:
            found = credentials_of(self._socket)
            self.pid, self.uid = found.pid, found.uid
            self.is_foreign()

    def is_foreign(self) -> bool:
        """Whether another user, not root, has come through a socket that only its owner may open.

        A server that stops removes its file before it answers its last requests: what was seen last holds.
        """
        known = self.uid is None or self.uid == ROOT or self.uid == os.getuid()
        return not known and self._is_private(unknown=True)

    def is_owner(self) -> bool:
        """Whether our own user has come through a socket file that only its owner may open."""
        return self.uid == os.getuid() and self._is_private(unknown=False)

    @property
    def suspect(self) -> bool:
        """Whether `is_own_process` has to be asked; False costs nothing."""
        return self._suspect and self._own is not False

    async def is_own_process(self) -> bool:
        """Whether the peer is a process of a command of this server."""
        await trio.lowlevel.checkpoint()
        if self._own is None:
            self._own = self._suspect and await self._look_up()
        return self._own

    async def _look_up(self) -> bool:
        family = GUARDS.family()
        if self._socket is None or self.pid == 0:
            return False  # noqa: ASYNC910 - the caller has had a checkpoint
        if self.pid is None:
            near, far = _ends(self._socket)
            own = await trio.to_thread.run_sync(_is_tcp_of, family, near, far)
            # If it was reset meanwhile, the tables have no row of it, and what was found is another's.
            return own or _ends(self._socket)[1] is None
        try:
            pidfd = self._socket.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError as error:
            if error.errno != ENOPROTOOPT:
                return True  # noqa: ASYNC910 - as above; the process has ended
            return await trio.to_thread.run_sync(family.has, self.pid)
        return await trio.to_thread.run_sync(_is_process_of, family, self.pid, pidfd)

    def _is_private(self, *, unknown: bool) -> bool:
        """Whether our socket file is open to its owner only; *unknown* if there never was one to look at."""
        assert self._socket is not None
        try:
            mode = Path(os.fsdecode(self._socket.getsockname())).stat().st_mode
        except (OSError, ValueError):  # it has no file, or none any more
            return unknown if self._private is None else self._private
        self._private = not mode & (stat.S_IRWXG | stat.S_IRWXO)
        return self._private


def peer_of(scope: Mapping[str, Any]) -> Peer | None:
    """Return the peer of the request *scope*, from what its server left there; None under other servers."""
    found = getattr(scope.get("state", {}).get(CARRIER), "peer", None)
    return found if isinstance(found, Peer) else None


# ── Unix sockets ────────────────────────────────────────────────────────────────────────────────


def _is_process_of(family: Family, pid: int, pidfd: int) -> bool:
    """Whether the process *pidfd* belongs to a command. Its id is only right while it lives."""
    try:
        return family.has(pid) or _has_ended(pidfd)
    finally:
        os.close(pidfd)


def _has_ended(pidfd: int) -> bool:
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:  # noqa: PTH123 - a file of the kernel
        return b"\nPid:\t-1\n" in file.read()


# ── TCP ─────────────────────────────────────────────────────────────────────────────────────────


def _ends(sock: trio.socket.SocketType) -> tuple[_End, _End | None]:
    """Return our end of a TCP connection and the peer's; None if that has disconnected."""
    far = None
    with suppress(OSError):
        far = _end(sock.getpeername())
    return _end(sock.getsockname()), far


def _end(name: Sequence[object]) -> _End:
    ip = ip_address(str(name[0]).partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return mapped or ip, int(str(name[1]))


def _is_tcp_of(family: Family, near: _End, far: _End | None) -> bool:
    """Whether the socket at the *far* end of a connection belongs to a command."""
    if far is None:
        return True
    found = list(_rows(near, far))
    inodes = {row.inode for row in found if row.exact} or {row.inode for row in found}
    if not inodes:  # on another machine; or closed, if the address is one of this machine
        return far[0].is_loopback or far[0] == near[0]
    return 0 in inodes or any(map(family.holds, inodes))


@frozen
class _Row:
    inode: int
    """0 if no process has the socket open any more."""
    exact: bool
    """Whether its other end is ours. A firewall may have redirected the connection to us."""


def _rows(near: _End, far: _End) -> Iterator[_Row]:
    """Yield the rows of the kernel's tables for the socket at the *far* end of a connection."""
    theirs, ours = {*_hex_forms(far)}, {*_hex_forms(near)}
    for table in _TABLES:
        with suppress(FileNotFoundError), open(table, encoding="ascii") as lines:  # noqa: PTH123
            for line in lines:
                words = line.split(maxsplit=10)
                if words[1] in theirs and words[3] != _LISTENING:
                    yield _Row(int(words[9]), words[2] in ours)


def _hex_forms(end: _End) -> Iterator[str]:
    """Yield an address as the kernel's tables have it: an IPv4 one also as IPv6."""
    ip, port = end
    forms = [ip.packed]
    if isinstance(ip, IPv4Address):
        forms.append(bytes(10) + b"\xff\xff" + ip.packed)
    for packed in forms:
        words = (packed[at : at + 4] for at in range(0, len(packed), 4))
        text = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
        yield f"{text}:{port:04X}"
