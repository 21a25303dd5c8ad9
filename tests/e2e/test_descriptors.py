"""A server with few descriptors and clients that want all of them: others do not notice.

The server is a process of its own with `RLIMIT_NOFILE` at 256.
"""

import json
import resource
import socket
import time
from contextlib import ExitStack

import pytest

from tests.e2e.test_server_process import serving

pytestmark = pytest.mark.slow

DESCRIPTORS = 256
HALF_A_HEAD = b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
WHOLE = b"GET /v1/health HTTP/1.1\r\nHost: %b\r\n\r\n"
SOON = 2.0


@pytest.fixture
def few_descriptors():
    """Let processes that are started now have no more than a few descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def server(tmp_path, few_descriptors):
    with serving(tmp_path, "--log-format", "json") as running:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
        yield running


def connect(server, said):
    host, port = server.address.removeprefix("tcp://").split(":")
    client = socket.create_connection((host, int(port)), timeout=SOON)
    client.sendall(said.replace(b"%b", f"{host}:{port}".encode()))
    return client


def quick(server, *request):
    """Send a request and return its answer, which has to come soon."""
    began = time.monotonic()
    answer = server.ask(*request)
    assert time.monotonic() - began < SOON
    return answer


def logged(folder, event):
    lines = (folder / "stderr.txt").read_text("utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == event]


@pytest.mark.parametrize(
    "said", [HALF_A_HEAD, WHOLE, b""], ids=["half a head", "idle after a request", "silent"]
)
def test_clients_that_hold_connections_keep_nobody_out_and_spoil_no_run(server, tmp_path, said):
    workspace = server.create(tmp_path)
    with ExitStack() as stack:
        watching = server.stream(workspace)
        stack.callback(watching.close)
        for number in range(320):
            stack.enter_context(connect(server, said))
            if number % 80 == 79:
                assert quick(server, "GET", "/health") == (200, None)
        server.start_run(workspace)
        while (run := watching.until("run"))["state"] not in {"completed", "errored"}:
            assert quick(server, "GET", "/health") == (200, None)
        assert run["state"] == "completed"
        assert quick(server, "GET", f"{workspace}/sessions")[0] == 200
    assert len(logged(tmp_path, "connections.gave_way")) == 1
    assert not logged(tmp_path, "run.failed")


def test_streams_without_end_leave_descriptors_for_the_store_and_refuse_the_rest(server, tmp_path):
    workspace = server.create(tmp_path)
    with ExitStack() as stack:
        streams, refusal = [], b""
        while not refusal:
            stream = server.stream(workspace)
            stack.callback(stream.close)
            if stream.response.status == 200:
                streams.append(stream)
            else:
                refusal = stream.response.read()
        assert len(streams) == DESCRIPTORS // 2
        assert json.loads(refusal)["code"] == "too_many_connections"
        status, told = server.ask("GET", "/health")
        assert (status, told["code"]) == (429, "too_many_connections")
        streams.pop().close()
        streams.pop().close()
        while server.ask("GET", "/health")[0] != 200:  # it has to notice first
            time.sleep(0.01)
        server.start_run(workspace)
        while (run := streams[0].until("run"))["state"] not in {"completed", "errored"}:
            pass
        assert run["state"] == "completed"
    assert len(logged(tmp_path, "connections.refused")) == 1
