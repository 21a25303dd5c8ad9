"""A whole server in memory: everything real except the model, the disk, the sockets and the clock.

`open_test_server` opens a backend whose workspaces keep their data in memory, puts the application
on top and drives it with `AsgiDriver`. Nothing in it waits for anything but Trio's own clock, so it
works in any async test and under a seeded order of tasks.

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

from crush_trio.agent.record.message_writer import OpenMessage
from crush_trio.agent.record.transcript import Transcript
from crush_trio.backend.backend import Backend, open_backend
from crush_trio.backend.open import MakeTurn, workspace_opener
from crush_trio.backend.settings import BackendSettings, WorkspaceKey
from crush_trio.backend.workspace import HostedWorkspace, keeps_open
from crush_trio.clock import CountingIds, TrioClock
from crush_trio.limits import DEFAULTS, SizeLimits
from crush_trio.runtime.outcome import Completion
from crush_trio.runtime.run import Run, Turn
from crush_trio.server.app import create_app
from crush_trio.server.server import Meters, Server, metered
from crush_trio.server.settings import GuardSettings
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.server.asgi import Answer, AsgiDriver, Exchange
from crush_trio.testing.server.config import no_commands, open_fixed_config
from crush_trio.testing.server.faulty_store import FaultyStore, StoreFault
from crush_trio.testing.server.turns import ECHO, Do, Fail, Fold, Pause, Say, Script, Sleep
from crush_trio.wire.ids import ClientId, MessageId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart

Event = dict[str, Any]

PATIENCE: Final = 600.0
"""Virtual seconds that a test waits for an event before it gives up."""


def client_id(number: int) -> ClientId:
    """Return the id of a client: a UUID, and the same one in every replay."""
    return ClientId(f"00000000-0000-4000-8000-{number:012d}")


# ── Turns ───────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class WrittenTurns:
    """Plays scripts like `ScriptedTurns`, but writes what it says as a model's answer is written.

    So the answer is stored, reaches the readers at its own pace, and is closed by the end of its run
    if a cancel cuts it short. One value serves every workspace of a server.
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


# ── What a client does ──────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Watcher:
    """A client at its event stream. Leaving it as a context hangs up."""

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
        """Read up to the event that is *wanted* and return it; the end of the stream is an error."""
        while (event := await self.next()) is not None:
            if wanted(event):
                return event
        raise AssertionError(f"the stream ended after {self.seen}")

    async def rest(self) -> list[Event]:
        """Read to the end of the stream; return everything that was seen."""
        while await self.next() is not None:
            pass
        return self.seen

    def hang_up(self) -> None:
        """Leave."""
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
    """A workspace as a client knows it: by its id."""

    driver: AsgiDriver
    id: str
    view: Any = field(repr=False)
    """What its create was answered with."""

    @property
    def path(self) -> str:
        """What the routes of the workspace begin with."""
        return f"/v1/workspaces/{self.id}"

    async def request(self, method: str, target: str = "", body: object = b"") -> Answer:
        """Send a request to a route of the workspace."""
        return await self.driver.request(method, self.path + target, body)

    async def create_session(self, title: str = "a session") -> str:
        """Create a session and return its id."""
        made = await self.request("POST", "/sessions", {"title": title})
        return str(_good(made).json()["id"])

    async def submit(self, session_id: str, prompt: str, run_id: str | None = None) -> Answer:
        """Post a prompt and return the answer, which should be a 202."""
        body = {"session_id": session_id, "prompt": prompt}
        return await self.request(
            "POST", "/agent", body if run_id is None else {**body, "run_id": run_id}
        )

    async def cancel(self, session_id: str) -> Answer:
        """Cancel a session."""
        return await self.request("POST", f"/agent/sessions/{session_id}/cancel")

    async def messages(self, session_id: str) -> list[Event]:
        """Return the stored messages of a session."""
        found: list[Event] = _good(
            await self.request("GET", f"/sessions/{session_id}/messages")
        ).json()
        return found

    async def watch(self, client: str, more: str = "") -> Watcher:
        """Open an event stream; it is attached when this returns."""
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

    async def request(self, method: str, target: str, body: object = b"") -> Answer:
        """Send a request."""
        return await self.driver.request(method, target, body)

    async def create(
        self, client: str, path: str = "/srv/project", *, init: bool = True, **more: object
    ) -> ServedWorkspace:
        """Create a workspace for *client*, or join it, and make its agent ready."""
        body = {"path": path, "client_id": client, **more}
        view = _good(await self.request("POST", "/v1/workspaces", body)).json()
        place = ServedWorkspace(self.driver, view["id"], view)
        if init:
            _good(await place.request("POST", "/agent/init", {"interactive": True}))
        return place


def _good(answer: Answer) -> Answer:
    assert answer.status == 200, answer
    return answer


# ── What it all stands on ───────────────────────────────────────────────────────────────────────


@define(eq=False)
class MemoryStores:
    """The stores of a server, by data directory. One that is opened again has kept everything."""

    faults: tuple[StoreFault, ...] = ()
    """What befalls the writes of every store that is opened."""
    _stores: dict[Path, tuple[MemoryStore, FaultyStore]] = field(factory=dict, init=False)
    _boots: CountingIds = field(factory=lambda: CountingIds("boot"), init=False)

    def of(self, path: str = "/srv/project") -> FaultyStore:
        """Return the store of a workspace that has been opened on *path*, open or not."""
        return self._stores[Path(path, ".crush")][1]

    @asynccontextmanager
    async def open(self, data_dir: Path) -> AsyncIterator[FaultyStore]:
        """Open the store of a data directory, as it was when it was last closed."""
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
    """Return the key of a path without asking the file system, which would take a thread."""
    await trio.lowlevel.checkpoint()
    return WorkspaceKey(posixpath.normpath(path))


@asynccontextmanager
async def open_test_server(
    turn: MakeTurn | None = None,
    *,
    settings: BackendSettings | None = None,
    sizes: SizeLimits = DEFAULTS,
    guard: GuardSettings | None = None,
    faults: Iterable[StoreFault] = (),
) -> AsyncIterator[Served]:
    """Open a server for a test; *turn* makes the turn function of each workspace.

    Without one, every prompt is answered with "done". *faults* befall the writes of its stores. Leaving the block hangs up on nobody: it
    closes the backend, as a server that stops does, and waits until every request has ended.
    """
    clock, stores, meters = TrioClock(), MemoryStores(tuple(faults)), Meters()
    opener = workspace_opener(
        make_turn=WrittenTurns() if turn is None else turn,
        open_config=open_fixed_config,
        opens=no_commands,
        open_store=stores.open,
        clock=clock,
        ids=CountingIds("id"),
        sizes=sizes,
    )
    async with trio.open_nursery() as requests:
        async with open_backend(
            metered(opener, meters),
            settings=settings,
            sizes=sizes,
            version="test",
            resolve=_key,
            keeps_open=keeps_open,
            clock=clock,
            ids=CountingIds("workspace"),
        ) as backend:
            server = Server(backend, meters=meters)
            yield Served(backend, server, AsgiDriver(create_app(server, guard), requests), stores)
        server.drain.end_streams()
