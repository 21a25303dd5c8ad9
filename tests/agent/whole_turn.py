"""Turns in which everything happens, and the check that nothing of them is left undone.

A `Scenario` is played by `play` on a real agent with a scripted model. `WHOLE` has reasoning, text,
two tools side by side, one that runs alone, a task, a prompt that is folded in meanwhile, a second
step, and a title beside all that. `SUMMARY` is a summary that somebody asked for, `FULL` a turn that
is summarised in its middle. A test disturbs one of them somewhere; `check_kept` holds afterwards,
whatever the disturbance was.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import trio
from attrs import define, field, frozen

from crush_trio.agent.turn.summary import CONTINUE, REQUEST
from crush_trio.agent.turn.title import DEADLINE, INSTRUCTIONS
from crush_trio.errors import WorkspaceClosing
from crush_trio.events.facts import MessageChange
from crush_trio.providers.base import Finished, Usage
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.store.changes import SessionCreated
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Say, Think, by_text
from crush_trio.testing.server.agent import TEST_MODEL, AgentBench, ScriptedTool, open_test_agent
from crush_trio.tools.base import ToolResult
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import FinishReason, Role
from crush_trio.wire.runs import RunKind, RunState
from crush_trio.wire.views import Session
from tests.agent.durable import check_complete, finish_of, text_of, told

PROMPT, FOLDED, TASK, NEXT = "look into it", "and this", "find it", "next"

STEP = (
    Think("hm"),
    Say("I look."),
    CallTool("a", id="c1"),
    CallTool("b", id="c2"),
    CallTool("w", id="c3"),
    CallTool("agent", {"prompt": TASK}, id="c4"),
)
DONE = (Say("All "), Say("done."))
LAST_STRAW = Finished(
    reason=FinishReason.TOOL_USE, usage=Usage(input_tokens=TEST_MODEL.context_window)
)


# ── Who takes part ──────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Hands:
    """The tools, and how many of them are at work."""

    bench: AgentBench | None = field(default=None, init=False)
    at_work: int = field(default=0, init=False)
    folded: list[AcceptedRun] = field(factory=list, init=False)

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


@frozen(eq=False)
class Scenario:
    """What the model says, by what it was asked last, and which run is disturbed.

    *before* is a prompt that is answered in peace first. *go* accepts the run that is not.
    """

    name: str
    answers: dict
    go: Callable[[AgentBench], AcceptedRun]
    before: str = ""


def sends_prompt(bench):
    return bench.accept(PROMPT, run_id="r")


def asks_for_summary(bench):
    return bench.accept("", run_id="r", kind=RunKind.SUMMARIZE)


YES = [[Say("yes")]] * 2

WHOLE = Scenario(
    "whole",
    {
        PROMPT: [STEP, DONE],
        FOLDED: [DONE, DONE],
        TASK: [[CallTool("view", id="c5")], [Say("found")]],
        NEXT: YES,
    },
    sends_prompt,
)
SUMMARY = Scenario(
    "summary",
    {"hi": [[Say("hello")]], REQUEST: [[Think("hm"), Say("In "), Say("short.")]], NEXT: YES},
    asks_for_summary,
    before="hi",
)
FULL = Scenario(
    "full",
    {
        PROMPT: [[Say("I look."), CallTool("a", id="c1"), LAST_STRAW]],
        REQUEST: [[Say("In short.")]],
        CONTINUE.format(prompt=PROMPT): [DONE],
        NEXT: YES,
    },
    sends_prompt,
)


def scripted_model(scenario):
    """Return the model of a scenario; whatever else it is asked, it gives titles."""
    answers = by_text(scenario.answers)
    return ScriptedProvider(
        lambda request: [Say("A title")] if request.system == (INSTRUCTIONS,) else answers(request)
    )


# ── Playing ─────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Played:
    """A scenario as it is played, and what became of it."""

    model: ScriptedProvider
    scenario: Scenario | None = None
    hands: Hands = field(factory=Hands, init=False)
    bench: AgentBench = field(default=None, init=False)
    run: AcceptedRun | None = field(default=None, init=False)
    commits: int = field(default=0, init=False)
    """How many commits it took, if somebody counted."""
    over: bool = field(default=False, init=False)
    """Whether the disturbed run has ended, and everything that came of it."""

    @property
    def endings(self):
        """The announced endings of the disturbed run, its task, and the prompt that it folds."""
        names = {RunKind.TASK: "task", RunKind.PROMPT: "folded"}
        return {
            "run" if view.run_id == "r" else names[view.kind]: view
            for view in self.bench.recorder.endings
            if view.run_id in {"r", None}
        }


async def new_store(boot_id="boot"):
    store = MemoryStore(boot_id)
    await store.commit(SessionCreated(session=Session(id=SessionId("s"), title="New Session")))
    return store


def nothing(_played):
    """Do nothing about it."""


async def play(scenario, begin=nothing, *, then=nothing, store=None):
    """Play *scenario* and return what became of it.

    *begin* is called when its run is to begin, *then* when everything that came of it is over.

    If the workspace is still open when the run has ended, the next prompt must work.
    """
    played = Played(scripted_model(scenario), scenario)
    store = await new_store() if store is None else store
    tools = played.hands.tools()
    async with open_test_agent(played.model, tools, titles=True, store=store) as bench:
        played.bench = played.hands.bench = bench
        if scenario.before:
            await bench.accept(scenario.before, run_id="before").wait()
            await trio.sleep(DEADLINE)
        begin(played)
        played.run = scenario.go(bench)
        await played.run.wait_ended()
        for folded in played.hands.folded:
            await folded.wait_ended()
        await trio.sleep(DEADLINE)
        played.over = True
        then(played)
        with suppress(WorkspaceClosing):
            assert (await bench.accept(NEXT, run_id="next").wait()).text == "yes"
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
    assert transcript._turns == {}
    assert played.bench.permissions.pending == ()


async def check_kept(played):
    """Raise unless every promise was kept, and a restart finds nothing to mend."""
    await check_settled(played)
    await check_restart(played.bench.store, played.scenario)


async def check_settled(played):
    """Raise unless every promise was kept: by the tasks, in the store, and to readers."""
    check_idle(played)
    await check_stored(played)
    await check_told(played)


async def check_stored(played):
    """Every run has one ending, announced as it is stored, and its turn lacks nothing."""
    store = played.bench.store
    stored = await check_complete(store, *await sessions_of(store), besides=continues)
    announced = played.bench.recorder.endings
    assert Counter(view.id for view in announced) == Counter(iter(stored)), "not one ending each"
    for view in announced:
        assert ending(view) == ending(stored[view.id]), "announced differently from what is stored"
    kinds = [view.kind for view in announced if view.kind is RunKind.TASK or view.run_id == "r"]
    assert kinds.count(RunKind.TASK) == 0 or kinds[-1] is not RunKind.TASK, (
        "a task outlived its run"
    )
    failed = any(view.state is RunState.ERRORED for view in announced)
    await check_summary(store, failed=failed)


def ending(view):
    return (view.state, view.run_id, view.message_id, view.error, view.folded_into)


def continues(message):
    """Whether a message is the one by which a turn goes on after a summary; no run sent it."""
    return message.role is Role.USER and text_of(message) == CONTINUE.format(prompt=PROMPT)


async def sessions_of(store):
    """Return the names of all sessions that have runs, those of tasks included, and "s"."""
    return {"s"} | {run.session_id for run in await store.runs(limit=1000)}


async def check_summary(store, *, failed):
    """A summary is the beginning of the history, or it is not there.

    One whose run failed may be there without being used; mostly it says so itself.
    """
    begins_with = (await store.session(SessionId("s"))).summary_message_id
    summaries = [m for m in await store.messages(SessionId("s")) if m.is_summary_message]
    whole = [m.id for m in summaries if finish_of(m).reason is FinishReason.END_TURN]
    assert len(summaries) <= 1
    assert not begins_with or whole == [begins_with]
    assert begins_with or failed or not summaries, "a summary that nobody uses"


async def check_told(played):
    """What readers know of messages is what is stored, no more and no less."""
    store = played.bench.store
    known = {}
    for event in played.bench.recorder.events:
        if isinstance(event, MessageChange):
            new = event.message_id not in known
            assert new is (event.change is EventType.CREATED), "created twice, or never"
            known[event.message_id] = told(event.message)
            if event.change is EventType.DELETED:
                del known[event.message_id]
    stored = [m for name in await sessions_of(store) for m in await store.messages(name)]
    assert {m.id: told(m) for m in stored} == known


async def check_restart(store, scenario):
    """The next start finds nothing to mend, and works."""
    again = store.reopened("again")
    async with open_test_agent(scripted_model(scenario), Hands().tools(), store=again) as bench:
        assert bench.workspace.recovery.ended == []
        assert (await bench.accept(NEXT, run_id="again").wait()).state is RunState.COMPLETED
