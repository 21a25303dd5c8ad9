"""The token of a submission that we have promised to end.

An `AcceptedRun` exists from the instant of acceptance, and with it its cancel scope. Trio remembers
a cancel that reaches a scope before anybody has entered it. That is the whole mechanism by which no
cancel is ever lost: there is no mark to set, no counter to keep, no window to close. Cancelling
means cancelling the scopes that exist now; a run accepted a moment later has another scope.

The run's own task consumes the token by entering it, once.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio
from attrs import define, evolve, field

from crush_trio.errors import AcceptanceNotStored, RunReentered
from crush_trio.runtime.lane import Active, CancelledOnEntry, Entry, Lane
from crush_trio.runtime.outcome import Outcome, Submission
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.native import RunState, RunView

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
    prompt_recorded: bool = field(default=False, init=False)
    reaped: list[int] = field(factory=list, init=False, repr=False)
    """The processes that had to be stopped because the run was, as its tools report them."""
    left: list[int] = field(factory=list, init=False, repr=False)
    """The processes of its tools that could not be stopped."""
    outcome: Outcome | None = field(default=None, init=False)
    moved_time: float = field(factory=trio.current_time, init=False, repr=False)
    cancel_time: float | None = field(default=None, init=False, repr=False)
    """When the run was cancelled for the first time, if it was."""
    ended_time: float | None = field(default=None, init=False, repr=False)
    _lane: "Lane[AcceptedRun] | None" = field(repr=False)
    """Where the run takes its turn; whoever enters the token takes it from here, once."""
    _moved: Callable[["AcceptedRun"], None] = field(repr=False)
    _entry: Entry | None = field(default=None, init=False)
    _decided: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _journaled: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _refusal: AcceptanceNotStored | None = field(default=None, init=False)
    _recording: trio.Event | None = field(default=None, init=False, repr=False)
    _absorbed: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _ended: trio.Event = field(factory=trio.Event, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.fingerprint = hash(self.submission)

    # ── For whoever submitted ───────────────────────────────────────────────────────────────────

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

    async def journaled(self) -> None:
        """Wait until the acceptance is durable; raise `AcceptanceNotStored` if it could not be.

        Cancelling this wait changes nothing for the run: its own task does the writing (A4).
        """
        await self._journaled.wait()
        if self._refusal is not None:
            raise AcceptanceNotStored(self._refusal.detail)

    @property
    def ended(self) -> bool:
        """Whether there is an outcome, or never will be one because the run was refused."""
        return self._ended.is_set()

    async def wait_ended(self) -> None:
        """Wait until the run has ended, however."""
        await self._ended.wait()

    async def wait(self) -> Outcome:
        """Wait for the run to end and return how; raise `AcceptanceNotStored` if it never began."""
        await self.journaled()
        await self._ended.wait()
        assert self.outcome is not None
        return self.outcome

    def cancel(self) -> None:
        """Cancel this run, whatever it is doing or has not begun to do.

        `Workspace.cancel_run` does the same and answers with a receipt.
        """
        if self.cancel_time is None:
            self.cancel_time = trio.current_time()
        self.scope.cancel(self.cancel_reason)

    @property
    def cancel_reason(self) -> str:
        """The reason that Trio hands to everything this run's cancellation reaches."""
        return f"run {self.id} was cancelled"

    # ── For the run's own task ──────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[Entry]:
        """Consume the token: wait for a turn and hold it for the length of the block.

        Inside an `Active` block the run's scope surrounds everything, and catches its cancel. The
        other entries are handed out *outside* the scope, because what is left to do then, writing
        the ending, must not be cancelled again. Entering twice is a bug and raises.
        """
        lane, self._lane = self._lane, None
        if lane is None:
            raise RunReentered(self.id)
        entry: Entry = CancelledOnEntry()
        with self.scope:
            entry = await self._place(lane)
            if isinstance(entry, Active):
                yield entry
                return
        if isinstance(entry, Active):
            return  # the block ran and was cancelled; the scope has caught it
        lane.withdraw(self)
        yield entry

    async def _place(self, lane: "Lane[AcceptedRun]") -> Entry:
        """Return the lane's decision, waiting in the queue for it if need be."""
        await trio.lowlevel.cancel_shielded_checkpoint()
        entry = lane.enter(self)
        if entry is None:
            await self._decided.wait()
            entry = self._entry
            assert entry is not None
        if isinstance(entry, Active) and self.scope.cancel_called:
            return CancelledOnEntry()  # promoted, then cancelled before this task could move (A26)
        return entry

    async def record_prompt(  # noqa: ASYNC910  # recorded already: nothing to wait for
        self, write: Callable[["AcceptedRun"], Awaitable[None]]
    ) -> None:
        """Have the prompt written unless it was; callers that come meanwhile wait for the first."""
        while not self.prompt_recorded and self._recording is not None:
            await self._recording.wait()
        if not self.prompt_recorded:
            self._recording = trio.Event()
            try:
                await write(self)
                self.prompt_recorded = True
            finally:
                self._recording.set()
                self._recording = None

    # ── For the lane and the workspace ──────────────────────────────────────────────────────────

    def move(self, state: RunState) -> None:
        """Change state and let the workspace tell everybody."""
        self.view = evolve(self.view, state=state)
        self.moved_time = trio.current_time()
        self._moved(self)

    def decide(self, entry: Entry) -> None:
        """Take the lane's decision and wake the waiting task."""
        self._entry = entry
        self._decided.set()

    def stored(self) -> None:
        """The acceptance is durable: whoever waits in `journaled` may answer the caller."""
        self._journaled.set()
        self._moved(self)

    def refuse(self, why: str) -> None:
        """The acceptance could not be made durable: there will be no run."""
        self._refusal = AcceptanceNotStored(why)
        self._journaled.set()
        self._end()

    def absorbed(self) -> None:
        """The prompt is in the turn of the run that folded it, or never will be."""
        self._absorbed.set()

    async def wait_absorbed(self) -> bool:
        """Wait until a folding has taken place; return whether the prompt was recorded."""
        await self._absorbed.wait()
        return self.prompt_recorded

    def ended_view(self, outcome: Outcome, at: int) -> RunView:
        """Return the run as others will see it when it has ended with *outcome*."""
        return evolve(
            self.view,
            state=outcome.state,
            ended_at=at,
            message_id=outcome.message_id,
            text=outcome.text,
            error=outcome.error,
            folded_into=outcome.folded_into,
        )

    def conclude(self, outcome: Outcome, at: int) -> None:
        """Set the outcome, once, and wake everybody who waits for it."""
        assert self.outcome is None, "a run ends once"
        self.outcome = outcome
        self.view = self.ended_view(outcome, at)
        self._absorbed.set()
        self._end()

    def _end(self) -> None:
        self.ended_time = trio.current_time()
        self._ended.set()
        self._journaled = self._decided = self._absorbed = self._ended = _OVER

    def forget_prompt(self) -> None:
        """Let go of what the caller sent; how the run ended is all that is asked of it from now on."""
        self.submission = evolve(self.submission, prompt="", attachments=())
