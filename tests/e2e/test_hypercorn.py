"""The application under Hypercorn's own command: what clients and operators get there."""

import signal
import time
from contextlib import contextmanager

import pytest

from tests.e2e.test_server_process import CLIENT, LIMIT, Server, serving, started

pytestmark = pytest.mark.slow

GRACE = 3.0
"""What Hypercorn leaves connections by default."""


@contextmanager
def hypercorn(folder, *arguments):
    """Run the ASGI application under Hypercorn on a port of its choice."""
    command = ["hypercorn", "-k", "trio", "-b", "127.0.0.1:0", *arguments, "crush_trio.asgi:app"]
    with started(command, folder) as process:
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


def test_a_second_worker_refuses_the_directory_of_the_first_and_says_who_has_it(tmp_path):
    """Which worker gets a request is up to the system, so requests are sent until both had some."""
    answers, deadline = {}, time.monotonic() + LIMIT
    with hypercorn(tmp_path, "-w", "2") as (process, server):
        while len(answers) < 2 and time.monotonic() < deadline:
            body = {"path": str(tmp_path), "client_id": CLIENT}
            status, answer = server.ask("POST", "/workspaces", body)
            answers[status] = answer
        assert answers.keys() == {200, 503}
        assert answers[200]["path"] == str(tmp_path)
        refused = answers[503]
        assert refused["code"] == "store_locked"
        assert "the data directory is in use" in refused["message"]
        owner = int(refused["message"].partition("belongs to process ")[2].partition(",")[0])
        assert owner != process.pid
        assert server.ask("GET", "/health") == (200, None)
        assert server.stop()[0] == 0
