"""`ServerTask`: one start of a language server, from its program to its end. `LspSession`: while ready.

A `ServerTask` runs in the nursery of the workspace. It starts the program, initialises the protocol, and
stays until the server ends or is stopped. The process, the connection and the diagnostics end with it.
A failure is passed to the owner as text and raises no error.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from math import inf
from pathlib import Path
from typing import Final, Protocol

import trio
from attrs import define, field

from crush_trio.clock import Clock
from crush_trio.integrations.lsp.connection import (
    ConnectionLost,
    LspFailure,
    RpcConnection,
    RpcTransport,
)
from crush_trio.integrations.lsp.documents import (
    ClientPeer,
    Documents,
    encoding_of,
    initialize_params,
    sync_of,
)
from crush_trio.integrations.lsp.known_servers import ServerSpec
from crush_trio.integrations.lsp.positions import Encoding
from crush_trio.nursery import open_hidden_nursery
from crush_trio.tools.shell.process import Command
from crush_trio.wire.config import LspServerConfig
from crush_trio.wire.events import LspEvent, LspEventType
from crush_trio.wire.fields import Json, JsonObject

log = logging.getLogger(__name__)

START_LIMIT: Final = 30.0
"""Default seconds for a server to get ready (I.4)."""

REQUEST_LIMIT: Final = 5.0
LONG_REQUEST_LIMIT: Final = 10.0
"""Seconds for an answer, and for an answer to a rename or call hierarchy request (I.4)."""

SHUTDOWN_WAIT: Final = 1.0
"""Seconds for a server to shut down before its processes are stopped."""

EVENT_PAUSE: Final = 0.1
"""Seconds between two events about the number of diagnostics."""


class ServerUnavailable(LspFailure):
    """A server is not running and cannot be started now."""


class RunningProgram(Protocol):
    """A running server program."""

    @property
    def transport(self) -> RpcTransport:
        """Its standard input and output."""
        ...

    def last_error(self) -> str:
        """Return the last error line it wrote; complete when its block has been left."""
        ...


OpenProgram = Callable[[Command], AbstractAsyncContextManager[RunningProgram]]
"""Opens a server program; leaving the block stops it. Raises `OSError` if it cannot be started."""


class ServerHost(Protocol):
    """The workspace that a server belongs to."""

    @property
    def directory(self) -> Path:
        """The directory of the workspace."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock."""
        ...

    @property
    def tasks(self) -> trio.Nursery:
        """The nursery of the server tasks."""
        ...

    @property
    def open_program(self) -> OpenProgram:
        """Opens their programs."""
        ...

    async def prepare(self, spec: ServerSpec) -> tuple[Command, LspServerConfig]:
        """Return the command of a server and its resolved config; raises `ServerUnavailable`."""
        ...

    def publish(self, event: LspEvent) -> None:
        """Publish an event to the clients."""
        ...

    def redacted(self, text: str) -> str:
        """Return a text without secrets."""
        ...

    def log_message(self, name: str, text: str) -> None:
        """Log a server's message for people."""
        ...


class ServerOwner(Protocol):
    """The server that a task belongs to."""

    @property
    def spec(self) -> ServerSpec:
        """The configuration of the server."""
        ...

    @property
    def host(self) -> ServerHost:
        """The workspace of the server."""
        ...

    def ready(self, life: "ServerTask") -> None:
        """Record that a start succeeded."""
        ...

    def ended(self, life: "ServerTask", failure: str) -> None:
        """Record that a task has ended, and why; an empty failure means that it was stopped."""
        ...

    def publish(self, what: LspEventType) -> None:
        """Publish an event about the server."""
        ...


# ── A life ───────────────────────────────────────────────────────────────────────────────────


@define(eq=False, kw_only=True)
class LspSession:
    """A server that is ready: its connection, documents and capabilities."""

    name: str
    connection: RpcConnection = field(repr=False)
    documents: Documents = field(repr=False)
    capabilities: JsonObject = field(repr=False)
    encoding: Encoding

    def can(self, capability: str) -> bool:
        """Whether the server has a capability, such as `renameProvider`."""
        offered = self.capabilities.get(capability)
        return offered is not None and offered is not False

    async def request(self, method: str, params: Json, *, limit: float = REQUEST_LIMIT) -> Json:
        """Send a request and return its answer; raises `LspFailure`."""
        return await self.connection.request(method, params, limit=limit)


