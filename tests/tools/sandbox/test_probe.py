"""The probe: finds what works by trying it, and says why the rest does not."""

import os
import sys
from pathlib import Path

import pytest

from crush_trio.tools.sandbox import probe
from crush_trio.tools.sandbox.confinement import SandboxKind
from crush_trio.tools.sandbox.enforcement import find_bubblewrap
from crush_trio.tools.sandbox.probe import find_sandbox, probe_sandbox
from tests.tools.sandbox_runs import needs_landlock, output, sandboxed

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


@pytest.mark.needs("bwrap")
async def test_bubblewrap_is_the_first_choice():
    assert await find_sandbox() is SandboxKind.BUBBLEWRAP


def with_bubblewrap(monkeypatch, tmp_path, script):
    """Have another program in the place of bubblewrap."""
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)
    for module in ("probe", "enforcement"):
        monkeypatch.setattr(
            f"crush_trio.tools.sandbox.{module}.find_bubblewrap", lambda: str(program)
        )


@needs_landlock
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "forbids namespaces"),
        ('while [ "$1" != -- ]; do shift; done; shift; "$@"', "a file could be written"),
        ("exit 0", "the command ended at once"),
    ],
)
async def test_bubblewrap_that_does_not_confine_is_not_used(monkeypatch, tmp_path, script, reason):
    """As in a container that forbids namespaces, or with a wrapper that does nothing."""
    with_bubblewrap(monkeypatch, tmp_path, script)
    found = await probe_sandbox()
    assert found.kind is SandboxKind.LANDLOCK
    assert [reason in each for each in found.reasons] == [True]


@pytest.mark.parametrize(
    ("version", "reason"), [(0, "has no Landlock"), (2, "Landlock 2, and version 3 is needed")]
)
async def test_none_comes_with_a_reason_for_each(monkeypatch, version, reason):
    monkeypatch.setattr(probe, "find_bubblewrap", lambda: None)
    monkeypatch.setattr(probe, "landlock_version", lambda: version)
    found = await probe_sandbox()
    assert found.kind is SandboxKind.NONE
    first, second = found.reasons
    assert "install the package bubblewrap" in first
    assert reason in second


PROBE = """
import trio
from crush_trio.tools.sandbox.probe import probe_sandbox
found = trio.run(probe_sandbox)
print(found.kind, len(found.reasons))
"""


@needs_landlock
@pytest.mark.heavy
@pytest.mark.needs("bwrap")
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may nest namespaces")
async def test_a_server_that_is_in_a_sandbox_itself_finds_what_works_there(tmp_path):
    command = sandboxed([sys.executable, "-c", PROBE], tmp_path, writable=[Path("/tmp")])
    assert await output(command) == "landlock 1\n"


@pytest.mark.needs("bwrap")
def test_bubblewrap_is_not_looked_for_where_a_workspace_can_put_it(monkeypatch, tmp_path):
    (tmp_path / "bwrap").write_text("#!/bin/sh\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_bubblewrap() != str(tmp_path / "bwrap")
