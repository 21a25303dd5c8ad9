"""A run's task, from acceptance to its one ending.

`conduct` is the body of the task: wait until the acceptance is stored, wait for the turn, play it,
turn the result into an outcome, store the ending, announce it. An error inside never reaches other
runs.

A run that is folded, or cancelled before it began, does not end here: the run that folded it
(`fold`, contract C2 and C3), or the cancel (`ending.Withdrawal`), ends it together with others.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Protocol

import trio
from attrs import define, evolve, field
from outcome import Error

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
from crush_trio.log_context import hide_secrets
from crush_trio.runtime.accepted import AcceptedRun, RunLane
from crush_trio.runtime.ending import EndingHost, wait_stored
from crush_trio.runtime.journal import Journal, JournalEntry
from crush_trio.runtime.lane import Active, Folded
from crush_trio.runtime.outcome import (
    CANCELLED_WHILE_ACTIVE,
    NOTHING_YET,
    Completion,
    Outcome,
    Submission,
)
from crush_trio.runtime.timeline import keep_time
from crush_trio.runtime.watch import CancelWatch
from crush_trio.store.errors import DiskFull, RecordNotStored
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import RunKind, RunState

log = logging.getLogger(__name__)


class RunHost(EndingHost, Protocol):
    """What a run needs of the workspace that it belongs to."""

    @property
    def services(self) -> trio.Nursery:
        """The nursery of tasks that outlive the turn, but not the workspace."""
        ...

    def accept(self, submission: Submission) -> AcceptedRun:
        """Start another run, with an ending of its own. Never waits."""
        ...

    def interrupt(self, run: AcceptedRun) -> None:
        """Cancel the runs of its session that were accepted before *run*."""
        ...

    async def fold(self, into: AcceptedRun) -> tuple[Submission, ...]:
        """Fold the queued prompts that *into* may absorb into its turn."""
        ...

    def withdraw(self, runs: Sequence[AcceptedRun]) -> None:
        """End runs that were cancelled before they began."""
        ...

    def session_busy(self, session_id: SessionId) -> bool:
        """Whether the session has an active run (A11)."""
        ...

    def drop(self, run: AcceptedRun) -> None:
        """Remove a run whose acceptance was refused."""
        ...


@define(eq=False)
class Run:
    """An active run, as its turn sees it. A turn is any async function that takes one of these.

    `partial` is called if the run is cancelled or fails, and returns the answer so far; a turn that
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
        """Publish *event* to every reader of the workspace's event log."""
        self.events.publish(event)

    async def fold(self) -> tuple[Submission, ...]:
        """Fold queued prompts that may be folded into this run (C2, C3); return them.

        A turn calls this before every step. The prompts are stored in queue order when it returns.
        If that fails they go back to the queue, and the error is raised. `Submission.folds_into`
        says which prompts these are: those without a caller's run id, and those that steer.
        """
        return await self.host.fold(self.accepted)

    async def play(self, turn: "Turn") -> Completion:
        """Run the turn; raise `CancelSwallowed` if it caught its cancellation and went on."""
        self.began = True
        keep_time(self.accepted.timeline)
        watch = CancelWatch(self.accepted.cancel_reason)
        playing = turn(self)
        if not isinstance(playing, Awaitable):
            raise TypeError(
                f"the turn returned a {type(playing).__name__} without being awaited: write `async def`"
            )
        done = await watch.drive(playing)
        if watch.delivered:
            raise CancelSwallowed
        if done is None:
            return NOTHING_YET
        if not isinstance(done, Completion):
            raise TypeError(
                f"the turn returned a {type(done).__name__}: write `return Completion(text=…)`, or return None"
            )
        return done


Turn = Callable[[Run], Awaitable[Completion | None]]
"""What an active run does: an async function that the user of the library writes."""


async def conduct(run: Run, turn: Turn) -> None:
    """Take one accepted run to its end.

    Shielded: the only way to cancel a run is its own scope. If the code around the workspace is
    cancelled, the workspace stops, and stopping cancels the scopes of its runs.
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
                raise  # it holds a KeyboardInterrupt or the like, which is not about this run
            outcome = _failed(run, group)
        finally:
            if ours:
                await _end(run, outcome or _cancelled(run))  # noqa: ASYNC102  # the whole function is shielded


async def _store_acceptance(run: Run) -> bool:
    """Wait until the acceptance is durable; if it cannot be, refuse the run and return False.

    A caller waits at most `Limits.accept` seconds for a slow store. The caller of a task is a run,
    which can wait without limit.
    """
    limit = inf if run.kind is RunKind.TASK else run.limits.accept
    try:
        await run.acceptance.commit.certain(limit)
    except Exception as exc:  # any error of the store becomes one of three refusals
        if isinstance(exc, Conflict):
            log.info("run.refused", extra={"run_id": run.id, "code": exc.code})
        else:
            log.exception("run.acceptance_not_stored", extra={"run_id": run.id})
        run.journal.retract(run.accepted)
        run.accepted.refuse(_refusal(exc))
        return False  # noqa: ASYNC910  # `certain` has waited
    run.acceptance.tell()
    run.accepted.stored()
    run.host.interrupt(run.accepted)
    # `stored` has woken the caller's task. Yielding lets it send its answer before the turn, which may
    # compute for a while, takes the thread.
    for _ in range(run.limits.courtesy):
        await trio.lowlevel.checkpoint()
    return True


def _refusal(exc: Exception) -> NotAccepted:
    """Return the error that the caller of a prompt gets if it could not be stored."""
    match exc:
        case RunIdTaken():
            return RunIdStored(describe(exc))
        case DiskFull():
            return NoRoomForPrompt(describe(exc))
        case _:
            return AcceptanceNotStored(describe(exc))


async def _drive(run: Run, turn: Turn) -> Outcome | None:
    """Play an active run's turn; return None if it was cancelled before the turn began (A26)."""
    begun = run.accepted.begun
    assert begun is not None
    await begun.commit.certain()
    begun.tell()
    if run.accepted.scope.cancel_called:
        return None
    return Outcome.completed(await run.play(turn))


