"""`replay`: plays a capsule through the real agent and server, and compares. `capsule_test`: as a test.

The server is in memory, and so is its store; the clock is virtual. Nothing of the outside world is used: no
network, no process, no file of the workspace. The replayed run is recorded like any run, and the two
recordings are compared.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio
import trio.testing
from attrs import define, evolve, field, frozen
from typing_extensions import override

from crush_trio.agent.record.capsule import Entry
from crush_trio.backend.settings import WorkspaceSettings
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.clock import CountingIds, TrioClock
from crush_trio.config.context_files import ContextFile
from crush_trio.config.fixed import FixedConfig
from crush_trio.config.load import Draft, finish_draft
from crush_trio.config.rules.rules import load_rules
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.config.sources import DATA_NAME, DataDir, Layers, Places, Project
from crush_trio.config.template import refuse_command
from crush_trio.errors import CrushError
from crush_trio.limits import DEFAULTS
from crush_trio.store.changes import MessageCreated, SessionCreated, SessionEdited
from crush_trio.testing.capsule.compare import Difference, first_difference
from crush_trio.testing.capsule.file import CapsuleFile, CapsuleInvalid, load_capsule, read_capsule
from crush_trio.testing.capsule.player import Player
from crush_trio.testing.capsule.shape import header_fault
from crush_trio.testing.server.config import no_commands
from crush_trio.testing.server.server import (
    MemoryStores,
    ServedWorkspace,
    client_id,
    open_memory_server,
)
from crush_trio.wire.asks import PermissionRule
from crush_trio.wire.codec import structure
from crush_trio.wire.config import CatalogProvider, Config
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import RunKind
from crush_trio.wire.views import Session

NOWHERE: Final = Path("/nonexistent/crush-trio-replay")
"""The project's root and the user's home in a replay: nothing is read there."""

PATIENCE: Final = 3600.0
"""Virtual seconds after the last recorded moment in which the replayed run has to end."""

LONGEST: Final = 7 * 24 * 3600.0
"""The longest run that is replayed, in seconds: heartbeats and time limits cost some seconds for each week."""

SAID: Final = 200
"""The most characters of an error that are repeated."""

PEOPLE: Final = frozenset({"granted", "denied", "answered", "cancelled"})
"""How an ask ends if a person answers it."""


class NotReplayable(CrushError):
    """The capsule can be read, but this run cannot be replayed; the detail says why."""

    code = "not_replayable"
    message = "this capsule cannot be replayed"


@frozen
class Replay:
    """The result of a replay."""

    capsule: CapsuleFile = field(repr=False)
    replayed: CapsuleFile = field(repr=False)
    """The recording of the replay."""
    difference: Difference | None

    @property
    def same(self) -> bool:
        """Whether the replay did what was recorded."""
        return self.difference is None

    @override
    def __str__(self) -> str:
        if self.difference is not None:
            return str(self.difference)
        entries = self.capsule.entries
        events, calls = (sum(e["k"] == kind for e in entries) for kind in ("event", "request"))
        return f"the same: {events} events and {calls} model calls in {self.capsule.end['t']:.3f} s"


def replay(capsule: bytes | str | Path) -> Replay:
    """Replay a capsule, given as its content or as the path of its file, and compare.

    Runs a Trio loop of its own with a virtual clock, so it is called from synchronous code. Raises
    `CapsuleInvalid` for what is not a capsule of this version, `NotReplayable` for a run that cannot be
    replayed.
    """
    if trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "a replay has a Trio loop of its own: call it from a sync test or a thread"
        )
    found = read_capsule(capsule) if isinstance(capsule, bytes) else load_capsule(Path(capsule))
    with _explained():
        check_replayable(found)
        if (fault := header_fault(found.header)) is not None:
            raise CapsuleInvalid(fault)
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(_replay, found, clock=clock)


@contextmanager
def _explained() -> Iterator[None]:
    """Raise what goes wrong in the block as one error that says what to do.

    A capsule may come from anyone, so a value in it may be one that nothing here expects.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if isinstance(cause, CapsuleInvalid | NotReplayable):
            raise cause from None
        said = f"{type(cause).__name__}: {cause}"[:SAID]
        raise CapsuleInvalid(
            f"something in it cannot be played ({said}); if nobody has changed the file, it shows a "
            "fault of this program, and the traceback (`--debug`) says where"
        ) from error


def capsule_test(path: str | Path) -> Callable[[], None]:
    """Return a test that replays the capsule at *path* and fails with the first difference.

    `test_it = capsule_test("run.capsule")` is a whole test module. A relative path starts at the
    directory of the module that calls this.
    """
    import inspect

    frame = inspect.currentframe()
    caller = None if frame is None or frame.f_back is None else frame.f_back.f_code.co_filename
    place = Path(path) if caller is None else Path(caller).parent / path

    def test_capsule() -> None:
        result = replay(place)
        if result.difference is not None:
            raise AssertionError(f"{place.name}: {result.difference}")

    return test_capsule


