"""What happens in a run's task, from acceptance to its one ending.

`conduct` is the body of the task and the only place that makes an outcome final. Read it top to
bottom: make the acceptance durable, take a turn, make an outcome of whatever came out of it, store
the ending, announce it. Nothing that goes wrong inside reaches the run's siblings.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import trio
from attrs import define, field, frozen

from crush_trio.errors import CancelSwallowed, Conflict, CrushError, EndingNotStored
from crush_trio.events.facts import Event
from crush_trio.events.log import EventLog
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.journal import Journal
from crush_trio.runtime.lane import Active, CancelledOnEntry, Folded, Lane
from crush_trio.runtime.outcome import (
    CANCELLED_WHILE_ACTIVE,
    NOTHING_YET,
    Completion,
    Outcome,
    Submission,
)
from crush_trio.runtime.watch import CancelWatch
from crush_trio.wire.asks import PermissionPolicy
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.native import RunKind

log = logging.getLogger(__name__)


@frozen(kw_only=True)
class Limits:
    """How long each shielded step may take, in seconds. Nothing that is shielded is unbounded.

    And one thing that is counted and not timed.
    """

    accept: float = 5.0
    record: float = 5.0
    ending: float = 5.0
    join: float = 15.0
    courtesy: int = 0
    """Steps that a run stands back once it is stored, so that whoever sent the prompt is answered first.

    The sender is woken in that moment and takes one step, which may come after the first of these:
    with two the answer is out before the run begins to work.
    """


class RunHost(Protocol):
    """What a turn may do in the workspace that its run belongs to."""

    @property
    def services(self) -> trio.Nursery:
        """Owns what is to outlive the turn, but not the workspace."""
        ...

    def accept(self, submission: Submission) -> AcceptedRun:
        """Start another run, with an ending of its own. Never waits."""
        ...


@define(eq=False)
class Run:
    """An active run, as its turn sees it. A turn is any async function that takes one of these.

    `partial` is asked for what the run has said so far if it is cancelled or fails; a turn that
    streams an answer sets it.
    """

    accepted: AcceptedRun
    events: EventLog
    journal: Journal
    lane: Lane[AcceptedRun]
    limits: Limits
    host: RunHost = field(repr=False)
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

    async def record_prompt(self) -> None:
        """Write the prompt into the session. A turn calls this when it begins in earnest.

        Shielded, so that afterwards it is certain whether the prompt was written: it can then be
        neither lost nor written twice, whenever a cancel comes. Calling it again does nothing.
        """
        with trio.fail_after(self.limits.record, shield=True):
            await self.accepted.record_prompt(self.journal.record_prompt)
        await trio.lowlevel.checkpoint()

    async def fold(self) -> tuple[Submission, ...]:
        """Take in the prompts that wait behind this run and that nobody waits for (C2, C3).

        A turn calls this before every step. Each prompt is recorded by its own run's task, in
        queue order; one that could not be recorded ends its own run and is left out here. A run
        that may do more, or less, than others takes in nothing: a prompt that was sent without such
        a policy is not to be answered under it.
        """
        taken = []
        own_rules = self.submission.permissions != PermissionPolicy()
        while not own_rules and (waiter := self.lane.fold(self.accepted)) is not None:
            submission = waiter.submission  # now: once it has ended, it no longer has its prompt
            if await waiter.wait_absorbed():
                taken.append(submission)
        await trio.lowlevel.checkpoint()
        return tuple(taken)


Turn = Callable[[Run], Awaitable[Completion | None]]
"""What an active run does: an async function of the user's own."""


async def conduct(
    run: Run, turn: Turn, settle: Callable[[AcceptedRun, Outcome | None], None]
) -> None:
    """Take one accepted run to its end. *settle* announces it; None means it never began.

    Shielded: there is one way to cancel a run, its own scope. If the surroundings of the workspace
    are cancelled, the workspace stops, and stopping cancels the scopes of its runs.
    """
    with trio.CancelScope(shield=True):
        if await _store_acceptance(run):
            await _end_once(run, turn, settle)
        else:
            settle(run.accepted, None)


