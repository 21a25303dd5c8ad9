"""Scripted answers in the format of OpenAI's chat completions API: server-sent events.

Every part becomes a chunk with one choice. `Finished` becomes the chunk with the finish reason, the
usage chunk if the request asked for one, and `[DONE]`. Reasoning is `reasoning_content`, as in
compatible providers; the format has no way to express its end and its signature.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

import orjson
from attrs import define, field

from crush_trio.providers.base import (
    Finished,
    ReasoningDelta,
    StreamPart,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    Usage,
)
from crush_trio.testing.model.script import Refuse
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import FinishReason

CREATED: Final = 1_767_225_600
"""The creation time of every scripted answer, the same in every replay."""

_REASONS: Final[Mapping[FinishReason, str]] = {
    FinishReason.END_TURN: "stop",
    FinishReason.TOOL_USE: "tool_calls",
    FinishReason.MAX_TOKENS: "length",
    FinishReason.CONTENT_FILTER: "content_filter",
}

_ERRORS: Final[Mapping[int, tuple[str, str | None, str]]] = {
    400: ("invalid_request_error", None, "The request is not valid."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", "unsupported_country_region_territory", "Not allowed."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached."),
    500: ("server_error", None, "The server had an error while processing your request."),
    503: ("server_error", None, "The server is overloaded."),
}


@define(eq=False)
class OpenAIAnswer:
    """Formats one answer. *number* makes its id unique on the server."""

    content_type: ClassVar[bytes] = b"text/event-stream; charset=utf-8"
    id_header: ClassVar[bytes] = b"x-request-id"

    asked: JsonObject
    number: int = 1
    usage: Usage = field(factory=Usage)
    _calls: dict[ToolCallId, int] = field(factory=dict, init=False)

    def begin(self) -> bytes:
        """Return the beginning of the stream, before all parts."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def part(self, part: StreamPart) -> bytes:
        """Return the chunks of *part*; empty if the format cannot express it."""
        match part:
            case TextDelta(text=text):
                return self._chunk({"content": text})
            case ReasoningDelta(text=text):
                return self._chunk({"reasoning_content": text})
            case ToolCallBegin(id=call, name=name):
                index = self._calls.setdefault(call, len(self._calls))
                function = {"name": name, "arguments": ""}
                return self._call(
                    {"index": index, "id": call, "type": "function", "function": function}
                )
            case ToolCallDelta(id=call, text=text):
                return self._call({"index": self._calls[call], "function": {"arguments": text}})
            case Finished(reason=reason):
                return self._end(_REASONS.get(reason, "stop"))
            case _:
                return b""

    def ping(self) -> bytes:
        """Return a comment; the format has no ping event."""
        return b": keep-alive\n\n"

    def garbled(self, text: str) -> bytes:
        """Return an event with *text* as its data, valid or not."""
        return b"data: %b\n\n" % text.encode()

    def error(self, refusal: Refuse) -> bytes:
        """Return an error event, for an answer that has begun."""
        return _event(error_body(refusal))

    def refusal(self, refusal: Refuse) -> bytes:
        """Return the body of an HTTP error."""
        return orjson.dumps(error_body(refusal))

    def _end(self, reason: str) -> bytes:
        return self._chunk({}, reason) + self._usage_chunk() + b"data: [DONE]\n\n"

    def _usage_chunk(self) -> bytes:
        if not self._wants_usage:
            return b""
        return _event({**self._head(), "choices": [], "usage": usage_body(self.usage)})

    @property
    def _wants_usage(self) -> bool:
        return bool((self.asked.get("stream_options") or {}).get("include_usage"))

    def _call(self, call: JsonObject) -> bytes:
        return self._chunk({"tool_calls": [call]})

    def _chunk(self, delta: JsonObject, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        unused = {"usage": None} if self._wants_usage else {}
        return _event({**self._head(), "choices": [choice], **unused})

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.number}",
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": self.asked.get("model", ""),
        }


def usage_body(usage: Usage) -> JsonObject:
    """Return the usage object; unlike in `Usage`, prompt tokens include those of the cache."""
    prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    said = {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
    }
    return said if usage.cost is None else {**said, "cost": usage.cost}


def error_body(refusal: Refuse) -> JsonObject:
    """Return an error object."""
    known = _ERRORS.get(refusal.status) or _ERRORS[500 if refusal.status >= 500 else 400]
    kind, code, message = known
    said = {"message": refusal.message or message, "type": kind, "param": None, "code": code}
    return {"error": said}


def models_body(models: Iterable[str]) -> JsonObject:
    """Return the body of a model list."""
    rows = [{"id": m, "object": "model", "created": CREATED, "owned_by": "script"} for m in models]
    return {"object": "list", "data": rows}


def _event(data: JsonObject) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(data)
