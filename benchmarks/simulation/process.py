"""`Process`: one start of a node, the real server except for its sockets, its store and its model.

It ends in one of two ways. `stop` is SIGTERM: it drains, closes its workspaces and leaves the cluster. `crash` is
SIGKILL. In one Python process the tasks of a crashed node still have to end, and their clean-up code runs. So a crash
first cuts everything by which a process has an effect on others: its way to the store, its connections, its model.
What its tasks do after that reaches nobody. `suspend` and `resume` are SIGSTOP and SIGCONT.
"""

import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Never
from uuid import NAMESPACE_URL, uuid5

import trio
from attrs import define, field
from typing_extensions import override

from benchmarks.chaos.cluster import TOKEN
from benchmarks.driver.provider import parse_prompt, tokens
from benchmarks.simulation.link import StoreLink
from benchmarks.simulation.network import Route
from crush_trio.backend.backend import open_backend
from crush_trio.backend.cluster.node import Node, open_node
from crush_trio.backend.open import open_hosted_workspace
from crush_trio.backend.settings import BackendSettings, WorkspaceKey, WorkspaceSettings
from crush_trio.backend.workspace import keeps_open, note_people
from crush_trio.clock import CountingIds, TrioClock
from crush_trio.limits import Limits
from crush_trio.net.client import Request
from crush_trio.net.errors import ConnectFailed
from crush_trio.runtime.run import Run
from crush_trio.server.app import create_app
from crush_trio.server.cluster.forwarding import Forwarding
from crush_trio.server.cluster.peers import Peers
from crush_trio.server.hosting.host import begin_drain, drain_runs, end_streams_late
from crush_trio.server.server import Meters, Server, metered
from crush_trio.server.settings import GuardSettings
from crush_trio.store.errors import StoreUnavailable
from crush_trio.store.memory.nodes import MemoryNodes
from crush_trio.store.shared import NodeCard
from crush_trio.testing.explore.schedule import Suspendable
from crush_trio.testing.server.asgi import AsgiDriver, Exchange
from crush_trio.testing.server.config import no_commands, open_fixed_config
from crush_trio.testing.server.server import WrittenTurns
from crush_trio.testing.server.turns import Do, Say, Script, Sleep

if TYPE_CHECKING:
    from benchmarks.simulation.world import World

GRACE: Final = 5.0
HEARTBEAT: Final = 1.0


