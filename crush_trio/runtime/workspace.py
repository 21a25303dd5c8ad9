"""`Workspace`: the nursery that owns the runs of one directory.

`Workspace.accept` makes the promise: it checks the submission, makes the token with its cancel
scope, puts it into its session's lane and starts the run's task, with no checkpoint in between.
From then on every cancel reaches the run, and the run's own task ends it even if the caller
disconnects.

All decisions are synchronous methods. The async methods only wait for other tasks.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from itertools import count
from typing import TYPE_CHECKING

import trio
from attrs import define, evolve, field

from crush_trio.clock import Clock, IdSource, RandomIds, SystemClock
from crush_trio.errors import QueueFull, RunNotQueued, SessionBusy, WorkspaceClosing
from crush_trio.events.facts import RunChange
from crush_trio.events.log import EventLog, open_event_log
from crush_trio.limits import DEFAULTS, Limits, SizeLimits
from crush_trio.nursery import check_trio, open_hidden_nursery
from crush_trio.runtime.accepted import AcceptedRun, KnownRuns, RunLane
from crush_trio.runtime.ending import Withdrawal, announce, wait_for_runs
from crush_trio.runtime.journal import NO_METER, Journal, MemoryJournal, RunMeter
from crush_trio.runtime.lane import Capacity, Lane
from crush_trio.runtime.outcome import Outcome, Submission
from crush_trio.runtime.receipt import CloseReport, StopReceipt
from crush_trio.runtime.run import Run, Turn, conduct, fold
from crush_trio.runtime.turn_check import check_submission, check_turn
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import RunState, RunView, WhenBusy

if TYPE_CHECKING:
    from crush_trio.wire.answers import TaskTree

log = logging.getLogger(__name__)


@define(eq=False)
class Workspace:
    """Accepts runs, cancels them, and answers what they are doing.

    Made by `open_workspace` only.
    """

    events: EventLog
    services: trio.Nursery = field(repr=False)
    _runs: trio.Nursery = field(repr=False)
    _turn: Turn = field(repr=False)
    _journal: Journal = field(repr=False)
    _clock: Clock = field(repr=False)
    _ids: IdSource = field(repr=False)
    _limits: Limits
    _sizes: SizeLimits
    _capacity: Capacity = field(repr=False)
    meter: RunMeter = field(default=NO_METER, init=False, repr=False)
    """Metrics hooks, called when a run is accepted and when it ends."""
    _seq: "count[int]" = field(factory=lambda: count(1), init=False, repr=False)
    _lanes: dict[SessionId, RunLane] = field(factory=dict, init=False, repr=False)
    _known: KnownRuns = field(factory=KnownRuns, init=False, repr=False)
    _closing: StopReceipt | None = field(default=None, init=False, repr=False)
    _report: CloseReport | None = field(default=None, init=False, repr=False)
    overdue: trio.Event = field(factory=trio.Event, init=False, repr=False)
    """Set when the time for closing is over: closing no longer waits for endings to be stored."""

    # ── Accepting ───────────────────────────────────────────────────────────────────────────────

    def accept(self, submission: Submission) -> AcceptedRun:
        """Promise to end *submission*, and start its run. Never waits.

        Raises without accepting anything if the prompt is empty or too long, if the workspace is
        closing, if the session's queue is full, or if the caller's run id names another run. The
        same submission under the same run id is one run: the caller gets the same token again, and
        no policy is applied again.

        `WhenBusy.REJECT` raises `SessionBusy` if the session has any run, even one that was
        accepted just now. `WhenBusy.INTERRUPT` cancels the runs that were accepted before this one,
        but only after its own acceptance is stored: a submission that is refused changes nothing.
        """
        check_submission(submission)
        submission.check(self._sizes)
        if self._closing is not None:
            raise WorkspaceClosing
        repeated = self._known.repeated(submission)
        if repeated is not None:
            return repeated
        lane = self._lanes.get(submission.session_id) or Lane(self._capacity)
        if submission.when_busy is WhenBusy.REJECT and lane.runs:
            raise SessionBusy
        if lane.length >= self._sizes.queue:
            raise QueueFull(f"{lane.length} of {self._sizes.queue}")
        view = self._new_view(submission)
        accepted = AcceptedRun(view, submission, lane, self._moved, self._cancel_one)
        self._admit(accepted, lane)
        return accepted

    def _admit(self, accepted: AcceptedRun, lane: RunLane) -> None:
        """Put the run into its lane, hand its acceptance to the journal, and start its task."""
        self._lanes[accepted.session_id] = lane
        begins = lane.admit(accepted)
        self._known.add(accepted)
        acceptance = self._journal.accept(accepted, begins=begins)
        run = Run(accepted, self.events, self._journal, self._limits, self, acceptance)
        self._runs.start_soon(conduct, run, self._turn, name=_task_name(accepted))
        self.meter.run_accepted(accepted)

    def _new_view(self, submission: Submission) -> RunView:
        return RunView(
            id=RunId(self._ids.new()),
            run_id=submission.run_id,
            session_id=submission.session_id,
            kind=submission.kind,
            state=RunState.ACCEPTED,
            seq=next(self._seq),
            accepted_at=self._clock.unix(),
        )

    def hold(self, session_id: SessionId) -> None:
        """Let no run of the session begin until `release`; prompts are still accepted, and wait."""
        self._lanes.setdefault(session_id, Lane(self._capacity)).hold()

    def release(self, session_id: SessionId) -> None:
        """End `hold`: let the session's next run begin."""
        lane = self._lanes[session_id]
        lane.release()
        if lane.empty:
            del self._lanes[session_id]

    # ── Editing the queue ───────────────────────────────────────────────────────────────────────

    def edit_queued(self, run_id: RunId, text: str) -> AcceptedRun:
        """Replace the prompt of a waiting run; raise `RunNotQueued` if it no longer waits.

        Sending the original submission again still finds this run, although another text will run.
        This method does not write to the store.
        """
        accepted, _ = self._queued(run_id)
        edited = evolve(accepted.submission, prompt=text)
        edited.check(self._sizes)
        accepted.submission = edited
        self.events.publish(RunChange(run=accepted.view))
        return accepted

    def move_queued(self, run_id: RunId, index: int) -> AcceptedRun:
        """Move a waiting run to *index* of its queue: 0 is the next run, past the end is the end."""
        if index < 0:
            raise ValueError(f"the index in a queue must be 0 or more, not {index}")
        accepted, lane = self._queued(run_id)
        lane.reorder(accepted, index)
        self.events.publish(RunChange(run=accepted.view))
        return accepted

    def run_now(self, run_id: RunId) -> StopReceipt:
        """Move a waiting run to the head of its queue, and cancel the run it waits for, in one step."""
        accepted = self.move_queued(run_id, 0)
        return self.cancel(accepted.session_id, keep_queue=True)

    def _queued(self, run_id: RunId) -> tuple[AcceptedRun, RunLane]:
        accepted = self.find(run_id)
        lane = self._lanes.get(accepted.session_id)
        if lane is None or accepted not in lane.waiting:
            raise RunNotQueued(run_id)
        return accepted, lane

    # ── Stopping ────────────────────────────────────────────────────────────────────────────────

    def cancel(self, session_id: SessionId, *, keep_queue: bool = False) -> StopReceipt:
        """Cancel every run the session has now: active, queued, or just accepted (A13).

        With *keep_queue* the queued runs are not cancelled, and the first of them begins next.
        Cancelling an idle session has no effect on later runs (A14).
        """
        lane = self._lanes.get(session_id)
        if lane is None:
            return StopReceipt(())
        return self._cancel(lane, lane.beyond_queue if keep_queue else lane.runs)

    def cancel_run(self, run_id: RunId) -> StopReceipt:
        """Cancel one run, by our id or by the caller's. A run that has ended is not hit."""
        accepted = self.find(run_id)
        return StopReceipt(()) if accepted.ended else self._cancel_one(accepted)

    def cancel_all(self) -> StopReceipt:
        """Cancel every run of every session, whatever state it is in."""
        receipt = StopReceipt.of(self.runs)
        for lane in list(self._lanes.values()):
            self._cancel(lane, lane.runs)
        return receipt

    def clear_queue(self, session_id: SessionId) -> StopReceipt:
        """Cancel the runs that wait behind the active one, which goes on (A30)."""
        lane = self._lanes.get(session_id)
        return StopReceipt(()) if lane is None else self._cancel(lane, lane.waiting)

    def interrupt(self, run: AcceptedRun) -> None:
        """Cancel the session's earlier runs if *run*, which is stored now, asked for that."""
        if run.submission.when_busy is WhenBusy.INTERRUPT and not run.cancel_requested:
            lane = self._lanes[run.session_id]
            self._cancel(lane, [other for other in lane.runs if other.view.seq < run.view.seq])

    def _cancel_one(self, accepted: AcceptedRun) -> StopReceipt:
        return self._cancel(self._lanes[accepted.session_id], (accepted,))

    def _cancel(self, lane: RunLane, runs: Sequence[AcceptedRun]) -> StopReceipt:
        """Cancel *runs* of a lane, and withdraw those that had not begun."""
        receipt = StopReceipt.of(runs)
        active = lane.active
        self.withdraw(lane.cancel(runs), after=active if active in runs else None)
        return receipt

    def withdraw(self, runs: Sequence[AcceptedRun], after: AcceptedRun | None = None) -> None:
        """End runs that were cancelled before they began; *after* is an active run to wait for."""
        if runs:
            withdrawal = Withdrawal(tuple(runs), self._journal, self._limits, self, after)
            self._runs.start_soon(withdrawal.end, name="withdrawn runs")

    def close(self) -> StopReceipt:
        """Refuse new runs from now on and cancel all that exist. Closing again does nothing."""
        if self._closing is None:
            self._closing = self.cancel_all()
        return self._closing

    def hurry(self) -> None:
        """Stop waiting, during closing, for endings that the store does not take."""
        self.overdue.set()

    async def stop(self) -> CloseReport:
        """Close, wait a limited time for the runs to end, and report those that did not.

        Runs whose endings cannot be stored in that time end as interrupted, which is also what the
        next start will find. Stopping again returns the same report at once.
        """
        await trio.lowlevel.cancel_shielded_checkpoint()
        if self._report is not None:
            return self._report
        began = self._clock.monotonic()
        receipt = self.close()
        with trio.CancelScope(shield=True):
            await wait_for_runs(receipt, self.overdue, self._limits, self._journal)
        report = CloseReport(receipt, self._clock.monotonic() - began, receipt.unfinished)
        if report.unfinished:
            log.error("workspace.stop_incomplete", extra={"report": str(report)})
        self._report = report
        return report

    # ── Inspecting ──────────────────────────────────────────────────────────────────────────────

    @property
    def runs(self) -> tuple[AcceptedRun, ...]:
        """Every run that has not ended, session by session."""
        return tuple(run for lane in self._lanes.values() for run in lane.runs)

    @property
    def busy(self) -> bool:
        """Whether any session is busy."""
        return any(lane.busy for lane in self._lanes.values())

    def session_busy(self, session_id: SessionId) -> bool:
        """Whether the session has an active run (A11)."""
        lane = self._lanes.get(session_id)
        return lane is not None and lane.busy

    def session_runs(self, session_id: SessionId) -> tuple[AcceptedRun, ...]:
        """Every run of the session that has not ended."""
        lane = self._lanes.get(session_id)
        return () if lane is None else tuple(lane.runs)

    def queue(self, session_id: SessionId) -> tuple[AcceptedRun, ...]:
        """The runs that wait behind the session's active one, next run first (A34)."""
        lane = self._lanes.get(session_id)
        return () if lane is None else lane.waiting

    def knows(self, run_id: RunId) -> bool:
        """Whether the id, ours or a caller's, names a live or recently ended run."""
        return run_id in self._known

    def find(self, run_id: RunId) -> AcceptedRun:
        """Return a live or recently ended run, by our id or by the caller's."""
        return self._known.find(run_id)

    def tasks(self) -> "TaskTree":
        """Every live task of the workspace, and what it waits on."""
        from crush_trio.runtime.tasks import task_tree  # inspection is loaded where it is used

        return task_tree(self._runs, self.services, {_task_name(run): run for run in self.runs})

    # ── Called by the runs ──────────────────────────────────────────────────────────────────────

    def _moved(self, accepted: AcceptedRun) -> None:
        """Publish that a run was stored, queued or became active; journal the last of these."""
        if accepted.state is RunState.ACTIVE:
            accepted.view = evolve(accepted.view, started_at=self._clock.unix())
            accepted.begun = self._journal.begin(accepted)
        self.events.publish(RunChange(run=accepted.view))

    async def fold(self, into: AcceptedRun) -> tuple[Submission, ...]:
        """Fold the queued prompts that *into* may absorb into its turn."""
        return await fold(into, self._lanes[into.session_id], self._journal, self)

    def decide(self, accepted: AcceptedRun, outcome: Outcome) -> None:
        """Set how a run will end. The caller hands the ending to the journal in the same step."""
        accepted.will_end(outcome, self._clock.unix())
        self._lanes[accepted.session_id].begin_ending(accepted)

    def settle(self, accepted: AcceptedRun, outcome: Outcome) -> None:
        """Announce an ending that is stored, after the earlier endings of its session."""
        lane = self._lanes[accepted.session_id]
        lane.end(accepted, outcome)
        self._announce_ended(lane)

    def drop(self, accepted: AcceptedRun) -> None:
        """Remove a run whose acceptance was refused."""
        lane = self._lanes[accepted.session_id]
        self._leave(lane, accepted)
        self._announce_ended(lane)

    def _announce_ended(self, lane: RunLane) -> None:
        """Announce the endings that are due, and let the next run begin, in one step.

        When a reader sees an ending, the session is no longer busy with that run. No reader ever
        sees the session idle while another run is waiting.
        """
        while (ended := lane.next_ended()) is not None:
            accepted, outcome = ended
            try:
                accepted.conclude(outcome)
                announce(accepted, outcome, self.events)
            finally:
                self._leave(lane, accepted)

    def _leave(self, lane: RunLane, accepted: AcceptedRun) -> None:
        """Take an ended run out of its lane; remember it unless its acceptance was refused."""
        self._known.end(accepted)
        lane.leave(accepted)
        if lane.empty:
            del self._lanes[accepted.session_id]
        self.meter.run_ended(accepted)


