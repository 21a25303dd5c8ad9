"""`bash` in a sandbox: what commands can touch there, what is asked, and what the record says.

Each kind of sandbox is tried with real commands: bubblewrap, Landlock, and none.
"""

import os
import subprocess
import sys

import pytest

from crush_trio.config.files import CommandPolicy, SandboxConfig, SandboxMode, SandboxNetwork
from crush_trio.tools.base import LEAVE_SANDBOX, ToolError
from crush_trio.tools.sandbox.confinement import SandboxKind
from crush_trio.tools.sandbox.landlock import MIN_VERSION
from crush_trio.tools.sandbox.machine import MachineSandbox, no_sandbox
from crush_trio.tools.shell.bash import SANDBOX_HINT
from crush_trio.tools.shell.guard.restriction import landlock_version
from tests.tools.process_probe import Probe
from tests.tools.shell_bench import ScriptedCommands, open_shell_bench

BUBBLEWRAP = pytest.param(SandboxKind.BUBBLEWRAP, marks=pytest.mark.needs("bwrap"))
LANDLOCK = pytest.param(
    SandboxKind.LANDLOCK,
    marks=pytest.mark.skipif(landlock_version() < MIN_VERSION, reason="the kernel has no Landlock"),
)
HELD = pytest.mark.parametrize("kind", [BUBBLEWRAP, LANDLOCK])
real = pytest.mark.real_clock
pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path):
    """A project in a repository, and a home directory with a key and a start-up file."""
    root = tmp_path.resolve()
    (root / "home" / ".ssh").mkdir(parents=True)
    (root / "home" / ".ssh" / "id").write_text("secret-key\n")
    (root / "home" / ".profile").touch()
    (root / "project").mkdir()
    git = ("git", "-C", str(root / "project"))
    subprocess.run((*git, "init", "-q"), check=True)
    for key in ("user.name", "user.email"):
        subprocess.run((*git, "config", key, "x"), check=True)
    return root


def opened(place, kind, **config):
    """Open the shell tools of the project, in a sandbox of *kind*."""
    return open_shell_bench(
        place / "project",
        machine=MachineSandbox(kind),
        config=SandboxConfig(**config),
        HOME=str(place / "home"),
    )


def judged_wrongly(monkeypatch):
    """Have every command judged read-only, as if the judge had a hole."""
    from crush_trio.tools.shell import bash, judge

    monkeypatch.setattr(bash, "judge", lambda *_, **__: judge.ReadOnly())


# ── Commands that were not asked about ──────────────────────────────────────────────────────────


@real
@HELD
async def test_a_command_that_was_judged_wrongly_cannot_write_or_connect(place, kind, monkeypatch):
    judged_wrongly(monkeypatch)
    attack = (
        f"echo x > new; echo x > {place}/home/.bashrc; echo x > {place}/attack;"
        f" git log --output=log; cat {place}/home/.ssh/id;"
        f" {sys.executable} -c 'import socket; socket.socket()' && echo connected; true"
    )
    async with opened(place, kind) as tools:
        result = await tools.bash(attack)
    assert tools.person.asked == []
    assert not (place / "project" / "new").exists()
    assert not (place / "project" / "log").exists()
    assert not (place / "home" / ".bashrc").exists()
    assert not (place / "attack").exists()
    assert "secret-key" not in result.content
    assert "connected" not in result.content
    assert result.metadata["sandbox"] == kind.value
    assert result.metadata["approval"] == "unasked"


@real
@HELD
async def test_looking_works_in_the_sandbox(place, kind):
    (place / "project" / "file").write_text("needle\n")
    async with opened(place, kind) as tools:
        for command, said in {
            "ls": "file",
            "grep -rn needle .": "file:1",
            "git status": "file",
        }.items():
            result = await tools.bash(command)
            assert said in result.content, command
            assert result.metadata["approval"] == "unasked"
    assert tools.person.asked == []


