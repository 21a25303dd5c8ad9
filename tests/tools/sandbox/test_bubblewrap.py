"""Commands in bubblewrap: what they can write, read, reach and leave behind, with the real program."""

import os
import re
import shutil
import socket
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio

from crush_trio.clock import SystemClock
from crush_trio.tools.sandbox.bubblewrap import bubblewrap_argv, find_bubblewrap
from crush_trio.tools.sandbox.confinement import Confinement, Network, NotConfined
from crush_trio.tools.sandbox.layout import lay_out
from crush_trio.tools.shell.process import open_process_group
from tests.tools.process_probe import Watched
from tests.tools.sandbox_runs import PYTHON, contents, output, repository, sandboxed, tries

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.needs("bwrap")]

PROTECTED = (".git/config", ".git/hooks", ".crush", ".bashrc")


def protected(workspace):
    return [workspace / name for name in PROTECTED]


# ── Writing ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_command_without_writable_directories_can_write_nowhere(tmp_path):
    (tmp_path / "file").write_text("text\n")
    attempts = [
        "echo x > file",
        "touch new",
        "chmod 777 file",
        "mv file other",
        "rm file",
        "ln file other",
        "touch /tmp/crush-trio-test",
        "touch /usr/crush-trio-test",
        "mkdir /run/crush-trio-test",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo x > /proc/1/oom_score_adj" if os.geteuid() == 0 else "false",
    ]
    assert await tries([*attempts, "cat file", "echo x > /dev/null"], tmp_path) == [
        "cat file",
        "echo x > /dev/null",
    ]
    assert contents(tmp_path) == {"file": "text\n"}


AROUND = (
    "echo x >> .git/config",
    "echo x > c && mv c .git/config",
    "ln .git/config .git/link && echo x > .git/link",
    "rm .git/config",
    "mkdir .git/hooks",
    "touch .git/hooks/post-checkout",
    "rmdir .git/hooks",
    "mv .git moved && mkdir -p .git/hooks",
    "mv .git/hooks .git/other",
    "ln -sfnT /tmp .git",
    "rm -rf .git",
    "mkdir .crush",
    "ln -sT /tmp .crush",
    "touch .crush/crush.json",
    "echo x > .bashrc",
    "mv .bashrc b",
    "cp file .bashrc",
    "mv $PWD ../moved",
    "unshare -Urm umount .git/config",
    "unshare -Urm mount -o remount,bind,rw $PWD/.git/config",
)
"""Ways to change what is protected."""


@pytest.mark.parametrize("name", ["work", "with blank\nand newline", ".hidden/work"])
async def test_protected_paths_cannot_be_changed_replaced_or_made(tmp_path, name):
    workspace = repository(tmp_path / name)
    before = contents(workspace)
    assert (
        await tries(
            AROUND,
            workspace,
            writable=[workspace],
            protected=protected(workspace),
            hidden=[tmp_path / ".hidden"],
        )
        == []
    )
    after = contents(workspace)
    del after["c"], before[".git/objects"]  # these may be made and removed
    assert after == before


async def test_what_is_not_protected_can_be_changed(tmp_path):
    workspace = repository(tmp_path / "work")
    attempts = ["echo x > new", "mkdir -p a/b && mv a c", "echo x > .git/index", "rm file"]
    assert (
        await tries(attempts, workspace, writable=[workspace], protected=protected(workspace))
        == attempts
    )
    assert not (workspace / "file").exists()


async def test_the_parents_of_a_protected_path_cannot_be_renamed(tmp_path):
    """The workspace is the home directory, and a project with hooks is far below it."""
    project = repository(tmp_path / "a/b/project")
    attempts = ["mv a x", "mv a/b x", "mv a/b/project x", "mv a/b/project/.git x"]
    confined = {"writable": [tmp_path], "protected": [project / ".git/config"]}
    assert await tries([*attempts, "touch a/b/new"], tmp_path, **confined) == ["touch a/b/new"]


async def test_a_worktree_keeps_the_file_that_names_its_repository(tmp_path):
    (tmp_path / ".git").write_text("gitdir: /elsewhere\n")
    attempts = ["echo x > .git", "rm .git", "mv .git g && mkdir .git"]
    confined = {"writable": [tmp_path], "protected": protected(tmp_path)}
    assert await tries(attempts, tmp_path, **confined) == []
    assert contents(tmp_path) == {".git": "gitdir: /elsewhere\n"}


