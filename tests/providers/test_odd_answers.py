"""Servers that answer otherwise than asked: without a stream, compressed, with a page, with tags."""

import gzip
import json
from contextlib import asynccontextmanager
from itertools import product

import pytest
import trio
from trio.testing import memory_stream_pair

from crush_trio.net.errors import ConnectFailed
from crush_trio.net.sse import SseEvent
from crush_trio.providers.anthropic.messages import MessagesReading
from crush_trio.providers.base import (
    Finished,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    ToolCallBegin,
    ToolCallEnd,
    Usage,
)
from crush_trio.providers.call import Patience, converse
from crush_trio.providers.errors import (
    ProviderError,
    ProviderGarbled,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnconnectable,
    ProviderUnreachable,
    ProviderUnreadable,
)
from crush_trio.providers.http import WEB_PAGE, joined
from crush_trio.providers.openai.chat import ChatReading
from crush_trio.providers.registry import open_providers
from crush_trio.wire.messages import FinishReason
from tests.providers.asking import Recorder, endpoint, read, request

WHOLE = {
    "type": "message",
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "s1"},
        {"type": "text", "text": "Yes."},
        {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "."}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 3, "output_tokens": 4},
}
CHUNK = {"choices": [{"delta": {"content": "Yes."}, "finish_reason": "stop"}]}


def response(body, kind, *more):
    head = ["HTTP/1.1 200 OK", f"content-type: {kind}", f"content-length: {len(body)}", *more]
    return "\r\n".join([*head, "", ""]).encode() + body


@asynccontextmanager
async def answering(data, family="openai-compat", **given):
    """Open a provider whose server sends *data* to every request."""

    async def dial(_):
        ours, theirs = memory_stream_pair()
        await theirs.send_all(data)
        return ours

    async with open_providers(dial) as providers:
        yield providers.provider(endpoint(family, **given))


async def test_a_message_that_is_not_streamed_is_read_whole():
    data = response(json.dumps(WHOLE).encode(), "application/json")
    async with answering(data, "anthropic") as provider:
        parts = await read(provider)
    assert parts == [
        ReasoningDelta("Hm."),
        ReasoningEnd("s1"),
        TextDelta("Yes."),
        ToolCallBegin("t1", "ls"),
        ToolCallEnd("t1", "ls", '{"path":"."}'),
        Finished(reason=FinishReason.TOOL_USE, usage=Usage(input_tokens=3, output_tokens=4)),
    ]


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_compressed_answer_is_read_although_none_was_asked_for(kind):
    body = json.dumps(CHUNK).encode()
    body = body if kind == "application/json" else b"data: " + body + b"\n\ndata: [DONE]\n\n"
    data = response(gzip.compress(body), kind, "content-encoding: gzip")
    async with answering(data) as provider:
        parts = await read(provider)
    assert parts == [TextDelta("Yes."), Finished(reason=FinishReason.END_TURN)]


async def test_a_web_page_is_refused_once_with_its_url_and_without_the_key_in_it():
    data = response(b"<html>hello</html>", "text/html; charset=utf-8")
    base = "https://me:secret@model.test/app?key=k"
    async with answering(data, base_url=base) as provider:
        with pytest.raises(ProviderRefused) as refused:
            await converse(
                provider, request(), Recorder(), patience=Patience(), waiting=pytest.fail
            )
    url = "https://model.test/app/chat/completions"
    assert refused.value.detail.startswith(f"{url} answered with text/html")
    assert refused.value.detail.endswith(WEB_PAGE)


@pytest.mark.parametrize("kind", ["text/plain", "text/event-stream", "Text/JSON; charset=utf-8"])
async def test_an_answer_without_a_stream_is_read_whatever_its_content_type(kind):
    data = response(b"\r\n" + json.dumps(CHUNK, indent=1).encode(), kind)
    async with answering(data) as provider:
        parts = await read(provider)
    assert parts == [TextDelta("Yes."), Finished(reason=FinishReason.END_TURN)]


async def test_an_answer_that_breaks_before_its_first_part_may_be_billed():
    told = []
    data = response(b": working\n\n", "text/event-stream", "connection: close")
    async with answering(data) as provider:
        with pytest.raises(ProviderGarbled, match="ended early"):
            await converse(
                provider, request(), Recorder(), patience=Patience(), waiting=told.append
            )
    assert [waiting.attempt for waiting in told if waiting.billed] == [1, 2, 3]
    assert all("may be billed as well" in str(waiting) for waiting in told if waiting.billed)


async def failing(data):
    """Return the error of a call whose server sends *data* to every request; it is tried once."""
    async with answering(data) as provider:
        with pytest.raises(ProviderError) as failed:
            await converse(
                provider, request(), Recorder(), patience=Patience(), waiting=pytest.fail
            )
    return failed.value


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"OK", "text/plain"), (b'{"detail":"hello"}', "application/json"), (b"[]", "text/json")],
)
async def test_what_is_not_a_models_answer_is_refused_once_with_its_url(body, kind):
    error = await failing(response(body, kind))
    assert type(error) is ProviderRefused
    assert error.detail.startswith(f"http://model.test/v1/chat/completions answered with {kind}")


