"""Events that outlive the program that published them.

The store remembers the newest events that nothing later says again: endings, structural changes
of messages, and facts. What is remembered of a message or a run is its name: the store has the thing
itself, in its newest state, and a reader takes any state as the newest.

Of endings the store also remembers the places, for as long as it has the runs. A reader that can come
back after a crash is not shown an ending before its place is stored. So after a crash it is certain
which endings each reader has seen. `agent.reader` makes use of both.
"""

from typing import Final

import orjson
import trio
from attrs import define, field

from crush_trio.events.facts import Event, Fact, MessageChange, RunChange
from crush_trio.events.log import EventLog
from crush_trio.store.base import Changes
from crush_trio.store.changes import TailKept
from crush_trio.wire.codec import wrap_change

KEPT: Final = 10_000
"""How many events a store remembers unless told otherwise."""

STORE_LIMIT: Final = 1.0
"""Seconds that readers wait for the place of an ending to be stored; then they see it all the same."""


@define(eq=False)
class Tail:
    """Gives the store each event to remember; `keep` satisfies `EventLog.keep`."""

    store: Changes
    kept: int = KEPT
    last: int = field(default=0, init=False)
    """The seq of the last event that was given to keep."""
    _ending: int = field(default=0, init=False)
    _settled: int = field(default=0, init=False)
    _log: EventLog | None = field(default=None, init=False)
    _tasks: trio.Nursery | None = field(default=None, init=False)

    def attach(self, log: EventLog, tasks: trio.Nursery) -> None:
        """Tell *log* from now on which endings are stored. Endings come from nowhere else."""
        self._log, self._tasks = log, tasks

    def keep(self, seq: int, event: Event) -> bool:
        """Remember *event*, unless a later one will say all it says.

        Return whether it is an ending that the log will be told about.
        """
        text = _remembered(event)
        if text is None:
            return False
        ended = event.run.id if isinstance(event, RunChange) else None
        self.store.post(
            TailKept(
                seq=seq,
                terminal=ended is not None,
                event=text,
                keep=self.kept,
                previous=self.last,
                ended=ended,
            )
        )
        self.last = seq
        if ended is None or self._tasks is None:
            return False
        if self._settled == self._ending:  # else there is a task that will see to this one too
            self._tasks.start_soon(self._settle, name="places of endings")
        self._ending = seq
        return True

    async def _settle(self) -> None:  # noqa: ASYNC910 - it is started when there is something to do
        """Wait until everything is written that was given, or has failed, or takes too long."""
        assert self._log is not None
        while self._settled < self._ending:
            ending = self._ending
            # If it fails, the store has logged that. A reader may hear of an ending twice after a crash.
            await self.store.submit().known_within(STORE_LIMIT)
            self._settled = ending
            self._log.settle(ending)


def _remembered(event: Event) -> str | None:
    match event:
        case Fact(payload_type=payload_type, encoded=encoded):
            return wrap_change(payload_type, encoded).decode()
        case MessageChange(plain=False, change=change, view=view):
            named = {"message": view.head.id, "session": view.head.session_id, "change": change}
            return orjson.dumps(named).decode()
        case RunChange(terminal=True, run=run):
            return orjson.dumps({"run": run.id}).decode()
        case _:
            return None
