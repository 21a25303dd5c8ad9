"""Everything real except the model, the disk and the clock.

`open_test_workspace` opens a real workspace with a scripted turn, a journal in memory, ids that
count and time that is Trio's own. It works in any async test, and in a scenario given to `explore`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import define, field

from crush_trio.clock import CountingIds, TrioClock
from crush_trio.events.log import EventLog, Window, open_event_log
from crush_trio.limits import DEFAULTS, SizeLimits
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.capacity import Capacity
from crush_trio.runtime.journal import Journal
from crush_trio.runtime.limits import Limits
from crush_trio.runtime.receipt import StopReceipt
from crush_trio.runtime.run import Turn
from crush_trio.runtime.workspace import Workspace, open_workspace
from crush_trio.testing.recorder import Recorder
from crush_trio.testing.scripted import ScriptedTurns, prompt
from crush_trio.testing.transcripts import TranscriptJournal
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.messages import Message


@define(eq=False)
class Bench:
    """A workspace under test, with what it wrote and what its readers saw."""

    workspace: Workspace
    events: EventLog
    transcript: TranscriptJournal
    _recorder: Recorder = field()

    @property
    def recorder(self) -> Recorder:
        """A reader that has read everything published so far."""
        return self._recorder.catch_up()

    def accept(self, text: str, session: str = "s", run_id: str | None = None) -> AcceptedRun:
        """Accept a prompt."""
        return self.workspace.accept(prompt(text, session, run_id))

    def cancel(self, session: str = "s") -> StopReceipt:
        """Cancel a session."""
        return self.workspace.cancel(SessionId(session))

    def find(self, run_id: str) -> AcceptedRun:
        """Return a run by any of its ids."""
        return self.workspace.find(RunId(run_id))

    def messages(self, session: str = "s") -> list[Message]:
        """The stored messages of a session."""
        return self.transcript.messages.get(SessionId(session), [])


@asynccontextmanager
async def open_test_workspace(
    turn: Turn | None = None,
    *,
    journal: Journal | None = None,
    limits: Limits | None = None,
    sizes: SizeLimits = DEFAULTS,
    capacity: Capacity | None = None,
    window: Window | None = None,
    tick: float = 0.005,
) -> AsyncIterator[Bench]:
    """Open a workspace for a test; *turn* defaults to one that says "done".

    A *journal* of your own replaces the transcript journal, which then stays empty.
    """
    clock = TrioClock()
    async with open_event_log("boot", tick=tick, window=window) as events:
        transcript = TranscriptJournal(events, clock)
        async with open_workspace(
            turn if turn is not None else ScriptedTurns(),
            events=events,
            journal=journal if journal is not None else transcript,
            clock=clock,
            ids=CountingIds("run"),
            limits=limits,
            sizes=sizes,
            capacity=capacity,
        ) as workspace:
            yield Bench(workspace, events, transcript, Recorder(events))
