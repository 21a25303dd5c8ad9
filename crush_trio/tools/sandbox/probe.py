"""`probe_sandbox`: finds the mechanism that works on this machine, by running a command in each.

A program that is installed says little: containers and kernels forbid namespaces in many ways. So the
probe runs a small script in a confinement that uses everything, and looks at what the script could do.
"""

import re
import tempfile
from pathlib import Path
from typing import Final

import trio
from attrs import frozen

from crush_trio.clock import Clock, SystemClock
from crush_trio.tools.sandbox.bubblewrap import find_bubblewrap
from crush_trio.tools.sandbox.confinement import Confinement, Network, SandboxKind
from crush_trio.tools.sandbox.enforcement import reduced
from crush_trio.tools.sandbox.landlock import MIN_VERSION
from crush_trio.tools.shell.guard.restriction import landlock_version
from crush_trio.tools.shell.process import Command, run_command

LIMIT: Final = 10.0
"""Seconds for one mechanism. A machine under load takes long to start a command."""

SCRIPT: Final = """
echo changed > writable/file || { echo "a writable directory is not writable"; exit 1; }
{ echo changed > file; } 2>/dev/null && { echo "a file could be written"; exit 1; }
[ -z "$(cat hidden/file 2>/dev/null)" ] || { echo "a hidden file could be read"; exit 1; }
{ echo changed > writable/protected/file; } 2>/dev/null && $PROTECTED  # Landlock cannot do this
echo confined
"""

CONFINED: Final = "confined"

NAMESPACES: Final = re.compile("namespace|uid map|mount proc|loopback", re.IGNORECASE)
"""In messages of bubblewrap: the system does not let it make what it needs."""

HINT: Final = (
    ". This container or system forbids namespaces"
    " (see sysctl user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns)"
)


@frozen(kw_only=True)
class SandboxFound:
    """The mechanism that works, and why those before it do not, one sentence for each."""

    kind: SandboxKind
    reasons: tuple[str, ...] = ()


async def find_sandbox() -> SandboxKind:
    """Return the mechanism that works on this machine. It takes some processes: keep the answer."""
    return (await probe_sandbox()).kind


async def probe_sandbox(clock: Clock | None = None) -> SandboxFound:
    """Try bubblewrap, then Landlock; return the first that works and why the others do not."""
    await trio.lowlevel.checkpoint()
    reasons: list[str] = []
    for kind in (SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK):
        reason = _missing(kind) or await _try(kind, clock or SystemClock())
        if reason is None:
            return SandboxFound(kind=kind, reasons=tuple(reasons))
        reasons.append(reason)
    return SandboxFound(kind=SandboxKind.NONE, reasons=tuple(reasons))


def _missing(kind: SandboxKind) -> str | None:
    """Return why *kind* cannot work here without having been tried; None if it can."""
    if kind is SandboxKind.BUBBLEWRAP and find_bubblewrap() is None:
        return "bubblewrap is not installed; install the package bubblewrap"
    if kind is SandboxKind.LANDLOCK and landlock_version() < MIN_VERSION:
        version = landlock_version()
        return (
            f"this kernel has Landlock {version}, and version {MIN_VERSION} is needed (Linux 6.2)"
            if version
            else "this kernel has no Landlock, or it is switched off (kernel parameter lsm=)"
        )
    return None


async def _try(kind: SandboxKind, clock: Clock) -> str | None:
    """Run the script in a sandbox; return why it does not work, None if it does."""
    await trio.lowlevel.checkpoint()
    with tempfile.TemporaryDirectory(prefix="crush-trio-probe-") as name:
        place, wanted = _prepared(name)
        confinement, _ = reduced(wanted, kind)
        protected = (
            '{ echo "a protected file could be written"; exit 1; }'
            if wanted == confinement
            else ":"
        )
        command = Command(
            argv=("/bin/sh", "-c", SCRIPT.replace("$PROTECTED", protected)),
            working_dir=place,
            env={"PATH": "/usr/bin:/bin"},
            confinement=confinement,
            sandbox=kind,
        )
        try:
            with trio.fail_after(LIMIT):
                finished = await run_command(command, clock=clock)
        except OSError as error:
            return f"{kind} does not work: {error.strerror}"
        except trio.TooSlowError:
            return f"{kind} does not work: it did not end within {LIMIT:.0f} seconds"
    if finished.ended.status == 0 and finished.stdout.text().strip() == CONFINED:
        return None
    said = (finished.stderr.text() or finished.stdout.text()).strip().splitlines()
    reason = said[0] if said else "the command ended at once"
    return f"{kind} does not work: {reason}{HINT if NAMESPACES.search(reason) else ''}"


def _prepared(directory: str) -> tuple[Path, Confinement]:
    """Make the files that the script tries; return their directory and a confinement for them."""
    place = Path(directory).resolve()
    for name in ("writable/protected", "hidden"):
        place.joinpath(name).mkdir(parents=True)
    for name in ("file", "hidden/file"):
        place.joinpath(name).write_text("secret\n")
    return place, Confinement(
        writable=(place / "writable",),
        protected=(place / "writable/protected", place / "writable/later"),
        hidden=(place / "hidden",),
        network=Network.OFF,
    )
