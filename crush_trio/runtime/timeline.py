"""`Timeline`: what a run did when, for people who look at it.

A run is in one phase after the other: accepted, queued, ending; between the last two its turn plays.
The turn reports what it does in that time with `timed`, which finds the timeline of its run by a
context variable: new tasks inherit it, so it is not passed as an argument.

Times are those of Trio's clock. A timeline is kept as long as the workspace remembers its run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import trio
from attrs import define, field

from crush_trio.wire.runs import SpanKind

MAX_SPANS: Final = 2000
"""How many spans a timeline keeps; a run with more is drawn without the later ones."""


@define(eq=False)
class TimedSpan:
    """One stretch of time of a run; `end` is None while it lasts. A model call has what it used, if that is known."""

    kind: SpanKind
    name: str = ""
    detail: str = ""
    begin: float = field(factory=trio.current_time)
    end: float | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0

    def close(self) -> None:
        """End it now, unless it has ended."""
        if self.end is None:
            self.end = trio.current_time()


@define(eq=False)
class Timeline:
    """The spans of one run, in the order in which they began."""

    spans: list[TimedSpan] = field(factory=list, init=False)
    left_out: int = field(default=0, init=False)
    """How many spans were too many to be kept."""
    _phase: TimedSpan | None = field(default=None, init=False, repr=False)

    def enter(self, phase: SpanKind | None) -> None:
        """End the present phase and begin the next; None while the turn plays."""
        if self._phase is not None:
            self._phase.close()
        self._phase = None if phase is None else self.begin(TimedSpan(phase))

    def begin(self, span: TimedSpan) -> TimedSpan:
        """Keep a span that begins now."""
        if len(self.spans) < MAX_SPANS or span.kind is SpanKind.ENDING:
            self.spans.append(span)
        else:
            self.left_out += 1
        return span

    def close(self) -> None:
        """End everything: the run has ended."""
        for span in self.spans:
            span.close()
        self._phase = None


_current: ContextVar[Timeline | None] = ContextVar("timeline", default=None)


def keep_time(timeline: Timeline) -> None:
    """Have the present task, and those that it starts, report to *timeline*."""
    _current.set(timeline)


@contextmanager
def timed(kind: SpanKind, name: str = "", detail: str = "") -> Iterator[TimedSpan]:
    """Report what the block does to the timeline of the run that it belongs to, if any."""
    timeline, span = _current.get(), TimedSpan(kind, name, detail)
    if timeline is not None:
        timeline.begin(span)
    try:
        yield span
    finally:
        span.close()
