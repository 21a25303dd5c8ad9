"""An agent in memory: real except for the model, the disk and the clock.

`open_test_agent` opens a durable workspace on a store in memory whose turns are played by the real
coordinator, with a scripted model and the tools of the test.

```python
model = ScriptedProvider([[CallTool("look", {})], [Say("Done.")]])
look = ScriptedTool("look", lambda call: ToolResult(content="a file"))
async with open_test_agent(model, [look]) as bench:
    outcome = await bench.accept("what is here?").wait()
    assert outcome.text == "Done."
```
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field

from crush_trio.agent.asks.attendance import Attendance
from crush_trio.agent.asks.permissions import Permissions
from crush_trio.agent.coordinator import AgentTurn
from crush_trio.agent.record.journal import RecordedRuns, open_recorded_runs
from crush_trio.agent.record.transcript import Transcript
from crush_trio.agent.turn.model import ChosenModel
from crush_trio.agent.turn.plan import Desk, TurnPlan
from crush_trio.agent.turn.planner import TASK_TOOLS
from crush_trio.agent.turn.subagent import AgentTool
from crush_trio.agent.turn.title import Titles
from crush_trio.agent.turn.tool_calls import NO_HOOKS, ToolHooks
from crush_trio.clock import CountingIds, TrioClock
from crush_trio.events.log import EventLog
from crush_trio.limits import DEFAULTS, Limits, SizeLimits
from crush_trio.providers.base import Provider
from crush_trio.providers.call import Patience
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.lane import Capacity
from crush_trio.runtime.receipt import StopReceipt
from crush_trio.runtime.run import Run, Turn
from crush_trio.store.base import Store
from crush_trio.store.changes import SessionCreated
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.server.turns import prompt
from crush_trio.testing.server.workspace import Recorder
from crush_trio.tools.base import Tool, ToolCall, ToolResult
from crush_trio.wire.config import CatalogModel, SelectedModel
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.requests import ModelType
from crush_trio.wire.runs import RunKind
from crush_trio.wire.views import Session

_NOWHERE = Path("/nowhere")

TEST_MODEL = CatalogModel(
    id="m1",
    name="M One",
    context_window=100_000,
    default_max_tokens=4096,
    supports_attachments=True,
)


@define(eq=False)
class ScriptedTool:
    """A tool for tests: *play* returns its result, or an awaitable of it."""

    name: str
    play: Callable[[ToolCall], ToolResult | Awaitable[ToolResult]] = lambda _: ToolResult(
        content="ok"
    )
    parallel: bool = False
    calls: list[ToolCall] = field(factory=list, init=False)
    """Every call so far."""

    @property
    def description(self) -> str:
        """The description for the model."""
        return f"The tool {self.name}."

    @property
    def parameters(self) -> JsonObject:
        """A schema that allows any arguments."""
        return {"type": "object", "properties": {}}

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Record the call and return the result of *play*."""
        self.calls.append(call)
        await trio.lowlevel.checkpoint()
        result = self.play(call)
        return await result if isinstance(result, Awaitable) else result


