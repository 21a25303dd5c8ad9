"""`enforce`: translates a confinement for the mechanism that enforces it. `reduced`: what it can enforce.

A confinement is enforced whole or the command does not start (`NotConfined`). A caller that prefers less
protection to none asks `reduced` first, which also says in words what is lost, for people and records.
"""

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attrs import field, frozen

from crush_trio.tools.sandbox.bubblewrap import (
    bubblewrap_argv,
    find_bubblewrap,
    with_control_sockets_hidden,
)
from crush_trio.tools.sandbox.confinement import Confinement, Network, NotConfined, SandboxKind
from crush_trio.tools.sandbox.landlock import landlock_orders, reduced_for_landlock
from crush_trio.tools.sandbox.layout import Role, lay_out
from crush_trio.tools.shell.guard.restriction import can_filter


@frozen(kw_only=True)
class Enforced:
    """How a command is started in its sandbox: what its vector begins with, and orders for the guard."""

    prefix: tuple[str, ...] = ()
    orders: Mapping[str, Any] = field(factory=dict)

    def argv(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the vector to execute for the command *argv*."""
        return (*self.prefix, *argv)


PLAIN: Final = Enforced()
"""A command without a sandbox."""


def enforce(
    program: str, working_dir: Path, search: str, confinement: Confinement, kind: SandboxKind
) -> Enforced:
    """Return how *confinement* is enforced by *kind* for a command that runs *program*.

    *search* is the PATH of the command. Raises `NotConfined` if *kind* cannot enforce all of it. Reads
    the file system, so it belongs in a thread.
    """
    if kind is SandboxKind.NONE:
        raise NotConfined(errno.ENOTSUP, "there is no sandbox on this machine")
    watched = [str(path) for path in confinement.watched]
    if kind is SandboxKind.LANDLOCK:
        _, lost = reduced(confinement, kind)
        if lost:
            raise NotConfined(errno.ENOTSUP, f"Landlock cannot enforce this: {'; '.join(lost)}")
        return Enforced(orders={"restrict": landlock_orders(confinement), "watched": watched})
    bubblewrap = find_bubblewrap()
    if bubblewrap is None:
        raise NotConfined(errno.ENOENT, "bubblewrap is not installed any more; install it again")
    _check_exists(program, working_dir, search)
    if confinement.network is Network.OFF and not can_filter():
        raise NotConfined(errno.ENOTSUP, "this machine has no filter for sockets: use loopback")
    layout = lay_out(with_control_sockets_hidden(confinement))
    if layout.role(Path(os.path.realpath(working_dir))) is Role.HIDDEN:
        raise NotConfined(errno.EPERM, f"the sandbox hides the working directory {working_dir}")
    orders: dict[str, Any] = {
        "namespace": True,
        "placeholders": [str(path) for path in layout.placeholders],
        "watched": watched,
    }
    if confinement.network is Network.OFF:
        orders["restrict"] = {"no_sockets": True, "hand_over": True}
    prefix = bubblewrap_argv(bubblewrap, working_dir, confinement, layout)
    return Enforced(prefix=prefix, orders=orders)


def reduced(confinement: Confinement, kind: SandboxKind) -> tuple[Confinement, tuple[str, ...]]:
    """Return the part of *confinement* that *kind* can enforce, and sentences about the rest."""
    if kind is SandboxKind.LANDLOCK:
        return reduced_for_landlock(confinement)
    if kind is SandboxKind.NONE:
        everything = Confinement(writable=(Path("/"),))
        return everything, ("nothing is enforced: there is no sandbox on this machine",)
    return confinement, ()


def _check_exists(program: str, working_dir: Path, search: str) -> None:
    """Raise `FileNotFoundError` as a start without a sandbox would.

    Bubblewrap would start, write a message and end, as if the command had run.
    """
    found = (
        os.access(working_dir / program, os.X_OK)
        if "/" in program
        else shutil.which(program, path=search) is not None
    )
    if not found:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