@real
async def test_without_a_sandbox_only_commands_that_cannot_write_run_unasked(place):
    async with opened(place, SandboxKind.NONE) as tools:
        await tools.bash("ls")
        assert tools.person.asked == []
        await tools.bash("git status")
        assert len(tools.person.asked) == 1


# ── Approved commands ───────────────────────────────────────────────────────────────────────────


@real
@pytest.mark.needs("bwrap")
async def test_an_approved_command_cannot_change_what_runs_later_nor_read_keys(place):
    attack = (
        "echo x > made && echo y > /tmp/$$ && rm /tmp/$$;"
        " mv .git gone; rm -rf .git/hooks; echo x >> .git/config; echo x > .git/hooks/post-commit;"
        f" echo x > {place}/home/.profile; rm {place}/home/.profile; cat {place}/home/.ssh/id; ls -d /proc/{os.getpid()};"
        " git commit -q --allow-empty -m works && git log --oneline"
    )
    async with opened(place, SandboxKind.BUBBLEWRAP) as tools:
        result = await tools.bash(attack)
    assert len(tools.person.asked) == 1
    project = place / "project"
    assert (project / "made").read_text() == "x\n"
    assert "x" not in (project / ".git" / "config").read_text().splitlines()
    assert not (project / ".git" / "hooks" / "post-commit").exists()
    assert (place / "home" / ".profile").read_text() == ""
    assert "secret-key" not in result.content
    assert f"/proc/{os.getpid()}\n" not in result.content
    assert "works" in result.content
    assert result.metadata["approval"] == "approved"


@real
@HELD
async def test_what_decides_what_runs_later_is_told_if_a_command_made_it(place, kind):
    project = place / "project"
    script = "echo {} > crush.json; echo ../evil > .git/commondir; echo x > other"
    async with opened(place, kind) as tools:
        result = await tools.bash(script)
        again = await tools.bash("echo x > other; git status --short")
    made = [str(project / "crush.json"), str(project / ".git" / "commondir")]
    assert result.metadata["made"] == made
    assert all(f"This command made {path}" in result.content for path in made)
    assert (project / "crush.json").exists()
    assert not (project / ".git" / "commondir").exists()
    assert "made" not in again.metadata
    assert "?? other" in again.content


@real
@pytest.mark.needs("bwrap")
async def test_a_new_repository_can_be_made_and_is_protected_from_the_next_command_on(place):
    project = place / "empty"
    project.mkdir()
    async with open_shell_bench(
        project, machine=MachineSandbox(SandboxKind.BUBBLEWRAP), HOME=str(place / "home")
    ) as tools:
        first = await tools.bash("git init -q && echo made")
        second = await tools.bash("git config core.pager evil; echo x > .git/hooks/post-checkout")
    assert "made" in first.content
    assert first.metadata["made"] == [str(project / ".git")]
    assert "evil" not in (project / ".git" / "config").read_text()
    assert not (project / ".git" / "hooks" / "post-checkout").exists()
    assert SANDBOX_HINT in second.content


@real
@pytest.mark.needs("bwrap")
async def test_nothing_is_left_of_an_approved_command_whatever_it_starts(place):
    probe = Probe(place)
    script = f"setsid sh -c '{probe.sleep} & {probe.sleep}' & setsid -f {probe.sleep}; echo started"
    async with opened(place, SandboxKind.BUBBLEWRAP) as tools:
        assert "started" in (await tools.bash(script)).content
        assert probe.left() == []


@real
@HELD
async def test_the_network_of_approved_commands_is_off_if_the_user_says_so(place, kind):
    script = f"{sys.executable} -c 'import socket; socket.socket()' && echo connected"
    async with opened(place, kind, network=SandboxNetwork.OFF) as tools:
        assert "connected" not in (await tools.bash(script)).content
    async with opened(place, kind) as tools:
        assert "connected" in (await tools.bash(script)).content


