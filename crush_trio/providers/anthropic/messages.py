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
    CALLS_MOST,
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
    token_count,
)
from crush_trio.providers.errors import ProviderGarbled, ProviderUnreadable
from crush_trio.providers.failures import error_of, failure_in_stream, json_of, secrets_of
from crush_trio.providers.http import Post, headers_for, join_url, open_parts
from crush_trio.providers.think_tags import ThinkTags
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
_WHOLE: Final = frozenset({FinishReason.END_TURN, FinishReason.TOOL_USE})


@define(eq=False)
class _Block:
    """A block that is not complete: its beginning, and the texts that grow."""

    start: JsonObject
    pieces: dict[str, list[str]] = field(factory=dict, init=False)
    """What was added, in pieces: it may contain a file, in thousands of them."""

    @property
    def type(self) -> str:
        return str(self.start.get("type"))

    @property
    def is_call(self) -> bool:
        """Whether it is a tool call; without a name there is nothing to call, nor to send back."""
        return self.type == "tool_use" and bool(self.start.get("name"))

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
    _tags: ThinkTags = field(factory=ThinkTags, init=False)
    _called: set[str] = field(factory=set, init=False)
    """The ids of the tool calls so far."""

    @property
    def ending(self) -> bool:
        """Whether the model has told why it ended."""
        return bool(self._reason)

    def read(self, event: SseEvent) -> Iterator[StreamPart]:
        """Yield the parts of one event."""
        said = _object(json_of(event.data))
        match said.get("type"):
            case "message_start":
                self._count(_object(said.get("message")).get("usage"))
            case "content_block_start":
                yield from self._begin(_index(said), _object(said.get("content_block")))
            case "content_block_delta":
                yield from self._grow(_index(said), _object(said.get("delta")))
            case "content_block_stop":
                yield from self._complete(self._blocks.pop(_index(said), None))
            case "message_delta":
                self._reason = str(_object(said.get("delta")).get("stop_reason") or self._reason)
                self._count(said.get("usage"))
            case "message_stop":
                yield from self._finish()
            case "message":  # a server that does not stream sends the answer as one value
                yield from self._whole(said)
            case _ if said.get("type") == "error" or error_of(said):  # gateways leave out the type
                raise failure_in_stream(error_of(said), self.secrets)
            case _:
                pass

    def _whole(self, said: JsonObject) -> Iterator[StreamPart]:
        self._count(said.get("usage"))
        content = said.get("content")
        for index, block in enumerate(content if isinstance(content, list) else ()):
            yield from self._begin(index, _object(block))
            yield from self._complete(self._blocks.pop(index))
        self._reason = str(said.get("stop_reason") or "end_turn")
        yield from self._finish()

    def end(self) -> Iterator[StreamPart]:
        """Yield the end of an answer whose body ended without a `message_stop`."""
        if not self._reason:
            raise ProviderGarbled("the answer ended early")
        yield from self._finish()

    # ── Blocks ──────────────────────────────────────────────────────────────────────────────────

    def _begin(self, index: int, start: JsonObject) -> Iterator[StreamPart]:
        yield from self._complete(self._blocks.pop(index, None))  # it had no end of its own
        block = self._blocks[index] = _Block(self._identified(start))
        if block.type in THOUGHTS:
            self._thinking = True
            yield ReasoningDelta(str(start.get("thinking") or ""))
            return
        yield from self._end_text()
        if block.is_call:
            if len(self._called) > CALLS_MOST:
                raise ProviderUnreadable(f"it has more than {CALLS_MOST} tool calls")
            yield ToolCallBegin(_id(block), _name(block))
        elif block.type == "text" and start.get("text"):
            yield from self._text(str(start["text"]))

    def _text(self, text: str) -> Iterator[StreamPart]:
        """Yield a text; models of other servers reason in it, between tags."""
        for thinking, piece in [(False, text)] if self._thoughts else self._tags.split(text):
            yield from self._piece(piece, thinking=thinking)

    def _piece(self, text: str, *, thinking: bool) -> Iterator[StreamPart]:
        if thinking:
            self._thinking = True
            yield ReasoningDelta(text)
        else:
            yield from self._end_thinking()
            yield TextDelta(text)

    def _end_text(self) -> Iterator[StreamPart]:
        """Yield text that was held back, and end the reasoning."""
        for thinking, text in self._tags.rest():
            yield from self._piece(text, thinking=thinking)
        yield from self._end_thinking()

    def _identified(self, start: JsonObject) -> JsonObject:
        """Return the beginning of a block; a call gets an id of its own if it has none or a repeated one."""
        if not _Block(start).is_call:
            return start
        free = str(start.get("id") or "call")
        while free in self._called:
            free = f"{free}_{len(self._called)}"
        self._called.add(free)
        return {**start, "id": free}

    def _grow(self, index: int, delta: JsonObject) -> Iterator[StreamPart]:
        block = self._blocks.get(index)
        if block is None:
            raise ProviderGarbled("more of something that never began")
        match delta:
            case {"type": "text_delta", "text": str(text)} if text:
                yield from self._text(text)
            case {"type": "thinking_delta", "thinking": str(text)} if text:
                block.grow("thinking", text)
                yield ReasoningDelta(text)
            case {"type": "signature_delta", "signature": str(signature)}:
                block.grow("signature", signature)
            case {"type": "input_json_delta", "partial_json": str(text)} if text:
                block.grow("input", text)
                if block.is_call:
                    yield ToolCallDelta(_id(block), text)
            case _:
                pass

    def _complete(self, block: _Block | None) -> Iterator[StreamPart]:
        if block is None:
            return
        if block.type in THOUGHTS:
            thought = block.whole()
            if (
                thought.get("signature") or block.type != "thinking"
            ):  # unsigned ones are refused later
                self._thoughts.append(thought)
        elif block.is_call:
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
        self._used |= {key: token_count(value) for key, value in counts if value is not None}

    def _finish(self) -> Iterator[StreamPart]:
        reason = _REASONS.get(self._reason, FinishReason.UNKNOWN)
        if reason in _WHOLE:  # some servers do not end the last block
            for block in self._blocks.values():
                yield from self._complete(block)
        yield from self._end_text()
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


def _index(said: JsonObject) -> int:
    index = said.get("index", 0)
    return index if isinstance(index, int) else 0


def _given(block: _Block) -> str:
    """Return arguments that came with the beginning of a call; usually there are none."""
    given = block.start.get("input") or {}
    return given if isinstance(given, str) else orjson.dumps(given).decode()


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
        post = self.post(request)
        async with open_parts(self.http, post, reading, secrets, request.heard) as parts:
            yield parts

    def post(self, request: ModelRequest) -> Post:
        """Return what is sent for *request*."""
        own = {"anthropic-version": API_VERSION, **self._login()}
        above = "" if self.endpoint.base_url.rstrip("/").endswith("/v1") else "/v1"
        return Post(
            url=join_url(self.endpoint.base_url, f"{above}/messages"),
            headers=headers_for(self.endpoint, request, own),
            body=messages_body(request, self.endpoint),
            connect_within=self.endpoint.connect_limit,
        )

    def _login(self) -> dict[str, str]:
        """Return the header with the key. A key that begins with `Bearer` is sent as a bearer token."""
        key = self.endpoint.api_key
        if key.lower().startswith("bearer "):
            return {"authorization": key}
        return {"x-api-key": key}