async def _end(run: Run, outcome: Outcome) -> None:
    """Store the ending and announce it.

    If its record has something that no store can hold, the run ends as errored, without that. If
    nothing can be stored, it ends as interrupted, which is what the next start will find.
    """
    run.host.decide(run.accepted, outcome)
    entry = run.journal.end(run.accepted, outcome)
    stored = await wait_stored(entry, run.limits, (run.accepted,), run.host)
    if not stored and entry.unstorable:
        outcome = _unrecorded(outcome, entry)
        run.host.decide(run.accepted, outcome)
        entry = entry.shortened(outcome)
        stored = await wait_stored(entry, run.limits, (run.accepted,), run.host)
    if stored:
        entry.tell()
    else:
        outcome = Outcome.interrupted()
        run.host.decide(run.accepted, outcome)
    run.host.settle(run.accepted, outcome)


def _unrecorded(outcome: Outcome, entry: JournalEntry) -> Outcome:
    """Return *outcome* for a run whose record could not be stored: completed becomes errored.

    A run that was cancelled (A19), or failed for another reason, keeps that outcome without its text.
    """
    assert isinstance(entry.commit.result, Error)
    cause = hide_secrets(describe(entry.commit.result.error))
    if outcome.state is not RunState.COMPLETED and outcome.error != cause:
        return evolve(outcome, text="")
    error = RecordNotStored(cause)
    partial = Completion(message_id=outcome.message_id)
    return Outcome.errored(describe(error), partial, error.title)


def _cancelled(run: Run) -> Outcome:
    """Return the outcome of a cancelled run, with its partial answer if it had begun (B3, B4)."""
    if not run.began:
        return Outcome.cancelled()
    try:
        return Outcome.cancelled(CANCELLED_WHILE_ACTIVE, run.partial())
    except Exception as exc:  # noqa: BLE001  # `partial` is the turn's code and may raise anything
        return _failed(run, exc)


def _failed(run: Run, exc: BaseException) -> Outcome:
    """Log a failed turn, here and nowhere else, and return its outcome.

    An error that is raised while the run is being cancelled does not make it a failed run: no
    observer sees an error for a run that was cancelled (A19).
    """
    extra = {"run_id": run.id, "session_id": run.session_id}
    if run.accepted.scope.cancel_called and not isinstance(sole_exception(exc), CancelSwallowed):
        shown = None if title_of(exc) else exc
        log.warning(
            "run.failed_while_cancelled: %s (run %s)",
            hide_secrets(describe(exc)),
            run.id,
            extra=extra,
            exc_info=shown,
        )
        with suppress(Exception):
            return Outcome.cancelled(CANCELLED_WHILE_ACTIVE, run.partial())
        return Outcome.cancelled(CANCELLED_WHILE_ACTIVE)
    error, title = hide_secrets(describe(exc)), title_of(exc)
    if title:  # an error with a heading for people, such as a provider's: a traceback tells no more
        code = getattr(sole_exception(exc), "code", "")
        told = {**extra, "code": code, "error": error}
        log.warning("run.failed: %s (run %s)", error, run.id, extra=told)
    else:
        log.error("run.failed: %s (run %s)", error, run.id, extra=extra, exc_info=exc)
    with suppress(Exception):  # after a failure `partial` may fail too
        return Outcome.errored(error, run.partial(), title)
    return Outcome.errored(error, title=title)


async def fold(
    into: AcceptedRun, lane: RunLane, journal: Journal, host: RunHost
) -> tuple[Submission, ...]:
    """Fold the queued prompts that *into* may absorb into its turn; return them.

    They are stored and ended when this returns; a cancel of *into* waits for that. If it fails they
    go back to the head of the queue, and the error is raised.
    """
    folded = lane.fold(into)
    if not folded:
        await trio.lowlevel.checkpoint()
        return ()
    taken = tuple(run.submission for run in folded)  # `settle` drops the prompts of ended runs
    outcome = Outcome.folded(into.id)
    for run in folded:
        into.absorb(run)
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


def title_of(exc: BaseException) -> str:
    """Return the heading under which a failure is shown; "" if it has none of its own."""
    exc = sole_exception(exc)
    return exc.title if isinstance(exc, CrushError) else ""


def sole_exception(exc: BaseException) -> BaseException:
    """Return the only exception inside a group, however deep; any other exception as it is."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


def describe(exc: BaseException) -> str:
    """Return one line about *exc* for people; for a group with one exception, about that one."""
    exc = sole_exception(exc)
    if isinstance(exc, trio.TooSlowError):
        return "it took too long"
    try:
        return str(exc) or type(exc).__name__
    except Exception:  # noqa: BLE001  # `__str__` of the exception may itself raise
        return type(exc).__name__
