"""The token of a submission that we have promised to end.

An `AcceptedRun` exists from the instant of acceptance, and with it its cancel scope and its place in
its lane. A cancel that comes before the run has begun takes it out of the lane in the same step; one
that comes later cancels the scope, and Trio remembers that, entered or not. That is the whole mechanism
by which no cancel is ever lost: there is no mark to set, no counter to keep, no window to close. A run
accepted a moment later has another scope and another place.

The run's own task consumes the token by entering it, once.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import trio
from attrs import define, evolve, field

from crush_trio.errors import NotAccepted, RunReentered
from crush_trio.runtime.lane import Active, Entry, Lane
from crush_trio.runtime.outcome import Outcome, Submission
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import RunKind, RunState, RunView

if TYPE_CHECKING:
    from crush_trio.runtime.journal import JournalEntry

_OVER: Final = trio.Event()
"""What every run that has ended waits on: ended runs are remembered, and events are not small."""

_OVER.set()


@define(eq=False)
class AcceptedRun:
    """A submission on its way to exactly one outcome. Made by `Workspace.accept` only."""

    view: RunView
    submission: Submission = field(repr=False)
    fingerprint: int = field(init=False, repr=False)
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    reaped: list[int] = field(factory=list, init=False, repr=False)
    """The processes that had to be stopped because the run was, as its tools report them."""
    left: list[int] = field(factory=list, init=False, repr=False)
    """The processes of its tools that could not be stopped."""
    outcome: Outcome | None = field(default=None, init=False)
    moved_time: float = field(factory=trio.current_time, init=False, repr=False)
    """When the run came into the state it is in."""
    active_time: float | None = field(default=None, init=False, repr=False)
    """When the run became active, if it did."""
    cancel_time: float | None = field(default=None, init=False, repr=False)
    """When the run was cancelled for the first time, if it was."""
    ended_time: float | None = field(default=None, init=False, repr=False)
    begun: "JournalEntry | None" = field(default=None, init=False, repr=False)
    """What the journal wrote when the run became active."""
    _lane: "RunLane | None" = field(repr=False)
    """Where the run takes its turn; entering the token takes it from here, once."""
    _moved: Callable[["AcceptedRun"], None] = field(repr=False)
    _cancel: Callable[["AcceptedRun"], object] = field(repr=False)
    _ending: RunView | None = field(default=None, init=False, repr=False)
    _entry: Entry | None = field(default=None, init=False)
    _decided: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _journaled: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _refusal: NotAccepted | None = field(default=None, init=False)
    _ended: trio.Event = field(factory=trio.Event, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.fingerprint = hash(self.submission)

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
        """Where the run is now."""
        return self.view.state

    @property
    def foldable(self) -> bool:
        """Whether the active run of the session may absorb this one."""
        return self.submission.foldable

    @property
    def counted(self) -> bool:
        """Whether the run counts among the active ones; a task does not, its run waits for it."""
        return self.submission.kind is not RunKind.TASK

    async def journaled(self) -> None:
        """Wait until the acceptance is durable; raise `NotAccepted` if it could not be.

        Cancelling this wait changes nothing for the run: its own task waits for the writing (A4).
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
        """Whether there is an outcome, or never will be one because the run was refused."""
        return self._ended.is_set()

    async def wait_ended(self) -> None:
        """Wait until the run has ended, however."""
        await self._ended.wait()

    async def wait(self) -> Outcome:
        """Wait for the run to end and return how; raise `NotAccepted` if it never began."""
        await self.journaled()
        await self._ended.wait()
        assert self.outcome is not None
        return self.outcome

    def cancel(self) -> None:
        """Cancel this run, whatever it is doing or has not begun to do.

        `Workspace.cancel_run` does the same and answers with a receipt.
        """
        if not self.ended:
            self._cancel(self)

    @property
    def cancel_reason(self) -> str:
        """The reason that Trio hands to everything this run's cancellation reaches."""
        return f"run {self.id} was cancelled"

    # ── For the run's own task ──────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[Entry]:
        """Consume the token: wait for a turn and hold it for the length of the block.

        Inside an `Active` block the run's scope surrounds everything, and catches its cancel. The
        other entries are handed out outside of it: what had to be done about them is being done by
        the run that folded this one, or by the cancel. Entering twice is a bug and raises.
        """
        lane, self._lane = self._lane, None
        if lane is None:
            raise RunReentered(self.id)
        await trio.lowlevel.cancel_shielded_checkpoint()
        # A cancel may have decided already, and even have ended the run.
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

    # ── For the lane ────────────────────────────────────────────────────────────────────────────

    def move(self, state: RunState) -> None:
        """Change state and let the workspace publish it."""
        self.view = evolve(self.view, state=state)
        self.moved_time = trio.current_time()
        if state is RunState.ACTIVE:
            self.active_time = self.moved_time
        self._moved(self)

    def decide(self, entry: Entry) -> None:
        """Take the lane's decision and wake the waiting task."""
        self._entry = entry
        self._decided.set()

    @property
    def cancel_requested(self) -> bool:
        """Whether the run was cancelled."""
        return self.cancel_time is not None

    def request_cancel(self) -> None:
        """Note when the run was cancelled, the first time."""
        if self.cancel_time is None:
            self.cancel_time = trio.current_time()

    def cancel_scope(self) -> None:
        """Cancel the scope that the turn runs in, or will."""
        self.scope.cancel(self.cancel_reason)

    # ── For the workspace ───────────────────────────────────────────────────────────────────────

    def stored(self) -> None:
        """The acceptance is durable: the caller that waits in `journaled` may be answered."""
        self._journaled.set()
        self._moved(self)

    def refuse(self, refusal: NotAccepted) -> None:
        """The acceptance could not be made durable: there will be no run."""
        self._refusal = refusal
        self._journaled.set()
        self._end()

    def will_end(self, outcome: Outcome, at: int) -> RunView:
        """Decide how the run ends; return it as it will be seen then, and as it is to be stored."""
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
        """The run as it will be seen when its ending is stored."""
        assert self._ending is not None, "it is not decided yet how the run ends"
        return self._ending

    def show_ending(self) -> None:
        """Show the run as ending: how is known, and is not stored yet."""
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
        self._ended.set()
        self._journaled = self._decided = self._ended = _OVER

    def forget_prompt(self) -> None:
        """Let go of what the caller sent; how the run ended is all that is asked of it from now on."""
        self.submission = evolve(self.submission, prompt="", attachments=())


RunLane: TypeAlias = Lane[AcceptedRun, Outcome]
"""A lane as workspaces have it."""
