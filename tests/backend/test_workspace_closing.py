"""In which order a hosted workspace is opened and closed, and what its readers see of that."""

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from attrs import define, field

from crush_trio.backend.open import open_hosted_workspace
from crush_trio.backend.settings import Terms, WorkspacePlan, WorkspaceSettings
from crush_trio.clock import CountingIds, TrioClock
from crush_trio.errors import LogClosed
from crush_trio.events.facts import Fact
from crush_trio.integrations.base import Integrations
from crush_trio.runtime.outcome import Submission
from crush_trio.store.changes import BootClosed, RunEnded, TailKept
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing import Gate
from crush_trio.testing.explore import cancel_everywhere
from crush_trio.testing.server.config import no_commands, open_fixed_config
from crush_trio.testing.server.faulty_store import FaultyStore
from crush_trio.wire.events import ConfigChanged, EventType, PayloadType
from crush_trio.wire.ids import ClientId, WorkspaceId

PLAN = WorkspacePlan(
    id=WorkspaceId("w"), key="/srv", path="/srv", terms=Terms(), created_by=ClientId("c")
)


def fact():
    return Fact(
        payload_type=PayloadType.CONFIG_CHANGED,
        change=EventType.UPDATED,
        entity=ConfigChanged(workspace_id=PLAN.id),
    )


@define(eq=False)
class Parts:
    """The parts of a workspace, each of which notes what happens to it."""

    leaving: Gate | None = None
    """Where the integrations wait before they close."""
    noted: list = field(factory=list, init=False)
    store: FaultyStore = field(init=False)
    publish: object = field(default=None, init=False)

    @asynccontextmanager
    async def open_store(self, _settings, _data_dir):
        self.noted.append("store opened")
        self.store = FaultyStore(MemoryStore("b1"))
        self.store.watch = self._note_writes
        yield self.store
        self.noted.append("store closed")

    def _note_writes(self, changes):
        self.noted += [type(c).__name__ for c in changes if isinstance(c, (RunEnded, BootClosed))]

    @asynccontextmanager
    async def open_integrations(self, surroundings):
        self.publish = surroundings.publish
        self.noted.append("integrations opened")
        surroundings.publish(fact())
        await trio.lowlevel.checkpoint()
        try:
            yield Integrations()
        finally:
            with trio.CancelScope(shield=True):
                if self.leaving is not None:
                    await self.leaving.wait()
            surroundings.publish(fact())
            self.noted.append("integrations closed")

    def make_turn(self, _transcript):
        return self._turn

    async def _turn(self, run):
        try:
            await trio.sleep_forever()
        finally:
            self.noted.append("run cancelled")

    def open(self):
        settings = WorkspaceSettings(
            make_turn=self.make_turn,
            open_config=open_fixed_config,
            open_store=self.open_store,
            open_integrations=self.open_integrations,
            opens=no_commands,
            clock=TrioClock(),
            ids=CountingIds("id"),
        )
        return open_hosted_workspace(PLAN, settings)


async def accept(workspace):
    """Have a run that goes on until it is cancelled."""
    workspace.init_agent()
    session = await workspace.create_session("a session")
    run = workspace.send(Submission(session_id=session.id, prompt="go"))
    await run.journaled()
    await trio.testing.wait_all_tasks_blocked()
    return run


async def read_to_the_end(workspace, noted):
    reader = await workspace.new_reader()
    try:
        while True:
            await reader.read()
    except LogClosed:
        noted.append("log closed")


ORDER = [
    "store opened",
    "integrations opened",
    "run cancelled",
    "RunEnded",
    "log closed",
    "BootClosed",
    "integrations closed",
    "store closed",
]


async def test_the_log_closes_after_the_runs_and_before_the_rest():
    parts = Parts()
    async with trio.open_nursery() as readers:
        async with parts.open() as workspace:
            await accept(workspace)
            readers.start_soon(read_to_the_end, workspace, parts.noted)
            await trio.testing.wait_all_tasks_blocked()
    # The reader and the last write are two tasks: which of the two comes first is up to Trio.
    assert sorted(parts.noted[4:6]) == sorted(ORDER[4:6])
    assert (parts.noted[:4], parts.noted[6:]) == (ORDER[:4], ORDER[6:])


@pytest.mark.parametrize("deviations", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_cancel_at_any_step_of_opening_working_and_closing_leaves_no_task(deviations):
    async def life():
        async with Parts().open() as workspace:
            workspace.init_agent()
            session = await workspace.create_session("a session")
            await workspace.send(Submission(session_id=session.id, prompt="go")).journaled()

    found = cancel_everywhere(life, deviations=deviations)
    assert found.places > 20


async def test_streams_end_while_integrations_are_still_closing():
    parts = Parts(leaving=Gate())
    async with trio.open_nursery() as readers:

        async def hold():
            async with parts.open() as workspace:
                await accept(workspace)
                readers.start_soon(read_to_the_end, workspace, parts.noted)
                await trio.testing.wait_all_tasks_blocked()

        readers.start_soon(hold)
        await parts.leaving.reached()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(parts.noted[4:]) == ["BootClosed", "log closed"]
        parts.leaving.open()
    assert parts.noted[6:] == ORDER[6:]


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_however_the_block_is_left_the_log_closes_before_the_integrations(how):
    parts = Parts()

    async def leave():
        async with parts.open() as workspace:
            await accept(workspace)
            readers.start_soon(read_to_the_end, workspace, parts.noted)
            await trio.testing.wait_all_tasks_blocked()
            parts.leaving = Gate()
            readers.start_soon(let_go)
            if how == "failed":
                raise ValueError("boom")
            scope.cancel()
            await trio.sleep_forever()

    async def let_go():
        await parts.leaving.reached()
        await trio.testing.wait_all_tasks_blocked()
        parts.noted.append("let go")
        parts.leaving.open()

    async with trio.open_nursery() as readers:
        with trio.CancelScope() as scope:
            if how == "failed":
                with pytest.raises(ValueError, match="boom"):
                    await leave()
            else:
                await leave()
    seen = ["RunEnded", "log closed", "let go", "integrations closed"]
    assert [each for each in parts.noted if each in seen] == seen
    assert "BootClosed" not in parts.noted, "it did not end in good order"


async def test_facts_of_integrations_that_open_are_in_the_log_and_later_ones_are_not():
    parts = Parts()
    async with parts.open() as workspace:
        assert workspace.events.head == 1
        assert not (await workspace.new_reader()).behind, "no reader was there"
        parts.publish(fact())
        assert workspace.events.head == 2
        await trio.testing.wait_all_tasks_blocked()
        kept = [c.seq for post in parts.store.posts for c in post if isinstance(c, TailKept)]
    assert kept == [2], "a reader can ask for what came after it, and it came after the opening"
    assert workspace.events.closed
    assert workspace.events.head == 2
