"""Which spans a turn has, below which, how they end, and whether there are any."""

import subprocess
import sys

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import StatusCode

from crush_trio.agent import otel, spans
from crush_trio.agent.otel import CAPTURE_VARIABLE, OtelSpans, process_spans
from crush_trio.agent.spans import NO_SPANS, configured_spans
from crush_trio.store.changes import SessionCreated
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Pause, Refuse, Say
from crush_trio.testing.server.agent import ScriptedTool, open_test_agent
from crush_trio.tools.base import ToolError, ToolResult
from crush_trio.wire.ids import SessionId
from crush_trio.wire.views import Session
from tests.agent.tracing import open_traced_agent

# ── The tree ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_has_steps_and_a_step_has_a_model_call_and_tool_calls():
    model = ScriptedProvider([[CallTool("look")], [Say("done")]])
    async with open_traced_agent(model, [ScriptedTool("look")]) as (bench, traced):
        await bench.accept("go").wait()
    assert traced.lineage(traced.one("execute_tool look")) == [
        "invoke_agent coder",
        "step",
        "execute_tool look",
    ]
    assert [traced.lineage(span) for span in traced.all("chat m1")] == [
        ["invoke_agent coder", "step", "chat m1"]
    ] * 2
    first, second = traced.all("chat m1")
    assert traced.parent(first) is not traced.parent(second)
    assert len({span.context.trace_id for span in traced.finished}) == 1


async def test_calls_that_run_together_are_siblings_whatever_they_open_themselves():
    gate = Gate("together")

    def tracing(inner):
        async def play(_):
            with traced.spans.tracer.start_as_current_span(inner):
                await gate.wait()
            return ToolResult(content="ok")

        return play

    tools = [ScriptedTool(name, tracing(f"in {name}"), parallel=True) for name in ("a", "b")]
    model = ScriptedProvider([[CallTool("a"), CallTool("b")], [Say("done")]])
    async with open_traced_agent(model, tools) as (bench, traced):
        run = bench.accept("go")
        await gate.reached(2)
        gate.open()
        await run.wait()
    for name in ("a", "b"):
        assert traced.lineage(traced.one(f"in {name}")) == [
            "invoke_agent coder",
            "step",
            f"execute_tool {name}",
            f"in {name}",
        ]


async def test_runs_of_different_sessions_do_not_get_into_each_others_trace():
    gate = Gate("both")
    model = ScriptedProvider(lambda _: [Pause(gate), Say("done")])
    async with open_traced_agent(model) as (bench, traced):
        await bench.store.commit(SessionCreated(session=Session(id=SessionId("t"), title="")))
        first, second = bench.accept("go"), bench.accept("go", session="t")
        await gate.reached(2)
        gate.open()
        await first.wait()
        await second.wait()
    roots = traced.all("invoke_agent coder")
    assert [span.parent for span in roots] == [None, None]
    for root in roots:
        mine = {
            span.attributes["gen_ai.conversation.id"]
            for span in traced.finished
            if span.context.trace_id == root.context.trace_id
        }
        assert mine == {root.attributes["gen_ai.conversation.id"]}


async def test_a_task_is_a_run_below_the_call_that_started_it():
    model = ScriptedProvider(
        [[CallTool("agent", {"prompt": "find it"})], [Say("found")], [Say("done")]]
    )
    async with open_traced_agent(model) as (bench, traced):
        await bench.accept("go").wait()
    assert traced.lineage(traced.one("invoke_agent task")) == [
        "invoke_agent coder",
        "step",
        "execute_tool agent",
        "invoke_agent task",
    ]


async def test_a_run_is_below_the_span_in_which_it_was_accepted():
    model = ScriptedProvider([[Say("done")]])
    async with open_traced_agent(model) as (bench, traced):
        with traced.spans.tracer.start_as_current_span("POST /v1/workspaces/{wid}/agent"):
            run = bench.accept("go")
        await run.wait()
    assert traced.lineage(traced.one("chat m1"))[:2] == [
        "POST /v1/workspaces/{wid}/agent",
        "invoke_agent coder",
    ]


async def test_the_title_of_a_session_is_a_model_call_of_the_run_it_is_made_beside():
    model = ScriptedProvider(lambda _: [Say("words")])
    async with open_traced_agent(model, titles=True) as (bench, traced):
        await bench.accept("go").wait()
        await trio.testing.wait_all_tasks_blocked()
    lineages = [traced.lineage(span) for span in traced.all("chat m1")]
    assert sorted(lineages, key=len) == [
        ["invoke_agent coder", "chat m1"],
        ["invoke_agent coder", "step", "chat m1"],
    ]


# ── Failures ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_cancelled_run_ends_every_span_it_has_open_and_says_so():
    gate = Gate("tool")

    async def wait(_):
        await gate.wait()

    model = ScriptedProvider([[CallTool("look")]])
    async with open_traced_agent(model, [ScriptedTool("look", wait)]) as (bench, traced):
        bench.accept("go")
        await gate.reached()
        await bench.cancel().settled()
    for name in ("execute_tool look", "step", "invoke_agent coder"):
        span = traced.one(name)
        assert span.attributes["crush_trio.outcome"] == "cancelled"
        assert span.attributes["error.type"] == "cancelled"
        assert span.status.status_code is StatusCode.ERROR
        assert span.events == ()
    assert traced.one("chat m1").attributes["crush_trio.outcome"] == "completed"


