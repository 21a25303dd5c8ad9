"""Another program holds the database: prompts are answered in time, and endings wait for the store.

Everything is real: the server is a process, the lock is SQLite's, and the clients use sockets.
"""

import json
import signal
import sqlite3
from contextlib import asynccontextmanager, closing, contextmanager

import pytest
import trio
from attrs import define, field

from tests.e2e.test_endings_after_kill import LIMIT, open_workspace, serving

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

PROMPT = "1000"
"""So many pieces, a millisecond each: the lock is there before the answer ends."""

READER = "00000000-0000-4000-8000-000000000001"


@define(eq=False)
class RunStates:
    """The states of runs, as a native stream shows them."""

    shown: list = field(factory=list)
    answering: trio.Event = field(factory=trio.Event)
    """Set when the first words of an answer have come."""
    more: trio.Event = field(factory=trio.Event)

    async def read(self, stream):
        rest = b""
        async for chunk in stream:
            *frames, rest = (rest + chunk).split(b"\n\n")
            for frame in frames:
                if b"piece " in frame:
                    self.answering.set()
                if b"\nevent: run\ndata: " in frame:
                    self.shown.append(json.loads(frame.rpartition(b"data: ")[2]))
            self.more.set()
            self.more = trio.Event()

    async def until(self, run_id, state):
        """Wait until the run is shown in this state, and return what is shown."""
        while True:
            more = self.more
            for run in self.shown:
                if (run["run_id"], run["state"]) == (run_id, state):
                    return run
            await more.wait()

    def of(self, run_id):
        return [run["state"] for run in self.shown if run["run_id"] == run_id]


@asynccontextmanager
async def watching(server, base):
    states = RunStates()
    path = f"{base}/events?client_id={READER}&form=native"
    async with await server.connect(f"GET {path}") as stream, trio.open_nursery() as nursery:
        nursery.start_soon(states.read, stream)
        yield states
        nursery.cancel_scope.cancel()


@contextmanager
def held(folder):
    """Keep everyone else from writing to the workspace's database."""
    with closing(sqlite3.connect(folder / ".crush" / "crush-trio.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


@pytest.mark.item("A19", "B1")
async def test_a_run_that_was_answered_is_completed_however_long_the_database_is_held(tmp_path):
    with serving() as server, trio.fail_after(LIMIT):
        base = await open_workspace(server, tmp_path)
        _, session = await server.call("POST", f"{base}/sessions", {"title": "s"})
        body = {"session_id": session["id"], "prompt": PROMPT, "run_id": "answered"}
        async with watching(server, base) as states:
            assert (await server.call("POST", f"{base}/agent", body))[0] == 202
            await states.answering.wait()
            with held(tmp_path):
                shown = await states.until("answered", "ending")
                assert shown["outcome"] == "completed"
                late = {"session_id": session["id"], "prompt": "1", "run_id": "late"}
                status, refusal = await server.call("POST", f"{base}/agent", late)
                assert (status, refusal["code"]) == (503, "acceptance_not_stored")
                assert states.of("answered")[-1] == "ending"
            await states.until("answered", "completed")
        assert states.of("answered").count("completed") == 1
        _, runs = await server.call("GET", f"{base}/runs")
        assert [(run["run_id"], run["state"]) for run in runs] == [("answered", "completed")]


@pytest.mark.item("B1")
async def test_a_server_that_stops_while_the_database_is_held_tells_how_its_runs_end(tmp_path):
    with serving() as server, trio.fail_after(LIMIT):
        base = await open_workspace(server, tmp_path)
        _, session = await server.call("POST", f"{base}/sessions", {"title": "s"})
        body = {"session_id": session["id"], "prompt": PROMPT, "run_id": "answered"}
        async with watching(server, base) as states:
            assert (await server.call("POST", f"{base}/agent", body))[0] == 202
            await states.answering.wait()
            with held(tmp_path):
                await states.until("answered", "ending")
                server.process.send_signal(signal.SIGTERM)
                await states.until("answered", "interrupted")
                await trio.to_thread.run_sync(server.process.wait)
    with serving() as server, trio.fail_after(LIMIT):
        base = await open_workspace(server, tmp_path)
        async with watching(server, base) as states:
            late = {"session_id": session["id"], "prompt": "1", "run_id": "late"}
            assert (await server.call("POST", f"{base}/agent", late))[0] == 202
            await states.until("late", "completed")
        _, runs = await server.call("GET", f"{base}/runs")
        assert {run["run_id"]: run["state"] for run in runs} == {
            "answered": "interrupted",
            "late": "completed",
        }
