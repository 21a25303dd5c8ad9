"""What happens in a run's task, from acceptance to its one ending.

`conduct` is the body of the task. Read it top to bottom: wait until the acceptance is stored, take a
turn, make an outcome of what came out of it, store the ending, announce it. Nothing that goes wrong
inside reaches the run's siblings.

A run that is folded, or cancelled before it began, does not end here: the run that folded it, or the
cancel, ends it together with the others that it concerns.

Folding: the active run takes the prompts that wait behind it into its own turn (C2, C3).
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Protocol

import trio
from attrs import define, field

from crush_trio.errors import (
    AcceptanceNotStored,
    CancelSwallowed,
    Conflict,
    CrushError,
    NoRoomForPrompt,
    NotAccepted,
    RunIdStored,
    RunIdTaken,
)
from crush_trio.events.facts import Event
from crush_trio.events.log import EventLog
from crush_trio.limits import Limits
from crush_trio.runtime.accepted import AcceptedRun, RunLane
from crush_trio.runtime.ending import owed
from crush_trio.runtime.journal import Journal, JournalEntry
from crush_trio.runtime.lane import Active, Folded
from crush_trio.runtime.outcome import (
    CANCELLED_WHILE_ACTIVE,
    NOTHING_YET,
    Completion,
    Outcome,
    Submission,
)
from crush_trio.runtime.tasks import CancelWatch
from crush_trio.store.errors import DiskFull
from crush_trio.wire.asks import PermissionPolicy
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import RunKind


class Host(Protocol):
    """What folding needs of a workspace."""

    def decide(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Decide how *run* ends. It is to be handed to the journal in the same step."""
        ...

    def settle(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Announce the ending of *run* and let it leave its lane."""
        ...

    def withdraw(self, runs: Sequence[AcceptedRun]) -> None:
        """End runs that were cancelled before they began."""
        ...


async def fold(
    into: AcceptedRun, lane: RunLane, journal: Journal, host: Host
) -> tuple[Submission, ...]:
    """Take the prompts that wait without a caller's run id into the turn of *into*.

    They are stored and ended when this returns; a cancel of *into* waits for that. If it fails they
    wait again, first in line, and the error is raised.
    """
    folded = lane.fold(into)
    if not folded:
        await trio.lowlevel.checkpoint()
        return ()
    taken = tuple(run.submission for run in folded)  # once they have ended, they are forgotten
    outcome = Outcome.folded(into.id)
    for run in folded:
        host.decide(run, outcome)
    entry = journal.fold(folded, into)
    try:
        await entry.commit.certain()
    except BaseException:
        host.withdraw(lane.unfold(folded))
        raise
    entry.tell()
    for run in folded:
        run.decide(Folded(into=into.id))
        host.settle(run, outcome)
    await trio.lowlevel.checkpoint()
    return taken


log = logging.getLogger(__name__)


class RunHost(Protocol):
    """What a run may do in the workspace that it belongs to."""

    @property
    def services(self) -> trio.Nursery:
        """Owns what is to outlive the turn, but not the workspace."""
        ...

    def accept(self, submission: Submission) -> AcceptedRun:
        """Start another run, with an ending of its own. Never waits."""
        ...

    def interrupt(self, run: AcceptedRun) -> None:
        """Cancel the runs of its session that were accepted before *run*."""
        ...

    async def fold(self, into: AcceptedRun) -> tuple[Submission, ...]:
        """Take the prompts that wait, without a caller's run id, into the turn of *into*."""
        ...

    def decide(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Decide how *run* ends. It is to be handed to the journal in the same step."""
        ...

    def settle(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Announce the ending of *run*, which is stored, and let the next run begin."""
        ...

    def drop(self, run: AcceptedRun) -> None:
        """Let go of a run whose acceptance was refused."""
        ...

    @property
    def overdue(self) -> trio.Event:
        """Set when the workspace should have closed by now."""
        ...


@define(eq=False)
class Run:
    """An active run, as its turn sees it. A turn is any async function that takes one of these.

    `partial` is asked for what the run has said so far if it is cancelled or fails; a turn that
    streams an answer sets it.
    """

    accepted: AcceptedRun
    events: EventLog
    journal: Journal = field(repr=False)
    limits: Limits
    host: RunHost = field(repr=False)
    acceptance: JournalEntry = field(repr=False)
    partial: Callable[[], Completion] = field(default=lambda: NOTHING_YET, init=False)
    began: bool = field(default=False, init=False)

    @property
    def id(self) -> RunId:
        """Our own id of the run."""
        return self.accepted.id

    @property
    def session_id(self) -> SessionId:
        """The session the run belongs to."""
        return self.accepted.session_id

    @property
    def submission(self) -> Submission:
        """What the caller sent."""
        return self.accepted.submission

    @property
    def prompt(self) -> str:
        """The text of the submission."""
        return self.submission.prompt

    @property
    def kind(self) -> RunKind:
        """Whether to answer a prompt or to summarise the session."""
        return self.submission.kind

    def publish(self, event: Event) -> None:
        """Let every reader of the workspace know about *event*."""
        self.events.publish(event)

    async def fold(self) -> tuple[Submission, ...]:
        """Take in the prompts that wait behind this run without a caller's run id (C2, C3).

        A turn calls this before every step. The prompts are stored in queue order when it returns.
        If that fails they wait again, and the error is raised. A run that may do more, or less, than
        others takes in nothing: a prompt that was sent without such a policy is not to be answered
        under it.
        """
        if self.submission.permissions != PermissionPolicy():
            await trio.lowlevel.checkpoint()
            return ()
        return await self.host.fold(self.accepted)

    async def play(self, turn: "Turn") -> Completion:
        """Run the turn, and see to it that it did not hide a cancellation."""
        self.began = True
        watch = CancelWatch(self.accepted.cancel_reason)
        done = await watch.drive(turn(self))
        if watch.delivered:
            raise CancelSwallowed
        return done if done is not None else NOTHING_YET


Turn = Callable[[Run], Awaitable[Completion | None]]
"""What an active run does: an async function of the user's own."""


async def conduct(run: Run, turn: Turn) -> None:
    """Take one accepted run to its end.

    Shielded: there is one way to cancel a run, its own scope. If the surroundings of the workspace
    are cancelled, the workspace stops, and stopping cancels the scopes of its runs.
    """
    with trio.CancelScope(shield=True):
        if not await _store_acceptance(run):
            run.host.drop(run.accepted)
            return
        outcome, ours = None, True
        try:
            async with run.accepted.enter() as entry:
                ours = isinstance(entry, Active)
                outcome = await _drive(run, turn) if ours else None
        except Exception as exc:  # noqa: BLE001  # barrier: a bad run must not cancel its siblings
            outcome = _failed(run, exc)
        except BaseExceptionGroup as group:
            if group.split(Exception)[1] is not None:
                raise  # something in it concerns more than this run
            outcome = _failed(run, group)
        finally:
            if ours:
                await _end(run, outcome or _cancelled(run))  # noqa: ASYNC102  # the whole function is shielded


async def _store_acceptance(run: Run) -> bool:
    """Wait until the acceptance is durable; if it cannot be, there is no run, and the caller is told.

    A caller is not kept waiting for a slow store. A task has no caller but a run, which can wait.
    """
    limit = inf if run.kind is RunKind.TASK else run.limits.accept
    try:
        await run.acceptance.commit.certain(limit)
    except Exception as exc:  # whatever the storage raises, the caller gets one answer
        if isinstance(exc, Conflict):
            log.info("run.refused", extra={"run_id": run.id, "code": exc.code})
        else:
            log.exception("run.acceptance_not_stored", extra={"run_id": run.id})
        run.journal.retract(run.accepted)
        run.accepted.refuse(_refusal(exc))
        return False  # noqa: ASYNC910  # the journal has had its chance to wait
    run.acceptance.tell()
    run.accepted.stored()
    run.host.interrupt(run.accepted)
    for _ in range(run.limits.courtesy):
        await trio.lowlevel.checkpoint()
    return True


def _refusal(exc: Exception) -> NotAccepted:
    """Return what the caller of a prompt is told that could not be stored."""
    match exc:
        case RunIdTaken():
            return RunIdStored(describe(exc))
        case DiskFull():
            return NoRoomForPrompt(describe(exc))
        case _:
            return AcceptanceNotStored(describe(exc))


async def _drive(run: Run, turn: Turn) -> Outcome | None:
    """Play an active run's turn; None if it was cancelled before it could begin (A26)."""
    begun = run.accepted.begun
    assert begun is not None
    await begun.commit.certain()
    begun.tell()
    if run.accepted.scope.cancel_called:
        return None
    return Outcome.completed(await run.play(turn))


async def _end(run: Run, outcome: Outcome) -> None:
    """Store the ending and announce it."""
    run.host.decide(run.accepted, outcome)
    entry = run.journal.end(run.accepted, outcome)
    if await owed(entry, run.limits, (run.accepted,), run.host):
        entry.tell()
    else:
        outcome = Outcome.interrupted()
        run.host.decide(run.accepted, outcome)
    run.host.settle(run.accepted, outcome)


def _cancelled(run: Run) -> Outcome:
    """Return the outcome of a run that was stopped: what it had said, if it had begun (B3, B4)."""
    if not run.began:
        return Outcome.cancelled()
    try:
        return Outcome.cancelled(CANCELLED_WHILE_ACTIVE, run.partial())
    except Exception as exc:  # noqa: BLE001  # the turn's own code, at a place nobody expects it
        return _failed(run, exc)


def _failed(run: Run, exc: BaseException) -> Outcome:
    """Log a failed turn, here and nowhere else, and return its outcome.

    What fails once the run is being cancelled does not make it a failure: no observer is to see an
    error for a run that was cancelled (A19).
    """
    extra = {"run_id": run.id, "session_id": run.session_id}
    if run.accepted.scope.cancel_called and not isinstance(lone(exc), CancelSwallowed):
        log.warning("run.failed_while_cancelled", extra=extra, exc_info=exc)
        with suppress(Exception):
            return Outcome.cancelled(CANCELLED_WHILE_ACTIVE, run.partial())
        return Outcome.cancelled(CANCELLED_WHILE_ACTIVE)
    log.error("run.failed", extra=extra, exc_info=exc)
    error, title = describe(exc), title_of(exc)
    with suppress(Exception):  # a turn that fails may not know any more what it said
        return Outcome.errored(error, run.partial(), title)
    return Outcome.errored(error, title=title)


def title_of(exc: BaseException) -> str:
    """Return the heading under which a failure is shown; nothing if it has none of its own."""
    exc = lone(exc)
    return exc.title if isinstance(exc, CrushError) else ""


def lone(exc: BaseException) -> BaseException:
    """Return the exception that a group was made for, if it has only one."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


def describe(exc: BaseException) -> str:
    """Return one line about *exc* for people; a lone exception in a group speaks for it."""
    exc = lone(exc)
    if isinstance(exc, trio.TooSlowError):
        return "it took too long"
    try:
        return str(exc) or type(exc).__name__
    except Exception:  # noqa: BLE001  # a broken exception is still an exception
        return type(exc).__name__
