"""Recording versions of what a turn uses: a provider, a tool, hooks.

Each does exactly what the original does, and adds entries to the recording of the current run. `recorded`
and `recorded_tool` return the original itself if the run is not recorded.

Texts of a model come in pieces, cut anywhere, and a secret may be cut in two. So consecutive pieces of one text
are joined before they are redacted; where nothing was removed, each keeps its own time.
"""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from attrs import asdict, define, evolve, field

from crush_trio.agent.record.recording import Recording, current_recording, note
from crush_trio.config.checks import HookEvent
from crush_trio.integrations.hook_answers import HookVerdict
from crush_trio.integrations.hook_input import Occasion
from crush_trio.net.errors import ConnectFailed
from crush_trio.providers.base import (
    Finished,
    ModelRequest,
    Parts,
    Provider,
    ReasoningDelta,
    ReasoningEnd,
    StreamPart,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
    open_answer,
)
from crush_trio.providers.errors import ProviderError
from crush_trio.tools.base import AskPerson, Media, Tool, ToolCall, ToolError, ToolResult, Wanted
from crush_trio.tools.shell.output import Excerpt
from crush_trio.wire.asks import Question, QuestionResponse
from crush_trio.wire.codec import unstructure
from crush_trio.wire.config import HookConfig
from crush_trio.wire.fields import Json, JsonObject
from crush_trio.wire.ids import NO_SESSION, SessionId

if TYPE_CHECKING:
    from crush_trio.agent.turn.tool_calls import ToolHooks

LONGEST: Final = 64 * 1024
"""Characters of one text that are joined before they are redacted."""

QUIET: Final = 5.0
"""Seconds between two signs of life that are recorded."""


_place: ContextVar[tuple[SessionId, str]] = ContextVar("exchange", default=(NO_SESSION, ""))


def exchange_place() -> tuple[SessionId, str]:
    """Return the session and the purpose of the recorded model call that the current task makes."""
    return _place.get()


# ── Model calls ─────────────────────────────────────────────────────────────────────────────────


def recorded(provider: Provider, session_id: SessionId, purpose: str) -> Provider:
    """Return *provider* as the current run uses it: recording, if the run is recorded."""
    recording = current_recording()
    if recording is None:
        return provider
    return RecordedProvider(provider, recording, session_id, purpose)


@define(eq=False)
class RecordedProvider:
    """A `Provider` whose exchanges are recorded: each attempt of a call is one."""

    inner: Provider
    recording: Recording = field(repr=False)
    session_id: SessionId
    purpose: str
    """What the call is for: a step, a summary, a title."""

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[Parts]:
        """Open one answer of the inner provider."""
        self.recording.exchanges += 1
        exchange = Exchange(self.recording, self.recording.exchanges)
        self.recording.add("request", x=exchange.number, **self._about(request))

        def heard() -> None:
            exchange.heard()
            request.heard()

        _place.set((self.session_id, self.purpose))
        try:
            async with open_answer(self.inner, evolve(request, heard=heard)) as parts:
                yield RecordedParts(parts, exchange)
        except Exception as error:
            exchange.failed(error)
            raise
        finally:
            exchange.flush()

    def _about(self, request: ModelRequest) -> JsonObject:
        return {
            "session": self.session_id,
            "for": self.purpose,
            "provider": request.chosen.provider,
            "model": request.model.id,
            "max_tokens": request.max_tokens,
            **self.recording.changed(
                (self.session_id, self.purpose),
                [unstructure(each) for each in request.messages],
                tools={each.name: [each.description, each.parameters] for each in request.tools},
                system=list(request.system),
            ),
        }


@define(eq=False)
class RecordedParts:
    """The parts of an answer, each recorded when it comes."""

    inner: Parts
    exchange: "Exchange"

    def __aiter__(self) -> "RecordedParts":
        return self

    async def __anext__(self) -> StreamPart:
        part = await anext(self.inner)
        self.exchange.take(part)
        return part


@define(eq=False)
class Exchange:
    """One attempt to get an answer from a model."""

    recording: Recording = field(repr=False)
    number: int
    _kind: tuple[str, str] = field(default=("", ""), init=False)
    _pieces: list[tuple[float, str]] = field(factory=list, init=False, repr=False)
    _length: int = field(default=0, init=False)
    _heard: float | None = field(default=None, init=False)

    def take(self, part: StreamPart) -> None:
        """Record a part."""
        if self.recording.stopped:
            return
        match part:
            case TextDelta(text=text):
                self._append("text", "", text)
            case ReasoningDelta(text=text):
                self._append("reasoning", "", text)
            case ToolCallDelta(id=call_id, text=text):
                self._append("arguments", call_id, text)
            case ReasoningEnd(signature=signature):
                self._add("reasoned", signature=signature)
            case ToolCallBegin(id=call_id, name=name):
                self.recording.asks(call_id)
                self._add("call", id=call_id, name=name)
            case ToolCallEnd(id=call_id, name=name, input=arguments):
                self.recording.asks(call_id)
                self._add("called", id=call_id, name=name, input=arguments)
            case Finished(reason=reason, usage=usage):
                self._add("finished", reason=reason.value, usage=asdict(usage))

    def heard(self) -> None:
        """Record a sign of life; not each of them."""
        now = self.recording.now
        if self._heard is None or now - self._heard > QUIET:
            self._heard = now
            self.recording.add("heard", x=self.number)

    def failed(self, error: Exception) -> None:
        """Record how the attempt failed."""
        self.flush()
        about: dict[str, Json] = {"type": type(error).__name__, "text": str(error)}
        if isinstance(error, ProviderError):
            about = {
                "code": error.code,
                "detail": error.detail,
                "status": error.status,
                "retry_after": error.retry_after,
                "window": getattr(error, "window", 0),
                "connect": isinstance(error.__cause__, ConnectFailed),
            }
        self.recording.add("failed", x=self.number, error=about)

    def _append(self, kind: str, call_id: str, text: str) -> None:
        if self._kind != (kind, call_id) or self._length > LONGEST:
            self.flush()
            self._kind = kind, call_id
        self._pieces.append((self.recording.now, text))
        self._length += len(text)

    def _add(self, kind: str, **what: Json) -> None:
        self.flush()
        self.recording.add("part", x=self.number, part=kind, **what)

    def flush(self) -> None:
        """Record the text that was collected."""
        if self._pieces:
            kind, call_id = self._kind
            pieces, redact = self._pieces, self.recording.redactor.text
            self._pieces, self._length = [], 0
            text = "".join(piece for _, piece in pieces)
            if (clean := redact(text)) != text:
                pieces = [(pieces[-1][0], clean)]
            self.recording.add(
                "parts",
                x=self.number,
                part=kind,
                id=call_id,
                pieces=[list(each) for each in pieces],
            )


