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

from crush_trio.agent.summaries import CONTINUE
from crush_trio.agent.titles import DEADLINE, INSTRUCTIONS
from crush_trio.errors import WorkspaceClosing
from crush_trio.events.facts import MessageChange
from crush_trio.providers.base import Finished, Usage
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.store.changes import SessionCreated
from crush_trio.store.memory import MemoryStore
from crush_trio.testing.agents import TEST_MODEL, AgentBench, ScriptedTool, open_test_agent
from crush_trio.testing.model_script import CallTool, Say, Think, by_text
from crush_trio.testing.scripted_provider import ScriptedProvider
from crush_trio.tools.base import ToolResult
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import FinishReason, Role
from crush_trio.wire.native import RunKind, RunState
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


@frozen
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
    {"hi": [[Say("hello")]], "Summarise": [[Think("hm"), Say("In "), Say("short.")]], NEXT: YES},
    asks_for_summary,
    before="hi",
)
FULL = Scenario(
    "full",
    {
        PROMPT: [[Say("I look."), CallTool("a", id="c1"), LAST_STRAW]],
        "Summarise": [[Say("In short.")]],
        "The session was interrupted": [DONE],
        NEXT: YES,
    },
    sends_prompt,
)


def scripted_model(scenario):
    """Return the model of a scenario; whatever else happens, it gives titles."""
    answers = by_text(scenario.answers)
    begun = {name: by_text({name: script}) for name, script in scenario.answers.items()}

    def choose(request):
        if request.system == (INSTRUCTIONS,):
            return [Say("A title")]
        said = request.messages[-1]
        return answers(request)

    return ScriptedProvider(choose)
