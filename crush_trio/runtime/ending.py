"""Storing endings: what is owed stays owed until it is written.

An ending is announced when it is stored, so the stream and the disk always say the same. Until then
the run is shown as `ending`, with the outcome that is to come.
"""

import logging
from collections.abc import Sequence
from math import inf
from typing import Protocol

import trio

from crush_trio.events.facts import RunChange, agent_error
from crush_trio.events.log import EventLog
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.journal import JournalEntry
from crush_trio.runtime.limits import Limits
from crush_trio.runtime.outcome import Outcome
from crush_trio.store.errors import StoreFailed
from crush_trio.wire.native import RunState

log = logging.getLogger(__name__)


class Host(Protocol):
    """What an ending needs to know of its workspace."""

    @property
    def overdue(self) -> trio.Event:
        """Set when the workspace should have closed by now."""
        ...


async def owed(
    entry: JournalEntry, limits: Limits, runs: Sequence[AcceptedRun], host: Host
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
