"""Readers of a soak: native and crush; steady, slow, disconnecting, and not reading at all.

A native reader is one client for the whole soak. However often its connection is cut, and by which
side, it resumes from its position and must know every ending in the end: each once per start of the
server, and never two different ones. A crush reader has no position; it must get the endings of the
runs that were accepted and ended while it was connected.
"""

import random
import socket
import time
from collections.abc import Callable
from typing import Final

import h11
import orjson
import trio
from attrs import define, field, frozen

from benchmarks.driver.frames import CRUSH, NATIVE, Json, split_frame
from benchmarks.driver.stage import client_id
from benchmarks.soak.ledger import ENDED, Ledger, Violation
from benchmarks.soak.server import LOST, Site
from crush_trio.testing.server.client import Replica

_READ: Final = 65536
_SMALL_WINDOW: Final = 4096
_PRUNE: Final = 2000
_IN_ORDER: Final = 2.0
"""Seconds after a SIGTERM in which a stream ends only because its workspace has closed.

After three quarters of the grace of 3 s it ends anyway, and endings that are not stored by then are
not on it.
"""


@frozen
class Habit:
    """How a reader reads: pieces of *size* bytes, *pause* seconds apart; and when it disconnects."""

    name: str
    form: str
    size: int = _READ
    pause: float = 0.0
    stays: tuple[float, float] | None = None
    """The range of seconds it stays connected; None is for ever."""
    sleeps: tuple[float, float] | None = None
    """The range of seconds it stops reading after each `ready`, while connected."""
    away: tuple[float, float] = (0.0, 1.0)
    careful: bool = False
    """Whether it applies every event to a replica, which raises for inconsistent ones."""


HABITS: Final = (
    Habit("native, careful", NATIVE, careful=True),
    Habit("native, steady", NATIVE),
    Habit("native, slow", NATIVE, size=8192, pause=0.05),
    Habit("native, vanishing", NATIVE, stays=(0.0, 4.0), away=(0.0, 8.0)),
    Habit("native, vanishing", NATIVE, stays=(0.0, 0.3), away=(0.0, 2.0)),
    Habit("native, sleeping", NATIVE, stays=(3.0, 40.0), sleeps=(3.0, 35.0), away=(0.0, 3.0)),
    Habit("crush, steady", CRUSH),
    Habit("crush, slow", CRUSH, size=8192, pause=0.05),
    Habit("crush, vanishing", CRUSH, stays=(0.0, 3.0), away=(0.0, 3.0)),
    Habit("native, deaf", NATIVE, size=1, pause=3600.0, stays=(5.0, 60.0)),
    Habit("crush, deaf", CRUSH, size=1, pause=3600.0, stays=(5.0, 60.0)),
)


@define(eq=False)
class Told:
    """The ending of one run, as a native reader got it."""

    state: str
    life: int
    at: float