def check_replayable(capsule: CapsuleFile) -> None:
    """Raise `NotReplayable` if something of the run cannot be played."""
    reason = next(_obstacles(capsule), None)
    if reason is not None:
        raise NotReplayable(f"not replayable because {reason}")


def _obstacles(capsule: CapsuleFile) -> Iterator[str]:
    end, header = capsule.end, capsule.header
    if capsule.cut:
        yield "its recording was cut at the size limit"
    if "lost" in end:
        yield f"{end['lost']} pieces of its recording could not be stored"
    if not end.get("complete"):
        state = end.get("state")
        yield (
            f"its recording is not complete: the run was {state} when the capsule was written; a run "
            "that is interrupted was ended by a kill of its server"
        )
    if not 0 <= end["t"] <= LONGEST:
        yield f"it took {end['t']:.0f} seconds, and at most {LONGEST:.0f} are replayed"
    if header.get("granted"):
        yield "earlier answers in its session or project granted permissions, which it does not have"
    calls = {each["id"] for each in capsule.of("part") if each["part"] == "called"}
    for answer in capsule.of("answer"):
        if answer["resolution"] == "unattended":
            yield "an ask was given up because no client was connected"
        if answer["ask"]["tool_call_id"] not in calls:
            yield "the user was asked whether to trust the project"
    if len(capsule.of("fold")) != len(_folded(capsule)):
        yield "a prompt that it has folded was queued before it began"


def _folded(capsule: CapsuleFile) -> list[float]:
    """Return when each prompt was queued that the run has folded."""
    first: dict[str, float] = {}
    folded = []
    for entry in capsule.of("event"):
        if entry["type"] == "run":
            run = entry["value"]
            first.setdefault(run["id"], entry["t"])
            if run["state"] == "folded":
                folded.append(first[run["id"]])
    return folded


# ── Playing ─────────────────────────────────────────────────────────────────────────────────────


async def _replay(capsule: CapsuleFile) -> Replay:
    player, stores = Player(capsule), MemoryStores()
    settings = WorkspaceSettings(
        open_config=partial(_open_config, player),
        opens=no_commands,
        open_store=stores.open,
        providers=dict.fromkeys(capsule.header["config"].get("providers", {}), player),
        hooks=player,
        stand_in=player.stand_in,
        clock=TrioClock(),
        ids=CountingIds("replayed-0000-4000-8000-0000000"),
        sizes=evolve(DEFAULTS, tool_output=2 * DEFAULTS.tool_output),  # results are cut already
    )
    client = client_id(1)
    async with open_memory_server(settings, stores) as server:
        header = capsule.header
        place = await server.create(
            client,
            header["directory"],
            interactive=not header["refuses"],
            yolo=header["skip_permissions"],
        )
        workspace = server.server.workspace(place.id)
        await _seed(workspace, header)
        with await place.watch(client):
            replayed = await _Scene(capsule, player, place, workspace).play()
    return Replay(capsule, replayed, first_difference(capsule, replayed))


