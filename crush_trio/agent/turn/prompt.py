"""`build_prompt`: converts the stored history of a session to the messages of a model request.

Repairs are made in the request only, not in the store (D23). Every tool call gets exactly one result,
directly after the message that made it; a result without its call is left out. Providers refuse
conversations that break this rule.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from attrs import evolve, frozen

from crush_trio.providers.base import PromptMessage
from crush_trio.wire.ids import MessageId, SessionId, ToolCallId
from crush_trio.wire.messages import (
    BinaryPart,
    Message,
    Part,
    ReasoningPart,
    Role,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

REMINDER: Final = (
    "<reminder>The session's todo list is yours: it may be empty. For work of several steps keep it "
    "with the todos tool. Do not mention this reminder.</reminder>"
)
"""The reminder at the beginning of every conversation of a main agent (D22)."""

INTERRUPTED: Final = "the tool call was interrupted and has no result"

_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


@frozen(kw_only=True)
class ModelAbilities:
    """What the model accepts: images, and media in tool results."""

    images: bool = False
    media_results: bool = False


def build_prompt(
    messages: Sequence[Message],
    summary: MessageId,
    can: ModelAbilities,
    *,
    remind: bool = True,
) -> tuple[PromptMessage, ...]:
    """Return the conversation for a model, from its summary on if it has one (D21 to D23b)."""
    relevant = _since_summary(messages, summary)
    known = {part.id for m in relevant for part in m.parts if isinstance(part, ToolCallPart)}
    results = {
        part.tool_call_id: part
        for m in relevant
        for part in m.parts
        if isinstance(part, ToolResultPart) and part.tool_call_id in known
    }
    prompt = [_user(TextPart(text=REMINDER))] if remind else []
    for message in relevant:
        match message.role:
            case Role.USER:
                prompt.extend(_user_message(message, can))
            case Role.ASSISTANT:
                prompt.extend(_assistant_message(message, results, can))
            case _:
                pass  # results are added after their calls; system messages are not stored
    return tuple(prompt)


def tool_call_ids(prompt: Iterable[PromptMessage]) -> frozenset[ToolCallId]:
    """Return the ids of all tool calls in a conversation."""
    parts = (part for message in prompt for part in message.parts)
    return frozenset(part.id for part in parts if isinstance(part, ToolCallPart))


def affinity(session_id: SessionId) -> str:
    """Return a key for the provider's cache that does not reveal the session id (D23c)."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:32]


def _since_summary(messages: Sequence[Message], summary: MessageId) -> list[Message]:
    """Return the messages from the summary on; the summary becomes a user message (D21)."""
    for index, message in enumerate(messages):
        if summary and message.id == summary:
            return [evolve(message, role=Role.USER), *messages[index + 1 :]]
    return list(messages)


def _user(*parts: Part) -> PromptMessage:
    return PromptMessage(role=Role.USER, parts=parts)


# ── User messages ───────────────────────────────────────────────────────────────────────────────


def _user_message(message: Message, can: ModelAbilities) -> Iterator[PromptMessage]:
    texts = [text for part in message.parts if (text := _text_of(part))]
    pictures = [p for p in message.parts if isinstance(p, BinaryPart) and not _is_text(p)]
    parts: list[Part] = [TextPart(text="\n\n".join(texts))] if texts else []
    if can.images:
        parts.extend(pictures)
    if parts:
        yield _user(*parts)


def _text_of(part: Part) -> str:
    """Return a part of a user message as text; empty for images."""
    match part:
        case TextPart(text=text):
            return text
        case BinaryPart() if _is_text(part):
            content = part.data.decode("utf-8", errors="replace")
            return f'<file path="{part.path}">\n{content}\n</file>'
        case ShellCommandPart():
            output = _ANSI.sub("", part.output)
            return (
                f"I ran this command myself:\n$ {part.command}\n{output.rstrip()}\n"
                f"(exit code {part.exit_code})"
            )
        case _:
            return ""


def _is_text(part: BinaryPart) -> bool:
    return part.mime_type.startswith("text/")


# ── Assistant messages and tool results ─────────────────────────────────────────────────────────


def _assistant_message(
    message: Message, results: dict[ToolCallId, ToolResultPart], can: ModelAbilities
) -> Iterator[PromptMessage]:
    parts = tuple(_said(message.parts))
    if not parts:
        return
    yield PromptMessage(role=Role.ASSISTANT, parts=parts)
    answers = [
        results.get(part.id, _missing(part)) for part in parts if isinstance(part, ToolCallPart)
    ]
    pictures: list[Part] = []
    for answer in answers:
        result, picture = _fitting(answer, can)
        yield PromptMessage(role=Role.TOOL, parts=(result,))
        pictures.extend(picture)
    if pictures:
        yield _user(TextPart(text="What the tools returned as files:"), *pictures)


def _said(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts of an answer that go back to the model; empty ones are left out (D22)."""
    for part in parts:
        match part:
            case TextPart(text=text) if text:
                yield part
            case ReasoningPart(replay=replay) if replay:
                yield evolve(part, signature=replay, replay="")
            case ReasoningPart(thinking=thinking, signature=signature) if thinking or signature:
                yield part
            case ToolCallPart():
                yield part if part.finished else evolve(part, input="{}", finished=True)
            case _:
                pass


def _missing(call: ToolCallPart) -> ToolResultPart:
    return ToolResultPart(tool_call_id=call.id, name=call.name, content=INTERRUPTED, is_error=True)


def _fitting(result: ToolResultPart, can: ModelAbilities) -> tuple[ToolResultPart, list[Part]]:
    """Return a result that the model accepts, and the images that must follow it (D23b)."""
    if not result.data or (can.images and can.media_results):
        return result, []
    bare = evolve(result, data="", mime_type="", more_media=())
    pictures: list[Part] = []
    lines = [result.content]
    for each in result.media:
        if not can.images:
            lines.append(f"[{each.mime_type} content; this model cannot look at it]")
            continue
        try:
            data = base64.b64decode(each.data, validate=True)
        except binascii.Error:
            continue
        lines.append(f"[the {each.mime_type} content follows in the next message]")
        pictures.append(BinaryPart(path=result.name, mime_type=each.mime_type, data=data))
    return evolve(bare, content="\n".join(lines).strip()), pictures
