"""A server in memory: real except for the model, the disk, the sockets and the clock.

`open_test_server` opens a backend whose workspaces keep their data in memory, and the application on
it, driven by `AsgiDriver`. It waits for nothing outside Trio, so it works in any async test and in a
seeded task order.

```python
gate = Gate("thinking")
turns = WrittenTurns({"hello": [Say("Hel"), Pause(gate), Say("lo")]})
async with open_test_server(turns) as server:
    place = await server.create(client_id(1))
    session = await place.create_session()
    with await place.watch(client_id(1)) as events:
        await place.submit(session, "hello", run_id="r1")
        await gate.reached()
```
"""

import posixpath
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import orjson
import trio
from attrs import define, field

from crush_trio.agent.record.journal import MakeTurn
from crush_trio.agent.record.message import OpenMessage
from crush_trio.agent.record.transcript import Transcript
from crush_trio.audit.log import AuditLog
from crush_trio.backend.backend import Backend, open_backend
from crush_trio.backend.open import open_hosted_workspace
from crush_trio.backend.settings import BackendSettings, WorkspaceKey, WorkspaceSettings
from crush_trio.backend.workspace import HostedWorkspace, keeps_open, note_people
from crush_trio.clock import CountingIds, TrioClock
from crush_trio.limits import DEFAULTS, SizeLimits
from crush_trio.runtime.outcome import Completion
from crush_trio.runtime.run import Run, Turn
from crush_trio.server.app import create_app
from crush_trio.server.server import Meters, Server, metered
from crush_trio.server.settings import GuardSettings
from crush_trio.store.memory.store import MemoryStore
from crush_trio.store.open import StoreSettings
from crush_trio.testing.server.asgi import AsgiDriver, AsgiResponse, Exchange
from crush_trio.testing.server.config import no_commands, open_fixed_config
from crush_trio.testing.server.faulty_store import FaultyStore, StoreFault
from crush_trio.testing.server.turns import ECHO, Do, Fail, Fold, Pause, Say, Script, Sleep
from crush_trio.wire.ids import ClientId, MessageId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart

Event = dict[str, Any]

PATIENCE: Final = 600.0
"""Virtual seconds that a test waits for an event before it fails."""


def client_id(number: int) -> ClientId:
    """Return the id of a client: a UUID, the same in every replay."""
    return ClientId(f"00000000-0000-4000-8000-{number:012d}")


# ── Turns ───────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class WrittenTurns:
    """Plays scripts like `ScriptedTurns`, but writes the answer with the real message writer.

    So the answer is stored, published at the writer's pace, and closed by the run's ending if the run
    is cancelled. One object serves all workspaces of a server.
    """

    scripts: Mapping[str, Script] = field(factory=dict)
    default: Script = ECHO
    started: list[str] = field(factory=list, init=False)
    """The prompts of the runs that became active, in that order."""

    def __call__(self, transcript: Transcript) -> Turn:
        """Return the turn function of a workspace."""
        return partial(self._turn, transcript)

    async def _turn(self, transcript: Transcript, run: Run) -> Completion:
        self.started.append(run.prompt)
        await trio.lowlevel.checkpoint()
        answer: OpenMessage | None = None
        for step in self.scripts.get(run.prompt, self.default):
            if isinstance(step, Say):
                answer = answer or await _begin(run, transcript)
                answer.append_text(step.text)
            await _play(step, run)
            await trio.lowlevel.checkpoint_if_cancelled()
        if answer is None:
            return Completion()
        answer.seal(FinishPart(reason=FinishReason.END_TURN, time=transcript.clock.unix()))
        return _said(answer)


async def _play(step: object, run: Run) -> None:
    await trio.lowlevel.checkpoint()
    match step:
        case Pause(gate=gate):
            await gate.wait()
        case Sleep(seconds=seconds):
            await trio.sleep(seconds)
        case Fold():
            await run.fold()
        case Fail(error=error):
            raise error
        case Do(function=function):
            await function(run)