@define(eq=False)
class _Scene:
    """One replayed run and the people around it: they answer, queue prompts and cancel."""

    capsule: CapsuleFile
    player: Player
    place: ServedWorkspace
    workspace: HostedWorkspace

    async def play(self) -> CapsuleFile:
        """Submit the prompt, do what people did, and return the recording of the run."""
        header, session = self.capsule.header, self.capsule.header["session"]["id"]
        self.player.begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            for entry in self.capsule.of("answer"):
                if entry["resolution"] in PEOPLE:
                    nursery.start_soon(self._answer, entry)
            for entry, at in zip(self.capsule.of("fold"), _folded(self.capsule), strict=True):
                nursery.start_soon(self._queue, entry, at)
            run = await self._submit(session, header)
            for entry in self.capsule.of("cancel"):
                nursery.start_soon(self._cancel, entry["at"], run)
            with trio.move_on_after(self.capsule.end["t"] + PATIENCE) as patience:
                await self.workspace.runs.find(run).wait_ended()
            if patience.cancelled_caught:
                await self._cancel(0, run)
                await self.workspace.runs.find(run).wait_ended()
            nursery.cancel_scope.cancel()
        response = await self.place.request("GET", f"/runs/{run}/capsule")
        return read_capsule(response.body)

    async def _submit(self, session: str, header: Entry) -> Any:  # noqa: ANN401
        """Submit the run; return its id."""
        if header["kind"] == RunKind.SUMMARIZE:
            await self.place.request("POST", f"/agent/sessions/{session}/summarize")
        else:
            body = {
                "session_id": session,
                "prompt": header["prompt"],
                "attachments": header["attachments"],
                "interactive": header["interactive"],
                "permissions": header["permissions"],
                **({} if header["model"] is None else {"model": header["model"]}),
                **({"run_id": header["run_id"]} if header["run_id"] else {}),
            }
            answer = await self.place.request("POST", "/agent", body)
            if answer.status != 202:
                raise NotReplayable(f"the prompt is not accepted: {answer.body.decode()}")
        return (await self.workspace.store.runs(SessionId(session), 1))[0].id

    async def _answer(self, entry: Entry) -> None:
        """Answer an ask at its time as it was answered, if it waits."""
        await self.player.wait(entry["t"])
        ask, given = entry["ask"], entry.get("given", "")
        if "questions" in ask:
            await self._answer_questions(ask, entry)
            return
        for request in self.workspace.asks.permissions.pending:
            if request.tool_call_id == ask["tool_call_id"] and given:
                denial = {"action": "deny", "reason": entry.get("reason", "")}
                answer = denial if given == "deny" else {"action": "allow", "scope": given}
                permission = {**ask, "id": request.id, "session_id": request.session_id}
                await self.place.request(
                    "POST", "/permissions/grant", {"permission": permission, **answer}
                )

    async def _answer_questions(  # noqa: ASYNC910  # the caller has waited
        self, ask: Entry, entry: Entry
    ) -> None:
        """Answer a batch of questions; their ids are new, their order is the same."""
        for request in self.workspace.asks.questions.pending:
            if request.tool_call_id != ask["tool_call_id"]:
                continue
            if entry["resolution"] == "cancelled":
                await self.place.request(
                    "POST", "/questions/cancel", {"batch_request_id": request.id}
                )
                return
            known = [each["id"] for each in ask["questions"]]
            ids = dict(zip(known, (each.id for each in request.questions), strict=False))
            responses = [
                {**each, "request_id": ids.get(each["request_id"], "")}
                for each in entry["responses"]
            ]
            body = {"batch_request_id": request.id, "responses": responses}
            await self.place.request("POST", "/questions/answer", body)

    async def _queue(self, entry: Entry, at: float) -> None:
        """Queue a prompt that the run will fold."""
        await self.player.wait(at)
        session = self.capsule.header["session"]["id"]
        body = {"session_id": session, "prompt": entry["prompt"]}
        await self.place.request("POST", "/agent", {**body, "attachments": entry["attachments"]})

    async def _cancel(self, at: float, run: str) -> None:
        await self.player.wait(at)
        await self.place.request("POST", f"/runs/{run}/cancel")


async def _seed(workspace: HostedWorkspace, header: Entry) -> None:
    """Store the session as it was before the run."""
    session = structure(header["session"], Session)
    messages = [structure(each, Message) for each in header["history"]]
    summary = session.summary_message_id
    await workspace.store.commit(
        SessionCreated(session=session),
        *(MessageCreated(message=each) for each in messages),
        *([SessionEdited(id=session.id, at=0, summary_message_id=summary)] if summary else []),
    )


# ── The configuration ───────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True, eq=False)
class PlayedConfig(LoadedConfig):
    """A configuration that reads no instruction files; it takes as long as planning took."""

    wait: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    @classmethod
    def of(cls, loaded: LoadedConfig, wait: Callable[[], Awaitable[None]]) -> "PlayedConfig":
        """Return *loaded* as such a configuration."""
        values = {each.name: getattr(loaded, each.name) for each in attrs.fields(LoadedConfig)}
        return cls(**values, wait=wait)

    @override
    async def context_files(self) -> tuple[ContextFile, ...]:
        await self.wait()
        return ()


@asynccontextmanager
async def _open_config(player: Player, places: Places) -> AsyncIterator[FixedConfig]:
    """Open the recorded configuration; its providers are played, and every run is recorded."""
    header = player.capsule.header
    config = structure(header["config"], Config)
    providers = {
        name: evolve(
            each,
            api_key="played",
            base_url="http://replay.invalid",
            limits=header["limits"].get(name, {}),
        )
        for name, each in config.providers.items()
    }
    places = evolve(places, home=NOWHERE, environment={})
    rules = [structure(each, PermissionRule) for each in header["rules"]]
    draft = Draft(
        places=places,
        project=Project(directories=(NOWHERE, places.directory)),
        layers=Layers(()),
        tree={},
        config=evolve(config, providers=providers, env={}, mcp={}, lsp={}, hooks={}),
        data_dir=DataDir(path=places.directory / DATA_NAME),
        warnings=(),
        record=True,
        rules=tuple(load_rules(rules, places.data_file)),
    )
    catalogue = [CatalogProvider(id=name, name=name) for name in providers]
    loaded = await finish_draft(draft, catalogue=catalogue, run_command=refuse_command, revision=1)
    yield FixedConfig(PlayedConfig.of(loaded, player.plan))
