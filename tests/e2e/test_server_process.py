"""The server as a process of its own: how it starts, what clients see of its end, what it leaves.

Everything is real: interpreter, sockets, signals, SQLite. Each process is ended by the test that
started it, and every wait has a limit.
"""

import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from attrs import define, field

pytestmark = pytest.mark.slow

CLIENT = "11111111-1111-4111-8111-111111111111"
LIMIT = 30.0
"""Seconds that anything may take on a busy machine."""

GRACE = 3.0
ANYWHERE = "tcp://127.0.0.1:0"


@define(eq=False)
class UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket file."""

    path: str

    def __attrs_post_init__(self):
        super().__init__("localhost", timeout=LIMIT)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(LIMIT)
        self.sock.connect(self.path)


@define(eq=False)
class Stream:
    """An open event stream in the native form, read frame by frame."""

    connection: http.client.HTTPConnection
    response: http.client.HTTPResponse
    last_id: str | None = field(default=None, init=False)

    def __iter__(self):
        """Give the event name and the data of each whole frame until the stream ends."""
        lines = {}
        while raw := self.response.readline():
            line = raw.decode().rstrip("\n")
            if line:
                name, _, value = line.partition(": ")
                lines[name] = value
                continue
            self.last_id = lines.get("id", self.last_id)
            yield lines["event"], json.loads(lines["data"])
            lines = {}

    def until(self, wanted):
        """Return the data of the next frame called *wanted*."""
        for name, data in self:
            if name == wanted:
                return data
        raise AssertionError(f"the stream ended without {wanted}")

    def close(self):
        self.response.close()
        self.connection.close()


@define(eq=False)
class Server:
    """A server process that clients can talk to."""

    process: subprocess.Popen
    line: str

    @property
    def address(self):
        return self.line.partition("Listening on ")[2].partition(". ")[0]

    def connect(self):
        scheme, _, rest = self.address.partition("://")
        if scheme == "unix":
            return UnixConnection(rest)
        return http.client.HTTPConnection(rest, timeout=LIMIT)

    def ask(self, method, path, body=None):
        """Send one request; return the status and the JSON of the answer, if it has one."""
        connection = self.connect()
        try:
            connection.request(method, f"/v1{path}", None if body is None else json.dumps(body))
            response = connection.getresponse()
            data = response.read()
            return response.status, json.loads(data) if data else None
        finally:
            connection.close()

    def create(self, folder):
        status, workspace = self.ask(
            "POST", "/workspaces", {"path": str(folder), "client_id": CLIENT}
        )
        assert status == 200, workspace
        return f"/workspaces/{workspace['id']}"

    def start_run(self, workspace):
        """Submit a prompt that takes about a second to answer; return its session."""
        _, session = self.ask("POST", f"{workspace}/sessions", {"title": "t"})
        assert self.ask("POST", f"{workspace}/agent/init")[0] == 200
        prompt = {"session_id": session["id"], "prompt": "hello", "run_id": "r1"}
        assert self.ask("POST", f"{workspace}/agent", prompt)[0] == 202
        return session["id"]

    def stream(self, workspace, last_id=None):
        connection = self.connect()
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        connection.request(
            "GET", f"/v1{workspace}/events?client_id={CLIENT}&form=native", headers=headers
        )
        return Stream(connection, connection.getresponse())

    def stop(self, number=signal.SIGTERM):
        """Send a signal; return the exit code and how many seconds the end took."""
        begun = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(LIMIT), time.monotonic() - begun


def environment(extra=None):
    """Return our environment without the variables that servers listen to, and with *extra*."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CRUSH_")}
    return {**kept, **(extra or {})}


@contextmanager
def started(command, folder, extra=None):
    """Run *command* with its streams in files and pipes of ours, and end it with the block."""
    with (folder / "stderr.txt").open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment(extra),
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its own workers too


@contextmanager
def serving(folder, *arguments, host=ANYWHERE, extra=None):
    """Start `serve` and wait until it says where it listens."""
    command = ["crush_trio", "serve", *(["--host", host] if host else []), *arguments]
    with started(command, folder, extra) as process:
        ready, _, _ = select.select([process.stdout], [], [], LIMIT)
        line = process.stdout.readline() if ready else ""
        assert line, (folder / "stderr.txt").read_text("utf-8")
        yield Server(process, line)


