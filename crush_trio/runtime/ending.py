"""Storing endings: what is owed stays owed until it is written.

An ending is announced when it is stored, so the stream and the disk always say the same. Until then
the run is shown as `ending`, with the outcome that is to come.

Waiting for the runs of a workspace that closes.

The end of runs that were cancelled before they began.

One cancel may withdraw thousands of waiting runs. Their endings are handed to the journal a few hundred
at a time, in the order of the lane, and announced in that order as they are stored, so that a herd of
them holds up neither the other sessions nor the readers. The lane lets no run begin before all of them
have left.
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
from crush_trio.store.errors import StoreFailed
from crush_trio.wire.runs import RunState

GIVE_UP: Final = 1.0
"""Seconds for runs to end once it is certain that their endings will not be stored."""


async def wait_for_runs(
    receipt: StopReceipt, overdue: trio.Event, limits: Limits, journal: Journal
) -> None:
    """Wait for the runs of *receipt*, for a while with the store, and then without it.

    The while is over after `Limits.join`, or when *overdue* is set; afterwards it is.
    """
    async with open_hidden_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + limits.join
        nursery.start_soon(_cancel_after, receipt.settled, nursery.cancel_scope)
        await overdue.wait()
        nursery.cancel_scope.cancel()
    overdue.set()
    if not receipt.complete and not await _can_store(receipt, journal):
        journal.give_up()
        with trio.move_on_after(limits.retry + GIVE_UP):
            await receipt.settled()


async def _can_store(receipt: StopReceipt, journal: Journal) -> bool:
    """Whether it is not the journal's fault that there are runs which have not ended."""
    if any(hit.run.state is RunState.ENDING for hit in receipt.hits):
        return False  # noqa: ASYNC910  # stopping waits before and after this
    return await journal.answers(within=GIVE_UP)


async def _cancel_after(wait: Callable[[], Awaitable[object]], scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()


log = logging.getLogger(__name__)


class EndingHost(Protocol):
    """What an ending needs to know of its workspace."""

    @property
    def overdue(self) -> trio.Event:
        """Set when the workspace should have closed by now."""
        ...


async def owed(
    entry: JournalEntry, limits: Limits, runs: Sequence[AcceptedRun], host: EndingHost
) -> bool:
    """Wait until the endings of *runs* are stored, however long that takes; return whether they are.

    A write that fails is tried again until it succeeds. Only when nothing can be stored any more,
    because the store has stopped or the workspace has to close without it, is the answer no; the next
    start finds the runs unfinished then, and ends them as interrupted.
    """
    failed = False
    while True:
        try:
            if not await entry.commit.known_within(limits.notice):
                show_ending(runs)
                await entry.commit.certain(within=limits.accept if host.overdue.is_set() else inf)
            entry.commit.unwrap()
        except StoreFailed:
            log.exception("run.ending_given_up", extra=_names(runs))
            return False  # noqa: ASYNC910  # it has waited for the store
        except Exception as exc:
            if entry.commit.stored:  # the waiting was disturbed, not the writing
                return True  # noqa: ASYNC910  # it has waited for the store
            if entry.reduce(exc):
                continue
            if not failed:
                log.exception("run.ending_not_stored", extra=_names(runs))
                show_ending(runs)
            if host.overdue.is_set():
                log.exception("run.ending_given_up", extra=_names(runs))
                return False  # noqa: ASYNC910  # it has waited for the store
            failed = True
            with trio.move_on_after(limits.retry):
                await host.overdue.wait()
            entry.again()
        else:
            return True


def announce(run: AcceptedRun, outcome: Outcome, events: EventLog) -> None:
    """Publish how *run* has ended, and what belongs to that."""
    for notice in outcome.notices:
        events.publish(notice)
    if outcome.state is RunState.ERRORED:
        events.publish(agent_error(run.session_id, run.submission.run_id, outcome.error))
    events.publish(RunChange(run=run.view))


def show_ending(runs: Sequence[AcceptedRun]) -> None:
    """Show *runs* as ending: how is known, and is not stored yet."""
    for run in runs:
        run.show_ending()


def _names(runs: Sequence[AcceptedRun]) -> dict[str, object]:
    """Return what a log line says of the runs that it is about; of a herd, the first few."""
    return {"run_ids": [run.id for run in runs[:10]], "runs": len(runs)}


TOGETHER: Final = 250
"""How many endings are written in one commit."""

ACTIVE_FIRST: Final = 1.0
"""Seconds for which the active run, if it was cancelled too, may write its ending before the others."""


class WithdrawalHost(Protocol):
    """What ending runs needs of their workspace."""

    @property
    def overdue(self) -> trio.Event:
        """Set when the workspace should have closed by now."""
        ...

    def decide(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Decide how *run* ends. It is to be handed to the journal in the same step."""
        ...

    def settle(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Announce the ending of *run* and let it leave its lane."""
        ...


@define(eq=False)
class Withdrawal:
    """Runs of one lane that a cancel withdrew, in their order.

    The endings of the first ones are handed over when it is made, in the step of the cancel. If the
    cancel hit the active run too, *after* is that one: its record ends before theirs begin.
    """

    _runs: tuple[AcceptedRun, ...]
    _journal: Journal = field(repr=False)
    _limits: Limits
    _host: WithdrawalHost = field(repr=False)
    _after: AcceptedRun | None = None
    _entry: JournalEntry | None = field(default=None, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self._after is None:
            self._entry = self._hand_over(self._runs[:TOGETHER])

    async def end(self) -> None:  # noqa: ASYNC910  # there is a run
        """Have all endings stored and announced. The body of a task that belongs to the runs."""
        left = self._runs
        with trio.CancelScope(shield=True):
            if self._after is not None:
                with trio.move_on_after(ACTIVE_FIRST):
                    await self._after.wait_ended()
            while left:
                part, left = left[:TOGETHER], left[TOGETHER:]
                entry = self._entry or self._hand_over(part)
                self._entry = self._hand_over(left[:TOGETHER]) if left else None
                await self._announce(part, entry)

    def _hand_over(self, runs: tuple[AcceptedRun, ...]) -> JournalEntry | None:
        """Hand the endings of *runs* over, of those that were not refused by now."""
        present = [run for run in runs if not run.refused]
        for run in present:
            self._host.decide(run, Outcome.cancelled())
        return self._journal.withdraw(present) if present else None

    async def _announce(self, runs: tuple[AcceptedRun, ...], entry: JournalEntry | None) -> None:
        accepted = [run for run in runs if await run.known()]
        if entry is None:
            return  # noqa: ASYNC910  # it has waited for each run
        if not accepted:  # all of them were refused: there is nothing to end
            entry.commit.withdraw()
            return  # noqa: ASYNC910  # likewise
        stored = await owed(entry, self._limits, accepted, self._host)
        outcome = Outcome.cancelled() if stored else Outcome.interrupted()
        if stored:
            entry.tell()
        for run in accepted:
            if not stored:
                self._host.decide(run, outcome)
            self._host.settle(run, outcome)