async def _begin(run: Run, transcript: Transcript) -> OpenMessage:
    answer = await transcript.turn(run.id, run.session_id).create(
        Message(
            id=MessageId(f"answer-{run.id}"),
            role=Role.ASSISTANT,
            session_id=run.session_id,
            created_at=transcript.clock.unix(),
            updated_at=transcript.clock.unix(),
        )
    )
    run.partial = partial(_said, answer)
    return answer


def _said(answer: OpenMessage) -> Completion:
    parts = answer.message().parts
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    return Completion(message_id=answer.id, text=text)


# ── Clients ────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Watcher:
    """An event stream of a client. Leaving the context disconnects."""

    exchange: Exchange
    seen: list[Event] = field(factory=list, init=False)
    """Every event read so far: the JSON of its `data:` line."""
    _rest: bytes = field(default=b"", init=False, repr=False)
    _unread: list[Event] = field(factory=list, init=False, repr=False)

    async def next(self) -> Event | None:
        """Return the next event; None at the end of the stream."""
        with trio.fail_after(PATIENCE):
            while not self._unread:
                piece = await self.exchange.receive()
                if not piece:
                    return None
                *lines, self._rest = (self._rest + piece).split(b"\n")
                data = (line[5:] for line in lines if line.startswith(b"data:"))
                self._unread += map(orjson.loads, data)
        await trio.lowlevel.checkpoint()
        self.seen.append(self._unread.pop(0))
        return self.seen[-1]

    async def until(self, wanted: Callable[[Event], bool]) -> Event:
        """Read up to the first event for which *wanted* is true; raises if the stream ends before."""
        while (event := await self.next()) is not None:
            if wanted(event):
                return event
        raise AssertionError(f"the stream ended after {self.seen}")

    async def rest(self) -> list[Event]:
        """Read to the end of the stream; return all events."""
        while await self.next() is not None:
            pass
        return self.seen

    def hang_up(self) -> None:
        """Disconnect."""
        self.exchange.hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hang_up()


@define(eq=False)
class ServedWorkspace:
    """A workspace of a server under test, used over HTTP."""

    driver: AsgiDriver
    id: str
    view: Any = field(repr=False)
    """The answer to the request that created it."""

    @property
    def path(self) -> str:
        """The prefix of the routes of the workspace."""
        return f"/v1/workspaces/{self.id}"

    async def request(self, method: str, target: str = "", body: object = b"") -> AsgiResponse:
        """Send a request to a route of the workspace."""
        return await self.driver.request(method, self.path + target, body)

    async def create_session(self, title: str = "a session") -> str:
        """Create a session and return its id."""
        made = await self.request("POST", "/sessions", {"title": title})
        return str(_good(made).json()["id"])

    async def submit(self, session_id: str, prompt: str, run_id: str | None = None) -> AsgiResponse:
        """Post a prompt and return the response; 202 if it was accepted."""
        body = {"session_id": session_id, "prompt": prompt}
        return await self.request(
            "POST", "/agent", body if run_id is None else {**body, "run_id": run_id}
        )

    async def cancel(self, session_id: str) -> AsgiResponse:
        """Cancel a session."""
        return await self.request("POST", f"/agent/sessions/{session_id}/cancel")

    async def messages(self, session_id: str) -> list[Event]:
        """Return the stored messages of a session."""
        found: list[Event] = _good(
            await self.request("GET", f"/sessions/{session_id}/messages")
        ).json()
        return found

    async def watch(self, client: str, more: str = "") -> Watcher:
        """Open an event stream; the client is attached when this returns."""
        target = f"{self.path}/events?client_id={client}{more}"
        exchange = self.driver.open("GET", target)
        assert await exchange.head() == 200, exchange.status
        return Watcher(exchange)


