"""(t) Time from the SIGKILL of a workspace's owner to the first answer of the node that takes over.

Two nodes on one PostgreSQL. The owner is killed while it has a run. From then on a client sends a prompt to
the other node again and again, until it is accepted there: the lease has expired, that node has claimed the
workspace, ended the old run and opened it.
"""

import os
import signal
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import trio

from benchmarks.bench import Bench
from benchmarks.driver.http import Caller
from benchmarks.driver.postgres import PostgresServer, open_postgres
from benchmarks.driver.stage import RUN_LIMIT, open_workspace, run_name
from benchmarks.driver.targets import own_node, trust_workspaces, write_config
from benchmarks.figures import MS, Figure, at_most

LETTER: Final = "t"
TITLE: Final = "Taking over from a node that was killed"

LEASE: Final = 3.0
MARGIN: Final = 2.0
PAUSE: Final = 0.02


async def measure(bench: Bench) -> list[Figure]:
    """Kill an owner in each round, with new nodes each time."""
    notes = bench.notes(LETTER)
    name = f"SIGKILL to the first prompt accepted by the other node, leases of {LEASE:g} s"
    async with open_postgres() as database:
        for _ in range(bench.rounds):
            notes.add(name, bench.own.name, await _seconds(bench, database) * 1e3)
    return notes.figure(name, MS, at_most((LEASE + MARGIN) * 1e3))


async def _seconds(bench: Bench, database: PostgresServer) -> float:
    node = own_node(database.url, lease_ttl=LEASE)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crush-bench-")))
        workspace = folder / "workspace"
        workspace.mkdir()
        write_config(workspace, bench.provider.base_url)
        trust_workspaces(folder)
        owner = await stack.enter_async_context(node.serve(folder))
        other = await stack.enter_async_context(node.serve(folder))
        caller, heir = Caller(owner.place), Caller(other.place)
        stack.push_async_callback(heir.aclose)
        base = f"/v1/workspaces/{await open_workspace(caller, workspace)}"
        session = (await caller.ask("POST", f"{base}/sessions", {"title": "benchmark"})).json()
        await caller.ask("POST", f"{base}/agent", _prompt(session["id"], "hold"), expect=202)
        await caller.aclose()
        assert owner.gauge is not None
        os.kill(owner.gauge.pid, signal.SIGKILL)
        began = trio.current_time()
        with trio.fail_after(RUN_LIMIT):
            body = _prompt(session["id"], "say 1")
            while (await heir.ask("POST", f"{base}/agent", body, expect=None)).status != 202:  # noqa: ASYNC110 - as clients do
                await trio.sleep(PAUSE)
        return trio.current_time() - began


def _prompt(session: str, prompt: str) -> dict[str, str]:
    return {"session_id": session, "prompt": prompt, "run_id": run_name()}