@define(eq=False)
class Process:
    """One start of the node *name*."""

    world: "World" = field(repr=False)
    name: str
    boot: str
    link: StoreLink = field(repr=False)
    group: Suspendable = field(factory=Suspendable, init=False, repr=False)
    node: Node | None = field(default=None, init=False, repr=False)
    ended: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _driver: AsgiDriver | None = field(default=None, init=False, repr=False)
    _life: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    _crashed: bool = field(default=False, init=False)
    _stop: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _drain: float = field(default=0.0, init=False)

    @property
    def listens(self) -> bool:
        """Whether it answers requests, now or when it is resumed."""
        return self._driver is not None and not self.link.dead

    # ── Ending ──────────────────────────────────────────────────────────────────────────────────

    def crash(self, *, silent: bool) -> None:
        """End at once; with a *silent* end its machine is gone, and no connection is closed."""
        self.world.trace.note(self.boot, "crashes, silently" if silent else "crashes")
        self._crashed = True
        self.link.crash()
        self.world.network.cut(self.name, silent=silent)
        self._driver = None
        if self.group.suspended:
            self.group.resume()
        self._life.cancel()

    def stop(self, drain: float = 0.0) -> None:
        """End in order, after so many seconds for runs to end by themselves."""
        self.world.trace.note(self.boot, f"is stopped, drains for {drain:.1f} s")
        self._drain = drain
        self._stop.set()

    def suspend(self) -> None:
        """Have nothing of it run."""
        self.world.trace.note(self.boot, "is suspended")
        self.group.suspend()

    def resume(self) -> None:
        """Let it go on."""
        if self.group.suspended:
            self.world.trace.note(self.boot, "is resumed")
            self.group.resume()

    # ── Living ──────────────────────────────────────────────────────────────────────────────────

    def accept(self, request: Request) -> Exchange:
        """Take a request, as the kernel does: also while the process is suspended."""
        driver = self._driver
        if driver is None or self.link.dead:
            raise ConnectFailed(reason="refused")
        assert isinstance(request.body, bytes)
        headers = [(name, value) for name, value in request.headers.items() if name != "host"]
        return self.group.run(
            lambda: driver.open(request.method, request.target, request.body, headers=headers)
        )

    async def run(self) -> None:
        """Live, until it is stopped or crashes. Raises what a real one would exit with, unless it crashed."""
        try:
            with self._life:
                await self._live()
        except Exception as error:
            if not self._crashed and not _expected(error):
                raise
            self.world.trace.note(self.boot, f"has exited: {type(error).__name__}")
        finally:
            self.link.crash()
            self._driver = self.node = None
            self.ended.set()

    async def _live(self) -> None:
        world = self.world
        shared = MemoryNodes(
            self._card(), world.ttl, world.database, CountingIds(f"{self.boot}.boot"), self.link
        )
        async with trio.open_nursery() as own:
            own.start_soon(self.link.keep_writing)
            async with (
                open_node(shared, clock=TrioClock()) as node,
                trio.open_nursery() as requests,
            ):
                self.node = node
                async with self._open_server(node) as server:
                    self._driver = AsgiDriver(
                        create_app(server, GuardSettings(token=TOKEN)), requests
                    )
                    world.trace.note(self.boot, "answers")
                    await self._stop.wait()
                    if self._drain:
                        await drain_runs(server, self._drain, trio.Event())
                    closing = begin_drain(server)
                    requests.start_soon(end_streams_late, server, closing, GRACE)
                server.drain.end_streams()
                self._driver = None
                requests.cancel_scope.cancel()
            own.cancel_scope.cancel()
        world.trace.note(self.boot, "has ended")

    @asynccontextmanager
    async def _open_server(self, node: Node) -> AsyncIterator[Server]:
        """Open what `server.hosting` opens, with this process's own ids."""
        meters, ids = Meters(), CountingIds(f"{self.boot}.id")
        backends: list[Any] = []
        opened = node.leased(
            partial(open_hosted_workspace, settings=self._settings(ids)),
            wanted=lambda: any(backend.shutting_down for backend in backends),
        )
        async with open_backend(
            metered(opened, meters),
            settings=BackendSettings(idle_linger=float("inf")),
            version="simulated",
            resolve=_key,
            keeps_open=keeps_open,
            note_people=note_people,
            clock=TrioClock(),
            site=self._card().site,
        ) as backend:
            backends.append(backend)
            server = Server(backend, heartbeat=HEARTBEAT, meters=meters)
            server.card = node.card
            peers = Peers(node, Route(self.world.network, self.name), TOKEN)
            server.absent = server.cluster = Forwarding(peers, backend, ids=_Visitors(self.boot))
            yield server

    def _settings(self, ids: CountingIds) -> WorkspaceSettings:
        return WorkspaceSettings(
            make_turn=WrittenTurns(_Scripts(self)),
            open_config=open_fixed_config,
            opens=no_commands,
            open_store=_never,
            clock=TrioClock(),
            ids=ids,
            limits=Limits(courtesy=2),
        )

    def _card(self) -> NodeCard:
        return NodeCard(
            id=f"tcp://{self.name}:1",
            boot=self.boot,
            address=f"tcp://{self.name}:1",
            site="here",
            host=self.name,
            pid=1,
            version="simulated",
            started_at=0,
        )


@define(eq=False)
class _Visitors(CountingIds):
    """Ids of clients, which have to be UUIDs."""

    @override
    def new(self) -> str:
        """Return the next one."""
        return str(uuid5(NAMESPACE_URL, super().new()))


@define(eq=False)
class _Scripts(dict[str, Script]):
    """What the model answers to each prompt, and that it was asked."""

    process: Process

    @override
    def get(self, prompt: str, _default: Script) -> Script:  # type: ignore[override]
        wanted = parse_prompt(prompt)
        steps: list[Any] = [Do(partial(self._asked, wanted.tag))]
        for word in tokens(wanted.count):
            steps += [Sleep(wanted.pause), Do(partial(self._speaks, wanted.tag)), Say(word)]
        return steps

    async def _asked(self, tag: str, _run: Run) -> None:
        await self._reach()
        self.process.world.model.asked(tag, self.process.boot)

    async def _speaks(self, tag: str, _run: Run) -> None:
        await self._reach()
        self.process.world.model.speaks(tag, self.process.boot)

    async def _reach(self) -> None:
        """Reach the model, which a crashed process does not."""
        await trio.lowlevel.checkpoint()
        if self.process.link.dead:
            await trio.sleep_forever()


async def _key(path: str) -> WorkspaceKey:
    await trio.lowlevel.checkpoint()
    return WorkspaceKey(posixpath.normpath(path))


def _never(*_: object) -> Never:
    raise AssertionError("a node opens the stores of the cluster only")


def _expected(error: Exception) -> bool:
    """Whether a real server would exit with this error, and be started again."""
    if isinstance(error, ExceptionGroup):
        return all(map(_expected, error.exceptions))
    return isinstance(error, StoreUnavailable)
