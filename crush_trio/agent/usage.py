"""What a model call used and cost, and how full that leaves the context.

A session has gauges (how much the context holds now) and totals (what was spent in all, L44). A call
sets the former and adds to the latter, in one change and column by column, so that a title that is
made at the same time loses nothing and overwrites nothing (D26, D27).
"""

from collections.abc import Iterable

from crush_trio.agent.models import ChosenModel
from crush_trio.providers.base import ModelRequest, PromptMessage, Usage
from crush_trio.store.changes import UsageAdded
from crush_trio.wire.catalog import CatalogModel
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import (
    BinaryPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

_LARGE_WINDOW = 200_000
_LARGE_RESERVE = 20_000
_SMALL_RESERVE = 0.2


def cost_of(usage: Usage, chosen: ChosenModel) -> float:
    """Return the dollars of one call; what the provider itself reports wins (D27).

    The catalogue's cached prices are those of writing (`in`) and of reading (`out`) a cache.
    """
    if chosen.flat_rate:
        return 0.0
    if usage.cost is not None:
        return usage.cost
    model = chosen.model
    per_million = (
        usage.input_tokens * model.cost_per_1m_in
        + usage.output_tokens * model.cost_per_1m_out
        + usage.cache_write_tokens * model.cost_per_1m_in_cached
        + usage.cache_read_tokens * model.cost_per_1m_out_cached
    )
    return per_million / 1_000_000


def step_usage(
    session_id: SessionId,
    usage: Usage,
    chosen: ChosenModel,
    request: ModelRequest,
    answer: Message,
    at: int,
) -> UsageAdded:
    """Return what a step adds to its session.

    A provider that says nothing is estimated, for the gauges only: an estimate costs nothing
    (D27a). Of a partial report the missing half leaves its gauge alone.
    """
    if not usage.reported:
        return UsageAdded(
            id=session_id,
            at=at,
            prompt_tokens=estimate_request(request),
            completion_tokens=estimate(answer.parts),
        )
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return UsageAdded(
        id=session_id,
        at=at,
        prompt_tokens=read or None,
        completion_tokens=usage.output_tokens or None,
        spent_prompt_tokens=read,
        spent_completion_tokens=usage.output_tokens,
        cost=cost_of(usage, chosen),
    )


def side_usage(session_id: SessionId, usage: Usage, chosen: ChosenModel, at: int) -> UsageAdded:
    """Return what a call beside the conversation adds: to the totals, not to the gauges (L44)."""
    return UsageAdded(
        id=session_id,
        at=at,
        spent_prompt_tokens=usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
        spent_completion_tokens=usage.output_tokens,
        cost=cost_of(usage, chosen),
    )


def nearly_full(model: CatalogModel, prompt_tokens: int, completion_tokens: int) -> bool:
    """Whether a context has so little room left that it should be summarised (D29)."""
    window = model.context_window
    if window <= 0:
        return False
    remaining = window - (prompt_tokens + completion_tokens)
    reserve = _LARGE_RESERVE if window > _LARGE_WINDOW else window * _SMALL_RESERVE
    return remaining <= reserve


# ── Estimates ───────────────────────────────────────────────────────────────────────────────────


def estimate_request(request: ModelRequest) -> int:
    """Return about how many tokens a request is."""
    said = sum(_tokens(text) for text in request.system)
    return said + sum(_message_tokens(message) for message in request.messages)


def _message_tokens(message: PromptMessage) -> int:
    return _tokens(message.role) + estimate(message.parts)


def estimate(parts: Iterable[Part]) -> int:
    """Return about how many tokens some parts are: a quarter of their bytes, piece by piece."""
    return sum(_tokens(text) for part in parts for text in _texts(part))


def _texts(part: Part) -> tuple[str, ...]:
    match part:
        case TextPart(text=text):
            return (text,)
        case ReasoningPart(thinking=thinking):
            return (thinking,)
        case ToolCallPart(name=name, input=arguments):
            return (name, arguments)
        case ToolResultPart(content=content, mime_type=mime_type):
            return (content, mime_type)
        case BinaryPart(path=path, mime_type=mime_type):
            return (path, mime_type)
        case _:
            return ()


def _tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", errors="replace")) // 4)
