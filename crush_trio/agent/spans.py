"""`Spans`: the Protocol for tracing a turn, and a default that does nothing.

Spans nest like the work: a run, its steps, and in each step the model call and the tool calls; a task that
a tool call starts is a run below that call. The current span is a context variable, which new tasks
inherit, so spans are not passed as arguments.

By default opening a span does nothing. OpenTelemetry spans are made by `agent.otel`, which is imported
only if the process has a tracer provider.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec
from typing import Final, Protocol, Self

from crush_trio.agent.turn.model import ChosenModel
from crush_trio.providers.base import Finished, ModelRequest
from crush_trio.runtime.run import Run
from crush_trio.tools.base import ToolResult
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import Part, ToolCallPart

log = logging.getLogger(__name__)

ASKING_VARIABLES: Final = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
)
"""Variables of OpenTelemetry that ask for traces."""


class RunSpan(Protocol):
    """One run, from its first step to its last; storing its ending is not included."""

    def planned(self, model: ChosenModel, /) -> None:
        """Record the model of the run."""
        ...


class ModelSpan(Protocol):
    """One model call, including retries."""

    def answered(self, ending: Finished, said: Callable[[], Sequence[Part]], /) -> None:
        """Record how the answer ended; *said* returns its parts, if content is recorded."""
        ...


class ToolSpan(Protocol):
    """One tool call, including the wait for permission."""

    def returned(self, result: ToolResult, /) -> None:
        """Record the result."""
        ...


class Spans(Protocol):
    """Opens spans. An exception that leaves a span is recorded in it and propagates.

    All methods are synchronous and must not raise: tracing must not fail a run.
    """

    def run(self, run: Run, /) -> AbstractContextManager[RunSpan]:
        """Open the span of a run."""
        ...

    def step(self, run: Run, /) -> AbstractContextManager[object]:
        """Open the span of one step of a run."""
        ...

    def model_call(
        self, session_id: SessionId, request: ModelRequest, /
    ) -> AbstractContextManager[ModelSpan]:
        """Open the span of a model call."""
        ...

    def tool_call(self, run: Run, call: ToolCallPart, /) -> AbstractContextManager[ToolSpan]:
        """Open the span of a tool call."""
        ...


class _NoSpans:
    """Satisfies `Spans` and every kind of span; does nothing."""

    __slots__ = ()

    def run(self, _run: Run, /) -> Self:
        return self

    def step(self, _run: Run, /) -> Self:
        return self

    def model_call(self, _session_id: SessionId, _request: ModelRequest, /) -> Self:
        return self

    def tool_call(self, _run: Run, _call: ToolCallPart, /) -> Self:
        return self

    def planned(self, _model: ChosenModel, /) -> None:
        pass

    def answered(self, _ending: Finished, _said: Callable[[], Sequence[Part]], /) -> None:
        pass

    def returned(self, _result: ToolResult, /) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        pass


NO_SPANS: Final[Spans] = _NoSpans()
"""Spans that do nothing."""


def configured_spans(environ: Mapping[str, str] = os.environ) -> Spans:
    """Return the spans of the process: OpenTelemetry's if it has a tracer provider, else none.

    Only a program that has imported OpenTelemetry can have set a provider, so the import is skipped
    if the package is not loaded. Traces that *environ* asks for need the package; if it is not
    installed, the log says so.
    """
    if "opentelemetry.trace" in sys.modules:
        from crush_trio.agent.otel import process_spans

        return process_spans() or NO_SPANS
    asking = next((name for name in ASKING_VARIABLES if environ.get(name, "none") != "none"), None)
    if asking is not None:
        _tell_if_missing(asking)
    return NO_SPANS


@cache
def _tell_if_missing(variable: str) -> None:
    """Log once that traces are asked for and cannot be made."""
    if find_spec("opentelemetry") is None:
        log.warning(
            "%s asks for traces, which need OpenTelemetry, and that is not installed: "
            "pip install 'crush-trio[otel]' opentelemetry-distro",
            variable,
        )
