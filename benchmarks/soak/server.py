"""The server of a soak: started, killed, stopped and started again at the same address.

Its log goes through a pipe, so that a limit on the size of its files does not affect it, and every
line is checked at once.
"""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import h11
import orjson
import trio
from attrs import define, field

from benchmarks.driver.http import Caller, Place, Reply
from benchmarks.driver.process import Gauge, free_port, plain_environment
from benchmarks.driver.stage import client_id
from benchmarks.soak.counts import Counts
from benchmarks.soak.ledger import Violation

START_LIMIT: Final = 60.0
STOP_LIMIT: Final = 40.0
"""Seconds that a server may take to end after SIGTERM: `Limits.join`, the grace, and a busy machine."""

ANSWER_LIMIT: Final = 45.0
"""Seconds that any request may take; a receipt may take 20."""

PROCESSES_LIMIT: Final = 15.0
"""Seconds in which the processes of a server must be gone after its end."""

MARK: Final = "CRUSH_SOAK"
"""The environment variable by which every process that the server started is found."""

LOST: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError)

FAULT_EVENTS: Final = frozenset(
    {
        "message.not_stored",
        "run.acceptance_not_stored",
        "run.ending_given_up",
        "run.ending_not_stored",
        "run.failed",
        "run.failed_while_cancelled",
        "audit.failed",
        "store.degraded",
        "stream.cut",
        "request.failed",
        "title.failed",
    }
)
"""Log events that are allowed while the disk does not work."""

_OF_THE_STORE: Final = (
    "crush_trio.store.errors.",
    "crush_trio.errors.AcceptanceNotStored",
    "crush_trio.errors.NoRoomForPrompt",
)
"""The allowed exceptions of such log events."""

USUAL_EVENTS: Final = frozenset({"config.notice"})
"""Warnings that every soak has, because its configuration is a project's."""

FAULT_ECHO: Final = 30.0
"""Seconds after a disk fault in which such log events are still allowed."""


