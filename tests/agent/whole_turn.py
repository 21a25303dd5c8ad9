"""One turn in which everything happens, and the check that nothing of it is left undone.

`play` opens an agent and plays the turn: reasoning, text, two tools side by side, one that runs
alone, a task, a prompt that is folded in meanwhile, a second step, and a title beside all that. A
test disturbs it somewhere; `check_kept` then holds, whatever the disturbance was.
"""

from collections import Counter
from contextlib import suppress

import trio
from attrs import define, field

from crush_trio.agent.titles import DEADLINE, INSTRUCTIONS
from crush_trio.errors import WorkspaceClosing
from crush_trio.events.facts import MessageChange
from crush_trio.runtime.outcome import Outcome
from crush_trio.store.changes import SessionCreated
from crush_trio.store.memory import MemoryStore
from crush_trio.testing.agents import AgentBench, ScriptedTool, open_test_agent
from crush_trio.testing.model_script import CallTool, Say, Think, by_text
from crush_trio.testing.scripted_provider import ScriptedProvider
from crush_trio.tools.base import ToolResult
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import SessionId
from crush_trio.wire.native import RunState
from crush_trio.wire.views import Session
from tests.agent.durable import check_complete, told

PROMPT, FOLDED, TASK, NEXT = "look into it", "and this", "find it", "next"

FIRST_STEP = (
    Think("hm"),
    Say("I look."),
    CallTool("a", id="c1"),
    CallTool("b", id="c2"),
    CallTool("w", id="c3"),
    CallTool("agent", {"prompt": TASK}, id="c4"),
)
DONE = (Say("All "), Say("done."))


@define(eq=False)
class Hands:
    """The tools of the turn, and how many of them are at work."""

    bench: AgentBench | None = field(default=None, init=False)
    at_work: int = field(default=0, init=False)
    folded: list = field(factory=list, init=False)

    def tools(self):
        return [
            ScriptedTool("a", self.work, parallel=True),
            ScriptedTool("b", self.work, parallel=True),
            ScriptedTool("w", self.work_alone),
            ScriptedTool("view", self.work),
        ]

    async def work(self, _call):
        self.at_work += 1
        try:
            await trio.sleep(0.1)
        finally:
            self.at_work -= 1
        return ToolResult(content="seen")

    async def work_alone(self, call):
        """Work, while somebody sends one more prompt."""
        assert self.at_work == 0, "it does not run alone"
        with suppress(WorkspaceClosing):
            self.folded.append(self.bench.accept(FOLDED))
        return await self.work(call)


def scripted_model():
    """Return the model of the turn; also of prompts that could not be folded, and of the next."""
    answers = by_text(
        {
            PROMPT: [FIRST_STEP, DONE],
            FOLDED: [DONE, DONE],
            TASK: [[CallTool("view", id="c5")], [Say("found")]],
            NEXT: [[Say("yes")], [Say("yes")]],
        }
    )
    return ScriptedProvider(
        lambda request: [Say("A title")] if request.system == (INSTRUCTIONS,) else answers(request)
    )


@define(eq=False)
class Played:
    """A turn that was played to its end, and what became of it."""

    model: ScriptedProvider
    hands: Hands
    bench: AgentBench = field(default=None, init=False)
    outcome: Outcome | None = field(default=None, init=False)
    """How the run ended; None if its acceptance was refused."""

    @property
    def states(self):
        """The ending of every run, by its kind and whether it has a caller's id."""
        return {(view.kind.value, view.run_id): view.state for view in self.bench.recorder.endings}


async def new_store(boot_id="boot"):
    store = MemoryStore(boot_id)
    await store.commit(SessionCreated(session=Session(id=SessionId("s"), title="New Session")))
    return store


async def play(begin=lambda _played: None, store=None, **options):
    """Play the turn and return what became of it. *begin* is called when the agent is open.

    If the workspace is still open afterwards, the next prompt must work.
    """
    hands, model = Hands(), scripted_model()
    played = Played(model, hands)
    store = await new_store() if store is None else store
    async with open_test_agent(model, hands.tools(), titles=True, store=store, **options) as bench:
        played.bench = hands.bench = bench
        begin(played)
        run = bench.accept(PROMPT, run_id="r")
        await run.wait_ended()
        for folded in hands.folded:
            await folded.wait_ended()
        played.outcome = run.outcome
        await trio.sleep(DEADLINE)
        check_idle(played)
        with suppress(WorkspaceClosing):
            assert (await bench.accept(NEXT, run_id="n").wait()).text == "yes"
    return played


# ── What holds afterwards ───────────────────────────────────────────────────────────────────────


def check_idle(played):
    """Nothing is at work any more."""
    runs, transcript = played.bench.workspace.runs, played.bench.workspace.transcript
    assert played.model.open == 0, "a stream of the model is still open"
    assert played.hands.at_work == 0, "a tool is still running"
    assert (runs.runs, runs.busy) == ((), False)
    assert not runs._runs.child_tasks, "a run has ended and its task has not"
    assert not runs.services.child_tasks, "a title is still being made"
    assert not transcript.services.child_tasks, "an answer has ended and its writer has not"
    assert not (transcript._open or transcript._calls or transcript._answered)
    assert played.bench.permissions.pending == ()


async def check_kept(played, store=None):
    """Raise unless every promise was kept; *store* is what is left, if not what was written to."""
    store = played.bench.store if store is None else store
    check_idle(played)
    stored = await check_complete(store, *await sessions_of(store))
    announced = played.bench.recorder.endings
    assert Counter(view.id for view in announced) == Counter(iter(stored)), "not one ending each"
    for view in announced:
        assert ending(view) == ending(stored[view.id]), "announced differently from what is stored"
    await check_told_messages(played, store)


def ending(view):
    return (view.state, view.run_id, view.message_id, view.error, view.folded_into)


async def sessions_of(store):
    """Return the names of all sessions that have runs, those of tasks included, and "s"."""
    return {"s"} | {run.session_id for run in await store.runs(limit=1000)}


async def check_told_messages(played, store):
    """What readers know of messages is what is stored, no more and no less."""
    known = {}
    for event in played.bench.recorder.events:
        if isinstance(event, MessageChange):
            known[event.message_id] = event.message
            if event.change is EventType.DELETED:
                del known[event.message_id]
    stored = [m for name in await sessions_of(store) for m in await store.messages(name)]
    assert {m.id: told(m) for m in stored} == {m.id: told(m) for m in known.values()}


async def check_restart(store):
    """The next start finds nothing to mend, and works."""
    hands, model = Hands(), scripted_model()
    again = store.reopened("again")
    async with open_test_agent(model, hands.tools(), store=again) as bench:
        assert bench.workspace.recovered == ()
        assert (await bench.accept(NEXT, run_id="m").wait()).state is RunState.COMPLETED
