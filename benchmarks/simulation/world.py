"""`World`: one simulation, from its seed to the check of every promise."""

import logging
import random
from collections import Counter
from itertools import count
from typing import Final

import trio
from attrs import define, field, frozen

from benchmarks.chaos.clients import Round
from benchmarks.simulation.bugs import BUGS, Bug
from benchmarks.simulation.database import WatchedDatabase
from benchmarks.simulation.faults import trouble
from benchmarks.simulation.link import StoreLink
from benchmarks.simulation.network import Network, Route
from benchmarks.simulation.process import GRACE, HEARTBEAT, Process
from benchmarks.simulation.promises import Model, check_promises
from benchmarks.simulation.trace import Trace
from benchmarks.simulation.workload import PATH, Address, Workload
from benchmarks.soak.ledger import Violation
from crush_trio.client.state import HEARTBEATS_MISSED
from crush_trio.testing.explore.schedule import seeded, virtual_clock

LONGEST: Final = 900.0
"""Virtual seconds that a simulation may take; the usual one takes twenty."""


@frozen
class Played:
    """A seed that was played."""

    seed: int
    broken: str
    """The first promise that was not kept; empty if all were."""
    trace: str = field(repr=False)
    counts: Counter[str] = field(repr=False)


@define(eq=False)
class World:
    """A cluster, its clients, and what goes wrong."""

    seed: int
    bug: Bug
    carriers: trio.Nursery = field(repr=False)
    """Owns everything that is under way between store and processes, and the processes."""
    trace: Trace = field(factory=Trace, init=False)
    counts: Counter[str] = field(factory=Counter, init=False)
    chance: random.Random = field(init=False)
    ttl: float = field(init=False)
    names: tuple[str, ...] = field(init=False)
    network: Network = field(init=False)
    database: WatchedDatabase = field(init=False)
    model: Model = field(init=False)
    workload: Workload = field(init=False)
    processes: dict[str, Process] = field(factory=dict, init=False)
    """The newest start of each node."""
    _boots: "count[int]" = field(factory=lambda: count(1), init=False)

    def __attrs_post_init__(self) -> None:
        chance = self.chance = random.Random(self.seed)
        self.ttl = chance.choice((1.0, 3.0))
        self.names = ("a", "b", "c")[: chance.choice((2, 3, 3))]
        self.network = Network(
            self._chance(), chance.choice((0.002, 0.05)), chance.choice((0.0, 0.5))
        )
        rate = chance.uniform(0.97, 1.03)
        self.database = WatchedDatabase(
            lambda: 1e6 + trio.current_time() * rate,
            trace=self.trace,
            fenced=self.bug.fenced,
            guarded=self.bug.guarded,
        )
        self.database.claimed = self._claimed
        self.model = Model(lambda boot: boot in self.owners(), self.trace)
        shared = Round(
            self._chance(),
            Route(self.network, "clients", HEARTBEATS_MISSED * HEARTBEAT),  # type: ignore[arg-type]
            PATH,
            [Address(name) for name in self.names],  # type: ignore[misc]
            self.counts,
        )
        self.workload = Workload(shared, self.trace)

    def _chance(self) -> random.Random:
        return random.Random(self.chance.getrandbits(64))

    # ── Processes ───────────────────────────────────────────────────────────────────────────────

    def start(self, name: str) -> None:
        """Start a node, unless it runs."""
        old = self.processes.get(name)
        if old is not None and not (old.link.dead or old.ended.is_set()):
            return
        latency = self.chance.choice((0.002, 0.02))
        link = StoreLink(self._chance(), latency, self.carriers, self.bug.answers_early)
        process = Process(self, name, f"{name}{next(self._boots)}", link)
        self.processes[name] = self.network.listeners[name] = process
        self.trace.note(process.boot, "is started")
        process.group.start_soon(self.carriers, process.run, name=process.boot)

    def owners(self) -> set[str]:
        """Return the starts that have claimed the workspaces last."""
        return {self.database.owner(number) for number in self.database.workspaces}

    def _claimed(self, boot: str) -> None:
        """Check that no other node believes it owns what was just claimed, unless it cannot know."""
        self.counts["claims"] += 1
        now = trio.current_time()
        for other in self.processes.values():
            if other.boot == boot or other.node is None or other.group.suspended:
                continue
            scopes = [held.scope for held in other.node._held.values()]
            if any(scope.deadline > now and not scope.cancel_called for scope in scopes):
                self.database.found(f"{boot} has claimed what {other.boot} still runs")

    async def supervise(self) -> None:
        """Start processes again that have exited because of the store. Ends with the simulation."""
        while True:
            await trio.sleep(1.0)
            for name, process in list(self.processes.items()):
                if process.ended.is_set():
                    self.start(name)

    # ── Playing ─────────────────────────────────────────────────────────────────────────────────

    async def play(self) -> None:
        """Start everything, have faults happen while clients work, heal, and check."""
        for name in self.names:
            self.start(name)
        async with trio.open_nursery() as background:
            background.start_soon(self.supervise)
            work = self.workload
            await work.begin(readers=2, submitters=2)
            async with trio.open_nursery() as wandering:
                wandering.start_soon(work.wander)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trouble, self, self._chance())
                    for reader in work.readers:
                        background.start_soon(reader.run)
                    for reader in work.readers:
                        await reader.attached.wait()  # what ended before is not told to it
                    for submitter in work.submitters:
                        nursery.start_soon(work.submit, submitter, self.chance.randint(1, 4))
                wandering.cancel_scope.cancel()
            self._heal()
            await work.say(work.submitters[0], 99, 2, 10)
            await work.settle()
            await trio.sleep(HEARTBEAT)  # a resync may follow the endings
            await check_promises(self)
            background.cancel_scope.cancel()
        for process in self.processes.values():
            process.stop()
        for process in self.processes.values():
            await process.ended.wait()
        await trio.sleep(GRACE)
        self._raise_broken()
        self.counts["simulations"] += 1

    def _heal(self) -> None:
        self.trace.note("", "everything works again")
        self.network.slow = 0.0
        for name in self.names:
            self.processes[name].resume()
            self.start(name)

    def _raise_broken(self) -> None:
        if self.database.broken:
            raise Violation(self.database.broken[0])


def play(seed: int, bug: str = "") -> Played:
    """Play one seed; return what happened."""
    worlds: list[World] = []

    async def main() -> None:
        async with trio.open_nursery() as carriers:
            world = World(seed, BUGS[bug], carriers)
            worlds.append(world)
            with trio.fail_after(LONGEST):
                await world.play()
            carriers.cancel_scope.cancel()

    broken = ""
    logging.disable(logging.CRITICAL)
    try:
        with seeded(seed), BUGS[bug].planted():
            trio.run(main, clock=virtual_clock())
    except* Exception as group:  # noqa: BLE001 - whatever it is, the seed has found it
        broken = "; ".join(f"{type(each).__name__}: {each}" for each in _leaves(group))
    finally:
        logging.disable(logging.NOTSET)
    [world] = worlds
    if world.database.broken:
        broken = "; ".join((*world.database.broken[:3], broken))
    return Played(seed, broken, world.trace.text(), world.counts)


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    found: list[Exception] = []
    for each in group.exceptions:
        found += _leaves(each) if isinstance(each, BaseExceptionGroup) else [each]
    return found
