"""The cluster under test: PostgreSQL, a proxy for each node, three nodes, and the model that all ask.

Made once for a scenario; its rounds share it. Everything is on the loopback interface.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import orjson
import trio
from attrs import define, field
from typing_extensions import override

from benchmarks.chaos.nodes import SITE, Node
from benchmarks.chaos.promises import FENCE_QUERIES, INSTALL, Rows, check_fence, queries, rows_of
from benchmarks.driver.postgres import PostgresServer
from benchmarks.driver.provider import Provider, parse_prompt, spoken_text
from benchmarks.driver.targets import write_config
from benchmarks.driver.tcp_proxy import Proxy, open_proxy
from crush_trio.store.postgres.connection import connect
from crush_trio.store.postgres.migrations import known_migrations, migrate
from crush_trio.store.postgres.place import Place
from crush_trio.wire.fields import Json

NODES: Final = 3
TOKEN: Final = "the-token-of-the-chaos-cluster-0123456789"
OPTIONS: Final = ("track_commit_timestamp=on",)
LARGE: Final = "large"


@define(eq=False)
class Model(Provider):
    """The scripted model; it counts how often each prompt was asked."""

    asks: Counter[str] = field(factory=Counter, init=False)
    """By the tag of the last prompt, without requests for titles."""

    @override
    async def _answer(self, stream: trio.SocketStream, body: Json) -> None:
        said = [m for m in body.get("messages", ()) if m.get("role") == "user"]
        tag = parse_prompt(spoken_text(said[-1].get("content"))).tag if said else ""
        if body.get("model") == LARGE and tag:
            self.asks[tag] += 1
        await super()._answer(stream, body)


@asynccontextmanager
async def open_model() -> AsyncIterator[Model]:
    """Listen on any free port during the block."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        model = Model(listeners[0].socket.getsockname()[1])
        await nursery.start(trio.serve_listeners, model.serve, listeners)
        try:
            yield model
        finally:
            nursery.cancel_scope.cancel()


@define(eq=False)
class Cluster:
    """Nodes, and what they share. Made by `open_cluster`."""

    folder: Path
    model: Model
    primary: PostgresServer
    """The server that nodes write to; another one after a failover."""
    proxies: list[Proxy]
    """The way to the database of each node; none if it has a standby."""
    nodes: list[Node]
    standby: PostgresServer | None = field(default=None, init=False)
    _numbers: "count[int]" = field(factory=lambda: count(1), init=False)

    def workspace(self) -> Path:
        """Return a new directory whose workspace asks the scripted model."""
        made = self.folder / "work" / f"{next(self._numbers)}"
        made.mkdir(parents=True)
        write_config(made, self.model.base_url)
        return made

    def by_start(self, name: str) -> Node:
        """Return the node of a start."""
        return self.nodes[int(name.removeprefix("node-").partition(".")[0]) - 1]

    # ── The database ────────────────────────────────────────────────────────────────────────────

    async def ask(self, query: str) -> Any:  # noqa: ANN401
        """Return the rows of a query, asked as a person would."""
        return await trio.to_thread.run_sync(self.primary.ask, query)

    async def rows(self, path: Path) -> Rows:
        """Return what is stored of the workspace of a directory."""
        runs, texts, claims = [await self.ask(query) for query in queries(str(path))]
        return rows_of(runs, texts, claims)

    async def check_fence(self) -> None:
        """Raise `Violation` for any write under an old epoch, and for endings that came twice."""
        stale, twice = [await self.ask(query) for query in FENCE_QUERIES]
        check_fence(stale, twice)

    async def owner(self, path: Path) -> Node | None:
        """Return the node that holds the lease of a workspace now; None if none does."""
        found = await self.ask(
            "SELECT address FROM nodes JOIN leases ON nodes.boot = node_id JOIN workspaces AS w"
            f" ON w.number = workspace WHERE path = '{path}' AND leases.expires_at > clock_timestamp()"
        )
        return next((node for node in self.nodes if found and node.address == found[0][0]), None)

    async def epoch(self, path: Path) -> int:
        """Return the epoch of a workspace; 0 for one that is unknown."""
        found = await self.ask(
            f"SELECT epoch FROM leases JOIN workspaces ON number = workspace WHERE path = '{path}'"
        )
        return int(found[0][0]) if found else 0


def _trust(home: Path, trusted: Path) -> None:
    """Have the configurations below *trusted* count for a server whose home is *home*."""
    file = home / ".config" / "crush" / "crush.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(orjson.dumps({"crush_trio": {"trusted_directories": [str(trusted)]}}))


@asynccontextmanager
async def open_cluster(folder: Path, *, failover: bool = False) -> AsyncIterator[Cluster]:
    """Start everything; leaving the block ends it all. With *failover*, there are no proxies."""
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(open_model())
        primary = await trio.to_thread.run_sync(partial(PostgresServer, *OPTIONS))
        cluster = Cluster(folder, model, primary, [], [])
        stack.push_async_callback(_remove, cluster)
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        stack.push_async_callback(_end, cluster)
        for number in range(1, NODES + 1):
            if failover:
                url = primary.url
            else:
                proxy = stack.enter_context(open_proxy(primary.port))
                cluster.proxies.append(proxy)
                url = primary.url.replace(f":{primary.port}/", f":{proxy.port}/")
            home = folder / f"node-{number}"
            home.mkdir()
            _trust(home, folder / "work")
            cluster.nodes.append(Node(number, home, url, TOKEN, nursery))
        if failover:
            await add_standby(cluster)
        await trio.to_thread.run_sync(_prepare, primary)
        async with trio.open_nursery() as starting:
            for node in cluster.nodes:
                starting.start_soon(node.start)
        yield cluster


def _prepare(server: PostgresServer) -> None:
    """Make the schema of the program and the triggers of the test; called in a thread."""
    place = Place.of(server.url)
    with connect(place) as connection:
        migrate(connection, place, known_migrations())
    server.ask(INSTALL)


async def add_standby(cluster: Cluster) -> None:
    """Make a standby of the primary; nodes know both from their first start on."""
    port = cluster.standby.port if cluster.standby is not None else None
    made = partial(PostgresServer, *OPTIONS, source=cluster.primary, port=port)
    if cluster.standby is not None:
        await trio.to_thread.run_sync(cluster.standby.remove)
        cluster.standby = None
    cluster.standby = await trio.to_thread.run_sync(made)
    await trio.to_thread.run_sync(cluster.primary.await_standby)
    both = f"127.0.0.1:{cluster.primary.port},127.0.0.1:{cluster.standby.port}"
    for node in cluster.nodes:
        if not node.starts:
            user = cluster.primary.url.rpartition("@")[0]
            node.store_url = f"{user}@{both}/postgres?target_session_attrs=read-write"


async def _end(cluster: Cluster) -> None:
    with trio.CancelScope(shield=True):
        for node in cluster.nodes:
            if node.starts:
                await node.kill()


async def _remove(cluster: Cluster) -> None:
    with trio.CancelScope(shield=True):
        for server in filter(None, (cluster.primary, cluster.standby)):
            with suppress(OSError):
                await trio.to_thread.run_sync(server.remove)


__all__ = [
    "NODES",
    "SITE",
    "TOKEN",
    "Cluster",
    "Model",
    "add_standby",
    "open_cluster",
    "open_model",
]