@pytest.mark.parametrize(
    ("body", "more"),
    [(b"x", ["content-encoding: br"]), (b"{" + b"x" * 101, []), (b":" + b"x" * 101, [])],
)
async def test_an_answer_that_cannot_be_read_is_not_paid_for_again(body, more, monkeypatch):
    for name in ("BODY_MOST", "EVENT_MOST"):
        monkeypatch.setattr(f"crush_trio.providers.http.{name}", 100)
    assert type(await failing(response(body, "text/event-stream", *more))) is ProviderUnreadable


@pytest.mark.parametrize("body", [b"", b"\n\n"])
async def test_an_empty_answer_is_told_as_such_and_not_asked_for_again(body):
    error = await failing(response(body, "text/event-stream"))
    assert type(error) is ProviderUnreadable
    came = "http://model.test/v1/chat/completions answered with text/event-stream"
    assert error.detail.startswith(f"{came}, an empty answer;")


@pytest.mark.parametrize("encoding", ["gzip", "br"])
async def test_an_error_whose_body_cannot_be_read_keeps_its_status(encoding):
    head = f"HTTP/1.1 401 No\r\ncontent-encoding: {encoding}\r\ncontent-length: 4\r\n\r\n"
    error = await failing(head.encode() + b"nope")
    assert (type(error), error.status) == (ProviderUnauthorized, 401)


@pytest.mark.parametrize(
    ("permanent", "error", "attempts"),
    [(True, ProviderUnconnectable, 1), (False, ProviderUnreachable, 4)],
)
async def test_a_connection_that_the_settings_forbid_is_not_tried_again(permanent, error, attempts):
    dialled = []

    async def dial(origin):
        await trio.lowlevel.checkpoint()
        dialled.append(origin)
        raise ConnectFailed("the certificate is not trusted", permanent=permanent)

    async with open_providers(dial) as providers:
        provider = providers.provider(endpoint())
        with pytest.raises(error, match="the certificate is not trusted"):
            await converse(
                provider, request(), Recorder(), patience=Patience(), waiting=lambda _: None
            )
    assert len(dialled) == attempts


async def test_a_connection_has_a_limit_of_its_own():
    async def dial(_):
        await trio.sleep_forever()

    begun = trio.current_time()
    async with open_providers(dial) as providers:
        provider = providers.provider(endpoint(connect_limit=7))
        with pytest.raises(ProviderUnreachable, match=r"no connection to model\.test:80 in 7 s"):
            await read(provider)
    assert trio.current_time() - begun == 7


@pytest.mark.parametrize(
    ("family", "sign"),
    [
        ("openai-compat", b": processing\n\n"),
        ("openai-compat", b'data: {"choices":[{"delta":{"content":""}}]}\n\n'),
        ("openai-compat", b"\n"),
        ("anthropic", b": processing\n\n"),
        ("anthropic", b'event: ping\ndata: {"type": "ping"}\n\n'),
    ],
)
async def test_bytes_without_content_are_signs_of_life(family, sign):
    """Each limit passes several times in every wait; a call without signs ends at the first."""
    whole = {"openai-compat": CHUNK, "anthropic": WHOLE}[family]
    ours, theirs = memory_stream_pair()

    async def dial(_):
        await trio.lowlevel.checkpoint()
        return ours

    async def answer():
        await theirs.send_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for _ in range(6):
            await trio.sleep(100)
            await theirs.send_all(sign)
        await theirs.send_all(b"data: " + json.dumps(whole).encode() + b"\n\n")
        await theirs.aclose()

    async with open_providers(dial) as providers, trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        sink, patience = Recorder(), Patience(first_part=120, between_parts=120)
        provider = providers.provider(endpoint(family))
        await converse(provider, request(), sink, patience=patience, waiting=lambda _: None)
    assert TextDelta("Yes.") in sink.parts
    assert trio.current_time() >= 600


# ── Think tags ──────────────────────────────────────────────────────────────────────────────────


def read_texts(reading, pieces):
    if isinstance(reading, ChatReading):
        deltas = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
        last = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    else:
        begin = {
            "type": "content_block_start",
            "content_block": {"type": "text", "text": pieces[0]},
        }
        more = [{"type": "text_delta", "text": piece} for piece in pieces[1:]]
        deltas = [begin, *({"type": "content_block_delta", "delta": each} for each in more)]
        last = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    events = [SseEvent("", json.dumps(each).encode()) for each in [*deltas, last]]
    parts = [part for event in events for part in reading.read(event)]
    return list(joined([*parts, *reading.end()]))


FAMILIES = (lambda: ChatReading(prefix="c"), MessagesReading)


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("\n<think>\nHm. <think> a < b\n</think>\n\nYes.", "Hm. <think> a < b\n", "Yes."),
        ("<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("<think>never closed </thin", "never closed </thin", ""),
        ("Use <think>x</think> here", "", "Use <think>x</think> here"),
        (" <thin ice>", "", " <thin ice>"),
        ("<thi", "", "<thi"),
    ],
)
def test_reasoning_between_tags_is_reasoning_however_it_is_cut(text, thought, said):
    cuts = [[text], list(text), *([text[:n], text[n:]] for n in range(1, len(text)))]
    for pieces, family in product(cuts, FAMILIES):
        parts = read_texts(family(), pieces)
        assert "".join(p.text for p in parts if isinstance(p, ReasoningDelta)) == thought
        assert "".join(p.text for p in parts if isinstance(p, TextDelta)) == said
        assert sum(isinstance(p, ReasoningEnd) for p in parts) == bool(thought)
