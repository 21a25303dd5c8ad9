"""Both wire formats against a mock model server that others have written."""

import json
import subprocess
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from crush_trio.providers.base import (
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCallBegin,
    ToolCallEnd,
    ToolSpec,
)
from crush_trio.providers.errors import ProviderContextFull, ProviderRateLimited
from crush_trio.providers.registry import open_providers
from crush_trio.wire.messages import FinishReason, TextPart, ToolCallPart, ToolResultPart
from tests.providers.asking import assistant, endpoint, read, request, tool, user

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.needs("llmock")]

LONG = "This model's maximum context length is 8192 tokens. You sent 9000."
TOOL = ToolSpec(
    name="ls",
    description="List a directory.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}},
)
FIXTURES = [
    {
        "match": {"userMessage": "think"},
        "response": {"content": "It is four.", "reasoning": "Two and two."},
    },
    {"match": {"toolCallId": "call_7"}, "response": {"content": "One file: a.txt"}},
    {
        "match": {"userMessage": "list"},
        "response": {"toolCalls": [{"name": "ls", "arguments": {"path": "ö"}}]},
    },
    {"match": {"userMessage": "cut"}, "response": {"content": "Half a", "finishReason": "length"}},
    {
        "match": {"userMessage": "busy"},
        "response": {"error": {"message": "slow down", "type": "rate_limit_error"}, "status": 429},
    },
    {
        "match": {"userMessage": "long"},
        "response": {
            "error": {"message": LONG, "type": "invalid_request_error"},
            "status": 400,
        },
    },
]


@asynccontextmanager
async def open_mock(place):
    """Run the mock server with our fixtures; yield its URL once it listens."""
    fixtures = place / "fixtures.json"
    fixtures.write_text(json.dumps({"fixtures": FIXTURES}))
    with trio.socket.socket() as probe:
        await probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["llmock", "--port", str(port), "--fixtures", str(fixtures), "--chunk-size", "3"]
    async with trio.open_nursery() as nursery:
        run = partial(
            trio.run_process, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        process = await nursery.start(run)
        with trio.fail_after(30):
            said = b""
            while b"http://" not in said:
                piece = await process.stdout.receive_some()
                assert piece, said
                said += piece
        yield f"http://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


def content_of(parts):
    """Return reasoning, text, calls and the reason of an answer."""
    return (
        "".join(p.text for p in parts if isinstance(p, ReasoningDelta)),
        "".join(p.text for p in parts if isinstance(p, TextDelta)),
        [(p.name, json.loads(p.input)) for p in parts if isinstance(p, ToolCallEnd)],
        parts[-1].reason,
    )


async def test_both_formats_are_understood_by_a_server_of_others(tmp_path):
    async with open_mock(tmp_path) as url, open_providers() as providers:
        for family in ("openai-compat", "anthropic"):
            base = f"{url}/v1" if family == "openai-compat" else url
            provider = providers.provider(endpoint(family, base))
            ask = partial(request, tools=(TOOL,), max_tokens=100)

            parts = await read(provider, ask(user("think")))
            thought, *rest = content_of(parts)
            assert rest == ["It is four.", [], FinishReason.END_TURN]
            assert thought == "Two and two."
            assert isinstance(parts[-1], Finished)

            parts = await read(provider, ask(user("list")))
            assert content_of(parts) == ("", "", [("ls", {"path": "ö"})], FinishReason.TOOL_USE)
            assert sum(isinstance(p, ToolCallBegin) for p in parts) == 1

            called = ToolCallPart(id="call_7", name="ls", input='{"path":"."}', finished=True)
            result = ToolResultPart(tool_call_id="call_7", name="ls", content="a.txt")
            talk = (user("list"), assistant(TextPart(text="So:"), called), tool(result))
            assert content_of(await read(provider, ask(*talk)))[1] == "One file: a.txt"

            parts = await read(provider, ask(user("cut")))
            assert content_of(parts) == ("", "Half a", [], FinishReason.MAX_TOKENS)

            with pytest.raises(ProviderRateLimited, match="slow down"):
                await read(provider, ask(user("busy")))
            with pytest.raises(ProviderContextFull) as full:
                await read(provider, ask(user("long")))
            assert full.value.window == 8192
