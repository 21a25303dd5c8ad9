"""The provider for Anthropic's messages, and its stream events as parts of an answer.

An answer is a sequence of blocks, each with a beginning, deltas and an end; reasoning, text and tool calls
are blocks of different types. Unknown events and blocks are ignored, as the API asks clients to.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson
from attrs import define, field, frozen

from crush_trio.net.client import Transport
from crush_trio.net.sse import SseEvent
from crush_trio.providers.anthropic.request import THOUGHTS, messages_body
from crush_trio.providers.base import (
    Endpoint,
    Finished,
    ModelRequest,
    Parts,
    ReasoningDelta,
    ReasoningEnd,
    StreamPart,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
    Usage,
    pack,
)
from crush_trio.providers.errors import ProviderGarbled, failure_in_stream, json_of
from crush_trio.providers.http import Post, headers_for, join_url, open_parts, secrets_of
from crush_trio.wire.fields import Json, JsonObject
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import FinishReason

_REASONS: Final[Mapping[str, FinishReason]] = {
    "end_turn": FinishReason.END_TURN,
    "stop_sequence": FinishReason.END_TURN,
    "max_tokens": FinishReason.MAX_TOKENS,
    "model_context_window_exceeded": FinishReason.MAX_TOKENS,
    "tool_use": FinishReason.TOOL_USE,
    "refusal": FinishReason.CONTENT_FILTER,
}


@define(eq=False)
class _Block:
    """A block that is not complete: its beginning, and the texts that grow."""

    start: JsonObject
    pieces: dict[str, list[str]] = field(factory=dict, init=False)
    """What was added, in pieces: it may contain a file, in thousands of them."""

    @property
    def type(self) -> str:
        return str(self.start.get("type"))

    def grow(self, key: str, more: str) -> None:
        self.pieces.setdefault(key, []).append(more)

    def grown(self, key: str) -> str:
        """Return all that was added to the text *key*."""
        return "".join(self.pieces.get(key, ()))

    def whole(self) -> dict[str, Any]:
        """Return the block with all that was added to it."""
        return {**self.start, **{key: self.grown(key) for key in self.pieces}}


@define(eq=False)
class MessagesReading:
    """Reads one answer."""

    secrets: Iterable[str] = field(default=(), repr=False)
    finished: bool = field(default=False, init=False)
    _reason: str = field(default="", init=False)
    _used: dict[str, int] = field(factory=dict, init=False)
    _blocks: dict[int, _Block] = field(factory=dict, init=False)
    _thoughts: list[dict[str, Any]] = field(factory=list, init=False)
    _thinking: bool = field(default=False, init=False)
    _called: bool = field(default=False, init=False)

    def read(self, event: SseEvent) -> Iterator[StreamPart]:
        """Yield the parts of one event."""
        said = _object(json_of(event.data))
        match said.get("type"):
            case "message_start":
                self._count(_object(said.get("message")).get("usage"))
            case "content_block_start":
                yield from self._begin(said.get("index", 0), _object(said.get("content_block")))
            case "content_block_delta":
                yield from self._grow(said.get("index", 0), _object(said.get("delta")))
            case "content_block_stop":
                yield from self._complete(self._blocks.pop(said.get("index", 0), None))
            case "message_delta":
                self._reason = str(_object(said.get("delta")).get("stop_reason") or self._reason)
                self._count(said.get("usage"))
            case "message_stop":
                yield from self._finish()
            case "error":
                raise failure_in_stream(said.get("error"), self.secrets)
            case _:
                pass

    def end(self) -> Iterator[StreamPart]:
        """Yield the end of an answer whose body ended without a `message_stop`."""
        if not self._reason:
            raise ProviderGarbled("the answer ended early")
        yield from self._finish()

    # ── Blocks ──────────────────────────────────────────────────────────────────────────────────

    def _begin(self, index: int, start: JsonObject) -> Iterator[StreamPart]:
        block = self._blocks[index] = _Block(start)
        if block.type in THOUGHTS:
            self._thinking = True
            yield ReasoningDelta(str(start.get("thinking") or ""))
            return
        yield from self._end_thinking()
        if block.type == "tool_use":
            self._called = True
            yield ToolCallBegin(_id(block), _name(block))
        elif block.type == "text" and start.get("text"):
            yield TextDelta(str(start["text"]))

    def _grow(self, index: int, delta: JsonObject) -> Iterator[StreamPart]:
        block = self._blocks.get(index)
        if block is None:
            raise ProviderGarbled("more of something that never began")
        match delta:
            case {"type": "text_delta", "text": str(text)} if text:
                yield TextDelta(text)
            case {"type": "thinking_delta", "thinking": str(text)} if text:
                block.grow("thinking", text)
                yield ReasoningDelta(text)
            case {"type": "signature_delta", "signature": str(signature)}:
                block.grow("signature", signature)
            case {"type": "input_json_delta", "partial_json": str(text)} if text:
                block.grow("input", text)
                if block.type == "tool_use":
                    yield ToolCallDelta(_id(block), text)
            case _:
                pass

    def _complete(self, block: _Block | None) -> Iterator[StreamPart]:
        if block is None:
            return
        if block.type in THOUGHTS:
            self._thoughts.append(block.whole())
        elif block.type == "tool_use":
            yield ToolCallEnd(_id(block), _name(block), block.grown("input") or _given(block))

    def _end_thinking(self) -> Iterator[StreamPart]:
        """End the reasoning, with one signature for all of it so far."""
        if self._thinking:
            self._thinking = False
            match self._thoughts:
                case [{"type": "thinking", "signature": str(signature)}]:
                    yield ReasoningEnd(signature)
                case []:
                    yield ReasoningEnd()
                case several:
                    yield ReasoningEnd(pack(several))

    # ── The end ─────────────────────────────────────────────────────────────────────────────────

    def _count(self, used: Json) -> None:
        """Record the usage; later counts include earlier ones."""
        counts = _object(used).items()
        self._used |= {key: value for key, value in counts if isinstance(value, int)}

    def _finish(self) -> Iterator[StreamPart]:
        yield from self._end_thinking()
        reason = _REASONS.get(self._reason, FinishReason.UNKNOWN)
        if self._called and reason is FinishReason.END_TURN:
            reason = FinishReason.TOOL_USE
        usage = Usage(
            input_tokens=self._used.get("input_tokens", 0),
            output_tokens=self._used.get("output_tokens", 0),
            cache_read_tokens=self._used.get("cache_read_input_tokens", 0),
            cache_write_tokens=self._used.get("cache_creation_input_tokens", 0),
        )
        self.finished = True
        yield Finished(reason=reason, usage=usage)


def _id(block: _Block) -> ToolCallId:
    return ToolCallId(str(block.start.get("id") or ""))


def _name(block: _Block) -> str:
    return str(block.start.get("name") or "")


def _given(block: _Block) -> str:
    """Return arguments that came with the beginning of a call; usually there are none."""
    return orjson.dumps(block.start.get("input") or {}).decode()


def _object(said: Json) -> JsonObject:
    return said if isinstance(said, dict) else {}


API_VERSION: Final = "2023-06-01"


@frozen
class MessagesProvider:
    """Satisfies `Provider`. The base URL of *endpoint* is what comes before `/v1/messages`."""

    endpoint: Endpoint
    http: Transport = field(repr=False)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[Parts]:
        """Open one answer; see `Provider.stream`."""
        secrets = secrets_of(self.endpoint)
        reading = MessagesReading(secrets=secrets)
        async with open_parts(self.http, self.post(request), reading, secrets) as parts:
            yield parts

    def post(self, request: ModelRequest) -> Post:
        """Return what is sent for *request*."""
        own = {"anthropic-version": API_VERSION, **self._login()}
        above = "" if self.endpoint.base_url.rstrip("/").endswith("/v1") else "/v1"
        return Post(
            url=join_url(self.endpoint.base_url, f"{above}/messages"),
            headers=headers_for(self.endpoint, request, own),
            body=messages_body(request, self.endpoint),
        )

    def _login(self) -> dict[str, str]:
        """Return the header with the key. A key that begins with `Bearer` is sent as a bearer token."""
        key = self.endpoint.api_key
        if key.lower().startswith("bearer "):
            return {"authorization": key}
        return {"x-api-key": key}
