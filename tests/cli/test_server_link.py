"""What is said about a server: which program it is, and what it sees."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
import trio
from attrs import define

from crush_trio.cli import server_link
from crush_trio.cli.background import Background
from crush_trio.cli.commands.doctor import background, remote_workspace
from crush_trio.cli.commands.run import RunOptions, run_prompt
from crush_trio.cli.exits import ExitCode, NoModelThere, NotOurs, exit_code_of, explain
from crush_trio.cli.report.findings import Level
from crush_trio.cli.report.plain import JsonReporter
from crush_trio.cli.server_link import OWN_BUILD, STUCK, probe
from crush_trio.client.http import ServerUnreachable
from crush_trio.net.address import TcpAddress
from crush_trio.server import open_server
from crush_trio.wire.answers import Version


class GoClient:
    """The client of a server of the Go program."""

    address = TcpAddress("127.0.0.1", 8765)

    async def version(self):
        return Version(
            version="v0.9", commit="", build_id="abc", go_version="go1.26", platform="linux/amd64"
        )


async def test_a_server_of_the_go_program_is_named():
    with pytest.raises(NotOurs, match=r"Crush, the Go program, version v0\.9"):
        await probe(GoClient())


@define(eq=False)
class SlowClient:
    """The client of a server that answers after some seconds."""

    seconds: float
    address = TcpAddress("127.0.0.1", 8765)

    async def version(self):
        await trio.sleep(self.seconds)
        return Version(
            version="0.1", commit="", build_id=f"{OWN_BUILD}1", go_version="", platform="linux"
        )


async def test_a_slow_server_is_waited_for_visibly_and_a_silent_one_is_an_error(capsys):
    """A machine that was busy for five seconds made the command fail."""
    assert await probe(SlowClient(4.0)) == "0.1"
    assert capsys.readouterr().err == ""
    assert await probe(SlowClient(25.0)) == "0.1"
    told = "crush-trio: waiting for an answer of the program at tcp://127.0.0.1:8765\n"
    assert capsys.readouterr().err == told
    with pytest.raises(ServerUnreachable, match=r"does not answer; end it with: kill -9 PID"):
        await probe(SlowClient(60.0), remedy=STUCK)


@contextmanager
def stopped_listener(path):
    """Have a process listen at *path* and stop; give its id."""
    listen = f"import socket, os; s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r})"
    program = [sys.executable, "-S", "-c", f"{listen}; s.listen(); os.kill(os.getpid(), 19)"]
    with subprocess.Popen(program) as process:
        try:
            os.waitpid(process.pid, os.WUNTRACED)
            yield process.pid
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_stopped_server_is_said_to_be_stopped_and_how_to_continue_it(tmp_path, monkeypatch):
    """The doctor said: restart it. No command does that for the server in the background."""
    monkeypatch.setattr(server_link, "PROBE_NOTICE", 0.01)
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    path = Background.of(environ, os.getuid()).address.path
    with stopped_listener(path) as pid:
        finding = await background(environ)
    assert (finding.level, "is stopped" in finding.text) == (Level.FAIL, True)
    assert finding.advice == f"continue it with: kill -CONT {pid}"


@pytest.mark.slow
@pytest.mark.real_clock
async def test_over_tcp_the_keys_of_the_server_count_and_that_is_said(tmp_path):
    """The doctor ticked the key of the shell, which the server never sees."""
    environ = {"HOME": str(tmp_path), "OPENAI_API_KEY": "mine"}
    (tmp_path / "work").mkdir()
    async with open_server("tcp://127.0.0.1:0") as [address]:
        host = str(address)
        theirs, model = await remote_workspace(environ, host, str(tmp_path / "work"))
        assert theirs.text == "the server's: demo; keys of this shell are not used"
        assert (model.level, "on the server" in model.text) == (Level.WARN, True)
        [missing] = await remote_workspace(environ, host, str(tmp_path / "wrok"))
        assert (missing.level, "--cwd" in missing.advice) == (Level.FAIL, True)
        assert not (tmp_path / "wrok").exists()
        options = RunOptions(prompt="x", directory=str(tmp_path / "work"), host=host)
        with pytest.raises(NoModelThere, match="not the keys of this shell") as caught:
            await run_prompt(options, JsonReporter(lambda _: None, stream=False), environ)
        assert "set a key in the environment of the server" in explain(caught.value)[1]
        assert exit_code_of(caught.value) == ExitCode.NO_MODEL