async def test_links_in_place_of_a_protected_path_are_held_or_refused(tmp_path):
    workspace = repository(tmp_path / "work")
    (workspace / "scripts").mkdir()
    (workspace / ".git/hooks").symlink_to("../scripts")
    confined = {"writable": [workspace], "protected": [workspace / ".git/hooks"]}
    attempts = ["rm .git/hooks", "touch .git/hooks/x", "touch scripts/x", "mv scripts s"]
    assert await tries([*attempts, "touch new"], workspace, **confined) == ["touch new"]
    (workspace / ".crush").symlink_to("/tmp")
    with pytest.raises(NotConfined, match="symbolic link") as caught:
        await output(
            sandboxed("true", workspace, writable=[workspace], protected=protected(workspace))
        )
    assert isinstance(caught.value, OSError)


async def test_a_link_that_a_command_left_makes_nothing_writable(tmp_path):
    """A writable directory below another: a former command may have replaced it."""
    workspace, outside = tmp_path / "work", tmp_path / "outside"
    workspace.mkdir()
    outside.mkdir()
    (workspace / "cache").symlink_to(outside)
    confined = {"writable": [workspace, workspace / "cache"]}
    assert await tries(["touch cache/x", "touch ../outside/x"], workspace, **confined) == []
    link = tmp_path / "link"
    link.symlink_to(workspace)
    assert await tries(["touch y"], workspace, writable=[link]) == ["touch y"]


# ── Placeholders ────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def waiting(command):
    """Run a command that writes `ready` and reads a line; yield a function that lets it go on."""
    stdout = Watched()
    with trio.fail_after(20):
        async with open_process_group(
            command, clock=SystemClock(), stdin=subprocess.PIPE, stdout=stdout
        ) as group:
            await stdout.shows("ready")

            async def go_on():
                await group.stdin.send_all(b"\n")
                await group.wait()
                return stdout.text().split()

            yield go_on


async def test_commands_share_a_placeholder_and_the_last_one_removes_it(tmp_path):
    confined = {"writable": [tmp_path], "protected": [tmp_path / ".git/hooks"]}
    script = "echo ready; read; rmdir .git || mkdir .git/hooks || mkdir .git || echo refused"
    command = sandboxed(script, tmp_path, **confined)
    async with waiting(command) as second:
        async with waiting(command) as first:
            assert await output(sandboxed("ls -d .git", tmp_path, **confined)) == ".git\n"
            assert await first() == ["ready", "refused"]
        assert set(contents(tmp_path)) == {".git"}
        assert await second() == ["ready", "refused"]
    assert contents(tmp_path) == {}


async def test_a_placeholder_that_was_left_is_removed_and_one_that_is_used_stays(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git").chmod(0o1755)  # as after a power failure
    confined = {"writable": [tmp_path], "protected": [tmp_path / ".git/hooks"]}
    await output(sandboxed("true", tmp_path, **confined))
    assert contents(tmp_path) == {}
    (tmp_path / ".git").mkdir()  # an empty directory of the user
    await output(sandboxed("true", tmp_path, **confined))
    assert contents(tmp_path) == {".git": None}


# ── Reading, processes and devices ──────────────────────────────────────────────────────────────


async def test_hidden_paths_look_empty_and_cannot_be_filled_or_moved(tmp_path):
    for name in ("outside/keys", "work/.crush"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "secret").write_text("secret")
    (tmp_path / "outside/token").write_text("secret")
    (tmp_path / "outside/link").symlink_to("keys")
    work = tmp_path / "work"
    confined = {
        "writable": [work],
        "hidden": [tmp_path / "outside/link", tmp_path / "outside/token", work / ".crush"],
        "protected": [work / ".crush"],
    }
    said = await output(sandboxed(f"grep -rc secret {tmp_path} || true", work, **confined))
    assert said == f"{tmp_path}/outside/token:0\n"
    attempts = ["mv .crush c", "touch .crush/x", "echo x > ../outside/token"]
    assert await tries(attempts, work, **confined) == []


async def test_a_workspace_below_a_hidden_directory_is_all_that_is_seen_of_it(tmp_path):
    work = tmp_path / "hidden/deep/work"
    work.mkdir(parents=True)
    (tmp_path / "hidden/secret").write_text("secret")
    confined = {"writable": [work], "hidden": [tmp_path / "hidden"]}
    script = "touch new; cd ../..; find . ; touch x 2>/dev/null || echo refused"
    assert (await output(sandboxed(script, work, **confined))).split() == [
        *(".", "./deep", "./deep/work", "./deep/work/new"),
        "refused",
    ]
    shown = {**confined, "protected": [work]}
    assert await tries(["ls new", "touch newer"], work, **shown) == ["ls new"]
    with pytest.raises(NotConfined, match="hides the working directory"):
        await output(sandboxed("true", work, hidden=[tmp_path / "hidden"]))


async def test_a_command_sees_only_its_own_processes_and_few_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "hunter2")
    script = """
        cd /proc; echo [0-9]*
        cat /proc/*/environ | tr '\\0' '\\n' | grep -c hunter2
        grep -h NoNewPrivs /proc/self/status
        echo /dev/sd* /dev/vd* /dev/mem
    """
    pids, found, privileges, devices = (await output(sandboxed(script, tmp_path))).splitlines()
    assert set(pids.split()) <= {"1", "2", "3"}
    assert (found, privileges.split()[1]) == ("0", "1")
    assert devices == "/dev/sd* /dev/vd* /dev/mem"


