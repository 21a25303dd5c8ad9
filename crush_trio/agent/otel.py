"""`OtelSpans`: OpenTelemetry spans of runs, following its conventions for generative AI.

A run is an `invoke_agent` span, a model call a `chat` span, a tool call an `execute_tool` span. The
conventions have no name for a step; its span is called `step`. They are still in development, so all
their names are in this module.

Content is not recorded by default: prompts, answers, arguments and results appear only if the environment
variable of the conventions enables them, and then redacted. Files are recorded by type and size only. Of
an error the type and the code are recorded, never the message. Every span has `crush_trio.outcome`.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import trio
from attrs import define, frozen
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from crush_trio import __version__
from crush_trio.agent.turn.model import ChosenModel
from crush_trio.config.redaction import map_text, redact, redact_text
from crush_trio.errors import CrushError
from crush_trio.log_context import hide_secrets
from crush_trio.providers.base import Finished, ModelRequest, Usage
from crush_trio.runtime.run import Run
from crush_trio.tools.base import ToolResult
from crush_trio.wire.fields import Json
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import (
    BinaryPart,
    FinishPart,
    FinishReason,
    ImageUrlPart,
    Part,
    ReasoningPart,
    Role,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.runs import RunKind, RunState

CAPTURE_VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The environment variable that enables the recording of content."""

OUTCOME: Final = "crush_trio.outcome"
ERROR_TYPE: Final = "error.type"
CONVERSATION: Final = "gen_ai.conversation.id"
OPERATION: Final = "gen_ai.operation.name"

_CAPTURING: Final = frozenset({"true", "span_only", "span_and_event"})
_AGENTS: Final = {
    RunKind.PROMPT: "coder",
    RunKind.TASK: "task",
    RunKind.SUMMARIZE: "summarizer",
}
_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertexai": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""Provider names of the conventions that differ from those in configurations."""
_REASONS: Final = {
    FinishReason.END_TURN: "stop",
    FinishReason.MAX_TOKENS: "length",
    FinishReason.TOOL_USE: "tool_call",
}

Attributes = Mapping[str, AttributeValue | None]