async def _end_once(  # noqa: ASYNC910  # storing the ending is a checkpoint
    run: Run, turn: Turn, settle: Callable[[AcceptedRun, Outcome | None], None]
) -> None:
    """Run the turn and make its outcome final: stored, then announced."""
    outcome = None
    try:
        outcome = await _drive(run, turn)
    except Exception as exc:  # noqa: BLE001  # barrier: a bad run must not cancel its siblings
        outcome = _failed(run, exc)
    except BaseExceptionGroup as group:
        if group.split(Exception)[1] is not None:
            raise  # something in it concerns more than this run
        outcome = _failed(run, group)
    finally:
        outcome = outcome or _cancelled(run)
        try:
            with trio.fail_after(run.limits.ending, shield=True):
                await run.journal.end(run.accepted, outcome)
        except Exception as exc:  # the ending is announced even if it cannot be written
            log.exception("run.ending_not_stored", extra={"run_id": run.id})
            outcome = outcome.not_stored(str(EndingNotStored(describe(exc))))
            with trio.move_on_after(run.limits.ending, shield=True), suppress(Exception):
                # What is refused twice has been logged once, and shows in the store's health.
                await run.journal.amend(run.accepted, outcome)
        settle(run.accepted, outcome)


async def _drive(run: Run, turn: Turn) -> Outcome | None:
    """Enter the run and do what the entry says; None if a cancel kept it from that."""
    outcome = None
    async with run.accepted.enter() as entry:
        match entry:
            case Active():
                outcome = Outcome.completed(await _play(run, turn))
            case Folded(into=into):
                await _be_absorbed(run)
                outcome = Outcome.folded(into)
            case CancelledOnEntry():
                pass
    return outcome


async def _play(run: Run, turn: Turn) -> Completion:
    """Run the turn, and see to it that it did not hide a cancellation."""
    run.began = True
    watch = CancelWatch(run.accepted.cancel_reason)
    done = await watch.drive(turn(run))
    if watch.delivered:
        raise CancelSwallowed
    return done if done is not None else NOTHING_YET


async def _be_absorbed(run: Run) -> None:
    """Record the prompt for the run that folds this one, and tell it, come what may."""
    try:
        await run.record_prompt()
    finally:
        run.accepted.absorbed()


async def _store_acceptance(run: Run) -> bool:
    """Make the acceptance durable; if that fails there is no run, and the caller is told so."""
    try:
        with trio.fail_after(run.limits.accept):
            await run.journal.accept(run.accepted)
    except Exception as exc:  # whatever the storage raises, the caller gets one answer
        if isinstance(exc, Conflict):
            log.info("run.refused", extra={"run_id": run.id, "code": exc.code})
        else:
            log.exception("run.acceptance_not_stored", extra={"run_id": run.id})
        run.journal.retract(run.accepted)
        run.accepted.refuse(describe(exc))
        return False  # noqa: ASYNC910  # the journal has had its chance to wait
    run.accepted.stored()
    for _ in range(run.limits.courtesy):
        await trio.lowlevel.checkpoint()
    return True


def _cancelled(run: Run) -> Outcome:
    """Return the outcome of a run that somebody stopped: what it had said, if it had begun (B3, B4)."""
    if not run.began:
        return Outcome.cancelled()
    try:
        return Outcome.cancelled(CANCELLED_WHILE_ACTIVE, run.partial())
    except Exception as exc:  # noqa: BLE001  # the turn's own code, at a place nobody expects it
        return _failed(run, exc)


def _failed(run: Run, exc: BaseException) -> Outcome:
    """Log a failed turn, here and nowhere else, and return its outcome."""
    log.error("run.failed", extra={"run_id": run.id, "session_id": run.session_id}, exc_info=exc)
    error, title = describe(exc), title_of(exc)
    with suppress(Exception):  # a turn that fails may not know any more what it said
        return Outcome.errored(error, run.partial(), title)
    return Outcome.errored(error, title=title)


def title_of(exc: BaseException) -> str:
    """Return the heading under which a failure is shown; nothing if it has none of its own."""
    exc = _lone(exc)
    return exc.title if isinstance(exc, CrushError) else ""


def _lone(exc: BaseException) -> BaseException:
    """Return the exception that a group was made for, if it has only one."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


def describe(exc: BaseException) -> str:
    """Return one line about *exc* for people; a lone exception in a group speaks for it."""
    exc = _lone(exc)
    if isinstance(exc, trio.TooSlowError):
        return "it took too long"
    try:
        return str(exc) or type(exc).__name__
    except Exception:  # noqa: BLE001  # a broken exception is still an exception
        return type(exc).__name__
