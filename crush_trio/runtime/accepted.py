"""`AcceptedRun`: the token of a submission that the workspace has promised to end.

The token exists from the instant of acceptance, with its cancel scope and its place in its lane. A
cancel that comes before the run has begun takes the run out of the lane in the same step. A later
one cancels the scope, and Trio remembers that even if the scope is not entered yet. So no cancel is
lost, and no flag or counter is needed for it. A run that is accepted later has another scope and
another place, and an earlier cancel cannot hit it.

The run's own task consumes the token by entering it, once. `KnownRuns` finds tokens by id.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import trio
from attrs import define, evolve, field

from crush_trio.errors import NotAccepted, RunIdTaken, RunNotFound, RunReentered
from crush_trio.runtime.lane import Active, Lane, LaneDecision
from crush_trio.runtime.outcome import Outcome, Submission
from crush_trio.runtime.timeline import Timeline
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import RunKind, RunState, RunView, SpanKind, WhenUnclaimed

if TYPE_CHECKING:
    from crush_trio.runtime.journal import JournalEntry

_ENDED: Final = trio.Event()
"""One event that is set, shared by all ended runs to save memory: ended runs are remembered."""

_ENDED.set()


@define(eq=False)
class AcceptedRun:
    """A submission on its way to exactly one outcome. Made by `Workspace.accept` only."""

    view: RunView
    submission: Submission = field(repr=False)
    fingerprint: int = field(init=False, repr=False)
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    reaped: list[int] = field(factory=list, init=False, repr=False)
    """Process ids that were stopped with the run, as its tools report them."""
    left: list[int] = field(factory=list, init=False, repr=False)
    """Process ids of its tools that could not be stopped."""
    outcome: Outcome | None = field(default=None, init=False)
    moved_time: float = field(factory=trio.current_time, init=False, repr=False)
    """When the run entered its present state."""
    active_time: float | None = field(default=None, init=False, repr=False)
    """When the run became active, if it did."""
    cancel_time: float | None = field(default=None, init=False, repr=False)
    """When the run was cancelled for the first time, if it was."""
    ended_time: float | None = field(default=None, init=False, repr=False)
    timeline: Timeline = field(factory=Timeline, init=False, repr=False)
    """What the run did when."""
    begun: "JournalEntry | None" = field(default=None, init=False, repr=False)
    """The journal entry that was written when the run became active."""
    _lane: "RunLane | None" = field(repr=False)
    """The lane of the run; None once the token has been entered."""
    _moved: Callable[["AcceptedRun"], None] = field(repr=False)
    _cancel: Callable[["AcceptedRun"], object] = field(repr=False)
    _ending: RunView | None = field(default=None, init=False, repr=False)
    _entry: LaneDecision | None = field(default=None, init=False)
    _decided: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _journaled: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _refusal: NotAccepted | None = field(default=None, init=False)
    _ended: trio.Event = field(factory=trio.Event, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.fingerprint = hash(self.submission)
        self.timeline.enter(SpanKind.ACCEPTED)

    # ── For the caller that submitted ───────────────────────────────────────────────────────────

    @property
    def id(self) -> RunId:
        """Our own id of the run; the caller's, if any, is in the submission."""
        return self.view.id

    @property
    def session_id(self) -> SessionId:
        """The session the run belongs to."""
        return self.submission.session_id

    @property
    def state(self) -> RunState:
        """The run's present state."""
        return self.view.state

    def folds_into(self, active: "AcceptedRun") -> bool:
        """Whether *active* may absorb this run."""
        return self.submission.folds_into(active.submission)

    def absorb(self, folded: "AcceptedRun") -> None:
        """Take over what *folded* was promised: to go on without clients."""
        if folded.submission.when_unclaimed is WhenUnclaimed.CONTINUE:
            self.submission = evolve(self.submission, when_unclaimed=WhenUnclaimed.CONTINUE)

    @property
    def counted(self) -> bool:
        """Whether the run counts towards the limit of active runs; a subagent's task does not.

        The run that started the task waits for it, so counting both could block every run.
        """
        return self.submission.kind is not RunKind.TASK

    async def journaled(self) -> None:
        """Wait until the acceptance is durable; raise `NotAccepted` if it could not be stored.

        Cancelling this wait does not affect the run: its own task waits for the store (A4).
        """
        await self._journaled.wait()
        if self._refusal is not None:
            raise type(self._refusal)(self._refusal.detail)

    async def known(self) -> bool:
        """Wait until it is known whether the acceptance is durable; return whether it is."""
        await self._journaled.wait()
        return self._refusal is None

    @property
    def refused(self) -> bool:
        """Whether the acceptance could not be stored, so that there is no run."""
        return self._refusal is not None

    @property
    def ended(self) -> bool:
        """Whether the run has an outcome, or was refused and will never have one."""
        return self._ended.is_set()

    async def wait_ended(self) -> None:
        """Wait until the run has ended or was refused."""
        await self._ended.wait()

    async def wait(self) -> Outcome:
        """Wait for the run to end and return its outcome; raise `NotAccepted` if it was refused."""
        await self.journaled()
        await self._ended.wait()
        assert self.outcome is not None
        return self.outcome

    def cancel(self) -> None:
        """Cancel this run, whatever state it is in.

        `Workspace.cancel_run` does the same and returns a receipt.
        """
        if not self.ended:
            self._cancel(self)

    @property
    def cancel_reason(self) -> str:
        """The `reason` of the `trio.Cancelled` exceptions of this run."""
        return f"run {self.id} was cancelled"

    # ── For the run's own task ──────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[LaneDecision]:
        """Consume the token: wait for the lane's decision and yield it.

        With `Active` the block runs inside the run's cancel scope, which catches its cancel. With
        `Folded` and `CancelledOnEntry` there is nothing to do: the run that folded this one, or the
        cancel, ends it. Entering twice is a bug and raises `RunReentered`.
        """
        lane, self._lane = self._lane, None
        if lane is None:
            raise RunReentered(self.id)
        await trio.lowlevel.cancel_shielded_checkpoint()
        # During the checkpoint a cancel may have decided, and even have ended the run.
        entry = self._entry or lane.enter(self)
        if entry is None:
            await self._decided.wait()
            entry = self._entry
            assert entry is not None
        if isinstance(entry, Active):
            with self.scope:
                yield entry
        else:
            yield entry

    def add_notice(self, text: str) -> None:
        """Add a sentence for the people who read the run's result, such as a setting not used."""
        self.view = evolve(self.view, notices=(*self.view.notices, text))

    # ── For the lane ────────────────────────────────────────────────────────────────────────────

    def move(self, state: RunState) -> None:
        """Change state and tell the workspace, which publishes it."""
        self.view = evolve(self.view, state=state)
        self.moved_time = trio.current_time()
        self.timeline.enter(SpanKind.QUEUED if state is RunState.QUEUED else None)
        if state is RunState.ACTIVE:
            self.active_time = self.moved_time
        self._moved(self)

    def decide(self, entry: LaneDecision) -> None:
        """Take the lane's decision and wake the waiting task."""
        self._entry = entry
        self._decided.set()

    @property
    def cancel_requested(self) -> bool:
        """Whether the run was cancelled."""
        return self.cancel_time is not None

    def request_cancel(self) -> None:
        """Note the time of the run's first cancel."""
        if self.cancel_time is None:
            self.cancel_time = trio.current_time()

    def cancel_scope(self) -> None:
        """Cancel the scope that the turn runs in, or will run in."""
        self.scope.cancel(self.cancel_reason)

    # ── For the workspace ───────────────────────────────────────────────────────────────────────

    def stored(self) -> None:
        """Note that the acceptance is durable, and wake the caller that waits in `journaled`."""
        self._journaled.set()
        self._moved(self)

    def refuse(self, refusal: NotAccepted) -> None:
        """Note that the acceptance could not be stored: there will be no run."""
        self._refusal = refusal
        self._journaled.set()
        self._end()

    def will_end(self, outcome: Outcome, at: int) -> RunView:
        """Set how the run will end; return its view after the ending, which is what is stored."""
        self.timeline.enter(SpanKind.ENDING)
        self._ending = evolve(
            self.view,
            state=outcome.state,
            ended_at=at,
            message_id=outcome.message_id,
            text=outcome.text,
            error=outcome.error,
            folded_into=outcome.folded_into,
            outcome=None,
        )
        return self._ending

    @property
    def ending(self) -> RunView:
        """The view of the run after its ending, as `will_end` has set it."""
        assert self._ending is not None, "the ending is not decided yet"
        return self._ending

    def show_ending(self) -> None:
        """Show the run as ending: its outcome is decided but not stored yet."""
        if self.view.state is not RunState.ENDING:
            to_come = self.ending.state
            self.view = evolve(self.ending, state=RunState.ENDING, outcome=to_come, ended_at=0)
            self.moved_time = trio.current_time()
            self._moved(self)

    def conclude(self, outcome: Outcome) -> None:
        """Set the outcome, once, and wake every task that waits for it."""
        assert self.outcome is None, "a run ends once"
        self.outcome = outcome
        self.view = self.ending
        self._end()

    def _end(self) -> None:
        self.ended_time = trio.current_time()
        self.timeline.close()
        self._ended.set()
        self._journaled = self._decided = self._ended = _ENDED

    def forget_prompt(self) -> None:
        """Free the prompt and the attachments of an ended run, which nothing reads any more."""
        self.submission = evolve(self.submission, prompt="", attachments=())