# ── Network ─────────────────────────────────────────────────────────────────────────────────────

CONNECT = "exec 3<>/dev/tcp/127.0.0.1/{port}"
UNIX = PYTHON + "'import socket; socket.socket(socket.AF_UNIX).connect(\"{path}\")'"
OWN = f"""{PYTHON}'
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname())'"""
PAIR = PYTHON + "'import socket; socket.socketpair()'"


@pytest.mark.parametrize(
    ("network", "works"),
    [("on", [0, 1, 2, 3]), ("loopback", [1, 2, 3]), ("off", [3])],
)
async def test_the_network_is_what_the_confinement_says(tmp_path, network, works):
    path = tmp_path / "socket"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))
        unix.listen()
        port = tcp.getsockname()[1]
        attempts = [CONNECT.format(port=port), UNIX.format(path=path), OWN, PAIR]
        done = await tries(attempts, tmp_path, network=Network(network))
    assert [attempts.index(each) for each in done] == works


# ── Starting and ending ─────────────────────────────────────────────────────────────────────────


async def test_a_program_that_is_not_there_is_an_error_as_without_a_sandbox(tmp_path):
    for program in ("no-such-program", "./no-such-program"):
        with pytest.raises(FileNotFoundError, match="no-such-program"):
            await output(sandboxed([program], tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user")
def test_an_ordinary_user_is_confined_without_capabilities():
    """The vector for an ordinary user, run as one."""
    # Not below `tmp_path`, whose parents belong to root alone.
    with TemporaryDirectory() as name:
        workspace = repository(Path(name))
        for path in (workspace, *workspace.rglob("*")):
            os.chown(path, 65534, 65534)
        confinement = Confinement(
            writable=[workspace],
            protected=[workspace / ".git/config", workspace / ".git/objects"],
            network=Network.LOOPBACK,
        )
        argv = bubblewrap_argv(
            find_bubblewrap(), workspace, confinement, lay_out(confinement), is_root=False
        )
        attempts = [each for each in AROUND if not re.search("hooks|crush|bashrc", each)]
        script = "\n".join(f"( {each} ) 2>/dev/null && echo '{each}'" for each in attempts)
        script += "\ntouch new && grep CapEff /proc/self/status"
        drop = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        done = subprocess.run(
            [*drop, *argv, "/bin/bash", "-c", script], capture_output=True, text=True, check=True
        )
    assert done.stdout.split() == ["CapEff:", "0000000000000000"]


# ── With git ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.needs("git")
async def test_git_works_but_cannot_change_what_it_would_run_later(tmp_path):
    """Commits and branches are fine; configuration, hooks and new repositories are not."""
    workspace, empty = tmp_path / "work", tmp_path / "empty"
    empty.mkdir()
    await trio.run_process(["git", "init", "-q", str(workspace)])
    shutil.rmtree(workspace / ".git/hooks")
    (workspace / "file").write_text("text\n")
    before = (workspace / ".git/config").read_text()
    as_someone = "git -c user.name=A -c user.email=a@example.org"
    fine = ["git add file", f"{as_someone} commit -qm first", "git branch other", "git status"]
    refused = [
        "git config core.pager 'touch x'",
        "git remote add origin https://example.org/",
        "git init --template=/usr/share/git-core/templates && ls .git/hooks/*",
        "git config --rename-section core x",
    ]
    confined = {"writable": [workspace, empty]}
    done = await tries([*fine, *refused], workspace, protected=protected(workspace), **confined)
    assert done == fine
    assert (workspace / ".git/config").read_text() == before
    assert not (workspace / ".git/hooks").exists()
    assert await tries(["git init"], empty, protected=protected(empty), **confined) == []
    assert contents(empty) == {}
