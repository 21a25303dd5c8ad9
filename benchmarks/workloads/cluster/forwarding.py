"""(q) The cost of an event stream that another node forwards, against one from the owner's node.

Two nodes on one PostgreSQL. The same answer is played to no crowd, to a crowd at the owner's node, and to
a crowd at the other one, in each round. What the crowd adds to the processor time of both nodes, divided
by clients and events, is the cost of an event of a stream. The other rows are the whole processor time of
the answer, with the run itself.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from attrs import frozen

from benchmarks.bench import Bench
from benchmarks.driver.frames import NATIVE
from benchmarks.driver.http import Place
from benchmarks.driver.listeners import Crowd, open_crowd
from benchmarks.driver.postgres import open_postgres
from benchmarks.driver.process import Gauge
from benchmarks.driver.stage import Stage, events_target, open_stage
from benchmarks.driver.targets import own_node
from benchmarks.figures import MS, TIMES, Figure, Notes, at_most
from benchmarks.workloads.fanout import BURST, DRIP, MANY, Cell

LETTER: Final = "q"
TITLE: Final = "Event streams through another node"

LEASE: Final = 15.0
LIMIT: Final = 2

DIRECT, OWNER, RELAY = "direct", "forwarded, owner's node", "forwarded, other node"
EACH: Final = "CPU per event of a stream"
WHOLE: Final = "CPU of the answer"
RATIO: Final = "forwarded / direct"


@frozen
class Cost:
    """Seconds of processor time of the owner's node and of the other one, and how many events there were."""

    owner: float
    relay: float
    events: int

    @property
    def both(self) -> float:
        """Seconds of both nodes."""
        return self.owner + self.relay


async def measure(bench: Bench) -> list[Figure]:
    """Measure an answer at the pace of models and one in a burst."""
    notes = bench.notes(LETTER)
    clients = bench.size(MANY, 5)
    async with open_postgres() as database:
        node = own_node(database.url, lease_ttl=LEASE)
        with tempfile.TemporaryDirectory(prefix="crush-bench-") as folder:
            async with (
                open_stage(node, bench.provider) as owner,
                node.serve(Path(folder)) as relay,
            ):
                assert relay.gauge is not None
                for cell in (Cell(clients, NATIVE, DRIP, 600), Cell(clients, NATIVE, BURST, 2000)):
                    for _ in range(bench.rounds):
                        await _round(owner, relay.place, relay.gauge, cell, notes)
    promise = at_most(LIMIT)
    return [
        figure
        for name in notes.names()
        for figure in notes.figure(
            name,
            TIMES if name.endswith(RATIO) else MS,
            promise if name.endswith(f"{EACH}, {RATIO}") else None,
        )
    ]


async def _round(owner: Stage, other: Place, gauge: Gauge, cell: Cell, notes: Notes) -> None:
    here = owner.served.place
    async with crowd_at(owner, here, 0) as nobody:
        base = await cost_of(owner, gauge, cell, nobody)
    async with crowd_at(owner, here, cell.clients) as crowd:
        direct = await cost_of(owner, gauge, cell, crowd)
    async with crowd_at(owner, other, cell.clients) as crowd:
        passed = await cost_of(owner, gauge, cell, crowd)
    named = f"{cell.clients} clients, {cell.pace}: {{}}".format
    notes.add(named(f"{WHOLE}, {DIRECT}"), notes.own, direct.both * 1e3)
    notes.add(named(f"{WHOLE}, {RATIO}"), notes.own, passed.both / direct.both)
    if cell.pace == BURST:
        return  # a handful of events: what the crowd adds is less than the noise

    def each(cost: float, turn: Cost) -> float:
        return cost * 1e3 / cell.clients / turn.events

    shares = {
        DIRECT: each(direct.both - base.both, direct),
        OWNER: each(passed.owner - base.owner, passed),
        RELAY: each(passed.relay - base.relay, passed),
        RATIO: each(passed.both - base.both, passed) / each(direct.both - base.both, direct),
    }
    for what, value in shares.items():
        notes.add(named(f"{EACH}, {what}"), notes.own, value)


@asynccontextmanager
async def crowd_at(owner: Stage, place: Place, clients: int) -> AsyncIterator[Crowd]:
    """Attach clients to the node at *place* and wait until they have what they get at first."""
    targets = [events_target(owner.base, NATIVE) for _ in range(clients)]
    async with open_crowd(place, targets, NATIVE) as crowd:
        await trio.sleep(0.1)
        yield crowd


async def cost_of(owner: Stage, relay: Gauge, cell: Cell, crowd: Crowd) -> Cost:
    """Play the answer of *cell* to *crowd*; return what it cost both nodes."""
    session = await owner.warm_session()
    await trio.sleep(0.1)
    before, frames = relay.cpu(), owner.witness.reader.frames
    turn = await owner.measure_turn(session, cell.prompt, crowd)
    assert turn.cpu is not None
    return Cost(turn.cpu, relay.cpu() - before, owner.witness.reader.frames - frames)
