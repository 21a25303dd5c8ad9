"""`LanguageServer`: the state of one server, its start and stop. Below it: finding and running programs.

A server is started on demand and then belongs to the workspace, not to the run or request that needed
it, which may be cancelled (T13). Users set their own time limit for waiting. A failure, at the start or
later, is a state of the server and never the error of a run; it is not started again for a while.

A server that is stopped and restarted has two `ServerTask`s for a moment. Only the newest one may change
the state.

A program is searched only in the absolute directories of PATH. A path relative to the project names a
file that came with the project, and is used only if the user trusts the project.
"""

import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from math import inf
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from crush_trio.clock import Clock
from crush_trio.integrations.lsp.known_servers import KNOWN, ServerSpec
from crush_trio.integrations.lsp.session import (
    LspSession,
    OpenProgram,
    ServerHost,
    ServerTask,
    ServerUnavailable,
)
from crush_trio.tools.search.ripgrep import find_program
from crush_trio.tools.shell.output import BoundedOutput
from crush_trio.tools.shell.process import Command, open_process_group
from crush_trio.wire.config import LspServerConfig
from crush_trio.wire.events import LspEvent, LspEventType
from crush_trio.wire.fields import timestamp
from crush_trio.wire.integrations import LspClientInfo, LspState

RETRY_PAUSE: Final = 30.0
"""Seconds before a failed server is started again (I.4)."""


@define(eq=False)
class LanguageServer:
    """A language server of a workspace, running or not."""

    spec: ServerSpec
    host: ServerHost = field(repr=False)
    state: LspState = field(init=False)
    error: str = field(default="", init=False)
    _connected_at: int = field(default=0, init=False)
    _failed_at: float = field(default=-inf, init=False)
    _life: ServerTask | None = field(default=None, init=False, repr=False)

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

    def stop(self) -> ServerTask | None:
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

    def ready(self, life: ServerTask) -> None:
        """Record that a start succeeded."""
        if life is self._life:
            self._connected_at = self.host.clock.unix()
            self._become(LspState.READY)

    def ended(self, life: ServerTask, failure: str) -> None:
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


MAX_STDERR: Final = 8 * 1024
"""Maximum bytes kept of a server's standard error."""

MAX_LAST_ERROR: Final = 200
"""Maximum characters of it in a failure."""


@define(eq=False)
class ServerProgram:
    """A running server program. Satisfies `RunningProgram`."""

    transport: trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream]
    _complaints: BoundedOutput = field(repr=False)

    def last_error(self) -> str:
        """Return the last line of standard error that contains "error", else the last line."""
        lines = [line.strip() for line in self._complaints.text().split("\n") if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or [""])[-1][:MAX_LAST_ERROR]


def program_opener(clock: Clock) -> OpenProgram:
    """Return a function that opens a server program, in a process group that ends with the block."""

    @asynccontextmanager
    async def opened(command: Command) -> AsyncIterator[ServerProgram]:
        complaints = BoundedOutput(MAX_STDERR)
        async with open_process_group(
            command,
            clock=clock,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
        ) as group:
            assert group.stdin is not None
            assert group.stdout is not None
            yield ServerProgram(trio.StapledStream(group.stdin, group.stdout), complaints)

    return opened


# ── Files: the functions below read the disk and must run in a thread ───────────────────────────


def program_of(
    config: LspServerConfig, env: Mapping[str, str], directory: Path, *, trusted: bool
) -> str:
    """Return the path of a server's program; raises `ServerUnavailable` if it is not found."""
    command = config.command
    if not command:
        raise ServerUnavailable("it is configured without a command")
    if "/" not in command:
        found = find_program(command, env)
    elif Path(command).is_absolute():
        found = command
    elif trusted:
        found = str(directory / command)
    else:
        raise ServerUnavailable(f"{command} came with the project, which is not trusted")
    if found is None or not Path(found).is_file():
        raise ServerUnavailable(f"{command} was not found")
    return found


def has_root(directory: Path, markers: Iterable[str]) -> bool:
    """Whether a directory contains one of *markers*; True if there are no markers."""
    wanted = tuple(markers)
    if not wanted:
        return True
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError:
        return False
    return any(
        (directory / marker).exists()
        if "/" in marker
        else any(fnmatchcase(name, marker) for name in names)
        for marker in wanted
    )


def find_known_servers(directory: Path, env: Mapping[str, str]) -> dict[str, LspServerConfig]:
    """Return the known servers that are installed and whose project markers are in a directory."""
    found: dict[str, LspServerConfig] = {}
    for name, known in KNOWN.items():
        if has_root(directory, known.root_markers):
            argvs = (argv for argv in known.programs if find_program(argv[0], env) is not None)
            argv = next(argvs, None)
            if argv is not None:
                found[name] = known.config(argv)
    return found
