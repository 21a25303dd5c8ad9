"""Chat completions requests (OpenAI's format, which most providers accept).

Providers differ in details, which a `Dialect` names. What a provider does not support is left out or
replaced by text; it is never sent in the hope that it is ignored.
"""

import base64
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from attrs import define, field, frozen

from crush_trio.providers.base import (
    ECHO,
    Endpoint,
    ModelRequest,
    PromptMessage,
    ToolSpec,
    reasoning_in,
    unpack,
)
from crush_trio.providers.catalog import effort_of, merged, model_id, options_of, sampling_of
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.messages import (
    BinaryPart,
    ImageUrlPart,
    Part,
    ResultMedia,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

OUR_OPTIONS: Final = frozenset({"api_version", "apiVersion", "api-version"})
"""Options that are about the connection; they are not sent."""

UNSIGNED: Final = "skip_thought_signature_validator"
"""What Gemini accepts instead of a signature that was not stored."""

_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_SIGNS_CALLS: Final = re.compile(r"gemini-(?![12]\b)")
_MARK: Final[JsonObject] = {"cache_control": {"type": "ephemeral"}}


@frozen(kw_only=True)
class Dialect:
    """The differences of a provider type from the common format."""

    openai: bool = False
    """The limit has a newer name, and reasoning models take no sampling parameters."""
    routes: bool = False
    """A router: takes `reasoning` as an object, wants its details back, and passes cache marks on."""
    files: bool = False
    """Reads PDF files."""
    gemini: bool = False
    """New models require that their tool calls come back signed."""
    azure: bool = False
    """Key and model go into another header and into the URL."""


def chat_body(request: ModelRequest, endpoint: Endpoint, dialect: Dialect) -> dict[str, Any]:
    """Return the body of the request."""
    body = {
        "model": model_id(request),
        "messages": _Conversation(request, dialect).messages(),
        **_tools(request.tools),
        **_limits(request, dialect),
        **_effort(request, dialect),
        "stream_options": {"include_usage": True},
    }
    options = options_of(request, endpoint)
    own = {key: value for key, value in options.items() if key not in OUR_OPTIONS}
    return merged(body, own, endpoint.extra_body, {"stream": True})


def _tools(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    functions = [
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
        for tool in tools
    ]
    return {"tools": [{"type": "function", "function": f} for f in functions]} if tools else {}


def _limits(request: ModelRequest, dialect: Dialect) -> dict[str, float]:
    """Return the limit of the answer and the sampling parameters."""
    limit = "max_completion_tokens" if dialect.openai else "max_tokens"
    length: dict[str, float] = {limit: request.max_tokens} if request.max_tokens else {}
    if dialect.openai and request.model.can_reason:
        return length
    names = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
    return length | sampling_of(request).given(*names, *(() if dialect.openai else ("top_k",)))


def _effort(request: ModelRequest, dialect: Dialect) -> dict[str, Any]:
    effort = effort_of(request)
    if not effort:
        return {}
    if dialect.routes:
        return {"reasoning": {"enabled": True, "effort": effort}}
    return {"reasoning_effort": effort}


# ── Messages ────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class _Conversation:
    """The messages of one request."""

    request: ModelRequest
    dialect: Dialect
    _said: list[dict[str, Any]] = field(factory=list, init=False)
    _media: list[BinaryPart] = field(factory=list, init=False)
    """Files that tools returned; they follow after all results of the step."""
    _echoes: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        thoughts = map(reasoning_in, self.request.messages)
        self._echoes = any(thought and thought.signature == ECHO for thought in thoughts)

    def messages(self) -> list[dict[str, Any]]:
        system = "\n\n".join(text for text in self.request.system if text)
        if system:
            self._said.append({"role": "system", "content": system})
        for message in self.request.messages:
            self._say(message)
        self._show_media()
        return self._marked()

    def _say(self, message: PromptMessage) -> None:
        if message.role is Role.TOOL:
            self._said.extend(self._results(message))
            return
        self._show_media()
        if message.role is Role.ASSISTANT:
            self._said.append(self._answer(message))
        else:
            content = self._content(message.parts)
            self._said.append({"role": str(message.role), "content": content})

    # ── What the user said ──────────────────────────────────────────────────────────────────────

    def _content(self, parts: Sequence[Part]) -> str | list[dict[str, Any]]:
        """Return blocks, or plain text if there is nothing else: every server accepts that."""
        blocks = [block for part in parts for block in self._block(part)]
        if all(block["type"] == "text" for block in blocks):
            return "\n\n".join(block["text"] for block in blocks)
        return blocks

    def _block(self, part: Part) -> Iterator[dict[str, Any]]:
        match part:
            case TextPart(text=text) if text:
                yield {"type": "text", "text": text}
            case ImageUrlPart(url=url, detail=detail):
                yield {"type": "image_url", "image_url": {"url": url, "detail": detail or "auto"}}
            case BinaryPart():
                yield self._file(part)
            case _:
                pass

    def _file(self, part: BinaryPart) -> dict[str, Any]:
        url = f"data:{part.mime_type};base64,{base64.b64encode(part.data).decode()}"
        if self.request.model.supports_attachments:
            if part.mime_type.startswith("image/"):
                return {"type": "image_url", "image_url": {"url": url}}
            if part.mime_type == "application/pdf" and self.dialect.files:
                name = part.path.rpartition("/")[2] or "file.pdf"
                return {"type": "file", "file": {"filename": name, "file_data": url}}
        return {"type": "text", "text": unseen(part.path, part.mime_type)}

    # ── What the model said ─────────────────────────────────────────────────────────────────────

    def _answer(self, message: PromptMessage) -> dict[str, Any]:
        text = "\n\n".join(p.text for p in message.parts if isinstance(p, TextPart) and p.text)
        calls = [self._call(part) for part in message.parts if isinstance(part, ToolCallPart)]
        answer: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            answer |= {"content": text or None, "tool_calls": calls}
            if self.dialect.gemini and _SIGNS_CALLS.search(model_id(self.request)):
                calls[0]["extra_content"] = {"google": {"thought_signature": UNSIGNED}}
        return answer | self._thought(message, called=bool(calls))

    def _call(self, part: ToolCallPart) -> dict[str, Any]:
        function = {"name": sendable(part.name), "arguments": part.input or "{}"}
        return {"id": part.id, "type": "function", "function": function}

    def _thought(self, message: PromptMessage, *, called: bool) -> dict[str, Any]:
        """Return the reasoning that this provider wants back."""
        thought = reasoning_in(message)
        if self.dialect.routes:
            details = unpack(thought.signature, "reasoning.") if thought else []
            return {"reasoning_details": details} if details else {}
        if self._echoes and called:
            mine = thought is not None and thought.signature == ECHO
            return {ECHO: thought.thinking if thought is not None and mine else ""}
        return {}

    # ── What tools answered ─────────────────────────────────────────────────────────────────────

    def _results(self, message: PromptMessage) -> Iterator[dict[str, Any]]:
        for part in message.parts:
            if isinstance(part, ToolResultPart):
                text = part.content
                for each in part.media:
                    text = f"{text}\n{self._put_off(part.name, each)}".strip()
                yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": text}

    def _put_off(self, name: str, media: ResultMedia) -> str:
        """Keep a file of a result for a user message that follows; return the text in its place (D23b)."""
        try:
            data = base64.b64decode(media.data, validate=True)
        except ValueError:
            return unseen(name, media.mime_type)
        part = BinaryPart(path=name, mime_type=media.mime_type, data=data)
        if self._file(part)["type"] == "text":
            return unseen(name, media.mime_type)
        self._media.append(part)
        return f"[the {media.mime_type} content follows in the next message]"

    def _show_media(self) -> None:
        if self._media:
            note = TextPart(text="What the tools returned as files:")
            self._said.append({"role": "user", "content": self._content([note, *self._media])})
            self._media.clear()

    # ── Caches ──────────────────────────────────────────────────────────────────────────────────

    def _marked(self) -> list[dict[str, Any]]:
        """Return the messages, with cache marks if the model needs them (D23c)."""
        claude = "claude" in model_id(self.request).lower()
        if not (self.request.cache and self.dialect.routes and claude):
            return self._said
        ends = {0, len(self._said) - 1, len(self._said) - 2}
        return [_marked(m) if n in ends else m for n, m in enumerate(self._said)]


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"] or []
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": [*blocks[:-1], {**blocks[-1], **_MARK}]} if blocks else message


def sendable(name: str) -> str:
    """Return the name or id of a call as every provider accepts it.

    Models invent names such as `functions.ls`; in the history, they make the whole request invalid.
    """
    return _NOT_IN_NAMES.sub("_", name) or "_"


def unseen(name: str, mime_type: str) -> str:
    """Return the text that replaces a file that the model cannot read."""
    return f"[{name or 'a file'}: this model cannot read {mime_type or 'such'} content]"
