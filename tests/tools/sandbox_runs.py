"""Runs scripts in a sandbox, and reads what each of their tries did."""

import os
import sys
from pathlib import Path

import pytest
import trio

from crush_trio.clock import SystemClock
from crush_trio.tools.sandbox.confinement import Confinement, SandboxKind
from crush_trio.tools.sandbox.landlock import MIN_VERSION
from crush_trio.tools.shell.guard.restriction import landlock_version
from crush_trio.tools.shell.process import Command, run_command

needs_landlock = pytest.mark.skipif(
    landlock_version() < MIN_VERSION, reason="this kernel has no Landlock, or an old one"
)

BWRAP = SandboxKind.BUBBLEWRAP
PYTHON = f"{sys.executable} -I -S -c "
ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


def sandboxed(argv, directory, kind=BWRAP, **confinement):
    """Return a command in a sandbox; *argv* may be a script."""
    argv = ("/bin/bash", "-c", argv) if isinstance(argv, str) else tuple(argv)
    return Command(
        argv=argv,
        working_dir=directory,
        env=ENV,
        confinement=Confinement(**confinement),
        sandbox=kind,
    )


async def output(command):
    """Return what a command wrote; it must end with exit code 0."""
    with trio.fail_after(20):
        result = await run_command(command, clock=SystemClock())
    assert result.ended.exit_code == 0, result.stderr.text()
    return result.stdout.text()


async def tries(scripts, directory, kind=BWRAP, **confinement):
    """Run each of *scripts* in one sandbox; return the indices of those that succeeded."""
    each = "\n".join(
        f"( {script} ) >/dev/null 2>&1 && echo {number}" for number, script in enumerate(scripts)
    )
    said = await output(sandboxed(f"{each}\ntrue", directory, kind, **confinement))
    return [scripts[int(number)] for number in said.split()]


def contents(directory):
    """Return the paths below a directory, with the text of the files."""
    return {
        str(path.relative_to(directory)): path.read_text() if path.is_file() else None
        for path in sorted(Path(directory).rglob("*"))
    }


def repository(directory):
    """Make what looks like a repository with a configuration, and return it."""
    (directory / ".git/objects").mkdir(parents=True)
    (directory / ".git/config").write_text("[core]\n")
    (directory / "file").write_text("text\n")
    return directory