# ── Tools ───────────────────────────────────────────────────────────────────────────────────────


def recorded_tool(tool: Tool) -> Tool:
    """Return *tool* as the current run uses it: recording, if the run is recorded."""
    recording = current_recording()
    return tool if recording is None else RecordedTool(tool, recording)


@define(eq=False)
class RecordedTool:
    """A `Tool` whose calls are recorded: what it wants and asks, its progress, its result."""

    inner: Tool
    recording: Recording = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.inner.name

    @property
    def parallel(self) -> bool:
        """Whether the tool may run concurrently with others."""
        return self.inner.parallel

    @property
    def description(self) -> str:
        """The description of the tool."""
        return self.inner.description

    @property
    def parameters(self) -> JsonObject:
        """The JSON Schema of the tool's arguments."""
        return self.inner.parameters

    async def run(self, call: ToolCall) -> ToolResult:
        """Execute the call, and record it."""
        place: dict[str, Json] = {"session": call.session_id, "call": call.id}
        about = {"name": self.name, "input": call.input, "parallel": self.parallel}
        self.recording.asks(call.id)
        self.recording.add("tool", **place, **about)

        async def permit(wanted: Wanted, /) -> None:
            told = {**asdict(wanted), "path": str(wanted.path)}
            self.recording.add("permit", **place, wanted=told)
            try:
                await call.permit(wanted)
            except ToolError:
                self.recording.add("refused", **place)
                raise

        def progress(text: str) -> None:
            self.recording.add("progress", **place, text=text)
            call.progress(text)

        asked = evolve(call, permit=permit, progress=progress, ask=self._ask(call, place))
        try:
            result = await self.inner.run(asked)
        except ToolError as error:
            self._result(place, error.result, raised=True)
            raise
        except Exception as error:
            about = {"type": type(error).__name__, "text": str(error)}
            self.recording.add("raised", **place, error=about)
            raise
        finally:
            self.recording.answered(call.id)
        self._result(place, result)
        return result

    def _ask(self, call: ToolCall, place: JsonObject) -> AskPerson | None:
        if (own := call.ask) is None:
            return None

        async def ask(questions: tuple[Question, ...], /) -> tuple[QuestionResponse, ...] | None:
            self.recording.add("ask", **place, questions=[unstructure(each) for each in questions])
            return await own(questions)

        return ask

    def _result(self, place: JsonObject, result: ToolResult, *, raised: bool = False) -> None:
        """Record a result; of a long one what is kept of it for the model."""
        kept = str(Excerpt.of(result.content, self.recording.sizes.tool_output))
        media = result.media and [_media(each) for each in (result.media, *result.more_media)]
        told = {
            "content": kept,
            "is_error": result.is_error,
            "stop_turn": result.stop_turn,
            "by_person": result.by_person,
            "metadata": result.metadata,
            "media": media or [],
        }
        self.recording.add("result", **place, result=told, raised=raised)


def _media(media: Media) -> JsonObject:
    return {"data": base64.b64encode(media.data).decode("ascii"), "mime_type": media.mime_type}


# ── Hooks ───────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class RecordedHooks:
    """`ToolHooks` whose answers are recorded."""

    inner: "ToolHooks" = field(repr=False)

    def matching(
        self, subject: str, event: HookEvent = HookEvent.PRE_TOOL_USE
    ) -> tuple[HookConfig, ...]:
        """Return the hooks of an event."""
        return self.inner.matching(subject, event)

    async def ask(
        self, hooks: tuple[HookConfig, ...], call: ToolCall, result: ToolResult | None = None
    ) -> HookVerdict:
        """Run the hooks for a call or its result."""
        verdict = await self.inner.ask(hooks, call, result)
        event = HookEvent.PRE_TOOL_USE if result is None else HookEvent.POST_TOOL_USE
        _note_verdict(verdict, event, call.name, call.session_id, call.id)
        return verdict

    async def ask_about(
        self, hooks: tuple[HookConfig, ...], occasion: Occasion, subject: str = ""
    ) -> HookVerdict:
        """Run the hooks for an event that is not about a tool."""
        verdict = await self.inner.ask_about(hooks, occasion, subject)
        _note_verdict(verdict, occasion.event, subject, occasion.session_id)
        return verdict


def _note_verdict(
    verdict: HookVerdict, event: HookEvent, subject: str, session_id: SessionId, call_id: str = ""
) -> None:
    note(
        "hooks",
        event=event.value,
        subject=subject,
        session=session_id,
        call=call_id,
        hooks=[unstructure(each) for each in verdict.hooks],
        answers=[{**asdict(each), "decision": each.decision.value} for each in verdict.answers],
    )