def refused(*arguments):
    """Run the command line to its end; return its exit code and what it said on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "crush_trio", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=environment(),
        check=False,
    )
    return done.returncode, done.stderr


# ── Starting ────────────────────────────────────────────────────────────────────────────────────


def test_it_says_where_it_listens_what_answers_and_where_the_page_is(tmp_path):
    with serving(tmp_path) as server:
        assert server.address.startswith("tcp://127.0.0.1:")
        assert not server.address.endswith(":0")
        assert "demo" in server.line
        assert server.ask("GET", "/health") == (200, None)
        assert server.stop()[0] == 0
        page = server.address.replace("tcp:", "http:")
        assert server.process.stdout.read() == f"The page: {page}/\n"


def test_the_link_that_it_prints_logs_one_browser_in(tmp_path):
    with serving(tmp_path, extra={"CRUSH_TRIO_TOKEN": "a-token-of-enough-characters"}) as server:
        code = server.process.stdout.readline().rstrip("\n").rpartition("/#login=")[2]

        def send(method, path, body=None, **headers):
            connection = server.connect()
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            data = response.read()
            connection.close()
            return response.status, response.headers, data

        assert send("GET", "/v1/version")[0] == 401
        assert send("HEAD", "/web/client.js")[0] == 200
        login = json.dumps({"code": code})
        status, headers, _ = send("POST", "/v1/login", login)
        cookie = headers["set-cookie"].partition(";")[0]
        assert (status, headers["content-length"]) == (204, None)
        assert send("GET", "/v1/version", Cookie=cookie)[0] == 200
        assert send("POST", "/v1/logout", Cookie=cookie)[0] == 403
        assert send("POST", "/v1/logout", **{"Cookie": cookie, "X-Crush-Trio": "page"})[0] == 204
        assert send("GET", "/v1/version", Cookie=cookie)[0] == 401
        assert send("POST", "/v1/login", login)[0] == 401


def commands_of_the_readme(port):
    """Return the block of README.md with the curl commands, for a server on *port*."""
    page = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    [block] = [text for text in blocks if "curl" in text]
    assert block.count("$(curl ") + block.count("\ncurl ") == 4
    return block.replace(":8765", f":{port}")


@pytest.mark.skipif(shutil.which("curl") is None, reason="the commands are for curl")
def test_the_four_commands_of_the_readme_show_a_prompt_being_answered(tmp_path):
    with serving(tmp_path) as server:
        script = commands_of_the_readme(server.address.rpartition(":")[2]) + "wait\n"
        shell = ["sh", "-c", script]
        with subprocess.Popen(shell, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as client:
            seen, deadline = [], time.monotonic() + LIMIT
            for line in client.stdout:
                seen.append(line)
                if '"state":"completed"' in line:
                    server.process.terminate()
                elif time.monotonic() > deadline:  # heartbeats get us here
                    server.process.kill()
            assert client.wait(LIMIT) == 0
        assert server.process.wait(LIMIT) == 0
        assert "event: end\n" in seen
        assert any("offline" in line for line in seen)
    assert (tmp_path / ".crush").is_dir()


@pytest.mark.item("G14")
def test_without_an_address_it_listens_where_clients_look_and_clears_the_socket_away(tmp_path):
    with serving(tmp_path, host=None, extra={"XDG_RUNTIME_DIR": str(tmp_path)}) as server:
        path = tmp_path / f"crush-{os.getuid()}.sock"
        assert server.address == f"unix://{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        assert server.ask("GET", "/health") == (200, None)
        assert server.stop(signal.SIGINT)[0] == 0
        assert not path.exists()


def test_a_second_server_on_the_socket_is_told_what_to_do_and_the_first_stays(tmp_path):
    host = f"unix://{tmp_path}/s.sock"
    with serving(tmp_path, host=host) as server:
        code, said = refused("serve", "--host", host)
        assert code == 1
        assert len(said.splitlines()) == 2  # what happened, and what to do
        assert "stop the other server or choose another address" in said
        assert server.ask("GET", "/health") == (200, None)


def test_a_second_server_on_a_data_directory_is_refused_and_told_who_has_it(tmp_path):
    with serving(tmp_path) as first, serving(tmp_path) as second:
        first.create(tmp_path)
        body = {"path": str(tmp_path), "client_id": CLIENT}
        status, said = second.ask("POST", "/workspaces", body)
        assert (status, said["code"]) == (500, "store_locked")
        assert str(first.process.pid) in said["message"]


# ── Ending ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_runs_then_the_streams_then_the_process(tmp_path, number):
    with serving(tmp_path, "--grace", str(GRACE)) as server:
        workspace = server.create(tmp_path)
        stream = server.stream(workspace)
        server.start_run(workspace)
        stream.until("message_delta")
        code, seconds = server.stop(number)
        frames = list(stream)
        stream.close()
        assert code == 0
        assert seconds < GRACE + 1
        [run] = [data for name, data in frames if name == "run"]
        assert (run["run_id"], run["state"]) == ("r1", "cancelled")
        assert [name for name, _ in frames[-2:]] == ["run", "end"]
        assert frames[-1][1] == {"reason": "server_shutting_down"}


@pytest.mark.item("E21")
def test_a_client_may_end_an_idle_server_and_gets_its_answer(tmp_path):
    with serving(tmp_path) as server:
        assert server.ask("POST", "/control", {"command": "shutdown"}) == (200, None)
        assert server.process.wait(LIMIT) == 0


def test_a_server_with_an_idle_timeout_ends_after_its_last_workspace(tmp_path):
    with serving(tmp_path, "--idle-timeout", "0.1") as server:
        workspace = server.create(tmp_path)
        assert server.ask("DELETE", f"{workspace}?client_id={CLIENT}")[0] == 200
        assert server.process.wait(LIMIT) == 0


# ── Dying ───────────────────────────────────────────────────────────────────────────────────────


def test_after_a_kill_a_client_resumes_and_learns_how_its_run_ended(tmp_path):
    with serving(tmp_path) as server:
        workspace = server.create(tmp_path)
        stream = server.stream(workspace)
        session = server.start_run(workspace)
        stream.until("message_delta")
        assert server.stop(signal.SIGKILL)[0] == -signal.SIGKILL
        stream.close()
    with serving(tmp_path) as server:
        workspace = server.create(tmp_path)
        resumed = server.stream(workspace, last_id=stream.last_id)
        resync = resumed.until("resync")
        resumed.close()
        [ended] = resync["ended"]
        assert (ended["run_id"], ended["state"]) == ("r1", "interrupted")
        _, messages = server.ask("GET", f"{workspace}/sessions/{session}/messages")
        assert [message["role"] for message in messages] == ["user", "assistant"]
