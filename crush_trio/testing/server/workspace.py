"""A workspace in memory, a recorder of its events, and a check of the promises of the run core.

`open_test_workspace` opens a real workspace with a scripted turn, a journal in memory, counting ids
and Trio's clock. It works in any async test, and in a scenario given to `explore`.

A `Recorder` is an ordinary reader of the event log: it has a cursor and pulls. Tests query it
afterwards, or wait until it has seen an event.

`check_promises` holds for all accepted runs once they have ended, whatever happened and in whatever
order. It checks what was stored, what readers saw, and that nothing is left behind.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import trio
from attrs import define, field

from crush_trio.clock import CountingIds, TrioClock
from crush_trio.events.cursor import Cursor
from crush_trio.events.facts import Event, Fact, MessageChange, Resync, RunChange
from crush_trio.events.log import EventLog, Window, open_event_log
from crush_trio.limits import DEFAULTS, Limits, SizeLimits
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.journal import Journal
from crush_trio.runtime.lane import Capacity
from crush_trio.runtime.receipt import StopReceipt
from crush_trio.runtime.run import Turn
from crush_trio.runtime.workspace import Workspace, open_workspace
from crush_trio.testing.server.turns import ScriptedTurns, TranscriptJournal, prompt
from crush_trio.wire.events import AgentEvent, AgentEventType
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.runs import RunState, RunView


@define(eq=False)
class Recorder:
    """Records all events of a log from now on. Run `record` as a task, or call `catch_up`."""

    log: EventLog
    events: list[Event] = field(factory=list, init=False)
    resyncs: list[Resync] = field(factory=list, init=False)
    batches: int = field(default=0, init=False)
    _cursor: Cursor = field(init=False)
    _news: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._cursor = self.log.cursor()

    async def record(self, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Read until the log is closed."""
        task_status.started()
        async for batch in self._cursor:
            self._keep(batch.events, batch.resync)

    def catch_up(self) -> "Recorder":
        """Read all events so far, without waiting."""
        batch = self._cursor.take()
        self._keep(batch.events, batch.resync)
        return self

    async def seen(self, wanted: Callable[[Event], bool]) -> Event:
        """Wait for the first event, past or future, for which *wanted* is true."""
        looked = 0
        await trio.lowlevel.checkpoint()
        while True:
            for event in self.events[looked:]:
                if wanted(event):
                    return event
            looked = len(self.events)
            await self._news.park()

    async def seen_ending(self, run_id: str) -> RunView:
        """Wait for the ending of a run, by the server's id or the caller's."""
        event = await self.seen(
            lambda e: isinstance(e, RunChange) and e.terminal and run_id in {e.run.id, e.run.run_id}
        )
        assert isinstance(event, RunChange)
        return event.run

    def _keep(self, events: tuple[Event, ...], resync: Resync | None) -> None:
        self.batches += 1
        self.events.extend(events)
        if resync is not None:
            self.resyncs.append(resync)
        self._news.unpark_all()

    # ── Queries ─────────────────────────────────────────────────────────────────────────────────

    @property
    def endings(self) -> list[RunView]:
        """The terminal events, in order."""
        return [e.run for e in self.events if isinstance(e, RunChange) and e.terminal]

    @property
    def endings_per_run(self) -> Counter[RunId]:
        """How many terminal events each run had; every count must be one."""
        return Counter(run.id for run in self.endings)

    def states(self, run_id: str) -> list[RunState]:
        """The states one run went through."""
        return [
            e.run.state
            for e in self.events
            if isinstance(e, RunChange) and run_id in {e.run.id, e.run.run_id}
        ]

    @property
    def errors(self) -> list[AgentEvent]:
        """The agent errors that were announced."""
        return [
            e.entity
            for e in self.events
            if isinstance(e, Fact)
            and isinstance(e.entity, AgentEvent)
            and e.entity.type is AgentEventType.ERROR
        ]

    @property
    def messages(self) -> dict[MessageId, Message]:
        """The last state of every message."""
        return {e.message_id: e.message for e in self.events if isinstance(e, MessageChange)}


@define(eq=False)
class Bench:
    """A workspace under test, with its journal and a recorder of its events."""

    workspace: Workspace
    events: EventLog
    transcript: TranscriptJournal
    _recorder: Recorder = field()

    @property
    def recorder(self) -> Recorder:
        """A recorder that has read all events so far."""
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
    """Open a workspace for a test; the default *turn* answers "done".

    If a *journal* is given, it replaces the transcript journal, which then stays empty.
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


def check_promises(bench: Bench, runs: Iterable[AcceptedRun]) -> None:
    """Raise AssertionError unless every one of *runs* ended exactly once, everywhere.

    Each run has one stored ending and one terminal event, and they agree; its prompt is stored
    once; a cancelled run has a complete record; and its session is neither busy nor queued for it.
    """
    runs = list(runs)
    seen = bench.recorder
    for run in runs:
        assert run.outcome is not None, f"{run} has not ended"
        assert seen.endings_per_run[run.id] == 1, (
            f"{run} has {seen.endings_per_run[run.id]} endings"
        )
        stored = bench.transcript.endings.get(run.id)
        assert stored == run.outcome, f"{run} is stored differently: {stored}"
        assert bench.transcript.rows.get(run.id) is run.outcome.state
        _check_prompt_stored_once(bench, run)
        _check_cancelled_record(bench, run)
        assert not _still_held(bench, run), f"{run} has ended but is still held"
    announced = {view.id: view for view in seen.endings}
    for run in runs:
        assert announced[run.id] == run.view, (
            f"{run} was announced differently: {announced[run.id]}"
        )


def _check_prompt_stored_once(bench: Bench, run: AcceptedRun) -> None:
    stored = Counter(str(message.id) for message in bench.messages(run.session_id))
    assert stored[f"prompt-{run.id}"] == 1, f"{run} has its prompt stored {stored} times"


def _check_cancelled_record(bench: Bench, run: AcceptedRun) -> None:
    """Check that a run cancelled before its first text has an answer that says so (A21, D20)."""
    outcome = run.outcome
    assert outcome is not None
    expected = int(outcome.state is RunState.CANCELLED and not outcome.message_id)
    records = [
        message
        for message in bench.messages(run.session_id)
        if message.role is Role.ASSISTANT and message.id == f"cancelled-{run.id}"
    ]
    assert len(records) == expected, f"{run} has {len(records)} cancelled records"


def _still_held(bench: Bench, run: AcceptedRun) -> bool:
    return run in bench.workspace.runs or run in bench.workspace.queue(run.session_id)
