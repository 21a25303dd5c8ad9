"""What a turn does, as the spans of a trace, if anybody traces.

Spans nest as the work does: a run, its steps, and in each step the call of the model and the calls of
tools; a task that a tool call starts is a run below that call. Which span is the current one travels
with the task, and a task that is started takes it along, so nothing here has to be passed on.

By default there are no spans, and opening one does nothing. With OpenTelemetry they are made by
`agent.otel`, which is imported only if the process has a tracer provider.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, Self

from crush_trio.agent.turn.model import ChosenModel
from crush_trio.providers.base import Finished, ModelRequest
from crush_trio.runtime.run import Run
from crush_trio.tools.base import ToolResult
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import Part, ToolCallPart


class RunSpan(Protocol):
    """One run, from its first step to its last; what is stored after that is not in it."""

    def planned(self, model: ChosenModel, /) -> None:
        """Say which model the run works with."""
        ...


class ModelSpan(Protocol):
    """One question to a model, with all attempts to get an answer."""

    def answered(self, ending: Finished, said: Callable[[], Sequence[Part]], /) -> None:
        """Say how the answer ended; *said* tells what it is, if that is wanted."""
        ...


class ToolSpan(Protocol):
    """One call of a tool, with the time that people took to allow it."""

    def returned(self, result: ToolResult, /) -> None:
        """Say what came out of it."""
        ...


class Spans(Protocol):
    """Opens spans. An exception that leaves a span is noted in it and goes on.

    None of this waits, and none of it may raise: a trace is no reason for a run to fail.
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
        """Open the span of a question to a model."""
        ...

    def tool_call(self, run: Run, call: ToolCallPart, /) -> AbstractContextManager[ToolSpan]:
        """Open the span of a tool call."""
        ...


class _Unseen:
    """Satisfies `Spans` and each of the spans: there is one of it, and it does nothing."""

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


NO_SPANS: Final[Spans] = _Unseen()
"""Nobody traces."""


def configured_spans() -> Spans:
    """Return the spans of the process: OpenTelemetry's if it has a tracer provider, else none.

    A provider can only have been set by a program that has imported OpenTelemetry. So where nobody
    has, there is nothing to look for, and nothing is imported to look for it.
    """
    if "opentelemetry.trace" not in sys.modules:
        return NO_SPANS
    from crush_trio.agent.otel import process_spans

    return process_spans() or NO_SPANS
