"""One workspace with everything it needs, opened in order and closed in the reverse.

What an earlier start has left without an ending is ended beside the work: its sessions wait for that,
and no other does. Closing goes through the tree from the inside: the runs end and write their endings, then the writers of messages
have nothing left to do, then the store is told that this start of the program ended in good order.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import trio
from attrs import define, field

from crush_trio.agent.record.event_reader import ResumableReader, new_reader
from crush_trio.agent.record.event_tail import MAX_TAIL, EventTail, StoredEventCache
from crush_trio.agent.record.journal import StoreJournal
from crush_trio.agent.record.recovery import Recovery, find_orphans
from crush_trio.agent.record.transcript import PACE, Transcript
from crush_trio.clock import Clock, IdSource, RandomIds, SystemClock
from crush_trio.events.facts import Position
from crush_trio.events.frames import Form
from crush_trio.events.log import EventLog, Window, open_event_log
from crush_trio.limits import DEFAULTS, Limits, SizeLimits
from crush_trio.nursery import open_hidden_nursery
from crush_trio.runtime.lane import Capacity
from crush_trio.runtime.run import Turn
from crush_trio.runtime.workspace import Workspace, open_workspace
from crush_trio.store.base import Store
from crush_trio.store.changes import BootClosed
from crush_trio.store.errors import StoreLost, StoreUnavailable
from crush_trio.wire.runs import RunView

log = logging.getLogger(__name__)

CLOSE_LIMIT = 5.0
"""Seconds for the last word to the store."""


@define(eq=False)
class DurableWorkspace:
    """A workspace whose runs survive the process."""

    runs: Workspace
    events: EventLog
    transcript: Transcript
    store: Store = field(repr=False)
    recovery: Recovery = field(repr=False)
    recall: StoredEventCache = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.recall = StoredEventCache(self.store)

    @property
    def recovered(self) -> tuple[RunView, ...]:
        """The runs that an earlier start left without an ending, as they were ended so far."""
        return tuple(self.recovery.ended)

    @property
    def degraded(self) -> str | None:
        """What is wrong with the workspace's store, in a sentence; None while nothing is."""
        return self.store.degraded

    async def new_reader(
        self, form: Form | None = None, after: Position | None = None
    ) -> ResumableReader:
        """Return a reader that continues after *after*, also from before a restart.

        Without a place it begins with what is published from now on.
        """
        return await new_reader(self.events, self.store, self.recall, after, form)


@asynccontextmanager
async def open_durable_workspace(
    store: Store,
    make_turn: Callable[[Transcript], Turn],
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    limits: Limits | None = None,
    sizes: SizeLimits = DEFAULTS,
    capacity: Capacity | None = None,
    window: Window | None = None,
    pace: float = PACE,
    kept: int = MAX_TAIL,
) -> AsyncIterator[DurableWorkspace]:
    """Open a workspace on *store*; *make_turn* is given the transcript its turns write to."""
    clock = SystemClock() if clock is None else clock
    ids = RandomIds() if ids is None else ids
    tail = EventTail(store, kept)
    async with (
        open_event_log(store.boot_id, window=window, keeper=tail) as events,
        _open_writers() as writers,
    ):
        tail.attach(events, writers)
        transcript = Transcript(store, events, clock, writers, pace)
        recovery = await find_orphans(store, events, clock, ids)
        with closing(tail):
            async with open_workspace(
                make_turn(transcript),
                events=events,
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
                yield DurableWorkspace(runs, events, transcript, store, recovery)
    tail.flush()
    await _close_boot(store, BootClosed(at=clock.unix(), last=tail.last))


async def _close_boot(store: Store, closed: BootClosed) -> None:  # noqa: ASYNC910  # it waits for the store
    """Note that this start ended in good order; without the note, readers of before will resync."""
    try:
        await store.submit(closed).certain(CLOSE_LIMIT)
    except StoreLost:
        pass  # which was said before
    except StoreUnavailable:
        log.exception("workspace.end_not_stored")


@asynccontextmanager
async def _open_writers() -> AsyncIterator[trio.Nursery]:
    """Open the nursery of the messages' writers; leave the block when the runs have ended.

    A cancel of the surroundings does not reach into it. A write that is cut short may still land,
    and the ending of its run, which does not know, would write the same words again.
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