async def test_a_cancel_in_the_middle_of_an_answer_ends_the_model_call():
    gate = Gate("speaking")
    model = ScriptedProvider([[Say("I was"), Pause(gate)]])
    async with open_traced_agent(model) as (bench, traced):
        bench.accept("go")
        await gate.reached()
        await bench.cancel().settled()
    assert traced.one("chat m1").attributes["crush_trio.outcome"] == "cancelled"
    assert "gen_ai.response.finish_reasons" not in traced.one("chat m1").attributes


async def test_a_provider_that_refuses_is_recorded_by_its_code_and_not_by_its_words():
    model = ScriptedProvider([[Refuse(401, "your key is bad")]])
    async with open_traced_agent(model) as (bench, traced):
        await bench.accept("go").wait()
    for name in ("chat m1", "step", "invoke_agent coder"):
        span = traced.one(name)
        assert span.attributes["error.type"] == "provider_unauthorized"
        assert span.attributes["crush_trio.outcome"] == "errored"
        assert span.status.description == "provider_unauthorized"
        [event] = span.events
        assert dict(event.attributes) == {
            "exception.type": "crush_trio.providers.errors.ProviderUnauthorized"
        }
    assert "your key is bad" not in traced.text()


async def test_a_tool_that_raises_is_the_reason_and_the_calls_beside_it_are_cancelled():
    gate = Gate("other")

    async def wait(_):
        await gate.wait()

    async def crash(_):
        await gate.reached()
        raise RuntimeError("boom")

    tools = [
        ScriptedTool("other", wait, parallel=True),
        ScriptedTool("bad", crash, parallel=True),
    ]
    model = ScriptedProvider([[CallTool("other"), CallTool("bad")]])
    async with open_traced_agent(model, tools) as (bench, traced):
        await bench.accept("go").wait()
    assert traced.one("execute_tool bad").attributes["error.type"] == "builtins.RuntimeError"
    assert traced.one("execute_tool other").attributes["crush_trio.outcome"] == "cancelled"
    assert traced.one("invoke_agent coder").attributes["error.type"] == "builtins.RuntimeError"
    assert "boom" not in traced.text()


async def test_a_failure_that_a_cancel_brings_about_counts_for_more_than_the_cancel():
    gate = Gate("both")

    async def fail_at_the_end():
        try:
            await gate.wait()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)  # the others have gone by then
            raise RuntimeError("boom")

    async def play(_):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.wait)
            nursery.start_soon(fail_at_the_end)

    model = ScriptedProvider([[CallTool("look")]])
    async with open_traced_agent(model, [ScriptedTool("look", play)]) as (bench, traced):
        bench.accept("go")
        await gate.reached(2)
        await bench.cancel().settled()
    assert traced.one("execute_tool look").attributes["error.type"] == "builtins.RuntimeError"


async def test_an_error_that_is_told_to_the_model_is_one_of_the_tool_only():
    def refuse(_):
        raise ToolError("no such file")

    model = ScriptedProvider([[CallTool("look")], [Say("then not")]])
    async with open_traced_agent(model, [ScriptedTool("look", refuse)]) as (bench, traced):
        await bench.accept("go").wait()
    tool = traced.one("execute_tool look")
    assert (tool.attributes["error.type"], tool.status.description) == ("tool_error", "tool_error")
    assert traced.one("invoke_agent coder").status.status_code is StatusCode.UNSET
    assert "no such file" not in traced.text()


# ── Whether there is a trace at all ─────────────────────────────────────────────────────────────────


def test_without_a_tracer_provider_there_are_no_spans():
    assert configured_spans() is NO_SPANS
    assert process_spans({}) is None


def test_traces_that_are_asked_for_and_not_installed_are_told_once(monkeypatch, caplog):
    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    spans._tell_if_missing.cache_clear()
    assert configured_spans({"OTEL_TRACES_EXPORTER": "none"}) is NO_SPANS
    assert caplog.messages == []
    for _ in range(2):
        assert configured_spans({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]"}) is NO_SPANS
    [told] = caplog.messages
    assert told.startswith("OTEL_EXPORTER_OTLP_ENDPOINT asks for traces")
    assert "pip install 'crush-trio[otel]'" in told


def test_with_a_tracer_provider_there_are(monkeypatch):
    monkeypatch.setattr(otel.trace, "get_tracer_provider", TracerProvider)
    spans = process_spans({CAPTURE_VARIABLE: "true"})
    assert spans.content
    assert isinstance(configured_spans(), OtelSpans)


async def test_an_agent_that_nobody_traces_leaves_the_current_span_alone():
    def look(_):
        assert not trace.get_current_span().get_span_context().is_valid
        return ToolResult(content="ok")

    model = ScriptedProvider([[CallTool("look")], [Say("done")]])
    async with open_test_agent(model, [ScriptedTool("look", look)]) as bench:
        assert bench.agent.desk.spans is NO_SPANS
        assert (await bench.accept("go").wait()).text == "done"


@pytest.mark.slow
def test_a_turn_without_a_trace_imports_nothing_of_opentelemetry():
    program = (
        "import sys\n"
        "import crush_trio.agent.coordinator\n"
        "from crush_trio.agent.spans import NO_SPANS, configured_spans\n"
        "assert configured_spans() is NO_SPANS\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert ran.stdout == "[]\n"
