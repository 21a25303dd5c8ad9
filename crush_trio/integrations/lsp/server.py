"""`LanguageServer`: the state of one server, its start and stop. `ServerTask`: one start, up to its end.

A server is started on demand and then belongs to the workspace, not to the run or request that needed
it, which may be cancelled (T13). Users set their own time limit for waiting. A failure, at the start or
later, is a state of the server and never the error of a run; it is not started again for a while.

A `ServerTask` runs in the nursery of the workspace. It starts the program, initialises the protocol, and
stays until the server ends or is stopped. The process, the connection and the diagnostics end with it. A
server that is stopped and restarted has two tasks for a moment. Only the newest one may change the state.
"""

import logging
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
    OpenProgram,
    RpcConnection,
    RunningProgram,
)
from crush_trio.integrations.lsp.documents import MAX_OPEN, refresh_documents
from crush_trio.integrations.lsp.known_servers import ServerSpec
from crush_trio.integrations.lsp.protocol import uri_of
from crush_trio.integrations.lsp.session import (
    ClientPeer,
    LspSession,
    ServerUnavailable,
    initialize,
    pace_of,
    shut_down,
)
from crush_trio.nursery import open_hidden_nursery
from crush_trio.tools.shell.process import Command
from crush_trio.wire.config import LspServerConfig
from crush_trio.wire.fields import timestamp
from crush_trio.wire.integrations import LspClientInfo, LspEvent, LspEventType, LspState

log = logging.getLogger(__name__)

START_LIMIT: Final = 30.0
"""Default seconds for a server to get ready, in a small project (I.4)."""

EVENT_PAUSE: Final = 0.1
"""Seconds between two events about the number of diagnostics."""

RETRY_PAUSE: Final = 30.0
"""Seconds before a failed server is started again (I.4)."""


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

    async def count_files(self, spec: ServerSpec) -> int:
        """Return how many files of the project a server handles; at most MOST_FILES."""
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