def _task_name(accepted: AcceptedRun) -> str:
    return f"run {accepted.id}"


def _boot_name(ids: IdSource) -> str:
    return ids.new().replace("-", "")[:12]


@asynccontextmanager
async def open_workspace(
    turn: Turn,
    *,
    events: EventLog | None = None,
    journal: Journal | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    limits: Limits | None = None,
    sizes: SizeLimits = DEFAULTS,
    capacity: Capacity | None = None,
) -> AsyncIterator[Workspace]:
    """Open a workspace in which an active run does *turn*.

    Without *events* the workspace has its own event log; without a *journal* runs are kept in
    memory only. *sizes* limits prompts and queues, *capacity* the active runs of all workspaces
    that share it. Leaving the block for any reason stops the workspace: it refuses new runs,
    cancels every run, and gives each time to write its ending. An exception raised in the block
    leaves it unwrapped.
    """
    check_trio("open_workspace")
    check_turn(turn)
    ids = RandomIds() if ids is None else ids
    async with (
        nullcontext(events) if events is not None else open_event_log(_boot_name(ids)) as event_log,
        open_hidden_nursery() as services,
    ):
        async with open_hidden_nursery() as runs:
            workspace = Workspace(
                event_log,
                services,
                runs,
                turn,
                MemoryJournal() if journal is None else journal,
                SystemClock() if clock is None else clock,
                ids,
                Limits() if limits is None else limits,
                sizes,
                Capacity() if capacity is None else capacity,
            )
            try:
                yield workspace
            finally:
                with trio.CancelScope(shield=True):
                    await workspace.stop()
        services.cancel_scope.cancel()
