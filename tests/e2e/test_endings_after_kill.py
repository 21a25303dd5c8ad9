"""A server that is killed: whoever comes back is told every ending that was stored, exactly once.

Everything is real: processes, sockets, SQLite. One client reads all the time, one has a place and does
not read. The server is killed at the very moment at which the first is told of an ending, or some
milliseconds later; then its place may be stored and the event not kept, or the run not even ended.
"""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import define, field

from crush_trio.testing.server.client import Replica
from tests.e2e.test_many_clients import LoadServer

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

OWNER = "00000000-0000-4000-8000-000000000000"
SESSIONS = 4
LIMIT = 60.0
"""Seconds that anything may take on a busy machine."""


@contextmanager
def serving():
    """Run a server; it is killed when the block ends, if it has not been by then."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.load_server"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            yield LoadServer(process, int(process.stdout.readline()))
        finally:
            process.kill()


@define(eq=False)
class Client:
    """Reads the native stream from its place on, as often as it is told to."""

    number: int
    replica: Replica = field(factory=Replica)
    ready: trio.Event = field(factory=trio.Event)

    async def follow(self, server, base, endings):
        """Read until so many endings are known in all, or the stream is cut."""
        self.ready = trio.Event()
        path = f"{base}/events?client_id=00000000-0000-4000-8000-{self.number:012d}&form=native"
        resume = f"Last-Event-ID: {self.replica.last_id}" if self.replica.last_id else ""
        async with await server.connect(f"GET {path}", resume) as stream:
            try:
                await self._read(stream, endings)
            except trio.BrokenResourceError:
                await trio.lowlevel.checkpoint()
        self.replica.cut()

    async def attached(self):
        """Wait until the connection that was begun last is there."""
        await trio.testing.wait_all_tasks_blocked()
        await self.ready.wait()

    async def _read(self, stream, endings):
        rest, body = b"", False
        async for chunk in stream:
            rest += chunk
            if not body and b"\r\n\r\n" in rest:
                rest, body = rest.partition(b"\r\n\r\n")[2], True
            *frames, rest = rest.split(b"\n\n") if body else [rest]
            for frame in frames:
                self._apply(frame)
            if self.ready.is_set() and len(self.replica.endings) >= endings:
                return

    def _apply(self, frame):
        lines = [line for line in frame.split(b"\n") if not line.startswith(b"retry:")]
        named = dict(line.split(b": ", 1) for line in lines)
        if named[b"event"] == b"ready":
            if b"id" in named:
                self.replica.last_id = named[b"id"].decode()
            self.ready.set()
        else:
            self.replica.feed(b"\n".join(lines) + b"\n\n")  # raises if an ending comes twice


async def open_workspace(server, folder):
    _, workspace = await server.call(
        "POST", "/v1/workspaces", {"path": str(folder), "client_id": OWNER}
    )
    base = f"/v1/workspaces/{workspace['id']}"
    await server.call("POST", f"{base}/agent/init", {"interactive": False})
    return base


async def submit(server, base, sessions, first, count):
    """Send prompts of several lengths, some behind others, and cancel a session on the way."""
    for number in range(first, first + count):
        session = sessions[number % len(sessions)]
        body = {"session_id": session, "prompt": str(number % 5), "run_id": f"run-{number}"}
        status, answer = await server.call("POST", f"{base}/agent", body)
        assert status == 202, answer
        if number % 11 == 10:
            await server.call("POST", f"{base}/agent/sessions/{session}/cancel")


async def runs_of(server, base):
    _, runs = await server.call("GET", f"{base}/runs?limit=1000")
    return {run["id"]: run for run in runs}


async def live_and_be_killed(folder, clients, first, endings, delay):
    """Run a server until the first client was told of so many endings more, and kill it."""
    eager, told = clients[0], len(clients[0].replica.endings) + endings
    with serving() as server:
        base = await open_workspace(server, folder)
        sessions = [
            (await server.call("POST", f"{base}/sessions", {"title": "t"}))[1]["id"]
            for _ in range(SESSIONS)
        ]
        for client in clients:
            if client.replica.last_id is None:
                await client.follow(server, base, 0)  # only to have a place
        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit, server, base, sessions, first, 60)
            await eager.follow(server, base, told)
            await trio.sleep(delay)
            server.process.kill()
            nursery.cancel_scope.cancel()


ATTEMPTS = [(7, 0), (12, 0), (17, 0.002), (22, 0.01), (27, 0.03), (32, 0.1)]
"""After how many endings, and how many seconds later, the server is killed."""


@pytest.mark.item("G1", "L3")
@pytest.mark.parametrize(
    ("kills", "endings", "delay"),
    [
        *((1, *attempt) for attempt in ATTEMPTS[::2]),
        *(pytest.param(1, *attempt, marks=pytest.mark.long) for attempt in ATTEMPTS[1::2]),
        *(pytest.param(3, *attempt, marks=pytest.mark.long) for attempt in ATTEMPTS),
    ],
)
async def test_every_stored_ending_arrives_exactly_once_after_kills(
    tmp_path, kills, endings, delay, record_property
):
    clients = Client(1), Client(2)
    with trio.fail_after(LIMIT):
        for life in range(kills):
            await live_and_be_killed(tmp_path, clients, 100 * life, endings, delay)
        counts = await check_told(tmp_path, clients)
    record_property("endings", f"{counts} endings were told after a kill")
    assert max(counts) >= endings


async def check_told(folder, clients):
    """Start a server in peace; return how many endings each client is told when it comes back."""
    counts = []
    with serving() as server:
        base = await open_workspace(server, folder)
        runs = len(await runs_of(server, base))
        for client in clients:
            before = len(client.replica.endings)
            await client.follow(server, base, runs)
            counts.append(len(client.replica.endings) - before)
            known = await runs_of(server, base)
            assert all("ended_at" in run for run in known.values()), "some were not recovered"
            states = {name: run["state"] for name, run in client.replica.endings.items()}
            assert states == {name: run["state"] for name, run in known.items()}
        await check_nothing_follows(server, base, clients)
    return counts


async def check_nothing_follows(server, base, clients):
    """One more run ends, and that is all that clients hear of."""
    _, session = await server.call("POST", f"{base}/sessions", {"title": "last"})
    body = {"session_id": session["id"], "prompt": "1", "run_id": "last"}
    assert (await server.call("POST", f"{base}/agent", body))[0] == 202
    for client in clients:
        await client.follow(server, base, len(client.replica.endings) + 1)
        *_, last = client.replica.endings.values()
        assert last["run_id"] == "last"


async def kill_after(client, server, base, endings):
    """Kill the server as soon as the client knows of so many endings."""
    await client.follow(server, base, endings)
    server.process.kill()


@pytest.mark.long
@pytest.mark.item("B1", "L3")
async def test_an_ending_that_was_seen_is_not_told_again_however_soon_the_server_dies(tmp_path):
    """Nothing else is written that would take the place of the ending along to the disk."""
    client = Client(1)
    with trio.fail_after(LIMIT):
        for number in range(4):
            with serving() as server:
                base = await open_workspace(server, tmp_path)
                _, session = await server.call("POST", f"{base}/sessions", {"title": "t"})
                body = {"session_id": session["id"], "prompt": "1", "run_id": f"run-{number}"}
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(kill_after, client, server, base, number + 1)
                    await client.attached()
                    await server.call("POST", f"{base}/agent", body)
            told = [run["run_id"] for run in client.replica.endings.values()]
            assert told == [f"run-{earlier}" for earlier in range(number + 1)]
        with serving() as server:
            await check_nothing_follows(server, await open_workspace(server, tmp_path), [client])
