"""What a run did when: each phase and each thing its turn does is a span of its timeline."""

import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.providers.base import Finished, Usage
from crush_trio.runtime import timeline as timeline_module
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Pause, Say, Sleep, by_text
from crush_trio.testing.server.agent import ScriptedTool, open_test_agent
from crush_trio.tools.base import ToolResult, Wanted
from crush_trio.wire.asks import PermissionAction
from crush_trio.wire.messages import FinishReason
from crush_trio.wire.runs import SpanKind
from tests.agent.asking import ROOT


def drawn(run):
    """Return the spans of a run, from its acceptance: kind, name, begin and end."""
    spans = run.timeline.spans
    zero = spans[0].begin
    return [
        (s.kind.value, s.name, s.begin - zero, None if s.end is None else s.end - zero)
        for s in spans
    ]


async def test_a_run_shows_how_long_it_waited_and_what_it_did():
    async def slow(call):
        await call.permit(Wanted(action="look", description="", params=None, path=ROOT))
        await trio.sleep(5)
        return ToolResult(content="seen")

    model = ScriptedProvider(
        [
            [Sleep(2), Say("one")],
            [Sleep(3), CallTool("look", id="c1")],
            [Say("done")],
        ]
    )
    async with open_test_agent(model, [ScriptedTool("look", slow)]) as bench:
        bench.agent.attendance.set_people(1, expected=False)
        first, second = bench.accept("one", run_id="1"), bench.accept("two", run_id="2")
        await first.wait()
        await trio.sleep(4)
        [asked] = bench.agent.permissions.pending
        assert ("ask", "permission", 5, None) in drawn(second), "it lasts"
        await trio.sleep(1)
        bench.agent.permissions.answer(asked.id, PermissionAction.ALLOW)
        await second.wait()
    assert drawn(first) == [("accepted", "", 0, 0), ("model", "m1", 0, 2), ("ending", "", 2, 2)]
    assert drawn(second) == [
        ("accepted", "", 0, 0),
        ("queued", "", 0, 2),
        ("model", "m1", 2, 5),
        ("tool", "look", 5, 12),
        ("ask", "permission", 5, 7),
        ("model", "m1", 12, 12),
        ("ending", "", 12, 12),
    ]
    details = [(span.kind.value, span.detail) for span in second.timeline.spans if span.detail]
    assert details == [("model", "step"), ("tool", "c1"), ("ask", "look"), ("model", "step")]


async def test_a_model_call_has_the_tokens_and_the_cost_that_its_provider_reports():
    used = Usage(input_tokens=3, cache_read_tokens=10, output_tokens=2, cost=0.5)
    model = ScriptedProvider([[Say("one"), Finished(reason=FinishReason.END_TURN, usage=used)]])
    async with open_test_agent(model) as bench:
        run = bench.accept("one")
        await run.wait()
    [call] = [span for span in run.timeline.spans if span.kind is SpanKind.MODEL]
    assert (call.tokens_in, call.tokens_out, call.cost) == (13, 2, 0.5)


async def test_a_task_is_a_span_of_its_parent_and_has_a_timeline_of_its_own():
    ask = CallTool("agent", {"prompt": "find it"}, id="c1")
    model = ScriptedProvider(
        by_text({"go": [[ask], [Say("done")]], "find it": [[Sleep(3), Say("here")]]})
    )
    async with open_test_agent(model) as bench:
        run = bench.accept("go")
        await wait_all_tasks_blocked()
        [child] = [each for each in bench.workspace.runs.runs if each is not run]
        await run.wait()
    [below] = [span for span in run.timeline.spans if span.kind is SpanKind.SUBAGENT]
    assert (below.name, below.detail, below.end - below.begin) == ("agent", child.id, 3)
    assert [kind for kind, *_ in drawn(child)] == ["accepted", "model", "ending"]
    assert [kind for kind, *_ in drawn(run)].count("model") == 2, "not that of the task"


async def test_a_cancel_ends_what_lasts():
    gate = Gate("streaming")
    async with open_test_agent(ScriptedProvider([[Say("so"), Pause(gate)]])) as bench:
        run, waiting = bench.accept("go", run_id="1"), bench.accept("more", run_id="2")
        await gate.reached()
        bench.workspace.runs.cancel("s")
        await run.wait()
        await waiting.wait()
    assert [kind for kind, *_ in drawn(run)] == ["accepted", "model", "ending"]
    assert [kind for kind, *_ in drawn(waiting)] == ["accepted", "queued", "ending"]
    assert all(span.end is not None for each in (run, waiting) for span in each.timeline.spans)


async def test_a_run_without_end_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(timeline_module, "MAX_SPANS", 3)
    steps = [[CallTool("look")], [CallTool("look")], [Say("done")]]
    async with open_test_agent(ScriptedProvider(steps), [ScriptedTool("look")]) as bench:
        run = bench.accept("go")
        await run.wait()
    assert [kind for kind, *_ in drawn(run)] == ["accepted", "model", "tool", "ending"]
    assert run.timeline.left_out == 3
