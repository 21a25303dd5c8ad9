"""The application under Hypercorn's own command: what clients and operators get there."""

import json
import shlex
import signal
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trio

from crush_trio.net.address import parse_address
from tests.e2e.test_server_process import LIMIT, Server, UnixConnection, serving, started
from tests.server.test_http_edges import CASES, status_of

pytestmark = pytest.mark.slow

GRACE = 3.0
"""What Hypercorn leaves connections by default."""


@contextmanager
def hypercorn(folder, *arguments, extra=None):
    """Run the ASGI application under Hypercorn on a port of its choice."""
    command = ["hypercorn", "-k", "trio", "-b", "127.0.0.1:0", *arguments, "crush_trio.asgi:app"]
    with started(command, folder, extra) as process:
        yield process, Server(process, f"Listening on {announced(process, folder)}. ")


def announced(process, folder):
    """Return where Hypercorn says it runs, once it does."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline and process.poll() is None:
        for line in (folder / "stderr.txt").read_text("utf-8").splitlines():
            if "Running on http://" in line:
                return "tcp://" + line.partition("Running on http://")[2].split()[0]
        time.sleep(0.02)
    raise AssertionError((folder / "stderr.txt").read_text("utf-8"))


def test_hypercorn_can_serve_the_application(tmp_path):
    with hypercorn(tmp_path) as (_, server):
        assert server.ask("GET", "/health") == (200, None)
        workspace = server.create(tmp_path)
        stream = server.stream(workspace)
        server.start_run(workspace)
        while (run := stream.until("run"))["state"] != "completed":
            pass
        stream.close()
        assert run["run_id"] == "r1"
        assert server.stop()[0] == 0
    with serving(tmp_path) as server:
        server.create(tmp_path)


@contextmanager
def model_without_a_key():
    """Serve a model that refuses every request; yield its address."""

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_error(401)

        def log_message(self, *_given):
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def test_under_hypercorn_a_failed_run_is_on_standard_error_with_its_sentence_and_id(tmp_path):
    user = {"CRUSH_GLOBAL_CONFIG": str(tmp_path)}
    with model_without_a_key() as address, hypercorn(tmp_path, extra=user) as (_, server):
        provider = {"base_url": address, "models": [{"id": "m", "name": "M"}]}
        (tmp_path / "crush.json").write_text(json.dumps({"providers": {"here": provider}}))
        workspace = server.create(tmp_path)
        stream = server.stream(workspace)
        server.start_run(workspace)
        while (run := stream.until("run"))["state"] not in {"errored", "completed"}:
            pass
        stream.close()
        assert server.stop()[0] == 0
    assert run["state"] == "errored"
    lines = (tmp_path / "stderr.txt").read_text("utf-8").splitlines()
    [line] = [line for line in lines if " run.failed " in line]
    assert " WARNING " in line
    assert f"run_id='{run['id']}'" in line
    assert run["error"] in line


def test_under_hypercorn_a_shutdown_that_a_client_asked_for_leaves_no_dead_server(tmp_path):
    with hypercorn(tmp_path) as (process, server):
        assert server.ask("POST", "/control", {"command": "shutdown"}) == (200, None)
        process.wait(LIMIT)
        with pytest.raises(ConnectionRefusedError):
            server.ask("GET", "/health")


@pytest.mark.item("E24", "G12")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_under_hypercorn_a_signal_ends_the_runs_then_the_streams_then_the_server(tmp_path, number):
    with hypercorn(tmp_path) as (_, server):
        workspace = server.create(tmp_path)
        stream = server.stream(workspace)
        server.start_run(workspace)
        stream.until("message_delta")
        code, seconds = server.stop(number)
        frames = list(stream)
        stream.close()
        assert code == 0
        assert seconds < GRACE + 1
        assert [name for name, _ in frames[-2:]] == ["run", "end"]
        assert frames[-2][1]["state"] == "cancelled"
        assert frames[-1][1] == {"reason": "server_shutting_down"}


def test_under_hypercorn_a_stream_without_runs_ends_with_the_server_as_well(tmp_path):
    with hypercorn(tmp_path) as (_, server):
        stream = server.stream(server.create(tmp_path))
        assert server.stop()[0] == 0
        assert [name for name, _ in stream][-1] == "end"
        stream.close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-k", "trio", "-w", "2"], "crush_trio needs one worker: start it with --workers 1."),
        (["-k", "asyncio"], "crush_trio needs a worker that runs Trio: hypercorn -k trio"),
    ],
)
def test_workers_that_cannot_work_are_refused_with_a_sentence(tmp_path, arguments, sentence):
    command = ["hypercorn", *arguments, "-b", "127.0.0.1:0", "crush_trio.asgi:app"]
    with started(command, tmp_path) as process:
        process.wait(LIMIT)
    assert sentence in (tmp_path / "stderr.txt").read_text("utf-8")


def test_with_the_logging_configuration_of_the_repository_events_are_json(tmp_path):
    config = Path(__file__).parents[2] / "deploy" / "hypercorn-logging.json"
    log = ["--log-config", f"json:{config}"]
    with hypercorn(tmp_path, *log, extra={"CRUSH_TRIO_TOKEN": "a-token-of-16-signs"}) as (
        _,
        server,
    ):
        assert server.ask("GET", "/health") == (200, None)
        assert server.ask("GET", "/workspaces")[0] == 401
        assert server.stop()[0] == 0
    lines = (tmp_path / "stderr.txt").read_text("utf-8").splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    [refused] = [each for each in events if each["event"] == "request.refused"]
    assert (refused["level"], refused["fields"]["code"]) == ("warning", "unauthorized")


# ── The door ────────────────────────────────────────────────────────────────────────────────────

ATTACK = Path(__file__).with_name("own_process_attack.py")


async def statuses(address):
    """Return the statuses of requests that two programs may read in two ways."""
    return {name: await status_of(address, data) for name, (data, _) in CASES.items()}


def test_under_hypercorn_requests_are_read_as_strictly_as_by_our_own_server(tmp_path):
    """The one case that needs a directory is another one here: there is none at `/x`."""
    with hypercorn(tmp_path) as (_, server):
        found = trio.run(statuses, parse_address(server.address))
    expected = {name: status for name, (data, status) in CASES.items()}
    for name in ("bare line feeds in a body", "bare line feeds in a chunk"):
        assert found.pop(name) == 400
        del expected[name]
    assert found == expected


def test_under_hypercorn_a_command_can_change_nothing_on_both_kinds_of_sockets(tmp_path):
    path = tmp_path / "s"
    with hypercorn(tmp_path, "-b", f"unix:{path}") as (_, server):
        workspace = server.create(tmp_path)
        _, session = server.ask("POST", f"{workspace}/sessions", {"title": "t"})
        port = parse_address(server.address).port
        change = ["POST", f"/v1{workspace}/permissions/skip", {"skip": True}]
        for address in (port, str(path)):
            what = json.dumps([address, {"port": port, "herd": 3}, change])
            command = shlex.join([sys.executable, str(ATTACK), "herd", what])
            status, ran = server.ask(
                "POST", f"{workspace}/agent/sessions/{session['id']}/shell", {"command": command}
            )
            assert (status, ran["exit_code"]) == (200, 0), ran
            assert json.loads(ran["output"]) == [[403, "own_process"]] * 3
        assert server.ask("GET", f"{workspace}/permissions/skip") == (200, {"skip": False})
        server.ask("POST", f"{workspace}/permissions/skip", {"skip": True})  # everybody else may
        connection = UnixConnection(str(path))
        connection.request("GET", f"/v1{workspace}/permissions/skip")
        assert json.loads(connection.getresponse().read()) == {"skip": True}
        connection.close()
