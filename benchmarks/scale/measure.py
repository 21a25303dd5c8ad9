"""Measures `Constants`: two nodes on a PostgreSQL of their own, and one load after another.

What the nodes do by themselves is measured first and taken off every load by its duration. The model is the
scripted one of the benchmarks.
"""

import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psycopg
import trio
from attrs import define

from benchmarks.driver.frames import NATIVE
from benchmarks.driver.http import Caller
from benchmarks.driver.listeners import open_crowd
from benchmarks.driver.postgres import open_postgres
from benchmarks.driver.provider import open_provider, parse_prompt
from benchmarks.driver.stage import Stage, events_target, open_stage, open_workspace
from benchmarks.driver.targets import Served, own_node, write_config
from benchmarks.machine import this_machine
from benchmarks.scale.constants import Constants, Cost
from benchmarks.scale.counters import OPTIONS, REPORTED, Counters
from benchmarks.workloads.accept import one_by_one, warm_sessions, waves_of
from benchmarks.workloads.cluster.forwarding import cost_of, crowd_at
from benchmarks.workloads.fanout import DRIP, Cell

LEASE: Final = 3.0
"""Seconds that leases hold while this measures; a node renews three times in that."""
RENEWALS: Final = 3
CONNECTIONS: Final = 6
"""A writer, four readers and one for leases, as `docs/operations.md` says."""

RUNS: Final = 60
TOGETHER: Final = 32
WAVES: Final = 8
TOKENS: Final = 150
PAUSE: Final = 20
"""Milliseconds between two tokens: fifty in a second."""
SESSIONS: Final = 200
WORKSPACES: Final = 40
REQUESTS: Final = 200
READERS: Final = 100


@define(eq=False)
class _Loads:
    """The cluster under load, and what it costs when it is idle."""

    counters: Counters
    stage: Stage
    idle: Cost
    """By the second."""

    async def of(self, what: str, load: Callable[[], Awaitable[object]], count: float) -> Cost:
        """Return the cost of one of the *count* things that *load* does."""
        print(f"{what} …", file=sys.stderr, flush=True)
        before = await self.counters.begin()
        await load()
        used, seconds = await self.counters.cost_since(before)
        return used.less(self.idle, seconds).share(count)


async def measure() -> Constants:
    """Measure everything; takes less than two minutes on a quiet machine."""
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(open_provider())
        database = await stack.enter_async_context(open_postgres(*OPTIONS))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crush-scale-")))
        node = own_node(database.url, lease_ttl=LEASE)
        stage = await stack.enter_async_context(open_stage(node, provider))
        other = await stack.enter_async_context(node.serve(folder))
        assert stage.served.gauge is not None
        assert other.gauge is not None
        connection = stack.enter_context(psycopg.connect(database.url, autocommit=True))
        counters = Counters(database, [stage.served.gauge, other.gauge], connection)
        sessions = await warm_sessions(stage, TOGETHER)

        print("idle nodes …", file=sys.stderr, flush=True)
        await trio.sleep(REPORTED)
        before = await counters.begin()
        used, seconds = await counters.cost_since(before)
        loads = _Loads(counters, stage, used.share(seconds))

        async def create() -> None:
            for _ in range(SESSIONS):
                await stage.new_session()

        async def answers() -> None:
            await _at_once(stage, sessions, f"drip {TOKENS} {PAUSE}")

        run = await loads.of("runs", lambda: one_by_one(stage, sessions[0], RUNS), RUNS)
        many = TOGETHER * WAVES
        together = await loads.of("runs at once", lambda: waves_of(stage, sessions, WAVES), many)
        answer = await loads.of("answers", answers, TOGETHER)
        session = await loads.of("sessions", create, SESSIONS)
        forwarded = await loads.of(
            "forwarded requests", lambda: _ask(stage, Caller(other.place)), REQUESTS
        )
        direct, passed = await _readers(stage, other)
        lease = await _leases(loads, folder, provider.base_url)
        version = str(connection.info.parameter_status("server_version"))
    return Constants(
        machine=this_machine().line(),
        day=datetime.now(UTC).date().isoformat(),
        postgres=version,
        connections=CONNECTIONS,
        node=loads.idle.share(2 * RENEWALS / LEASE),
        lease=lease,
        session=session,
        run=run,
        run_together=together,
        token=answer.less(together, 1).share(TOKENS),
        reader=direct,
        reader_forwarded=passed,
        forwarded=forwarded,
    )


async def _at_once(stage: Stage, sessions: list[str], prompt: str) -> None:
    """Play *prompt* in all *sessions* at once."""
    callers = [Caller(stage.served.place) for _ in sessions]
    async with trio.open_nursery() as nursery:
        for session, caller in zip(sessions, callers, strict=True):
            nursery.start_soon(stage.play, session, prompt, caller)
    for caller in callers:
        await caller.aclose()


async def _ask(stage: Stage, caller: Caller) -> None:
    """Send requests to a node that passes them on."""
    for _ in range(REQUESTS):
        await caller.ask("GET", f"{stage.base}/agent")
    await caller.aclose()


async def _readers(owner: Stage, other: Served) -> tuple[float, float]:
    """Return what a reader costs in a second of an answer: at the owner's node, and through another one."""
    print("readers …", file=sys.stderr, flush=True)
    assert other.gauge is not None
    cell, here = Cell(READERS, NATIVE, DRIP, 400), owner.served.place
    costs = []
    for place, clients in ((here, 0), (here, READERS), (other.place, READERS)):
        async with crowd_at(owner, place, clients) as crowd:
            costs.append((await cost_of(owner, other.gauge, cell, crowd)).both)
    script = parse_prompt(cell.prompt)
    nobody, direct, passed = (cost / READERS / (script.count * script.pause) for cost in costs)
    return direct - nobody, passed - nobody


async def _leases(loads: _Loads, folder: Path, model: str) -> Cost:
    """Return what an open workspace adds to a renewal: its reader and its lease."""
    place, caller, bases = loads.stage.served.place, Caller(loads.stage.served.place), []
    for number in range(WORKSPACES):
        workspace = folder / f"workspace-{number}"
        workspace.mkdir()
        write_config(workspace, model)
        bases.append(f"/v1/workspaces/{await open_workspace(caller, workspace)}")
    await caller.aclose()
    async with open_crowd(place, [events_target(base, NATIVE) for base in bases], NATIVE):
        await trio.sleep(REPORTED)
        renewals = REPORTED * RENEWALS / LEASE
        return await loads.of("open workspaces", trio.lowlevel.checkpoint, WORKSPACES * renewals)
