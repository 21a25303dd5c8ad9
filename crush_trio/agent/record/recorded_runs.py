"""Recorded runs: a runtime workspace whose runs and messages are kept in a store.

What an earlier start left without an ending is ended in the background: its sessions wait for that, all
others can be used at once. Closing goes from the inside out. The runs end and write their endings; then
the message writers have nothing left to do; then the event log closes, which ends the streams of clients;
then the store is told that this start of the program ended in good order.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, nullcontext
from typing import Final

import trio
from attrs import field, frozen

from crush_trio.agent.record.event_tail import MAX_TAIL, EventTail
from crush_trio.agent.record.journal import StoreJournal
from crush_trio.agent.record.recovery import Recovery, find_orphans
from crush_trio.agent.record.transcript import PACE, Transcript
from crush_trio.clock import Clock, IdSource, RandomIds, SystemClock
from crush_trio.events.log import EventLog, Window, open_event_log
from crush_trio.limits import DEFAULTS, Limits, SizeLimits
from crush_trio.nursery import open_hidden_nursery
from crush_trio.runtime.lane import Capacity
from crush_trio.runtime.run import Turn
from crush_trio.runtime.workspace import Workspace, open_workspace
from crush_trio.store.base import Store
from crush_trio.store.changes import BootClosed
from crush_trio.store.errors import StoreLost, StoreUnavailable

log = logging.getLogger(__name__)

CLOSE_LIMIT: Final = 5.0
"""Seconds that the store may take to note that this start has ended."""

MakeTurn = Callable[[Transcript], Turn]
"""Makes the turn function of a workspace, given the transcript it writes to."""


@frozen(eq=False, kw_only=True)
class RecordedRuns:
    """What `open_recorded_runs` has opened."""

    runs: Workspace
    events: EventLog
    transcript: Transcript = field(repr=False)
    recovery: Recovery = field(repr=False)


@asynccontextmanager
async def open_recorded_runs(
    store: Store,
    make_turn: MakeTurn,
    *,
    events: EventLog | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    limits: Limits | None = None,
    sizes: SizeLimits = DEFAULTS,
    capacity: Capacity | None = None,
    window: Window | None = None,
    pace: float = PACE,
    kept: int = MAX_TAIL,
) -> AsyncIterator[RecordedRuns]:
    """Open a runtime workspace on *store*; *make_turn* is given the transcript its turns write to.

    *events* is the log of the workspace; without one, it has a log of its own with that *window*. The
    store keeps what the log publishes from now on, *kept* events at most. Leaving the block closes the
    log, also one that was given: its readers are to see every ending and then the end.
    """
    clock = SystemClock() if clock is None else clock
    ids = RandomIds() if ids is None else ids
    tail = EventTail(store, kept)
    async with (
        nullcontext(events)
        if events is not None
        else open_event_log(store.boot_id, window=window) as the_log
    ):
        with closing(the_log):
            async with _open_writers() as writers:
                tail.attach(the_log, writers)
                transcript = Transcript(store, the_log, clock, writers, pace)
                recovery = await find_orphans(store, the_log, clock, ids)
                with closing(tail):
                    async with open_workspace(
                        make_turn(transcript),
                        events=the_log,
                        journal=StoreJournal(transcript, clock, ids),
                        clock=clock,
                        ids=ids,
                        limits=limits,
                        sizes=sizes,
                        capacity=capacity,
                    ) as runs:
                        for session_id in recovery.sessions:
                            runs.hold(session_id)
                        runs.services.start_soon(recovery.run, runs.release, name="recovery")
                        yield RecordedRuns(
                            runs=runs, events=the_log, transcript=transcript, recovery=recovery
                        )
    tail.flush()
    await _close_boot(store, BootClosed(at=clock.unix(), last=tail.last))


async def _close_boot(store: Store, closed: BootClosed) -> None:  # noqa: ASYNC910  # it waits for the store
    """Note that this start ended in good order; without the note, readers from before will resync."""
    try:
        await store.submit(closed).certain(CLOSE_LIMIT)
    except StoreLost:
        pass  # it was logged when the store was found to be lost
    except StoreUnavailable:
        log.exception("workspace.end_not_stored")


@asynccontextmanager
async def _open_writers() -> AsyncIterator[trio.Nursery]:
    """Open the nursery of the message writers; leave the block when the runs have ended.

    A cancel from outside does not reach into it. A write that is cut short may still land, and the
    ending of its run, which does not know, would write the same words again.
    """
    async with open_hidden_nursery() as keeper:
        writers = await keeper.start(_keep_writers)
        try:
            yield writers
        finally:
            writers.cancel_scope.cancel()


async def _keep_writers(task_status: "trio.TaskStatus[trio.Nursery]") -> None:
    async with open_hidden_nursery() as writers:
        writers.cancel_scope.shield = True
        task_status.started(writers)
        await trio.sleep_forever()