@define(eq=False)
class Site:
    """The server as its clients see it: at one address, with the same workspaces after each start."""

    folder: Path
    workspaces: tuple[Path, ...]
    counts: Counts
    report: Callable[[Exception], None]
    note: Callable[[str], None]
    place: Place = field(init=False)
    owners: tuple[str, ...] = field(init=False)
    bases: list[str] = field(factory=list, init=False)
    up: trio.Event = field(factory=trio.Event, init=False)
    lives: int = field(default=0, init=False)
    process: trio.Process | None = field(default=None, init=False)
    disturbed: float = field(default=-1e9, init=False)
    """The time until which the disk has a fault."""
    stopped: dict[int, float] = field(factory=dict, init=False)
    """When each start of the server was sent a SIGTERM, if it was."""
    changing: float = field(default=-1e9, init=False)
    """When the server was last started or told to stop."""

    def __attrs_post_init__(self) -> None:
        self.place = Place("127.0.0.1", free_port())
        self.owners = tuple(client_id() for _ in self.workspaces)

    @property
    def gauge(self) -> Gauge | None:
        """The gauge of the process, if there is one."""
        return None if self.process is None else Gauge(self.process.pid)

    @property
    def troubled(self) -> bool:
        """Whether the disk has a fault, or had one just now."""
        return time.monotonic() < self.disturbed + FAULT_ECHO

    # ── Starting and ending ─────────────────────────────────────────────────────────────────────

    async def start(self, nursery: trio.Nursery) -> None:
        """Start the server and open the workspaces in it."""
        self.lives += 1
        host = f"tcp://{self.place.authority}"
        argv = (sys.executable, "-m", "crush_trio", "serve", "--host", host, "--log-format", "json")
        environment = {**plain_environment(self.folder), MARK: self._mark(self.lives)}
        out = (self.folder / f"server-{self.lives}.out").open("wb")
        with out:
            process = await trio.lowlevel.open_process(
                argv, env=environment, stdin=None, stdout=out, stderr=-1
            )
        self.process = process
        nursery.start_soon(self._read_log, process, self.lives)
        nursery.start_soon(self._leave_nothing, process, self.lives)
        with trio.move_on_after(START_LIMIT) as scope:
            await self._open(process)
        if scope.cancelled_caught:
            raise Violation(f"the server did not answer within {START_LIMIT} s of its start")
        self.changing = time.monotonic()
        self.note(f"life {self.lives} is up, process {process.pid}")
        self.up.set()

    async def _open(self, process: trio.Process) -> None:
        caller = Caller(self.place)
        while True:
            if process.returncode is not None:
                raise Violation(f"the server ended by itself: {process.returncode}")
            try:
                self.bases = [
                    await self._open_workspace(caller, path, owner)
                    for path, owner in zip(self.workspaces, self.owners, strict=True)
                ]
            except LOST:
                await caller.aclose()
                await trio.sleep(0.02)
            else:
                await caller.aclose()
                return

    async def _open_workspace(self, caller: Caller, path: Path, owner: str) -> str:
        while True:
            body = {"path": str(path), "client_id": owner}
            reply = await caller.ask("POST", "/v1/workspaces", body, expect=None)
            if reply.status == 200:
                base = f"/v1/workspaces/{reply.json()['id']}"
                await caller.ask("POST", f"{base}/agent/init", {"interactive": False})
                return base
            if reply.status not in {503, 507} or not self.troubled:
                raise Violation(f"a workspace could not be opened: {reply.status} {reply.body!r}")
            await trio.sleep(0.2)

    async def kill(self) -> None:
        """End the server with SIGKILL."""
        self.stopped.pop(self.lives, None)  # a SIGTERM before does not count any more
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End the server with SIGTERM; it must exit with 0 and in time."""
        began = self.stopped[self.lives] = time.monotonic()
        code = await self._end(signal.SIGTERM)
        took = time.monotonic() - began
        self.note(f"life {self.lives} ended in {took:.1f} s with {code}")
        if code != 0:
            raise Violation(f"the server ended with {code} after SIGTERM")

    async def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.changing = time.monotonic()
        if self.up.is_set():
            self.up = trio.Event()
        self.process.send_signal(number)
        with trio.move_on_after(STOP_LIMIT) as scope:
            await self.process.wait()
        if scope.cancelled_caught:
            raise Violation(
                f"the server did not end within {STOP_LIMIT} s of a signal {number.name}"
            )
        self.changing = time.monotonic()
        code = self.process.returncode
        self.process = None
        return -1 if code is None else code

    def _mark(self, life: int) -> str:
        return f"{self.folder}/{life}"

    async def _leave_nothing(self, process: trio.Process, life: int) -> None:
        """Check that the processes that a server has started are gone soon after it."""
        await process.wait()
        left = marked_processes(self._mark(life))
        with trio.move_on_after(PROCESSES_LIMIT):
            while left:
                await trio.sleep(0.5)
                left = marked_processes(self._mark(life))
        if left:
            self.report(Violation(f"processes are left of life {life}: {dict(left)}"))

    async def end(self) -> None:
        """Kill the server if it is still running."""
        if self.process is not None:
            with trio.CancelScope(shield=True):
                self.process.kill()
                await self.process.wait()

    def limit_files(self, size: int) -> None:
        """Let the server write to no file at *size* bytes or beyond; -1 is no limit."""
        if self.process is not None:
            _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, hard))

    # ── The log ─────────────────────────────────────────────────────────────────────────────────

    async def _read_log(self, process: trio.Process, life: int) -> None:
        """Store and check the server's log until it ends."""
        assert process.stderr is not None
        rest = b""
        with (self.folder / f"server-{life}.log").open("wb") as kept:
            async for data in process.stderr:
                kept.write(data)
                kept.flush()
                *lines, rest = (rest + bytes(data)).split(b"\n")
                for line in lines:
                    try:
                        self._judge(line)
                    except Violation as violation:
                        self.report(violation)

    def _judge(self, line: bytes) -> None:
        try:
            said = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise Violation(f"the server's log has a line that is no event: {line!r}") from None
        event = said["event"]
        if event in USUAL_EVENTS:
            return
        if said["level"] in {"error", "warning"} or "exception" in said:
            self.counts.add(f"logged: {event}")
            raised = said.get("exception", _OF_THE_STORE[0])
            ours = any(name in raised for name in _OF_THE_STORE)
            if event not in FAULT_EVENTS or not self.troubled or not ours:
                raise Violation(f"the server has logged {event}: {line.decode()[-1500:]}")


def marked_processes(mark: str) -> Mapping[int, str]:
    """Return the processes that the server has started, or that are the server, with their commands."""
    found = {}
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command:  # a zombie has none
                    found[int(entry.name)] = command
        except OSError:
            continue
    return found


@define(eq=False)
class Line:
    """A client's connection, which may be lost."""

    site: Site
    _caller: Caller | None = field(default=None, init=False)
    _life: int = field(default=0, init=False)

    async def ask(self, method: str, target: str, body: object = None) -> Reply | None:
        """Wait until the server is up and send a request; None if the connection was lost.

        *target* begins at the server's root. An answer that does not come is a violation.
        """
        site = self.site
        await site.up.wait()
        if self._life != site.lives:
            await self.aclose()
        if self._caller is None:
            self._caller = Caller(site.place)
        self._life = life = site.lives
        try:
            with trio.move_on_after(ANSWER_LIMIT):
                reply = await self._caller.ask(method, target, body, expect=None)
                site.counts.add("requests")
                return reply
        except LOST as lost:
            await self.aclose()
            if site.up.is_set() and site.lives == life and site.process is not None:
                await trio.sleep(1.0)  # the soak may not have noticed yet that the server ended
                if site.up.is_set() and site.lives == life:
                    raise Violation(f"{method} {target}: connection lost, {lost!r}") from lost
            return None
        raise Violation(f"{method} {target}: no answer within {ANSWER_LIMIT} s")

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        if self._caller is not None:
            caller, self._caller = self._caller, None
            await caller.aclose()