@define(eq=False)
class Served:
    """A server under test."""

    backend: Backend[HostedWorkspace]
    server: Server
    driver: AsgiDriver
    stores: "MemoryStores"

    async def request(self, method: str, target: str, body: object = b"") -> AsgiResponse:
        """Send a request."""
        return await self.driver.request(method, target, body)

    async def create(
        self,
        client: str,
        path: str = "/srv/project",
        *,
        init: bool = True,
        interactive: bool = False,
        **more: object,
    ) -> ServedWorkspace:
        """Create or join a workspace for *client*; unless *init* is false, `agent/init` follows.

        *interactive* says that the client answers what is asked during its runs.
        """
        body = {"path": path, "client_id": client, **more}
        view = _good(await self.request("POST", "/v1/workspaces", body)).json()
        place = ServedWorkspace(self.driver, view["id"], view)
        if init:
            _good(await place.request("POST", "/agent/init", {"interactive": interactive}))
        return place


def _good(answer: AsgiResponse) -> AsgiResponse:
    assert answer.status == 200, answer
    return answer


# ── Stores and the server ───────────────────────────────────────────────────────────────────────


@define(eq=False)
class MemoryStores:
    """The stores of a server, by data directory; they keep their data when they are reopened."""

    faults: tuple[StoreFault, ...] = ()
    """The faults of every store that is opened."""
    _stores: dict[Path, tuple[MemoryStore, FaultyStore]] = field(factory=dict, init=False)
    _boots: CountingIds = field(factory=lambda: CountingIds("boot"), init=False)

    def of(self, path: str = "/srv/project") -> FaultyStore:
        """Return the store of the workspace at *path*, which was opened before."""
        return self._stores[Path(path, ".crush")][1]

    @asynccontextmanager
    async def open(self, _settings: StoreSettings, data_dir: Path) -> AsyncIterator[FaultyStore]:
        """Open the store of a data directory, with the data it had when it was closed."""
        await trio.lowlevel.checkpoint()
        boot = self._boots.new()
        if data_dir in self._stores:
            memory = self._stores[data_dir][0].reopened(boot)
        else:
            memory = MemoryStore(boot)
        store = FaultyStore(memory)
        store.spoil(*self.faults)
        self._stores[data_dir] = memory, store
        yield store


async def _key(path: str) -> WorkspaceKey:
    """Return the key of a path without the file system, which would need a thread."""
    await trio.lowlevel.checkpoint()
    return WorkspaceKey(posixpath.normpath(path))


@asynccontextmanager
async def open_test_server(
    turn: MakeTurn | None = None,
    *,
    settings: BackendSettings | None = None,
    sizes: SizeLimits = DEFAULTS,
    guard: GuardSettings | None = None,
    audit: AuditLog | None = None,
    faults: Iterable[StoreFault] = (),
) -> AsyncIterator[Served]:
    """Open a server for a test; *turn* makes the turn function of each workspace.

    By default every prompt is answered with "done", and no *audit* is kept. *faults* are those of its stores. Leaving the block
    closes the backend, as a server does that shuts down, and waits until every request has ended; it
    disconnects no client.
    """
    stores = MemoryStores(tuple(faults))
    workspaces = WorkspaceSettings(
        make_turn=WrittenTurns() if turn is None else turn,
        open_config=open_fixed_config,
        opens=no_commands,
        open_store=stores.open,
        clock=TrioClock(),
        ids=CountingIds("id"),
        sizes=sizes,
    )
    async with open_memory_server(
        workspaces, stores, settings=settings, guard=guard, audit=audit
    ) as served:
        yield served


@asynccontextmanager
async def open_memory_server(
    workspaces: WorkspaceSettings,
    stores: MemoryStores,
    *,
    settings: BackendSettings | None = None,
    guard: GuardSettings | None = None,
    audit: AuditLog | None = None,
) -> AsyncIterator[Served]:
    """Open a server in memory whose workspaces have these settings; *stores* are those they open."""
    meters = Meters()
    async with trio.open_nursery() as requests:
        async with open_backend(
            metered(partial(open_hosted_workspace, settings=workspaces), meters),
            settings=settings,
            sizes=workspaces.sizes,
            version="test",
            resolve=_key,
            keeps_open=keeps_open,
            note_people=note_people,
            clock=workspaces.clock,
        ) as backend:
            server = Server(backend, meters=meters, audit=AuditLog() if audit is None else audit)
            yield Served(backend, server, AsgiDriver(create_app(server, guard), requests), stores)
        server.drain.end_streams()
