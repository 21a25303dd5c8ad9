"""What goes wrong in a simulation: which faults, when and for how long, all drawn from its seed."""

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from benchmarks.simulation.process import Process
    from benchmarks.simulation.world import World

Fault = Callable[["World", random.Random], Awaitable[None]]


def _victim(world: "World", chance: random.Random) -> "Process | None":
    """Return a process that lives, mostly the one that has the workspace."""
    living = [each for each in world.processes.values() if each.listens]
    owners = [each for each in living if each.boot in world.owners()]
    if owners and chance.random() < 0.7:
        return chance.choice(owners)
    return chance.choice(living) if living else None


async def crash(world: "World", chance: random.Random) -> None:
    """SIGKILL, or a machine that is gone; started again after a while."""
    if (process := _victim(world, chance)) is not None:
        process.crash(silent=chance.random() < 0.4)
        await trio.sleep(chance.choice((0.0, 0.1, 0.5, 1.5)) * world.ttl)
        world.start(process.name)


async def suspend(world: "World", chance: random.Random) -> None:
    """SIGSTOP, mostly past the lease, then SIGCONT; or SIGKILL instead."""
    if (process := _victim(world, chance)) is not None:
        process.suspend()
        await trio.sleep(chance.uniform(0.2, 2.0) * world.ttl)
        if chance.random() < 0.2:
            process.crash(silent=False)
            world.start(process.name)
        process.resume()


async def lose_store(world: "World", chance: random.Random) -> None:
    """The connections of one process to the store break, and the store is away for it."""
    if (process := _victim(world, chance)) is not None:
        seconds = chance.choice((0.0, 0.05, 0.3, 0.9, 1.3)) * world.ttl
        world.trace.note(process.boot, f"loses the store for {seconds:.2f} s")
        process.link.away = seconds > 0
        process.link.cut()
        await trio.sleep(seconds)
        process.link.away = False


async def slow_store(world: "World", chance: random.Random) -> None:
    """Requests of one process to the store take long, or the answers; then the store may be away for it."""
    if (process := _victim(world, chance)) is not None:
        link, share = process.link, chance.uniform(0.1, 0.7)
        usual = link.latency
        if chance.random() < 0.5:
            world.trace.note(process.boot, f"reaches the store slowly: {share:.2f} of a lease")
            link.latency = share * world.ttl
        else:
            world.trace.note(process.boot, f"has late answers of the store: {share:.2f} of a lease")
            link.late = share * world.ttl
        await trio.sleep(chance.uniform(0.5, 2.0) * world.ttl)
        if chance.random() < 0.5:
            world.trace.note(process.boot, "reaches it no more")
            link.away = True
            await trio.sleep(1.5 * world.ttl)
            link.away = False
        link.latency, link.late = usual, 0.0


async def restart_store(world: "World", chance: random.Random) -> None:
    """The store is away for all."""
    seconds = chance.uniform(0.1, 1.5) * world.ttl
    world.trace.note("store", f"is away for {seconds:.2f} s")
    links = [process.link for process in world.processes.values()]
    for link in links:
        link.away = True
        link.cut()
    await trio.sleep(seconds)
    for link in links:
        link.away = False


async def part(world: "World", chance: random.Random) -> None:
    """Two nodes do not reach each other; clients and the store reach both."""
    pair = chance.sample(sorted(world.names), 2)
    silent = chance.random() < 0.5
    world.trace.note("network", f"{' and '.join(pair)} are apart")
    world.network.apart.add(frozenset(pair))
    world.network.cut(*pair, silent=silent)
    await trio.sleep(chance.uniform(0.1, 1.5) * world.ttl)
    world.network.apart.discard(frozenset(pair))


async def drain(world: "World", chance: random.Random) -> None:
    """SIGTERM under load, and a new start."""
    if (process := _victim(world, chance)) is not None:
        process.stop(drain=chance.choice((0.0, 0.5, 2.0)))
        if chance.random() < 0.3:
            await trio.sleep(chance.uniform(0, 1))
            if not process.ended.is_set():
                process.crash(silent=False)
        await process.ended.wait()
        world.start(process.name)


async def cut_streams(world: "World", chance: random.Random) -> None:
    """All connections of one node break."""
    name = chance.choice(sorted(world.names))
    world.trace.note("network", f"all connections of {name} break")
    world.network.cut(name, silent=False)
    await trio.lowlevel.checkpoint()


async def claim(world: "World", chance: random.Random) -> None:
    """The owner is gone, and all other nodes are asked at the same moment."""
    owners = [each for each in world.processes.values() if each.boot in world.owners()]
    for process in owners:
        process.crash(silent=False)
        world.start(process.name)
    for _ in range(3):
        for reader in world.workload.readers:
            reader.reconnect()
        await trio.sleep(world.ttl * chance.uniform(0.3, 0.5))


FAULTS: Final[Mapping[str, Fault]] = {
    "crash": crash,
    "suspend": suspend,
    "lose store": lose_store,
    "slow store": slow_store,
    "restart store": restart_store,
    "apart": part,
    "drain": drain,
    "cut streams": cut_streams,
    "claim": claim,
}


async def trouble(world: "World", chance: random.Random) -> None:
    """Have one to four faults happen, some of them at the same time."""
    async with trio.open_nursery() as nursery:
        for _ in range(chance.randint(1, 4)):
            await trio.sleep(chance.uniform(0, 2.0))
            name = chance.choice(sorted(FAULTS))
            world.counts[f"fault: {name}"] += 1
            nursery.start_soon(FAULTS[name], world, chance)