def process_spans(environ: Mapping[str, str] | None = None) -> "OtelSpans | None":
    """Return spans for the process's tracer provider; None if it has none."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return OtelSpans(
        provider.get_tracer("crush_trio", __version__),
        content=captures_content(os.environ if environ is None else environ),
    )


def captures_content(environ: Mapping[str, str]) -> bool:
    """Whether *environ* asks for content in spans; content in events is not recorded."""
    return environ.get(CAPTURE_VARIABLE, "").strip().lower() in _CAPTURING


@define(eq=False)
class OtelSpans:
    """Satisfies `Spans` with the spans of *tracer*."""

    tracer: Tracer
    content: bool = False

    @contextmanager
    def run(self, run: Run, /) -> "Iterator[_Run]":
        """Open an `invoke_agent` span."""
        agent = _AGENTS[run.kind]
        attributes: Attributes = {
            OPERATION: "invoke_agent",
            "gen_ai.agent.name": agent,
            CONVERSATION: run.session_id,
            "crush_trio.run.id": run.id,
            "crush_trio.run.kind": run.kind.value,
        }
        with self._open(f"invoke_agent {agent}", attributes) as span:
            yield _Run(span)

    @contextmanager
    def step(self, run: Run, /) -> Iterator[None]:
        """Open a span around one model call and the tool calls it asks for."""
        attributes: Attributes = {CONVERSATION: run.session_id, "crush_trio.run.id": run.id}
        with self._open("step", attributes):
            yield

    @contextmanager
    def model_call(self, session_id: SessionId, request: ModelRequest, /) -> "Iterator[_Model]":
        """Open a `chat` span."""
        chosen = request.chosen
        attributes: Attributes = {
            OPERATION: "chat",
            CONVERSATION: session_id,
            **_model(chosen.provider, request.model.id),
            "gen_ai.request.stream": True,
            "gen_ai.request.max_tokens": request.max_tokens or None,
            "gen_ai.request.temperature": chosen.temperature,
            "gen_ai.request.top_p": chosen.top_p,
            "gen_ai.request.top_k": chosen.top_k,
            "gen_ai.request.frequency_penalty": chosen.frequency_penalty,
            "gen_ai.request.presence_penalty": chosen.presence_penalty,
        }
        with self._open(f"chat {request.model.id}", attributes, SpanKind.CLIENT) as span:
            if self.content:
                _set_json(span, "gen_ai.system_instructions", lambda: system_instructions(request))
                _set_json(span, "gen_ai.input.messages", lambda: input_messages(request))
            yield _Model(span, self.content)

    @contextmanager
    def tool_call(self, run: Run, call: ToolCallPart, /) -> "Iterator[_Tool]":
        """Open an `execute_tool` span."""
        attributes: Attributes = {
            OPERATION: "execute_tool",
            CONVERSATION: run.session_id,
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
        }
        with self._open(f"execute_tool {call.name}", attributes) as span:
            if self.content:
                span.set_attribute("gen_ai.tool.call.arguments", _hidden(call.input))
            yield _Tool(span, self.content)

    @contextmanager
    def _open(
        self, name: str, attributes: Attributes, kind: SpanKind = SpanKind.INTERNAL
    ) -> Iterator[Span]:
        """Open a span as the current one; an exception that leaves the block is recorded in it."""
        known = {key: value for key, value in attributes.items() if value is not None}
        known[OUTCOME] = RunState.COMPLETED.value
        with self.tracer.start_as_current_span(
            name, kind=kind, attributes=known, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as exc:
                _note_failure(span, exc)
                raise


@frozen
class _Run:
    """Satisfies `RunSpan`."""

    span: Span

    def planned(self, model: ChosenModel, /) -> None:
        self.span.set_attributes(_model(model.provider_id, model.model.id))


@frozen
class _Model:
    """Satisfies `ModelSpan`."""

    span: Span
    content: bool

    def answered(self, ending: Finished, said: Callable[[], Sequence[Part]], /) -> None:
        reason = _REASONS.get(ending.reason, ending.reason.value)
        self.span.set_attribute("gen_ai.response.finish_reasons", [reason])
        if ending.usage.reported:
            self.span.set_attributes(_usage(ending.usage))
        if self.content:
            _set_json(self.span, "gen_ai.output.messages", lambda: output_messages(said(), reason))


@frozen
class _Tool:
    """Satisfies `ToolSpan`. A tool error that the model sees is an error of the span too."""

    span: Span
    content: bool

    def returned(self, result: ToolResult, /) -> None:
        if result.is_error:
            _set_failure(self.span, RunState.ERRORED, "tool_error")
        if self.content:
            self.span.set_attribute("gen_ai.tool.call.result", _hidden(result.content))


def _model(provider: str, model: str) -> dict[str, AttributeValue]:
    return {
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
        "gen_ai.request.model": model,
    }


def _usage(usage: Usage) -> dict[str, AttributeValue]:
    """Return the usage attributes; the conventions count cached tokens as input too."""
    cached = usage.cache_read_tokens + usage.cache_write_tokens
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens + cached,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
    }


def _hidden(text: str) -> str:
    """Return *text* without secrets: what looks like one, and those that the workspace knows."""
    return hide_secrets(redact_text(text))


def _set_json(span: Span, name: str, make: Callable[[], Json]) -> None:
    """Record content; values that are nested too deeply are left out.

    Uses the standard encoder because orjson refuses some values, such as integers over 64 bits.
    """
    with suppress(RecursionError):
        span.set_attribute(name, json.dumps(map_text(redact(make()), hide_secrets)))


# ── Failures ────────────────────────────────────────────────────────────────────────────────────


def _note_failure(span: Span, exc: BaseException) -> None:
    cause = _cause(exc)
    if isinstance(cause, trio.Cancelled):
        _set_failure(span, RunState.CANCELLED, RunState.CANCELLED.value)
        return
    kind = f"{type(cause).__module__}.{type(cause).__qualname__}"
    code = cause.code if isinstance(cause, CrushError) else kind
    span.add_event("exception", {"exception.type": kind})
    _set_failure(span, RunState.ERRORED, code)


def _cause(exc: BaseException) -> BaseException:
    """Return the first error in a group that is not a cancel; a cancel if there is no other."""
    while isinstance(exc, BaseExceptionGroup):
        failures = exc.split(trio.Cancelled)[1]
        exc = (failures or exc).exceptions[0]
    return exc


def _set_failure(span: Span, outcome: RunState, what: str) -> None:
    span.set_attributes({OUTCOME: outcome.value, ERROR_TYPE: what})
    span.set_status(Status(StatusCode.ERROR, what))


def system_instructions(request: ModelRequest) -> list[Json]:
    """Return the instructions of *request*."""
    return [_text(text) for text in request.system]


def input_messages(request: ModelRequest) -> list[Json]:
    """Return the messages of *request*."""
    return [
        {"role": message.role.value, "parts": _parts(message.parts)} for message in request.messages
    ]


def output_messages(said: Sequence[Part], reason: str) -> list[Json]:
    """Return a model's answer with its finish *reason*."""
    return [{"role": Role.ASSISTANT.value, "parts": _parts(said), "finish_reason": reason}]


def _parts(parts: Sequence[Part]) -> list[Json]:
    return [_part(part) for part in parts if not isinstance(part, FinishPart)]


def _part(part: Part) -> Json:
    match part:
        case TextPart(text=text):
            return _text(text)
        case ReasoningPart(thinking=text):
            return {"type": "reasoning", "content": text}
        case ToolCallPart():
            arguments = _object(part.input)
            return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": arguments}
        case ToolResultPart():
            return {
                "type": "tool_call_response",
                "id": part.tool_call_id,
                "response": part.content,
            }
        case ImageUrlPart(url=url):
            return {"type": "uri", "modality": "image", "uri": url}
        case BinaryPart(mime_type=mime_type, data=data):
            return {"type": "binary", "mime_type": mime_type, "size": len(data)}
        case ShellCommandPart(command=command, output=output):
            return {"type": "shell_command", "command": command, "output": output}
        case FinishPart():
            return {"type": "finish"}


def _text(text: str) -> Json:
    return {"type": "text", "content": text}


def _object(text: str) -> Json:
    """Return the parsed arguments of a call; as text if they are not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
