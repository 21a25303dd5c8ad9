"""The server in the background: one for all commands, whatever happens to it."""

import fcntl
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import evolve

from crush_trio.cli.background import Background, BackgroundFailed, keep_lock
from crush_trio.cli.commands.doctor import background as doctor_finding
from crush_trio.cli.report.findings import Level
from crush_trio.cli.server_link import open_directory, open_link, reach_background
from crush_trio.client import http
from crush_trio.client.client import Client
from crush_trio.client.events import Reconnected
from crush_trio.client.http import AnswerLost, ApiError, ServerUnreachable
from crush_trio.net.unix_socket import find_listener
from crush_trio.server import open_server
from crush_trio.server.run import run_server
from crush_trio.server.settings import ServerSettings
from crush_trio.wire.runs import RunState
from tests.cli.processes import Home, processes_with

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.heavy]

LIMIT = 30
OTHER = "0.0.1\nanother installation\n"


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path, {"CRUSH_TRIO_BACKGROUND": "1"})


@pytest.fixture
def shared(home):
    found = Background.of(home.environ, os.getuid())
    yield found
    if found.listening():
        kill(trio.run(pid_of, found))


async def pid_of(shared):
    return (await find_listener(shared.address.path)).pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def delete(address):
    Path(address.path).unlink()


def servers(shared):
    """Return how many processes serve at the socket, or are about to."""
    return len(processes_with(str(shared.address.path)))


async def test_commands_at_the_same_moment_start_one_server_and_a_killed_one_is_replaced(
    home, shared
):
    environ = home.environ
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(reach_background, shared, environ)
        first = await pid_of(shared)
        assert (servers(shared), shared.ours) == (1, True)
        assert os.getsid(first) == first, "Ctrl-C and a closed terminal do not reach it"
        finding = await doctor_finding(environ)
        assert (finding.level, str(shared.log) in finding.text) == (Level.OK, True)

        shared.lock.write_text(OTHER)
        assert (await doctor_finding(environ)).level is Level.WARN
        await reach_background(shared, environ)
        own = await pid_of(shared)
        assert (own != first, shared.ours) == (True, True), "the idle server of another is replaced"

        kill(own)  # its socket and its lock file stay behind
        environ["MARK"] = "tea"
        async with (
            open_link(None, environ, start=True) as link,
            open_directory(link, str(home.work), environ) as workspace,
        ):
            second = await pid_of(shared)
            assert second != own
            session = await workspace.sessions.create()
            printed = await workspace.shell(session.id, "echo $MARK")
            assert "tea" in str(printed), "the environment of this command counts"

            shared.lock.write_text(OTHER)
            await reach_background(shared, environ)
            assert await pid_of(shared) == second, "it is in use"
            async with workspace.events() as events:
                kill(second)
                async for event in events:
                    if isinstance(
                        event, Reconnected
                    ):  # the command has started the next one itself
                        break


async def test_a_server_that_does_not_start_is_an_error_that_names_its_log(home, shared):
    home.extra["CRUSH_TRIO_LIMITS"] = "answer=much"
    with trio.fail_after(LIMIT), pytest.raises(BackgroundFailed, match="answer") as failed:
        await reach_background(shared, home.environ)
    assert f"(log: {shared.log})" in str(failed.value)


async def test_a_server_that_listens_and_then_cannot_open_its_store_did_not_start(home, shared):
    home.extra["CRUSH_TRIO_STORE"] = "postgresql://127.0.0.1:1/none"
    with trio.fail_after(LIMIT), pytest.raises(BackgroundFailed, match="cannot be reached") as told:
        async with open_link(None, home.environ, start=True):
            pytest.fail("it has started")
    assert f"(log: {shared.log})" in str(told.value)


async def test_where_its_files_cannot_be_made_the_command_has_a_server_of_its_own(home):
    (home.root / "file").write_text("")
    environ = {**home.environ, "XDG_RUNTIME_DIR": str(home.root / "file")}
    async with open_link(None, environ, start=True) as link:
        assert link.embedded


@pytest.mark.parametrize("kind", ["hard link", "link", "pipe"])
@pytest.mark.parametrize("name", ["lock", "log"])
def test_its_files_are_not_opened_through_links_and_pipes(home, shared, name, kind):
    path, precious = getattr(shared, name), home.root / "precious"
    precious.write_text("precious")
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        (path.hardlink_to if kind == "hard link" else path.symlink_to)(precious)
    with pytest.raises(OSError, match=re.escape(str(path))):
        shared.start(home.environ)
    assert precious.read_text() == "precious"
    assert servers(shared) == 0
    assert name == "log" or not shared.ours


