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
from typing_extensions import override

from crush_trio.events.facts import Event, Fact, MessageChange, RunChange
from crush_trio.events.log import EventLog, Keeper
from crush_trio.store.base import Changes
from crush_trio.store.changes import TailKept
from crush_trio.wire.codec import wrap_change

KEPT: Final = 10_000
"""How many events a store remembers unless told otherwise."""

STORE_LIMIT: Final = 1.0
"""Seconds that readers wait for the place of an ending to be stored; then they see it all the same."""


@define(eq=False)
class Tail(Keeper):
    """Gives the store the events to remember; those that are published together, together."""

    store: Changes
    kept: int = KEPT
    last: int = field(default=0, init=False)
    """The seq of the last event that was given to keep."""
    _gathered: list[TailKept] = field(factory=list, init=False)
    _ending: int = field(default=0, init=False)
    """The seq of the last ending that was given to keep."""
    _settled: int = field(default=0, init=False)
    """The seq of the last ending that the log was told of."""
    _writing: bool = field(default=False, init=False)
    """Whether there is a task that hands over what was gathered."""
    _log: EventLog | None = field(default=None, init=False)
    _tasks: trio.Nursery | None = field(default=None, init=False)

    def attach(self, log: EventLog, tasks: trio.Nursery) -> None:
        """Tell *log* from now on which endings are stored. Endings come from nowhere else."""
        self._log, self._tasks = log, tasks

    @override
    def keep(self, seq: int, event: Event) -> bool:
        """Remember *event*, unless a later one will say all it says.

        Return whether it is an ending that the log will be told about.
        """
        text = _remembered(event)
        if text is None:
            return False
        ended = event.run.id if isinstance(event, RunChange) else None
        self._gathered.append(
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
        if ended is not None:
            self._ending = seq
        if self._tasks is None:
            self.flush()
            return False
        if not self._writing:
            self._writing = True
            self._tasks.start_soon(self._write, name="events to keep")
        return ended is not None

    @override
    def flush(self) -> None:
        """Hand over what was gathered."""
        if self._gathered:
            self.store.post(*self._gathered)
            self._gathered.clear()

    async def _write(self) -> None:  # noqa: ASYNC910 - it is started when there is something to do
        """Hand over what was gathered, and tell the log when the places of endings are stored.

        If they cannot be stored the store logs that. A reader may hear of an ending twice then, after
        a crash.
        """
        assert self._log is not None
        while self._gathered or self._settled < self._ending:
            self.flush()
            if self._settled < self._ending:
                ending = self._ending
                await self.store.submit().known_within(STORE_LIMIT)
                self._log.settle(ending)
                self._settled = ending
        self._writing = False


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