@define(eq=False)
class ScriptedAgent:
    """The model, tools and settings of the agent; satisfies `ModelSource` and `Planner`.

    The same provider serves both models. Titles are generated only with *titles*, because each is one
    more request to the model, concurrent with the turn.
    """

    provider: Provider
    tools: dict[str, Tool]
    model: CatalogModel = TEST_MODEL
    titles: bool = False
    patience: Patience = field(factory=Patience)
    hooks: ToolHooks = NO_HOOKS
    sizes: SizeLimits = DEFAULTS
    desk: Desk | None = field(default=None, init=False)
    permissions: Permissions | None = field(default=None, init=False)
    attendance: Attendance = field(factory=Attendance, init=False)

    def make_turn(self, transcript: Transcript, store: Store, ids: CountingIds) -> Turn:
        """Return the turn function of the agent, as a workspace takes it."""
        clock = TrioClock()
        permissions = Permissions(
            directory=_NOWHERE,
            store=store,
            publish=transcript.events.publish,
            clock=clock,
            ids=ids,
            attendance=self.attendance,
        )
        self.permissions = permissions
        self.desk = Desk(
            transcript,
            transcript.events,
            store,
            clock,
            ids,
            permissions,
            self.patience,
            hooks=self.hooks,
            sizes=self.sizes,
        )
        return AgentTurn(self.desk, self, Titles(self.desk, self) if self.titles else None)

    async def choose(self, slot: ModelType, instead: SelectedModel | None = None) -> ChosenModel:
        """Return the scripted model, for either slot and under any name."""
        await trio.lowlevel.checkpoint()
        chosen = instead or SelectedModel(model=self.model.id, provider="p1")
        return ChosenModel(provider=self.provider, model=self.model, selected=chosen)

    async def plan(self, run: Run) -> TurnPlan:
        """Return the plan of a run; a task has fewer tools, as in the real planner."""
        assert self.desk is not None
        tools = {**self.tools, AgentTool.name: AgentTool(run, self.desk)}
        if run.kind is RunKind.TASK:
            tools = {name: tool for name, tool in tools.items() if name in TASK_TOOLS}
        return TurnPlan(
            model=await self.choose(ModelType.LARGE, run.submission.model),
            tools=lambda: tools,
            system=("Be brief.",),
            remind=False,
            interactive=run.kind is not RunKind.TASK and run.submission.interactive,
        )


@define(eq=False)
class AgentBench:
    """An agent under test, with its store and a recorder of its events."""

    workspace: RecordedRuns
    store: Store
    agent: ScriptedAgent
    _recorder: Recorder

    @property
    def events(self) -> EventLog:
        """The event log of the workspace."""
        return self.workspace.events

    @property
    def permissions(self) -> Permissions:
        """The permissions of the workspace."""
        assert self.agent.permissions is not None
        return self.agent.permissions

    @property
    def recorder(self) -> Recorder:
        """A recorder that has read all events so far."""
        return self._recorder.catch_up()

    def accept(
        self, text: str, session: str = "s", run_id: str | None = None, **more: object
    ) -> AcceptedRun:
        """Accept a prompt."""
        return self.workspace.runs.accept(prompt(text, session, run_id, **more))

    def cancel(self, session: str = "s") -> StopReceipt:
        """Cancel a session."""
        return self.workspace.runs.cancel(SessionId(session))

    async def messages(self, session: str = "s") -> list[Message]:
        """Return the stored messages of a session."""
        return await self.store.messages(SessionId(session))

    async def session(self, name: str = "s") -> Session:
        """Return a session as it is stored."""
        return await self.store.session(SessionId(name))


@asynccontextmanager
async def open_test_agent(
    provider: Provider,
    tools: Iterable[Tool] = (),
    *,
    model: CatalogModel = TEST_MODEL,
    titles: bool = False,
    patience: Patience | None = None,
    limits: Limits | None = None,
    sizes: SizeLimits = DEFAULTS,
    store: Store | None = None,
    hooks: ToolHooks = NO_HOOKS,
) -> AsyncIterator[AgentBench]:
    """Open an agent for a test, in a workspace that has the session "s".

    *sizes* are the size limits. If a *store* is given, it must contain that session. *hooks* run before
    each tool call.
    """
    agent = ScriptedAgent(
        provider,
        {tool.name: tool for tool in tools},
        model,
        titles,
        Patience() if patience is None else patience,
        hooks,
        sizes,
    )
    if store is None:
        store = MemoryStore("boot")
        await store.commit(SessionCreated(session=Session(id=SessionId("s"), title="New Session")))
    the_store, ids = store, CountingIds(store.boot_id)
    async with open_recorded_runs(
        the_store,
        lambda transcript: agent.make_turn(transcript, the_store, ids),
        clock=TrioClock(),
        ids=ids,
        limits=limits,
        sizes=sizes,
        capacity=Capacity(sizes.active_runs),
    ) as workspace:
        await workspace.recovery.done.wait()
        yield AgentBench(workspace, the_store, agent, Recorder(workspace.events))
