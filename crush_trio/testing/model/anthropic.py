"""Scripted answers in the format of Anthropic's messages API: a stream of named events.

An answer is a sequence of blocks: one for each piece of thinking, of text, and for each call. A part
of another kind closes the open block and opens the next. Calls cannot be interleaved in this format;
a script that does so raises `ValueError`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final

import orjson
from attrs import define, field

from crush_trio.providers.base import (
    Finished,
    ReasoningDelta,
    ReasoningEnd,
    StreamPart,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
    Usage,
)
from crush_trio.testing.model.script import Refuse
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.messages import FinishReason

_REASONS: Final[Mapping[FinishReason, str]] = {
    FinishReason.END_TURN: "end_turn",
    FinishReason.TOOL_USE: "tool_use",
    FinishReason.MAX_TOKENS: "max_tokens",
    FinishReason.CONTENT_FILTER: "refusal",
}

_ERRORS: Final[Mapping[int, tuple[str, str]]] = {
    400: ("invalid_request_error", "The request is not valid."),
    401: ("authentication_error", "invalid x-api-key"),
    403: ("permission_error", "Your API key may not use this."),
    404: ("not_found_error", "The model does not exist."),
    413: ("request_too_large", "The request is too large."),
    429: ("rate_limit_error", "Number of requests has exceeded your rate limit."),
    500: ("api_error", "Internal server error"),
    529: ("overloaded_error", "Overloaded"),
}

_TEXT: Final[JsonObject] = {"type": "text", "text": ""}
_THINKING: Final[JsonObject] = {"type": "thinking", "thinking": "", "signature": ""}


@define(eq=False)
class AnthropicAnswer:
    """Formats one answer. *number* makes its id unique on the server."""

    content_type: ClassVar[bytes] = b"text/event-stream; charset=utf-8"
    id_header: ClassVar[bytes] = b"request-id"

    asked: JsonObject
    number: int = 1
    usage: Usage = field(factory=Usage)
    _index: int = field(default=-1, init=False)
    _open: str = field(default="", init=False)
    """The kind of the open block: `text`, `thinking` or the id of a call; empty if none is open."""

    def begin(self) -> bytes:
        """Return the beginning of the stream, before all parts."""
        message = {
            "id": f"msg_{self.number}",
            "type": "message",
            "role": "assistant",
            "model": self.asked.get("model", ""),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(min(1, self.usage.output_tokens)),
        }
        return _event({"type": "message_start", "message": message})

    def part(self, part: StreamPart) -> bytes:
        """Return the events of *part*."""
        match part:
            case TextDelta(text=text):
                return self._block("text", _TEXT) + self._delta("text_delta", "text", text)
            case ReasoningDelta(text=text):
                opened = self._block("thinking", _THINKING)
                return opened + self._delta("thinking_delta", "thinking", text)
            case ReasoningEnd(signature=signature):
                return self._signed(signature) + self._close()
            case ToolCallBegin(id=call, name=name):
                block = {"type": "tool_use", "id": call, "name": name, "input": {}}
                return self._block(call, block)
            case ToolCallDelta(id=call, text=text):
                self._expect(call)
                return self._delta("input_json_delta", "partial_json", text)
            case ToolCallEnd(id=call):
                self._expect(call)
                return self._close()
            case Finished(reason=reason):
                return self._close() + self._end(_REASONS.get(reason, "end_turn"))

    def ping(self) -> bytes:
        """Return a ping event."""
        return _event({"type": "ping"})

    def garbled(self, text: str) -> bytes:
        """Return an event with *text* as its data, valid or not."""
        return b"event: content_block_delta\ndata: %b\n\n" % text.encode()

    def error(self, refusal: Refuse) -> bytes:
        """Return an error event, for an answer that has begun."""
        return _event({"type": "error", "error": _error(refusal)})

    def refusal(self, refusal: Refuse) -> bytes:
        """Return the body of an HTTP error."""
        body = {"type": "error", "error": _error(refusal), "request_id": f"req_{self.number}"}
        return orjson.dumps(body)

    def _block(self, kind: str, block: JsonObject) -> bytes:
        """Continue the open block if it is of this kind, otherwise open one; a ping follows the first."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._index += 1
        self._open = kind
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return closed + _event(start) + (self.ping() if self._index == 0 else b"")

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open = ""
        return _event({"type": "content_block_stop", "index": self._index})

    def _delta(self, kind: str, key: str, text: str) -> bytes:
        delta = {"type": kind, key: text}
        return _event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _signed(self, signature: str) -> bytes:
        if not signature or self._open != "thinking":
            return b""
        return self._delta("signature_delta", "signature", signature)

    def _expect(self, call: str) -> None:
        if self._open != call:
            raise ValueError(f"Anthropic's format cannot continue the call {call!r} here")

    def _end(self, reason: str) -> bytes:
        delta = {"stop_reason": reason, "stop_sequence": None}
        usage = self._usage(self.usage.output_tokens)
        last = _event({"type": "message_delta", "delta": delta, "usage": usage})
        return last + _event({"type": "message_stop"})

    def _usage(self, output: int) -> JsonObject:
        return {
            "input_tokens": self.usage.input_tokens,
            "cache_creation_input_tokens": self.usage.cache_write_tokens,
            "cache_read_input_tokens": self.usage.cache_read_tokens,
            "output_tokens": output,
        }


def models_body(models: Iterable[str]) -> JsonObject:
    """Return the body of a model list."""
    ids: Sequence[str] = tuple(models)
    made = "2026-01-01T00:00:00Z"
    rows = [{"type": "model", "id": m, "display_name": m, "created_at": made} for m in ids]
    ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return {"data": rows, "has_more": False, **ends}


def _error(refusal: Refuse) -> JsonObject:
    known = _ERRORS.get(refusal.status) or _ERRORS[500 if refusal.status >= 500 else 400]
    return {"type": known[0], "message": refusal.message or known[1]}


def _event(data: JsonObject) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), orjson.dumps(data))
