"""The faults, one for each scenario. Each is a function that lets one fault happen in the middle of a round."""

import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import trio
from attrs import define, field, frozen

from benchmarks.chaos.clients import ANSWER_LIMIT, Client, Reader, Round, Submitter
from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.nodes import TTL, Node
from benchmarks.soak.ledger import Violation

LOOK: Final = 0.05
"""Seconds between two looks at the database."""

TAKEOVER_LIMIT: Final = 15.0
"""Seconds in which another node takes over, on a busy machine."""

EXTRA: Final = 3
"""Directories that all nodes are asked to open at the same moment."""

_BUSY: Final = """
    SELECT application_name, state, wait_event, (clock_timestamp() - xact_start)::text, left(query, 60)
    FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()
"""


@define(eq=False)
class Scene:
    """A round, as its fault sees it."""

    cluster: Cluster
    round: Round
    path: Path
    submitters: list[Submitter]
    readers: list[Reader]
    nursery: trio.Nursery
    """The round waits for what is started here."""
    numbers: int = field(default=100, init=False)

    async def owner(self) -> Node:
        """Return the node that runs the workspace."""
        with trio.move_on_after(ANSWER_LIMIT):
            while True:
                owner = await self.cluster.owner(self.path)
                if owner is not None:
                    return owner
                await trio.sleep(LOOK)
        raise Violation(f"nobody has had the workspace for {ANSWER_LIMIT:g} s")

    async def later(self, upto: float) -> None:
        """Wait for a random time, drawn from the seed."""
        await trio.sleep(self.round.random.uniform(0, upto))

    async def taken_over(self, epoch: int) -> None:
        """Wait until another claim than *epoch* was made."""
        with trio.move_on_after(TAKEOVER_LIMIT):
            while await self.cluster.epoch(self.path) == epoch:  # noqa: ASYNC110 - of another program
                await trio.sleep(LOOK)
            return
        busy = await self.cluster.ask(_BUSY)
        raise Violation(
            f"the lease of epoch {epoch} was not claimed within {TAKEOVER_LIMIT:g} s; the database does {busy}"
        )

    async def burst(self, size: int) -> None:
        """Send prompts at once, one in each of so many requests."""
        async with trio.open_nursery() as nursery:
            for number in range(size):
                self.numbers += 1
                who = self.submitters[number % len(self.submitters)]
                nursery.start_soon(partial(who.say, self.numbers, words=3, pause=10))


Fault = Callable[[Scene], Awaitable[None]]


async def owner_killed(scene: Scene) -> None:
    """SIGKILL of the owner."""
    owner = await scene.owner()
    await scene.later(0.2)
    await owner.kill()
    scene.nursery.start_soon(owner.start)


async def owner_suspended(scene: Scene) -> None:
    """SIGSTOP of the owner past its lease, then SIGCONT."""
    owner, epoch = await scene.owner(), await scene.cluster.epoch(scene.path)
    await scene.later(0.2)
    owner.signal(signal.SIGSTOP)
    try:
        await scene.taken_over(epoch)
        await scene.later(0.3)
    finally:
        owner.signal(signal.SIGCONT)
    # It answers again, so it has had its chance to write.
    asked = Client(Round(scene.round.random, scene.round.http, "", [owner], scene.round.counts))
    await asked.tell("GET", "/v1/health", good=(200, 204))


async def database_cut(scene: Scene) -> None:
    """The owner's connection to the database cut in one of several ways, and restored."""
    chance, owner = scene.round.random, await scene.owner()
    proxy = scene.cluster.proxies[owner.number - 1]
    way = chance.choice(("cut", "reset", "hold", "hold", "before commit", "after commit"))
    scene.round.counts[f"database: {way}"] += 1
    if way.endswith("commit"):
        proxy.cut_at(b"COMMIT", when=way.partition(" ")[0])
        return
    await scene.later(0.1)
    {"cut": proxy.cut, "reset": proxy.reset, "hold": proxy.hold}[way]()
    await trio.sleep(chance.choice((0.3 * TTL, 1.2 * TTL, 2 * TTL)))
    proxy.mend()