async def test_a_command_stays_with_its_server_if_another_one_takes_the_socket(home, monkeypatch):
    """It waited for the directory, which its own event stream kept open at the first server."""
    monkeypatch.setattr(http, "KEEP_ALIVE", 0.0)  # every request has a new connection
    environ, directory = home.environ, str(home.work)
    shared = Background.of(environ, os.getuid())
    settings = ServerSettings.from_environment(environ)
    with trio.fail_after(LIMIT):
        async with (
            open_server(shared.address, settings=settings),
            open_link(None, environ, start=True) as link,
            open_directory(link, directory, environ) as workspace,
        ):
            session = (await workspace.sessions.create()).id
            handle = await workspace.submit("think about tea", session=session)
            delete(shared.address)
            async with (
                open_server(shared.address, settings=settings),
                open_link(None, environ, start=True) as later,
            ):
                with pytest.raises(ApiError, match="the data directory is in use"):
                    async with open_directory(later, directory, environ):
                        pass
                assert (await workspace.submit("hello", session=session)).id
                assert (await handle.wait()).state is RunState.COMPLETED


@pytest.mark.parametrize("moment", ["connect", "answer", "open"])
async def test_a_server_whose_idle_time_ends_just_when_a_command_comes_is_replaced(
    home, monkeypatch, moment
):
    environ, started = home.environ, []
    shared = Background.of(environ, os.getuid())
    settings = ServerSettings.from_environment(environ)
    version = Client.version

    def start(self, environ, *, spawn=True):
        if started and not started[-1].is_set():
            return False  # as if the lock was held
        if spawn:
            started.append(trio.Event())
            serve = partial(run_server, settings=settings, shutdown=started[-1].wait)
            nursery.start_soon(serve, [self.address])
        return spawn

    async def ended(client):
        """Have the first server end before it is asked, or before it answers."""
        if moment != "open" and started and not started[0].is_set():
            started[0].set()
            if moment == "connect":
                while shared.listening():
                    await trio.lowlevel.checkpoint()
            else:
                raise AnswerLost
        return await version(client)

    monkeypatch.setattr(Background, "ours", True)
    monkeypatch.setattr(Background, "start", start)
    monkeypatch.setattr(Client, "version", ended)
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            async with open_link(None, environ, start=True) as link:
                started[0].set()
                async with open_directory(link, str(home.work), environ) as workspace:
                    assert (await workspace.sessions.create()).id
            started[-1].set()
    assert len(started) == 2


async def test_a_server_that_ends_and_cannot_be_started_again_is_an_error_with_advice(
    home, monkeypatch
):
    """The runtime directory was gone: the command ended with a traceback."""

    def start(self, environ, *, spawn=True):
        raise PermissionError(13, "denied", str(self.lock))

    environ, end = home.environ, trio.Event()
    shared = Background.of(environ, os.getuid())
    monkeypatch.setattr(Background, "start", start)
    monkeypatch.setattr(Background, "ours", True)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_server, [shared.address], shutdown=end.wait))
        async with open_link(None, environ, start=True) as link:
            end.set()
            while shared.listening():
                await trio.lowlevel.checkpoint()
            with pytest.raises(ServerUnreachable, match="start one with"):
                async with open_directory(link, str(home.work), environ):
                    pass


def test_a_deleted_lock_file_is_made_and_locked_again_unless_another_has_it(tmp_path):
    path = tmp_path / "s.lock"
    held = os.open(path, os.O_RDWR | os.O_CREAT)
    other = None
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        first = path.stat().st_ino
        keep_lock(path, held)
        assert path.stat().st_ino == first
        path.unlink()
        keep_lock(path, held)
        other = os.open(path, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert evolve(Background.of({"HOME": "/"}, 0), lock=path).ours
        path.unlink()
        path.write_text(OTHER)
        os.close(other)
        other = os.open(path, os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX)
        keep_lock(path, held)
        assert path.read_text() == OTHER
    finally:
        os.close(held)
        if other is not None:
            os.close(other)


@pytest.mark.long
def test_run_in_a_directory_that_attach_has_open_and_ctrl_c_leaves_the_server(home, shared):
    with home.terminal("attach") as terminal:
        terminal.until("ctrl-d leaves")
        code, out, err = home.call("run", "-q", "think about tea")
        assert (code, out, err) == (0, "I have thought about tea. Nothing came of it.\n", "")
        program = [
            sys.executable,
            "-m",
            "crush_trio",
            "run",
            "--demo",
            "-o",
            "stream-json",
            "long 900",
        ]
        run = subprocess.Popen(
            program,
            cwd=home.work,
            env=home.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert b"start" in run.stdout.readline()
        os.killpg(run.pid, signal.SIGINT)
        run.communicate(timeout=LIMIT)
        assert run.returncode == 130
        assert home.call("cancel", "--all")[0] == 0, "the server is found, and goes on"
        terminal.type("\x04")
        assert terminal.wait() == 0
    assert servers(shared) == 1