@real
@HELD
async def test_the_model_is_told_when_the_sandbox_may_be_the_reason(place, kind):
    async with opened(place, kind) as tools:
        assert SANDBOX_HINT in (await tools.bash("echo x > /usr/share/attack")).content
        assert SANDBOX_HINT in (await tools.bash("echo x > /usr/share/attack; true")).content
        assert SANDBOX_HINT not in (await tools.bash("echo Permission denied")).content
        assert SANDBOX_HINT not in (await tools.bash("exit 3")).content
    async with opened(place, SandboxKind.NONE) as tools:
        assert SANDBOX_HINT not in (await tools.bash("echo Permission denied >&2; false")).content


# ── What is asked: nothing runs here ────────────────────────────────────────────────────────────


async def ran(directory, command, kind=SandboxKind.BUBBLEWRAP, *, config=None, **arguments):
    """Call `bash` with a scripted command; return what was asked, the command and the metadata."""
    commands = ScriptedCommands(failure=OSError("not started"))
    async with open_shell_bench(
        directory, commands, machine=MachineSandbox(kind), config=config
    ) as tools:
        result = await tools.bash(command, **arguments)
        started = tools.bench.sandbox.machine.commands
    return tools.person.asked, result.metadata, started


async def test_leaving_the_sandbox_is_asked_with_its_reason_even_for_a_command_that_only_looks(
    tmp_path,
):
    asked, metadata, _ = await ran(
        tmp_path, "ls", outside_sandbox=True, outside_reason="the list\nis elsewhere"
    )
    [wanted] = asked
    assert wanted.always
    assert wanted.action == LEAVE_SANDBOX
    assert wanted.description == (
        "Execute command OUTSIDE THE SANDBOX: ls\nReason: the list is elsewhere"
    )
    assert wanted.params["outside_sandbox"] is True
    assert wanted.params["outside_reason"] == "the list is elsewhere"
    assert (metadata["sandbox"], metadata["approval"]) == ("none", "outside")


@pytest.mark.parametrize("reason", ["", "  \n"])
async def test_leaving_the_sandbox_needs_a_reason(tmp_path, reason):
    with pytest.raises(ToolError, match="outside_reason is required"):
        await ran(tmp_path, "ls", outside_sandbox=True, outside_reason=reason)


async def test_commands_run_without_asking_if_the_user_allows_it_and_the_sandbox_holds(tmp_path):
    config = SandboxConfig(commands=CommandPolicy.ALLOW)
    [wanted], metadata, started = await ran(tmp_path, "touch new", config=config)
    assert wanted.allowed
    assert not wanted.always
    assert (metadata["sandbox"], metadata["approval"]) == ("bubblewrap", "allowed")
    assert {(kind.value, why.value): n for (kind, why), n in started.items()} == {
        ("bubblewrap", "allowed"): 1
    }
    [wanted], metadata, _ = await ran(tmp_path, "touch new", SandboxKind.NONE, config=config)
    assert not wanted.allowed
    assert (metadata["sandbox"], metadata["approval"]) == ("none", "approved")
    [wanted], _, _ = await ran(
        tmp_path, "touch new", config=config, outside_sandbox=True, outside_reason="x"
    )
    assert wanted.always
    assert not wanted.allowed


@pytest.mark.parametrize("command", ["ls", "touch new"])
async def test_no_command_runs_where_a_sandbox_is_required_and_there_is_none(tmp_path, command):
    config = SandboxConfig(mode=SandboxMode.REQUIRE)
    for outside in ({}, {"outside_sandbox": True, "outside_reason": "x"}):
        with pytest.raises(ToolError, match=r"mode is require.* install bubblewrap"):
            await ran(tmp_path, command, SandboxKind.NONE, config=config, **outside)


@real
async def test_a_command_that_a_person_typed_runs_in_no_sandbox(place):
    from crush_trio.tools.shell.environment import run_shell

    async with open_shell_bench(place / "project", HOME=str(place / "home")) as tools:
        answer = await run_shell(tools.bench, tools.jobs, "cat ~/.ssh/id && touch ~/made")
    assert answer.output == "secret-key\n"
    assert (place / "home" / "made").exists()
    assert no_sandbox().found is SandboxKind.NONE
