"""Two hundred clients, some of them badly behaved, and one long answer.

One client never reads. Twenty hang up and come back all the time. All others see the same final
message and one ending; the server's memory and its shutdown do not care.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
from attrs import define, field

from crush_trio.testing.server.client import Replica
from tests.e2e.load_server import GRACE

CLIENTS = 200
RECONNECTING = 20
PIECES = 2_000

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


@define(eq=False)
class LoadServer:
    process: subprocess.Popen
    port: int

    def rss(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) * 1024

    async def call(self, method, path, body=None):
        """Make one request and return its status and its JSON."""
        data = b"" if body is None else json.dumps(body).encode()
        stream = await self.connect(f"{method} {path}", f"Content-Length: {len(data)}", data)
        async with stream:
            answer = b"".join([chunk async for chunk in stream])
        head, _, rest = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(rest) if rest else None

    async def connect(self, line, *headers, data=b""):
        *fields, last = headers or ("",)
        if isinstance(last, bytes):
            data = last
        else:
            fields.append(last)
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        head = [f"{line} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Connection: close"]
        head += [text for text in fields if text]
        await stream.send_all("\r\n".join([*head, "", ""]).encode() + data)
        return stream


@define(eq=False)
class Client:
    """One reader of the native stream, which may hang up after each few frames."""

    server: LoadServer
    workspace: str
    number: int
    fickle: bool
    replica: Replica = field(factory=Replica)
    connections: int = 0

    async def follow(self, attached):
        """Read until the run has ended, reconnecting where the stream was left."""
        while not self.replica.endings:
            await self._read_once(attached)

    async def _read_once(self, attached):
        uuid = f"00000000-0000-4000-8000-{self.number:012d}"
        path = f"/v1/workspaces/{self.workspace}/events?client_id={uuid}&form=native"
        resume = f"Last-Event-ID: {self.replica.last_id}" if self.replica.last_id else ""
        stream = await self.server.connect(f"GET {path}", resume)
        self.connections += 1
        async with stream:
            rest = b""
            pieces = 0
            async for chunk in stream:
                rest += chunk
                if b"\r\n\r\n" in rest and not pieces:
                    rest = rest.partition(b"\r\n\r\n")[2]
                    attached()
                pieces += 1
                *frames, rest = rest.split(b"\n\n")
                for frame in frames:
                    self._apply(frame)
                if self.replica.endings or (self.fickle and pieces > 5):
                    break
        self.replica.cut()

    def _apply(self, frame):
        """Feed the replica the events of the log; the stream's own need no state."""
        lines = [line for line in frame.split(b"\n") if not line.startswith(b"retry:")]
        named = dict(line.split(b": ", 1) for line in lines if b": " in line)
        if named.get(b"event") == b"ready" and b"id" in named and self.replica.last_id is None:
            self.replica.last_id = named[b"id"].decode()
        elif named.get(b"event") not in (b"ready", b"heartbeat", b"end", None):
            self.replica.feed(b"\n".join(lines) + b"\n\n")


@pytest.fixture
def server():
    with subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.load_server"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        yield LoadServer(process, int(process.stdout.readline()))
        process.kill()


async def open_session(server, directory):
    create = {"path": str(directory), "client_id": "00000000-0000-4000-8000-000000000000"}
    _, workspace = await server.call("POST", "/v1/workspaces", create)
    base = f"/v1/workspaces/{workspace['id']}"
    await server.call("POST", f"{base}/agent/init", {"interactive": False})
    _, session = await server.call("POST", f"{base}/sessions", {"title": "load"})
    return workspace["id"], session["id"], base


@pytest.mark.long
@pytest.mark.item("E14", "G1", "G5")
async def test_two_hundred_clients_see_one_answer_and_one_ending(server, tmp_path):
    workspace, session, base = await open_session(server, tmp_path)
    clients = [Client(server, workspace, n, n < RECONNECTING) for n in range(CLIENTS - 1)]
    deaf_path = f"{base}/events?client_id=00000000-0000-4000-8000-999999999999"
    deaf = await server.connect(f"GET {deaf_path}", "")
    waiting = len(clients)
    everybody = trio.Event()

    def attached():
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            everybody.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.follow, attached)
            await everybody.wait()
            before = server.rss()
            prompt = {"session_id": session, "run_id": "load", "prompt": str(PIECES)}
            status, _ = await server.call("POST", f"{base}/agent", prompt)
            assert status == 202
    grown = server.rss() - before
    _, messages = await server.call("GET", f"{base}/sessions/{session}/messages")
    (answer,) = [message for message in messages if message["role"] == "assistant"]
    assert answer["parts"][0]["data"]["text"] == "".join(f"piece {n} " for n in range(PIECES))
    for client in clients:
        assert [run["state"] for run in client.replica.endings.values()] == ["completed"]
        assert client.replica.messages[answer["id"]]["parts"] == answer["parts"]
    assert all(client.connections > 1 for client in clients if client.fickle)
    assert grown < 30 * 1024 * 1024, f"memory grew by {grown / 1024 / 1024:.1f} MB"
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    with trio.fail_after(GRACE + 5):
        assert await trio.to_thread.run_sync(server.process.wait) == 0
    assert time.monotonic() - began < GRACE + 1
    await deaf.aclose()