@define(eq=False)
class LanguageServer:
    """A language server of a workspace, running or not."""

    spec: ServerSpec
    host: ServerHost = field(repr=False)
    state: LspState = field(init=False)
    error: str = field(default="", init=False)
    _connected_at: int = field(default=0, init=False)
    _failed_at: float = field(default=-inf, init=False)
    _life: "ServerTask | None" = field(default=None, init=False, repr=False)
    _awaited: dict[str, None] = field(factory=dict, init=False, repr=False)
    """The files to show when it is ready, by URI."""

    def __attrs_post_init__(self) -> None:
        off = self.spec.config.disabled or bool(self.spec.refused)
        self.state = LspState.DISABLED if off else LspState.UNSTARTED
        self.error = self.spec.refused

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    @property
    def usable(self) -> bool:
        """Whether it may be started."""
        return self.state is not LspState.DISABLED

    @property
    def session(self) -> LspSession | None:
        """Its session, if it is ready."""
        return None if self._life is None else self._life.session

    def info(self) -> LspClientInfo:
        """Return its state for clients."""
        return LspClientInfo(
            name=self.name,
            state=self.state,
            error=self.error,
            diagnostic_count=self._count,
            connected_at=timestamp(self._connected_at),
        )

    @property
    def _count(self) -> int:
        return 0 if self.session is None else self.session.documents.count

    # ── Starting and stopping ───────────────────────────────────────────────────────────────────

    def ensure_started(self, *, asked: bool = False) -> None:
        """Start it unless it runs, is disabled, or failed a short time ago.

        A server that a client stopped is started only if a client *asked* for it.
        """
        soon = self.host.clock.monotonic() < self._failed_at + RETRY_PAUSE
        unwanted = self.state is LspState.STOPPED and not asked
        if self._life is None and self.usable and not soon and not unwanted:
            self._begin()

    def _begin(self) -> None:
        self._life = ServerTask(self)
        self._become(LspState.STARTING)
        self.host.tasks.start_soon(self._life.run, name=f"language server {self.name}")

    async def get_ready(self) -> LspSession:
        """Start it if needed, and return its session when it is ready; raises `ServerUnavailable`."""
        await trio.lowlevel.checkpoint()
        self.ensure_started()
        if self._life is not None:
            await self._life.decided.wait()
        if self.session is None:
            why = self.error or self.state.name.lower()
            raise ServerUnavailable(f"the language server {self.name} is not available: {why}")
        return self.session

    def show_when_ready(self, path: Path) -> None:
        """Show a file as soon as it is ready; its text is read then."""
        self._awaited[uri_of(path)] = None
        while len(self._awaited) > MAX_OPEN:
            del self._awaited[next(iter(self._awaited))]

    def take_awaited(self) -> tuple[str, ...]:
        """Return the URIs of the files to show now that it is ready."""
        awaited, self._awaited = tuple(self._awaited), {}
        return awaited

    def stop(self) -> "ServerTask | None":
        """Stop it; return the task that is ending, None if it did not run."""
        life, self._life = self._life, None
        if life is not None:
            life.leave()
            self._connected_at = 0
        if self.usable and self.state is not LspState.STOPPED:
            self._become(LspState.STOPPED)
        return life

    def close(self) -> None:
        """Stop and disable it."""
        self.stop()
        self.state = LspState.DISABLED

    async def restart(self) -> None:
        """Stop and start it, and wait until it is ready or has failed."""
        await trio.lowlevel.checkpoint()
        life = self.stop()
        if life is not None:
            await life.ended.wait()
        self._failed_at = -inf
        self.ensure_started(asked=True)
        if self._life is not None:
            await self._life.decided.wait()

    # ── For its task ────────────────────────────────────────────────────────────────────────────

    def ready(self, life: "ServerTask") -> None:
        """Record that a start succeeded."""
        if life is self._life:
            self._connected_at = self.host.clock.unix()
            self._become(LspState.READY)

    def ended(self, life: "ServerTask", failure: str) -> None:
        """Record that a task has ended, and why; an empty failure means that it was stopped."""
        if life is not self._life:
            return
        self._life, self._connected_at = None, 0
        if failure:
            self._failed_at = self.host.clock.monotonic()
        self._become(LspState.ERROR if failure else LspState.STOPPED, failure)

    def publish(self, what: LspEventType) -> None:
        """Publish an event about it."""
        self.host.publish(
            LspEvent(
                type=what,
                name=self.name,
                state=self.state,
                error=self.error,
                diagnostic_count=self._count,
            )
        )

    def _become(self, state: LspState, error: str = "") -> None:
        self.state, self.error = state, self.host.redacted(error)
        self.publish(LspEventType.STATE_CHANGED)


@define(eq=False)
class ServerTask:
    """One start of a server, up to its end. `leave` ends it early, with a shutdown if it is ready."""

    _owner: LanguageServer = field(repr=False)
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
        pace = pace_of(await host.count_files(spec))
        limit = spec.config.timeout or START_LIMIT * pace
        self._start.deadline = trio.current_time() + limit
        program: RunningProgram | None = None
        lost = ""
        with self._start:
            command, config = await host.prepare(spec)
            answers = ClientPeer(host.directory, config, partial(host.log_message, spec.name))
            async with host.open_program(command) as program:
                try:
                    lost = await self._talk(program, answers, pace)
                except ConnectionLost as error:
                    lost = str(error)
        if self._start.cancelled_caught:
            return "" if self._leaving.is_set() else f"it was not ready within {limit:g} seconds"
        if not lost or program is None:
            return ""
        return ": ".join(filter(None, [lost, program.last_error()]))

    async def _talk(self, program: RunningProgram, answers: ClientPeer, pace: float) -> str:
        """Use a server that was just started; return why it ended, empty if it was stopped."""
        connection = RpcConnection(program.transport, answers)
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(self._converse, connection)
            session = await initialize(self._owner.spec.name, connection, answers, pace)
            self._start.deadline = inf
            self._ready(session)
            nursery.start_soon(self._publish_counts, session)
            nursery.start_soon(session.keep_pulled)
            nursery.start_soon(refresh_documents, session.documents, self._owner.take_awaited())
            await self._leaving.wait()
            lost = connection.lost
            self.session = None
            await shut_down(connection)
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
