"""The providers' own SDKs at the scripted model: they understand it, however its bytes are cut."""

from importlib import import_module

import pytest

from crush_trio.providers.base import Finished, Usage
from crush_trio.testing.model.script import CallTool, Cut, Garble, Refuse, Say, Think
from crush_trio.testing.model.server import open_model_server
from crush_trio.wire.messages import FinishReason

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_clock,
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
]

SPLITS = pytest.mark.parametrize("split", [None, 1, 13, (1, 100, 250, 251, 252, 700)])
USED = Usage(input_tokens=10, output_tokens=5, cache_read_tokens=3)
ANSWER = [
    Think("Hm."),
    Think(".", "sig"),
    Say("Yés"),
    Say("!"),
    CallTool("ls", {"path": "ö"}, id="c1", pieces=4),
    CallTool("view", '{"broken', id="c2"),
    Finished(reason=FinishReason.TOOL_USE, usage=USED),
]


def sdk(name):
    """Import an SDK when a test runs: it takes seconds, which collecting would cost every worker."""
    return import_module(name)


async def from_openai(answer, split=None):
    async with open_model_server([answer], split=split) as server:
        async with sdk("openai").AsyncOpenAI(
            base_url=f"{server.base_url}/v1", api_key="k", max_retries=0
        ) as client:
            said = {"role": "user", "content": "hi"}
            stream = await client.chat.completions.create(
                model="m1", messages=[said], stream=True, stream_options={"include_usage": True}
            )
            async with stream:
                return [chunk async for chunk in stream]


async def from_anthropic(answer, split=None):
    async with open_model_server([answer], split=split) as server:
        async with sdk("anthropic").AsyncAnthropic(
            base_url=server.base_url, api_key="k", max_retries=0
        ) as client:
            said = {"role": "user", "content": "hi"}
            stream = await client.messages.create(
                model="m1", max_tokens=9, messages=[said], stream=True
            )
            async with stream:
                return [event async for event in stream]


@SPLITS
async def test_openai_understands_every_part(split):
    *chunks, used = await from_openai(ANSWER, split)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    arguments = ["".join(c.function.arguments for c in calls if c.index == i) for i in (0, 1)]
    assert "".join(delta.content or "" for delta in deltas) == "Yés!"
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "Hm.."
    assert [(call.id, call.function.name) for call in calls if call.id] == [
        ("c1", "ls"),
        ("c2", "view"),
    ]
    assert arguments == ['{"path":"ö"}', '{"broken']
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert (used.usage.prompt_tokens, used.usage.prompt_tokens_details.cached_tokens) == (13, 3)


@SPLITS
async def test_anthropic_understands_every_part(split):
    start, *events, last, stop = await from_anthropic(ANSWER, split)
    deltas = [event.delta for event in events if event.type == "content_block_delta"]

    def joined(kind, name):
        return "".join(getattr(delta, name) for delta in deltas if delta.type == kind)

    blocks = [event.content_block for event in events if event.type == "content_block_start"]
    assert [block.type for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert [(block.id, block.name) for block in blocks[2:]] == [("c1", "ls"), ("c2", "view")]
    assert joined("thinking_delta", "thinking") == "Hm.."
    assert joined("signature_delta", "signature") == "sig"
    assert joined("text_delta", "text") == "Yés!"
    assert joined("input_json_delta", "partial_json") == '{"path":"ö"}{"broken'
    assert (start.message.usage.input_tokens, last.usage.output_tokens) == (10, 5)
    assert (last.delta.stop_reason, stop.type) == ("tool_use", "message_stop")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ([Refuse(401)], "AuthenticationError"),
        ([Refuse(403)], "PermissionDeniedError"),
        ([Refuse(429, retry_after=3)], "RateLimitError"),
        ([Refuse(500)], "InternalServerError"),
        ([Cut()], "APIConnectionError"),
    ],
)
@pytest.mark.parametrize(("name", "ask"), [("openai", from_openai), ("anthropic", from_anthropic)])
async def test_the_sdks_know_what_is_wrong(name, ask, answer, error):
    with pytest.raises(vars(sdk(name))[error]) as caught:
        await ask(answer)
    if "429" in repr(answer):
        assert caught.value.response.headers["retry-after"] == "3"


@pytest.mark.parametrize(("name", "ask"), [("openai", from_openai), ("anthropic", from_anthropic)])
async def test_the_sdks_notice_an_error_in_the_midst_of_an_answer(name, ask):
    with pytest.raises(sdk(name).APIError, match="Too much"):
        await ask([Say("so"), Refuse(529, "Too much")])


@pytest.mark.parametrize("ask", [from_openai, from_anthropic])
async def test_the_sdks_notice_nonsense(ask):
    with pytest.raises(ValueError, match="line 1"):
        await ask([Say("so"), Garble()])