@define(eq=False)
class ServerTask:
    """One start of a server, up to its end. `leave` ends it early, with a shutdown if it is ready."""

    _owner: ServerOwner = field(repr=False)
    session: LspSession | None = field(default=None, init=False)
    decided: trio.Event = field(factory=trio.Event, init=False, repr=False)
    """Set when the server is ready or has failed to start."""
    ended: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _leaving: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _start: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)

    def leave(self) -> None:
        """Ask the task to end."""
        self._leaving.set()
        if self.session is None:
            self._start.cancel()

    async def run(self) -> None:  # noqa: ASYNC910  # the barrier is around the checkpoints too
        """Start the server and stay until it ends. A failure becomes the server's state."""
        failure = ""
        try:
            failure = await self._live()
        except LspFailure as error:
            failure = str(error)
        except OSError as error:
            failure = f"it could not be started: {error.strerror or error}"
        except Exception as error:  # barrier: one bad server must not cancel its workspace
            log.exception("lsp.failed", extra={"server": self._owner.spec.name})
            failure = f"it failed: {type(error).__name__}"
        finally:
            self.session = None
            self._owner.ended(self, failure)
            self.decided.set()
            self.ended.set()

    async def _live(self) -> str:
        """Run the server; return why it ended, empty if it was stopped."""
        host, spec = self._owner.host, self._owner.spec
        limit = spec.config.timeout or START_LIMIT
        self._start.deadline = trio.current_time() + limit
        program: RunningProgram | None = None
        lost = ""
        with self._start:
            command, config = await host.prepare(spec)
            answers = ClientPeer(host.directory, config, partial(host.log_message, spec.name))
            async with host.open_program(command) as program:
                try:
                    lost = await self._talk(program, answers)
                except ConnectionLost as error:
                    lost = str(error)
        if self._start.cancelled_caught:
            return "" if self._leaving.is_set() else f"it was not ready within {limit:g} seconds"
        if not lost or program is None:
            return ""
        return ": ".join(filter(None, [lost, program.last_error()]))

    async def _talk(self, program: RunningProgram, answers: ClientPeer) -> str:
        """Use a server that was just started; return why it ended, empty if it was stopped."""
        connection = RpcConnection(program.transport, answers)
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(self._converse, connection)
            session = await initialize(self._owner.spec.name, connection, answers)
            self._start.deadline = inf
            self._ready(session)
            nursery.start_soon(self._publish_counts, session)
            await self._leaving.wait()
            lost = connection.lost
            self.session = None
            await _shut_down(connection)
            nursery.cancel_scope.cancel()
        return lost

    async def _converse(self, connection: RpcConnection) -> None:
        """Run the connection; when it ends, the task ends too."""
        await connection.run()
        self._leaving.set()

    def _ready(self, session: LspSession) -> None:
        self.session = session
        self._owner.ready(self)
        self.decided.set()

    async def _publish_counts(self, session: LspSession) -> None:
        """Publish the number of diagnostics when it changes, at most every EVENT_PAUSE seconds."""
        documents, published, heard = session.documents, 0, 0
        while True:
            await documents.wait_for_update(heard)
            heard = documents.updates
            if documents.count != published:
                published = documents.count
                self._owner.publish(LspEventType.DIAGNOSTICS_CHANGED)
            await trio.sleep(EVENT_PAUSE)


async def initialize(name: str, connection: RpcConnection, answers: ClientPeer) -> LspSession:
    """Initialise the protocol with a server that was just started; the caller sets the time limit."""
    params = initialize_params(answers.directory, answers.config)
    answer = await connection.request("initialize", params, limit=inf)
    given = answer.get("capabilities") if isinstance(answer, dict) else None
    capabilities: JsonObject = given if isinstance(given, dict) else {}
    syncs, saves = sync_of(capabilities)
    documents = Documents(connection.notify, syncs, saves)
    answers.documents = documents
    connection.notify("initialized", {})
    if answers.config.options:
        settings = {"settings": answers.config.options}
        connection.notify("workspace/didChangeConfiguration", settings)
    return LspSession(
        name=name,
        connection=connection,
        documents=documents,
        capabilities=capabilities,
        encoding=encoding_of(capabilities),
    )


async def _shut_down(connection: RpcConnection) -> None:
    """Ask a server to shut down, and wait shortly for its end."""
    await trio.lowlevel.checkpoint()
    if connection.lost:
        return
    with trio.move_on_after(SHUTDOWN_WAIT):
        try:
            await connection.request("shutdown", limit=SHUTDOWN_WAIT)
        except LspFailure:
            return
        connection.notify("exit")
        await connection.ended.wait()