async def database_restarted(scene: Scene) -> None:
    """The database restarted, in order or after a crash of its own."""
    server, crash = scene.cluster.primary, scene.round.random.random() < 0.5
    scene.round.counts["database: crashed" if crash else "database: restarted"] += 1
    await scene.later(0.2)
    await trio.to_thread.run_sync(server.kill if crash else server.stop)
    await trio.sleep(scene.round.random.choice((0.0, 0.5 * TTL, 1.5 * TTL)))
    await trio.to_thread.run_sync(server.start)


async def claimed_at_once(scene: Scene) -> None:
    """Directories that all nodes open at the same moment; then the owner killed, and both others asked at once."""
    cluster, shared = scene.cluster, scene.round
    for _ in range(EXTRA):
        await _open_everywhere(scene, cluster.workspace())
    owner, epoch = await scene.owner(), await cluster.epoch(scene.path)
    await owner.kill()
    others = [node for node in cluster.nodes if node is not owner]
    async with trio.open_nursery() as nursery:
        for node in others * 3:
            one = Client(Round(shared.random, shared.http, shared.path, [node], shared.counts))
            nursery.start_soon(one.tell, "GET", f"{shared.base}/sessions")
            nursery.start_soon(one.tell, "POST", "/v1/workspaces", one.opening)
        nursery.start_soon(scene.burst, 6)
    scene.nursery.start_soon(owner.start)
    claimed = await cluster.epoch(scene.path)
    if claimed != epoch + 1:
        raise Violation(f"one owner was killed, and the epoch went from {epoch} to {claimed}")


async def _open_everywhere(scene: Scene, path: Path) -> None:
    """Have all nodes open a directory at the same moment, and check that it is one workspace."""
    shared = scene.round
    rounds = [
        Round(shared.random, shared.http, str(path), [node], shared.counts)
        for node in scene.cluster.nodes
    ]
    clients = [Client(each) for each in rounds]
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(client.create)
    if len({each.id for each in rounds}) != 1:
        raise Violation(f"{path} has several ids: {[each.id for each in rounds]}")
    epoch = await scene.cluster.epoch(path)
    if epoch != 1:
        raise Violation(f"{path} was opened once, and its epoch is {epoch}")
    for client in clients:
        await client.leave()


async def owner_of_forwarded_killed(scene: Scene) -> None:
    """SIGKILL of the owner while all requests and streams come through other nodes."""
    owner = await scene.owner()
    others = [node for node in scene.cluster.nodes if node is not owner]
    scene.round.via = lambda: others
    for reader in scene.readers:
        if reader.through is owner:
            reader.reconnect()
    scene.round.counts["streams forwarded at the kill"] += sum(
        reader.through in others for reader in scene.readers
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.burst, 6)
        await scene.later(0.03)
        await owner.kill()
    scene.nursery.start_soon(owner.start)


async def owner_drained(scene: Scene) -> None:
    """SIGTERM of the owner under load; others take over at once."""
    owner, epoch = await scene.owner(), await scene.cluster.epoch(scene.path)
    await scene.later(0.2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.burst, 6)
        await owner.drain()
        began = trio.current_time()
        await scene.taken_over(epoch)
        if trio.current_time() - began < TTL / 2:
            scene.round.counts["taken over at once"] += 1
    scene.nursery.start_soon(owner.start)


async def primary_killed(scene: Scene) -> None:
    """The machine of the primary stops; its standby is promoted."""
    cluster = scene.cluster
    assert cluster.standby is not None
    await scene.later(0.2)
    await trio.to_thread.run_sync(cluster.primary.vanish)
    await trio.sleep(scene.round.random.choice((0.0, 0.3 * TTL, 1.5 * TTL)))
    await trio.to_thread.run_sync(cluster.standby.promote)
    cluster.primary, cluster.standby = cluster.standby, cluster.primary


@frozen
class Scenario:
    """A fault, and what its cluster needs."""

    fault: Fault
    failover: bool = False


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "kill": Scenario(owner_killed),
    "suspend": Scenario(owner_suspended),
    "cut": Scenario(database_cut),
    "restart": Scenario(database_restarted),
    "claim": Scenario(claimed_at_once),
    "forward": Scenario(owner_of_forwarded_killed),
    "drain": Scenario(owner_drained),
    "failover": Scenario(primary_killed, failover=True),
}
