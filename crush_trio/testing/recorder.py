"""What readers saw, in the order in which they saw it.

A `Recorder` is a reader like any other: it has a cursor in the log and pulls. Tests ask it
questions afterwards, or wait for it to see something.
"""

from collections import Counter
from collections.abc import Callable

import trio
from attrs import define, field

from crush_trio.events.cursor import Cursor
from crush_trio.events.facts import Event, Fact, MessageChange, Resync, RunChange
from crush_trio.events.log import EventLog
from crush_trio.wire.events import AgentEvent, AgentEventType
from crush_trio.wire.ids import MessageId, RunId
from crush_trio.wire.messages import Message
from crush_trio.wire.native import RunState, RunView


@define(eq=False)
class Recorder:
    """Keeps every event of a log from now on. Run `record` as a task, or call `catch_up`."""

    log: EventLog
    events: list[Event] = field(factory=list, init=False)
    resyncs: list[Resync] = field(factory=list, init=False)
    batches: int = field(default=0, init=False)
    _cursor: Cursor = field(init=False)
    _news: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._cursor = self.log.cursor()

    async def record(self, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Read until the log is closed."""
        task_status.started()
        async for batch in self._cursor:
            self._keep(batch.events, batch.resync)

    def catch_up(self) -> "Recorder":
        """Read all that has been published, without waiting."""
        batch = self._cursor.take()
        self._keep(batch.events, batch.resync)
        return self

    async def seen(self, wanted: Callable[[Event], bool]) -> Event:
        """Wait for the first event, past or to come, that *wanted* is true of."""
        looked = 0
        await trio.lowlevel.checkpoint()
        while True:
            for event in self.events[looked:]:
                if wanted(event):
                    return event
            looked = len(self.events)
            await self._news.park()

    async def seen_ending(self, run_id: str) -> RunView:
        """Wait for the ending of a run, named by our id or by the caller's."""
        event = await self.seen(
            lambda e: isinstance(e, RunChange) and e.terminal and run_id in {e.run.id, e.run.run_id}
        )
        assert isinstance(event, RunChange)
        return event.run

    def _keep(self, events: tuple[Event, ...], resync: Resync | None) -> None:
        self.batches += 1
        self.events.extend(events)
        if resync is not None:
            self.resyncs.append(resync)
        self._news.unpark_all()

    # ── Questions ───────────────────────────────────────────────────────────────────────────────

    @property
    def endings(self) -> list[RunView]:
        """The terminal events, in order."""
        return [e.run for e in self.events if isinstance(e, RunChange) and e.terminal]

    @property
    def endings_per_run(self) -> Counter[RunId]:
        """How many terminal events each run had; every count must be one."""
        return Counter(run.id for run in self.endings)

    def states(self, run_id: str) -> list[RunState]:
        """The states one run went through."""
        return [
            e.run.state
            for e in self.events
            if isinstance(e, RunChange) and run_id in {e.run.id, e.run.run_id}
        ]

    @property
    def errors(self) -> list[AgentEvent]:
        """The agent errors that were announced."""
        return [
            e.entity
            for e in self.events
            if isinstance(e, Fact)
            and isinstance(e.entity, AgentEvent)
            and e.entity.type is AgentEventType.ERROR
        ]

    @property
    def messages(self) -> dict[MessageId, Message]:
        """The last state of every message."""
        return {e.message_id: e.message for e in self.events if isinstance(e, MessageChange)}