RunLane: TypeAlias = Lane[AcceptedRun, Outcome]
"""The lane of a workspace."""


REMEMBERED: Final = 256
"""How many ended runs are remembered."""


@define(eq=False)
class KnownRuns:
    """The live runs of a workspace and the last ones that ended, by our ids and their callers'."""

    _live: dict[RunId, AcceptedRun] = field(factory=dict, init=False)
    _ended: "OrderedDict[RunId, AcceptedRun]" = field(factory=OrderedDict, init=False)

    def __contains__(self, run_id: RunId) -> bool:
        return run_id in self._live or run_id in self._ended

    def find(self, run_id: RunId) -> AcceptedRun:
        """Return a run, or raise `RunNotFound`."""
        run = self._live.get(run_id) or self._ended.get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        return run

    def repeated(self, submission: Submission) -> AcceptedRun | None:
        """Return the run that *submission* repeats; raise `RunIdTaken` if its id names another."""
        if submission.run_id is None or submission.run_id not in self:
            return None
        run = self.find(submission.run_id)
        if run.fingerprint != hash(submission):
            raise RunIdTaken(submission.run_id)
        return run

    def add(self, run: AcceptedRun) -> None:
        """Add a run that was accepted just now."""
        for run_id in _ids(run):
            self._live[run_id] = run

    def end(self, run: AcceptedRun) -> None:
        """Move a run to the ended ones; one that was refused is forgotten at once."""
        ids = _ids(run)
        for run_id in ids:
            self._live.pop(run_id, None)
        if run.outcome is not None:
            run.forget_prompt()
            self._ended.update(dict.fromkeys(ids, run))
            while len(self._ended) > 2 * REMEMBERED:
                self._ended.popitem(last=False)


def _ids(run: AcceptedRun) -> set[RunId]:
    return {run.id, run.submission.run_id or run.id}