@define(eq=False)
class Reader:
    """One reader, over all its connections."""

    habit: Habit
    workspace: int
    site: Site
    ledger: Ledger
    random: random.Random
    client: str = field(factory=client_id)
    since: float = field(default=float("inf"), init=False)
    """When it had a position for the first time."""
    place: str = field(default="", init=False)
    endings: dict[str, Told] = field(factory=dict, init=False)
    """The endings it got, by our id of the run."""
    again: set[str] = field(factory=set, init=False)
    """The endings that it got from more than one start of the server."""
    connections: int = field(default=0, init=False)
    hurry: bool = field(default=False, init=False)
    """Whether it reads at full speed from now on, because the soak is ending."""
    over: trio.Event = field(factory=trio.Event, init=False)
    """Whether the server has ended the stream properly."""
    _replica: Replica = field(factory=Replica, init=False)
    _rest: bytes = field(default=b"", init=False)
    _attached: float = field(default=0.0, init=False)
    _life: int = field(default=0, init=False)
    _frames: int = field(default=0, init=False)
    _completes: dict[str, str] = field(factory=dict, init=False)
    _left: float = field(default=float("inf"), init=False)
    """When the server ended the last stream."""
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    @property
    def promised(self) -> bool:
        """Whether it must know all endings in the end."""
        return self.habit.form == NATIVE and "deaf" not in self.habit.name

    def finish(self) -> None:
        """Read as fast as possible from now on, and come back at once."""
        self.hurry = True
        self._scope.cancel()

    async def run(self, report: Callable[[Exception], None]) -> None:
        """Connect, read, disconnect and reconnect, until cancelled."""
        try:
            while True:
                await self.site.up.wait()
                await self._visit()
                await trio.sleep(0.01 if self.hurry else self.random.uniform(*self.habit.away))
        except (Violation, AssertionError) as exc:
            report(Violation(f"a reader ({self.habit.name}, workspace {self.workspace}): {exc}"))

    async def _visit(self) -> None:
        """Connect once."""
        stays = None if self.hurry else self.habit.stays
        limit = float("inf") if stays is None else self.random.uniform(*stays)
        self._scope = trio.CancelScope(deadline=trio.current_time() + limit)
        self.check_complete()
        self.over = trio.Event()
        self._life, self._completes, self._left = self.site.lives, {}, float("inf")
        with self._scope:
            try:
                await self._connect()
                self._left = time.monotonic()
            except LOST:
                await trio.sleep(0.05)
        self._rest = b""
        self._replica.cut()

    async def _connect(self) -> None:
        """Attach and read to the end of the stream."""
        site, deaf = self.site, "deaf" in self.habit.name
        form = "&form=native" if self.habit.form == NATIVE else ""
        target = f"{site.bases[self.workspace]}/events?client_id={self.client}{form}"
        sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if deaf or self.habit.pause:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_WINDOW)
        async with trio.SocketStream(sock) as stream:
            await sock.connect((site.place.host, site.place.port))
            resume = f"Last-Event-ID: {self.place}\r\n" if self.place else ""
            head = f"GET {target} HTTP/1.1\r\nHost: {site.place.authority}\r\n{resume}\r\n"
            await stream.send_all(head.encode())
            if deaf:
                site.counts.add("connections of deaf readers")
                await trio.sleep_forever()
            await self._read(stream)

    async def _read(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.CLIENT)
        http.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        http.send(h11.EndOfMessage())
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                if self.habit.pause and not self.hurry:
                    await trio.sleep(self.habit.pause)
                http.receive_data(bytes(await stream.receive_some(self.habit.size)))
            elif isinstance(event, h11.Response):
                self._begun(event)
            elif isinstance(event, h11.Data):
                if self._take(bytes(event.data)) and self.habit.sleeps and not self.hurry:
                    await trio.sleep(self.random.uniform(*self.habit.sleeps))
            else:
                return

    def _begun(self, response: h11.Response) -> None:
        if response.status_code != 200:
            if response.status_code in {404, 409, 503} and self._moving():
                raise OSError("the workspace is not there yet, or no longer")
            raise Violation(f"its stream was answered with {response.status_code}")
        self.connections += 1
        self._attached = time.monotonic()
        self.site.counts.add(f"connections, {self.habit.name}")
        if self.habit.form == CRUSH:
            self.since = min(self.since, self._attached)

    def _moving(self) -> bool:
        """Whether the server was started or stopped just now."""
        return time.monotonic() < self.site.changing + 10 or not self.site.up.is_set()

    # ── Frames ──────────────────────────────────────────────────────────────────────────────────

    def _take(self, data: bytes) -> bool:
        """Apply the frames that *data* completes; return whether `ready` was among them."""
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        greeted = False
        for frame in frames:
            if self.habit.form == CRUSH:
                self._crush(frame)
            else:
                greeted |= self._native(frame)
        return greeted

    def _native(self, frame: bytes) -> bool:
        name, data = split_frame(frame)
        place = next((ln[4:] for ln in frame.split(b"\n") if ln.startswith(b"id: ")), b"").decode()
        if name == b"run":
            self._run(orjson.loads(data))
        elif name == b"resync":
            self.site.counts.add("resyncs")
            for run in orjson.loads(data)["ended"]:
                self._run(run)
        elif name == b"end":
            self.over.set()
        if self.habit.careful and name not in {b"ready", b"end", b"asks", b"heartbeat", b"run"}:
            self._apply(frame)
        if place:
            self.place = place
        if name == b"ready":
            self.since = min(self.since, time.monotonic())
            self._replica.last_id = place or self._replica.last_id
        return name == b"ready"

    def _apply(self, frame: bytes) -> None:
        """Apply a message frame to the replica, and drop finished messages."""
        lines = [line for line in frame.split(b"\n") if not line.startswith(b"retry:")]
        if b"event: resync" in lines:
            self._replica.endings.clear()
        self._replica.feed(b"\n".join(lines) + b"\n\n")
        self._frames += 1
        if self._frames % _PRUNE == 0:
            kept = {k: m for k, m in self._replica.messages.items() if not _finished(m)}
            self._replica.messages.clear()
            self._replica.messages.update(kept)

    def _run(self, run: Json) -> None:
        state, key = run["state"], run["id"]
        if state not in ENDED:
            if key in self.endings and self.endings[key].life == self._life:
                raise Violation(f"{key} is {state} after it {self.endings[key].state}")
            return
        self.site.counts.add("endings told")
        before = self.endings.get(key)
        if before is not None:
            if before.state != state:
                raise Violation(f"{key} ended as {before.state} and as {state}")
            if before.life == self._life:
                raise Violation(f"{key} ended twice in one start of the server ({state})")
            self.again.add(key)
            self.site.counts.add("endings told again by the next start")
        now = time.monotonic()
        self.endings[key] = Told(state, self._life, now)
        if run.get("run_id"):
            self.ledger.end(run["run_id"], state, now)

    def _crush(self, frame: bytes) -> None:
        if b'"run_complete"' not in frame[:40]:
            return
        _, data = split_frame(frame)
        inner = orjson.loads(data)["payload"]["payload"]
        run_id, state = inner.get("run_id", ""), _crush_state(inner)
        self.site.counts.add("endings told")
        if not run_id:
            return
        if run_id in self._completes:
            raise Violation(f"{run_id} was completed twice on one stream")
        self._completes[run_id] = state
        prompt = self.ledger.prompts.get(run_id)
        if prompt is not None and prompt.state and _as_crush(prompt.state) != state:
            raise Violation(f"{run_id} ended as {prompt.state}, and in crush form as {state}")

    def check_complete(self) -> None:
        """Check that nothing was missing on the last stream, if the server has ended it properly.

        A stream that ends late was ended before its workspace had closed; in crush form both look
        the same.
        """
        stopped = self.site.stopped.get(self._life, float("inf"))
        if self.habit.form != CRUSH or not stopped <= self._left < stopped + _IN_ORDER:
            return
        self.site.counts.add("crush streams read to their end")
        self._left = float("inf")
        for talk in self.ledger.talks.values():
            for prompt in talk.prompts if talk.workspace == self.workspace else ():
                asked = prompt.named and self._attached < prompt.sent < prompt.answered < stopped
                told = prompt.tag in self._completes or prompt.state in {"", "interrupted"}
                if asked and not told:
                    raise Violation(f"{prompt.tag} {prompt.state}, and the stream never said so")


def _finished(message: Json) -> bool:
    return any(part["type"] == "finish" for part in message["parts"])


def _as_crush(state: str) -> str:
    return "errored" if state == "interrupted" else state


def _crush_state(complete: Json) -> str:
    if complete.get("cancelled"):
        return "cancelled"
    return "errored" if complete.get("error") else "completed"
