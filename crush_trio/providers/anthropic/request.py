"""Messages requests (Anthropic's format).

The API is strict: user and assistant take turns, texts are not blank, a call's arguments are an object,
ids have few characters, reasoning comes back with its signature or not at all, and a conversation with
tool calls needs tools. History may come from another provider, which has none of these rules, so all of
them are applied here.
"""

import base64
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import orjson

from crush_trio.providers.base import (
    Endpoint,
    ModelRequest,
    PromptMessage,
    ToolSpec,
    is_plain,
    reasoning_in,
    unpack,
)
from crush_trio.providers.catalog import effort_of, merged, model_id, options_of, sampling_of
from crush_trio.providers.openai.request import sendable, unseen
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.messages import (
    BinaryPart,
    ImageUrlPart,
    Part,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

USUAL_MOST: Final = 8192
"""The default limit of an answer; the API requires one."""

THINKING_TOKENS: Final = 2000
"""The default number of tokens for reasoning."""

THOUGHTS: Final = ("thinking", "redacted_thinking")
"""The types of blocks with reasoning."""

_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_MARK: Final[JsonObject] = {"cache_control": {"type": "ephemeral"}}

Block = dict[str, Any]


def messages_body(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    """Return the body of the request."""
    messages = _messages(request)
    system: list[Block] = [{"type": "text", "text": s} for s in request.system if s.strip()]
    tools = [_tool(tool) for tool in request.tools]
    if request.cache:
        _mark(tools, system, *(message["content"] for message in messages[-2:]))
    options = options_of(request, endpoint)
    body = {
        "model": model_id(request),
        "messages": messages,
        **({"system": system} if system else {}),
        **({"tools": tools} if tools else _former_tools(request)),
        **_settings(request, options),
    }
    return merged(body, options, endpoint.extra_body, {"stream": True})


def _tool(tool: ToolSpec) -> Block:
    schema = dict(tool.parameters)
    return {"name": tool.name, "description": tool.description, "input_schema": schema}


def _former_tools(request: ModelRequest) -> dict[str, Any]:
    """Return the tools in the history, not to be called: without them the request is refused."""
    parts = (part for message in request.messages for part in message.parts)
    names = dict.fromkeys(sendable(part.name) for part in parts if isinstance(part, ToolCallPart))
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    return {"tools": tools, "tool_choice": {"type": "none"}} if tools else {}


def _mark(*places: list[Block]) -> None:
    """Mark the last block of each place, where a cached prompt may end (D23c); reasoning cannot be marked."""
    for blocks in places:
        last = [block for block in blocks if block.get("type") not in THOUGHTS][-1:]
        for block in last:
            block.update(_MARK)


# ── Limits and thinking ─────────────────────────────────────────────────────────────────────────


def _settings(request: ModelRequest, options: dict[str, Any]) -> dict[str, Any]:
    """Return the limit, the reasoning settings, and the sampling parameters if the model does not reason.

    Removes from *options* what is translated here.
    """
    effort = options.pop("effort", None) or effort_of(request)
    thinking = _thinking(request, options.pop("thinking", None), effort)
    limit = request.max_tokens or request.model.default_max_tokens or USUAL_MOST
    settings: dict[str, Any] = {"max_tokens": limit}
    if effort:
        settings["output_config"] = {"effort": effort}
    if thinking is None:
        return settings | sampling_of(request).given("temperature", "top_p", "top_k")
    budget = thinking.get("budget_tokens", 0)
    enough = limit if limit > budget else limit + budget
    return settings | {"thinking": thinking, "max_tokens": enough}


def _thinking(request: ModelRequest, given: JsonObject | None, effort: str) -> Block | None:
    """Return the reasoning settings, or None."""
    if given is not None:
        thinking = {"type": "enabled", **given}
    elif effort:
        thinking = {"type": "adaptive", "display": "summarized"}
    elif request.chosen.think and request.model.can_reason:
        thinking = {"type": "enabled", "budget_tokens": THINKING_TOKENS}
    else:
        return None
    return thinking if thinking["type"] != "enabled" or _may_think(request) else None


def _may_think(request: ModelRequest) -> bool:
    """Whether reasoning can be enabled: not after a tool call that was made without it."""
    if not request.messages or request.messages[-1].role is not Role.TOOL:
        return True
    answers = [message for message in request.messages if message.role is Role.ASSISTANT]
    return bool(answers and _thoughts(answers[-1]))


# ── Messages ────────────────────────────────────────────────────────────────────────────────────


def _messages(request: ModelRequest) -> list[dict[str, Any]]:
    """Return the conversation with one message per turn."""
    images = request.model.supports_attachments
    said = [(_role(message), list(_blocks(message, images=images))) for message in request.messages]
    turns = groupby((turn for turn in said if turn[1]), key=lambda turn: turn[0])
    return [
        {"role": role, "content": [block for _, blocks in turn for block in blocks]}
        for role, turn in turns
    ]


def _role(message: PromptMessage) -> str:
    return "assistant" if message.role is Role.ASSISTANT else "user"


def _blocks(message: PromptMessage, *, images: bool) -> Iterator[Block]:
    """Yield the blocks of a message; reasoning comes first."""
    yield from _thoughts(message)
    for part in message.parts:
        yield from _block(part, images=images)


def _thoughts(message: PromptMessage) -> Sequence[Block]:
    thought = reasoning_in(message)
    if thought is None:
        return ()
    if is_plain(thought.signature):
        text, signature = thought.thinking, thought.signature
        return ({"type": "thinking", "thinking": text, "signature": signature},)
    return unpack(thought.signature, *THOUGHTS)


def _block(part: Part, *, images: bool) -> Iterator[Block]:
    match part:
        case TextPart(text=text) if text.strip():
            yield {"type": "text", "text": text}
        case ImageUrlPart(url=url) if images:
            yield {"type": "image", "source": {"type": "url", "url": url}}
        case BinaryPart():
            data = base64.b64encode(part.data).decode()
            yield _file(part.path, part.mime_type, data, images=images)
        case ToolCallPart():
            yield {
                "type": "tool_use",
                "id": sendable(part.id),
                "name": sendable(part.name),
                "input": _arguments(part.input),
            }
        case ToolResultPart():
            yield _result(part, images=images)
        case _:
            pass


def _result(part: ToolResultPart, *, images: bool) -> Block:
    content = [{"type": "text", "text": part.content}] if part.content.strip() else []
    for each in part.media:
        data = each.data if _is_base64(each.data) else ""
        content.append(_file(part.name, each.mime_type, data, images=images))
    result: Block = {"type": "tool_result", "tool_use_id": sendable(part.tool_call_id)}
    if content:
        result["content"] = content
    return {**result, "is_error": True} if part.is_error else result


def _file(name: str, mime_type: str, data: str, *, images: bool) -> Block:
    source = {"type": "base64", "media_type": mime_type, "data": data}
    if images and data and mime_type in _IMAGES:
        return {"type": "image", "source": source}
    if images and data and mime_type == "application/pdf":
        return {"type": "document", "source": source}
    return {"type": "text", "text": unseen(name, mime_type)}


def _arguments(text: str) -> JsonObject:
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return said if isinstance(said, dict) else {}


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True
