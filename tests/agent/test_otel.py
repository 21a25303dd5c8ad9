"""What spans say: the words of the conventions, and nothing that was said unless it is asked for."""

import json

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from crush_trio.agent.otel import CAPTURE_VARIABLE, captures_content
from crush_trio.log_context import logged_for
from crush_trio.providers.base import Finished, Usage
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Say
from crush_trio.testing.server.agent import ScriptedTool
from crush_trio.tools.base import ToolResult
from crush_trio.wire.messages import FinishReason
from crush_trio.wire.runs import RunState
from tests.agent.tracing import open_traced_agent

SECRET = "sk-0123456789abcdefghij"


# ── What a span says ────────────────────────────────────────────────────────────────────────────────


async def test_spans_speak_the_language_of_the_conventions():
    used = Usage(input_tokens=100, output_tokens=5, cache_read_tokens=20, cache_write_tokens=3)
    model = ScriptedProvider(
        [
            [CallTool("look", id="c1"), Finished(reason=FinishReason.TOOL_USE, usage=used)],
            [Say("done")],
        ]
    )
    async with open_traced_agent(model, [ScriptedTool("look")]) as (bench, traced):
        run = bench.accept("go")
        await run.wait()
    chat = traced.all("chat m1")[0]
    assert chat.kind is SpanKind.CLIENT
    assert dict(chat.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": "s",
        "gen_ai.provider.name": "p1",
        "gen_ai.request.model": "m1",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 4096,
        "gen_ai.response.finish_reasons": ("tool_call",),
        "gen_ai.usage.input_tokens": 123,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 20,
        "gen_ai.usage.cache_creation.input_tokens": 3,
        "crush_trio.outcome": "completed",
    }
    tool = traced.one("execute_tool look")
    assert tool.kind is SpanKind.INTERNAL
    assert dict(tool.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.conversation.id": "s",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.type": "function",
        "crush_trio.outcome": "completed",
    }
    assert dict(traced.one("invoke_agent coder").attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "coder",
        "gen_ai.conversation.id": "s",
        "gen_ai.provider.name": "p1",
        "gen_ai.request.model": "m1",
        "crush_trio.run.id": run.id,
        "crush_trio.run.kind": "prompt",
        "crush_trio.outcome": "completed",
    }
    assert {span.status.status_code for span in traced.finished} == {StatusCode.UNSET}


SPOKEN = {
    "prompt": "PROMPT please",
    "answer": "ANSWER given",
    "arguments": "ARGUMENTS made",
    "result": "RESULT found",
}


async def speak(content):
    """Run a turn in which everything that can be said is said, and return its trace."""
    model = ScriptedProvider(
        [[CallTool("look", {"at": SPOKEN["arguments"]})], [Say(SPOKEN["answer"])]]
    )
    look = ScriptedTool("look", lambda _: ToolResult(content=SPOKEN["result"]))
    async with open_traced_agent(model, [look], content=content) as (bench, traced):
        await bench.accept(SPOKEN["prompt"]).wait()
    return traced


async def test_nothing_that_was_said_is_in_a_trace_unless_it_is_asked_for():
    text = (await speak(content=False)).text()
    assert [word for word in SPOKEN.values() if word in text] == []


async def test_content_that_is_asked_for_has_the_shape_of_the_conventions():
    traced = await speak(content=True)
    first, second = traced.all("chat m1")
    assert json.loads(first.attributes["gen_ai.system_instructions"]) == [
        {"type": "text", "content": "Be brief."}
    ]
    told = json.loads(second.attributes["gen_ai.input.messages"])
    assert [message["role"] for message in told] == ["user", "assistant", "tool"]
    assert told[0]["parts"] == [{"type": "text", "content": SPOKEN["prompt"]}]
    [call] = told[1]["parts"]
    assert call["arguments"] == {"at": SPOKEN["arguments"]}
    [response] = told[2]["parts"]
    assert response == {
        "type": "tool_call_response",
        "id": call["id"],
        "response": SPOKEN["result"],
    }
    assert json.loads(second.attributes["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": SPOKEN["answer"]}],
            "finish_reason": "stop",
        }
    ]
    tool = traced.one("execute_tool look").attributes
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"at": SPOKEN["arguments"]}
    assert tool["gen_ai.tool.call.result"] == SPOKEN["result"]


async def test_content_that_is_asked_for_has_no_secrets_in_it():
    model = ScriptedProvider([[CallTool("look", {"api_key": "plain"})], [Say(f"it is {SECRET}")]])
    look = ScriptedTool("look", lambda _: ToolResult(content=f"TOKEN={SECRET}"))
    async with open_traced_agent(model, [look], content=True) as (bench, traced):
        await bench.accept(f"my key is {SECRET}").wait()
    assert "[redacted]" in traced.text()
    assert SECRET not in traced.text()
    assert "plain" not in traced.one("execute_tool look").to_json()


async def test_content_that_is_asked_for_has_none_of_the_workspaces_secrets_in_it():
    known = "no-form-of-a-secret"
    model = ScriptedProvider([[CallTool("look", {"at": known})], [Say(f"it is {known}")]])
    look = ScriptedTool("look", lambda _: ToolResult(content=f"{known} again"))
    async with open_traced_agent(model, [look], content=True) as (bench, traced):
        with logged_for("w", lambda text: text.replace(known, "[hidden]")):
            await bench.accept(f"my key is {known}").wait()
    assert "[hidden] again" in traced.text()
    assert known not in traced.text()


async def test_arguments_that_nobody_can_read_do_not_end_the_run():
    deep = '{"a":' * 900 + "1" + "}" * 900  # JSON still, but too deep to be searched for secrets
    model = ScriptedProvider([[CallTool("look", deep)], [Say("done")]])
    async with open_traced_agent(model, [ScriptedTool("look")], content=True) as (bench, traced):
        outcome = await bench.accept("go").wait()
    assert outcome.state is RunState.COMPLETED
    first, second = traced.all("chat m1")
    assert "gen_ai.input.messages" in first.attributes
    assert "gen_ai.input.messages" not in second.attributes


@pytest.mark.parametrize(
    ("value", "captured"),
    [
        (None, False),
        ("", False),
        ("false", False),
        ("NO_CONTENT", False),
        ("EVENT_ONLY", False),
        ("true", True),
        ("SPAN_ONLY", True),
        ("span_and_event", True),
    ],
)
def test_content_is_recorded_only_where_the_variable_says_so(value, captured):
    environ = {} if value is None else {CAPTURE_VARIABLE: value}
    assert captures_content(environ) is captured
