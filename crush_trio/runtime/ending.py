"""Endings: stores how runs ended, announces it, and waits for the runs of a closing workspace.

An ending is announced after it is stored, so the event stream and the disk never disagree. Until it
is stored the run is shown as `ending`, with the outcome that will follow. A write that fails is
retried until it succeeds (`wait_stored`), unless no retry can help: then the run ends as errored.

One cancel may withdraw thousands of waiting runs (`Withdrawal`). Their endings go to the journal in
batches, in the order of the lane, and are announced in that order as they are stored: writing all
of them at once would delay the other sessions and the readers. The lane starts no run before all of
them have left.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final, Protocol

import trio
from attrs import define, field

from crush_trio.events.facts import RunChange, agent_error
from crush_trio.events.log import EventLog
from crush_trio.limits import Limits
from crush_trio.nursery import open_hidden_nursery
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.journal import Journal, JournalEntry
from crush_trio.runtime.outcome import Outcome
from crush_trio.runtime.receipt import StopReceipt
from crush_trio.store.errors import RecordNotStored, StoreFailed
from crush_trio.wire.runs import RunState

log = logging.getLogger(__name__)

ENDINGS_PER_COMMIT: Final = 250
"""The most endings that are written in one commit."""

ACTIVE_FIRST_SECONDS: Final = 1.0
"""Seconds that withdrawn runs wait for an active run of the same cancel to end first."""

GIVE_UP_SECONDS: Final = 1.0
"""Seconds that runs get to end after it is certain that their endings will not be stored."""


class EndingHost(Protocol):
    """What endings need of their workspace."""

    @property
    def overdue(self) -> trio.Event:
        """Set when the time for closing the workspace is over."""
        ...

    def decide(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Set how *run* will end. The caller hands the ending to the journal in the same step."""
        ...

    def settle(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Announce the ending of *run*, which is stored, and let the run leave its lane."""
        ...


async def wait_stored(
    entry: JournalEntry, limits: Limits, runs: Sequence[AcceptedRun], host: EndingHost
) -> bool:
    """Wait until the endings of *runs* are stored, with retries; return whether they are.

    There is no time limit while the workspace is open. The answer is False if nothing can be stored
    any more: the store has stopped, or the workspace has to close without it. The next start then
    finds the runs unfinished and ends them as interrupted. It is also False if this write is
    `unstorable`, so that a retry cannot help.
    """
    failed = False
    while True:
        try:
            if not await entry.commit.known_within(limits.notice):
                show_ending(runs)
                await entry.commit.certain(within=limits.accept if host.overdue.is_set() else inf)
            entry.commit.unwrap()
        except Exception as exc:
            if entry.commit.stored:  # the wait failed, the write did not
                return True  # noqa: ASYNC910  # it has waited for the store
            if entry.reduce(exc):
                continue
            if entry.unstorable:
                extra = {**_names(runs), "code": RecordNotStored.code}
                log.exception("run.record_not_stored", extra=extra)
                return False  # noqa: ASYNC910  # it has waited for the store
            if host.overdue.is_set() or isinstance(exc, StoreFailed):
                log.exception("run.ending_given_up", extra=_names(runs))
                return False  # noqa: ASYNC910  # it has waited for the store
            if not failed:
                log.exception("run.ending_not_stored", extra=_names(runs))
                show_ending(runs)
            failed = True
            with trio.move_on_after(limits.retry):  # closing ends the pause between two attempts
                await host.overdue.wait()
            entry.again()
        else:
            return True


def announce(run: AcceptedRun, outcome: Outcome, events: EventLog) -> None:
    """Publish the ending of *run*, with the notices of its outcome before it."""
    for notice in outcome.notices:
        events.publish(notice)
    if outcome.state is RunState.ERRORED:
        events.publish(agent_error(run.session_id, run.submission.run_id, outcome.error))
    events.publish(RunChange(run=run.view))


def show_ending(runs: Sequence[AcceptedRun]) -> None:
    """Show *runs* as ending: their outcomes are decided but not stored yet."""
    for run in runs:
        run.show_ending()


def _names(runs: Sequence[AcceptedRun]) -> dict[str, object]:
    """Return the log fields for *runs*: the first ten ids, and the number of all."""
    return {"run_ids": [run.id for run in runs[:10]], "runs": len(runs)}


@define(eq=False)
class Withdrawal:
    """Ends the runs of one lane that a cancel withdrew, in the order of the lane.

    The constructor hands over the endings of the first batch, in the same step as the cancel. If
    the cancel also hit the active run, *after* is that run: its record must be complete before the
    records of the withdrawn runs begin, so nothing is handed over until it has ended.
    """

    _runs: tuple[AcceptedRun, ...]
    _journal: Journal = field(repr=False)
    _limits: Limits
    _host: EndingHost = field(repr=False)
    _after: AcceptedRun | None = None
    _entry: JournalEntry | None = field(default=None, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self._after is None:
            self._entry = self._hand_over(self._runs[:ENDINGS_PER_COMMIT])

    async def end(self) -> None:  # noqa: ASYNC910  # there is a run
        """Store and announce all endings. The body of a task in the nursery of the runs."""
        left = self._runs
        with trio.CancelScope(shield=True):
            if self._after is not None:
                with trio.move_on_after(ACTIVE_FIRST_SECONDS):
                    await self._after.wait_ended()
            while left:
                part, left = left[:ENDINGS_PER_COMMIT], left[ENDINGS_PER_COMMIT:]
                entry = self._entry or self._hand_over(part)
                # The next batch is handed over before this one is stored, so the store is never idle.
                self._entry = self._hand_over(left[:ENDINGS_PER_COMMIT]) if left else None
                await self._announce(part, entry)

    def _hand_over(self, runs: tuple[AcceptedRun, ...]) -> JournalEntry | None:
        """Hand the endings of *runs* to the journal, without the runs that have been refused."""
        present = [run for run in runs if not run.refused]
        for run in present:
            self._host.decide(run, Outcome.cancelled())
        return self._journal.withdraw(present) if present else None

    async def _announce(self, runs: tuple[AcceptedRun, ...], entry: JournalEntry | None) -> None:
        accepted = [run for run in runs if await run.known()]
        if entry is None:
            return  # noqa: ASYNC910  # `known` has waited for each run
        if not accepted:  # all of them were refused: there is nothing to end
            entry.commit.withdraw()
            return  # noqa: ASYNC910  # likewise
        stored = await wait_stored(entry, self._limits, accepted, self._host)
        outcome = Outcome.cancelled() if stored else Outcome.interrupted()
        if stored:
            entry.tell()
        for run in accepted:
            if not stored:
                self._host.decide(run, outcome)
            self._host.settle(run, outcome)


async def wait_for_runs(
    receipt: StopReceipt, overdue: trio.Event, limits: Limits, journal: Journal
) -> None:
    """Wait until the runs of *receipt* have ended: first with the store, then without it.

    The first wait ends after `Limits.join` seconds or when *overdue* is set; *overdue* is set
    afterwards. Runs that still cannot store their endings then end as interrupted.
    """
    async with open_hidden_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + limits.join
        nursery.start_soon(_cancel_after, receipt.settled, nursery.cancel_scope)
        await overdue.wait()
        nursery.cancel_scope.cancel()
    overdue.set()
    if not receipt.complete and not await _can_store(receipt, journal):
        journal.give_up()
        with trio.move_on_after(limits.retry + GIVE_UP_SECONDS):
            await receipt.settled()


async def _can_store(receipt: StopReceipt, journal: Journal) -> bool:
    """Whether the journal still works, so that the unfinished runs have another reason."""
    if any(hit.run.state is RunState.ENDING for hit in receipt.hits):
        return False  # noqa: ASYNC910  # the caller waits before and after this
    return await journal.answers(within=GIVE_UP_SECONDS)


async def _cancel_after(wait: Callable[[], Awaitable[object]], scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()
