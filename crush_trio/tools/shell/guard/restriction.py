"""Restricts this process, and everything it will start, just before it becomes the command.

`restrict` applies Landlock rules and a filter of system calls, with plain system calls, because Python
has no functions for them. Both are inherited and cannot be taken back. What the rules are is decided in
the server (`tools/sandbox/landlock.py`). Bubblewrap gets the filter through a descriptor instead, because
it needs sockets itself before it starts the command.

Part of the guard program: the package docstring says what it may import.
"""

import ctypes
import errno
import os
import struct

from crush_trio.tools.shell.guard.subreaper import prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Orders = dict[str, Any]

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1

CAPABILITY_VERSION = 0x20080522
FILE_CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4
"""CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID."""

FILTER_DESCRIPTOR = 100
"""Where bubblewrap finds the filter; far from the descriptors that are in use."""

LOAD, EQUAL, NOT_LESS, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EACCES
"""Instructions of a filter, and what it returns."""

NATIVE = {
    "x86_64": (0xC000003E, 41),
    "aarch64": (0xC00000B7, 198),
    "riscv64": (0xC00000F3, 198),
}
"""The number of an architecture for the filter, and its number of `socket`."""

IO_URING_SETUP = 425
"""The same everywhere. A ring could make sockets and change files past the filter."""

METADATA = {
    "x86_64": (
        *(90, 91, 268, 92, 93, 94, 260),  # chmod fchmod fchmodat chown fchown lchown fchownat
        *(132, 235, 261, 280),  # utime utimes futimesat utimensat
        *(188, 189, 190, 197, 198, 199),  # setxattr removexattr, each with l and f
    ),
    "aarch64": (52, 53, 54, 55, 88, 5, 6, 7, 14, 15, 16),
    "riscv64": (52, 53, 54, 55, 88, 5, 6, 7, 14, 15, 16),
}
METADATA_EVERYWHERE = (452, 463, 466, 469)  # fchmodat2 setxattrat removexattrat file_setattr
"""System calls that change modes, owners, times and attributes, which Landlock does not restrict."""


def restrict(orders: "Orders") -> None:
    """Apply *orders* to this process; raise `OSError` if that fails.

    `no_sockets` and `no_metadata` say what the filter refuses; with `hand_over`, it is not applied but
    readable from `FILTER_DESCRIPTOR`. `landlock` has the arguments for Landlock.
    """
    program = _filter(orders)
    if "hand_over" in orders:
        _hand_over(program)
        return
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if "landlock" in orders:
        _apply_landlock(*orders["landlock"])
        _drop_capabilities()
    if program:
        _apply_filter(program)


def landlock_version() -> int:
    """Return the version of Landlock in this kernel, 0 if it has none."""
    version: int = _LIBC.syscall(CREATE_RULESET, None, 0, CREATE_RULESET_VERSION)
    return max(0, version)


def can_filter() -> bool:
    """Whether the filter of system calls is known for this machine."""
    return os.uname().machine in NATIVE


# ── Landlock ────────────────────────────────────────────────────────────────────────────────────

_LIBC = ctypes.CDLL(None, use_errno=True)


def _apply_landlock(
    handled: int, network: int, scoped: int, rules: "Iterable[tuple[str, int]]"
) -> None:
    """Forbid the accesses in *handled*, *network* and *scoped*, except what *rules* allow."""
    attributes = struct.pack("=QQQ", handled, network, scoped)
    size = 24 if scoped else 16 if network else 8
    ruleset = _call(CREATE_RULESET, attributes, size, 0)
    for path, access in rules:
        _add_rule(ruleset, path, access)
    _call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _add_rule(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, PermissionError):
        return  # not there any more, or out of reach anyway: nothing is allowed
    try:
        _call(ADD_RULE, ruleset, RULE_PATH_BENEATH, struct.pack("=Qi", access, descriptor), 0)
    finally:
        os.close(descriptor)


def _drop_capabilities() -> None:
    """Keep only capabilities for files: with others, root could read the memory of the server.

    "No new privileges" is set, so the program that is executed next does not get them back.
    """
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    if _LIBC.capget(header, held) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    permitted = struct.unpack("=6I", held.raw)[1] & FILE_CAPABILITIES
    if _LIBC.capset(header, struct.pack("=6I", permitted, permitted, 0, 0, 0, 0)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _call(number: int, *arguments: "int | bytes") -> int:
    result: int = _LIBC.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "landlock")
    return result


# ── The filter of system calls ──────────────────────────────────────────────────────────────────


def _filter(orders: "Orders") -> bytes:
    """Return a program that refuses some system calls with EACCES; empty if none is to be refused.

    Pairs of sockets, which connect processes of the command, are made by another call than `socket`.
    """
    if not (orders.get("no_sockets") or orders.get("no_metadata")):
        return b""
    machine = os.uname().machine
    if machine not in NATIVE:
        raise OSError(errno.ENOSYS, "no filter for this machine")
    architecture, socket = NATIVE[machine]
    refused = [IO_URING_SETUP]
    if orders.get("no_sockets"):
        refused.append(socket)
    if orders.get("no_metadata"):
        refused += [*METADATA[machine], *METADATA_EVERYWHERE]
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, REFUSE), (LOAD, 0, 0, 0)]
    if machine == "x86_64":  # the numbers of its x32 variant
        steps += [(NOT_LESS, 0, 1, 0x40000000), (RETURN, 0, 0, REFUSE)]
    for number in refused:
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    steps.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _hand_over(program: bytes) -> None:
    file = os.memfd_create("filter")
    os.write(file, program)
    os.lseek(file, 0, os.SEEK_SET)
    os.dup2(file, FILTER_DESCRIPTOR)


def _apply_filter(program: bytes) -> None:
    text = ctypes.create_string_buffer(program)
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(text))
    if _LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
