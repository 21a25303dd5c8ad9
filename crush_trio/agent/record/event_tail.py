"""`EventTail`: stores the newest events for readers after a restart. `StoredEventCache`: reads them.

The store keeps the newest events that no later event repeats: endings, structural changes of messages,
and facts. Of a message or a run only its id is kept: the store has its current state, and readers accept
any state as the newest. Of a message it is also kept whether it was finished: the finish part comes after
the results of its calls.

Of endings the store also keeps the positions, as long as it has the runs. A reader that may resume after
a crash is not shown an ending before its position is stored. So after a crash it is certain which endings
each reader has seen. `event_reader.py` uses both.

After a restart many readers resume at once and want the same events. Each event is read from the store
once, and stays cached while a reader uses it.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias
from weakref import WeakValueDictionary

import orjson
import trio
from attrs import define, evolve, field
from typing_extensions import override

from crush_trio.errors import MessageNotFound
from crush_trio.events.entry import ByteMeter, LogEntry
from crush_trio.events.facts import Event, Fact, MessageChange, RunChange
from crush_trio.events.growing_message import GrowingMessage
from crush_trio.events.log import EventKeeper, EventLog
from crush_trio.store.base import Changes, MessageReads, RunReads, StoredEnding, TailEvent
from crush_trio.store.changes import TailKept
from crush_trio.store.commit import Commit
from crush_trio.wire.codec import decode, wrap_change
from crush_trio.wire.events import Envelope, EventType
from crush_trio.wire.fields import Json
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import FinishPart, Message, Role
from crush_trio.wire.views import Session

MAX_TAIL: Final = 10_000
"""Default number of events that a store keeps."""

STORE_LIMIT: Final = 1.0
"""Seconds that readers wait for the position of an ending to be stored; then they see it anyway.

Not under a lease: if the position cannot be stored, the workspace soon belongs to another server, which
tells its readers of every ending that has no position.
"""

LEASED_PAUSE: Final = 0.2
"""Seconds after which a position that could not be stored is tried again under a lease."""


@define(eq=False)
class _Handed:
    """Events that are being stored; *ending* is the seq of the last ending until then."""

    ending: int
    done: bool = field(default=False, init=False)
    """Whether readers may see the endings: usually because their positions are stored."""


@define(eq=False)
class EventTail(EventKeeper):
    """Stores events; those that are published in one step are stored in one commit."""

    store: Changes
    kept: int = MAX_TAIL
    leased: bool = False
    """Whether another server may take the workspace over."""
    last: int = field(default=0, init=False)
    """The seq of the last kept event."""
    _gathered: list[TailKept] = field(factory=list, init=False)
    _ending: int = field(default=0, init=False)
    """The seq of the last kept ending."""
    _settled: int = field(default=0, init=False)
    """The seq of the last ending that was settled in the log."""
    _handing: deque["_Handed"] = field(factory=deque, init=False)
    """What is being stored, in order."""
    _log: EventLog | None = field(default=None, init=False)
    _tasks: trio.Nursery | None = field(default=None, init=False)
    _closing: trio.Event = field(factory=trio.Event, init=False)

    def attach(self, log: EventLog, tasks: trio.Nursery) -> None:
        """Store what *log* publishes from now on, and settle its endings when they are stored.

        All endings of the log come after this: it is attached before the first run.
        """
        self._log, self._tasks = log, tasks
        log.keeper, log.shows_unsettled = self, not self.leased

    def close(self) -> None:
        """Store the collected events, and retry nothing from now on."""
        self._closing.set()
        self.flush()

    @override
    def keep(self, seq: int, event: Event) -> bool:
        """Keep *event*, unless a later one will repeat it.

        Return whether it is an ending that will be settled in the log.
        """
        text = _remembered(event)
        if text is None:
            return False
        ended = event.run.id if isinstance(event, RunChange) else None
        if not self._gathered and self._tasks is not None and ended is None:
            self._tasks.start_soon(self._store_gathered, name="events to keep")
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
        if self._tasks is None:
            self.flush()
            return False
        if ended is not None:
            self._ending = seq
            self._hand_over()  # at once: readers wait for it
        return ended is not None

    @override
    def flush(self) -> None:
        """Store the collected events."""
        if self._gathered:
            self.store.post(*self._gathered)
            self._gathered.clear()

    async def _store_gathered(self) -> None:  # noqa: ASYNC910 - it is a task of its own
        """Store the events collected in one step, unless its ending has taken them along."""
        if self._settled == self._ending:
            self.flush()
        elif self._gathered:
            self._hand_over()

    def _hand_over(self) -> None:
        """Hand the collected events to the store, and start a task that waits for them."""
        assert self._tasks is not None
        handed, events = _Handed(self._ending), tuple(self._gathered)
        self._handing.append(handed)
        self._gathered.clear()
        commit = self.store.submit(*events)
        self._tasks.start_soon(self._follow, handed, events, commit, name="events to keep")

    async def _follow(
        self, handed: _Handed, events: Sequence[TailKept], commit: Commit[Session | None]
    ) -> None:
        """Settle endings in the log when their positions are stored, or after STORE_LIMIT.

        So a slow store does not hide endings. Positions that could not be stored are retried. Under a lease
        only what is stored is settled, in the order of the endings.
        """
        await commit.known_within(STORE_LIMIT)
        handed.done = commit.stored or not self.leased
        self._settle()
        pause = LEASED_PAUSE if self.leased else STORE_LIMIT
        while not commit.stored and not await self._closed_within(pause):
            if commit.known and not commit.stored:  # it may have been stored during the pause
                commit = self.store.submit(*events)
        handed.done = handed.done or commit.stored
        self._settle()

    def _settle(self) -> None:
        """Settle the endings in the log up to the first that is not done."""
        assert self._log is not None
        while self._handing and self._handing[0].done:
            self._settled = max(self._settled, self._handing.popleft().ending)
            self._log.settle(self._settled)

    async def _closed_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await self._closing.wait()
        return self._closing.is_set()  # noqa: ASYNC910 - the wait is a checkpoint


def _remembered(event: Event) -> str | None:
    match event:
        case Fact(payload_type=payload_type, encoded=encoded):
            return wrap_change(payload_type, encoded).decode()
        case MessageChange(plain=plain, kept=kept, change=change, view=view) if kept or not plain:
            named = {"message": view.head.id, "session": view.head.session_id, "change": change}
            return orjson.dumps(named if view.finished else {**named, "open": True}).decode()
        case RunChange(terminal=True, run=run):
            return orjson.dumps({"run": run.id}).decode()
        case _:
            return None


EventKey: TypeAlias = tuple[str, int, bool]
"""The position of an event (start and seq), and whether its message is new to the reader."""


class StoredEventReads(MessageReads, RunReads, Protocol):
    """What the cache needs from a store."""


@define(eq=False)
class StoredEventCache:
    """The stored events that readers of a workspace are using, as log entries."""

    store: StoredEventReads
    _entries: WeakValueDictionary[EventKey, LogEntry] = field(
        factory=WeakValueDictionary, init=False
    )
    _loading: dict[EventKey, trio.Event] = field(factory=dict, init=False)

    async def event(self, row: TailEvent, *, new: bool) -> LogEntry | None:
        """Return a stored event; None if its message was deleted with its session.

        A message is in its newest state; *new* says that the reader does not know it yet.
        """
        return await self._entry((row.boot_id, row.seq, new), partial(self._event, row, new=new))

    async def ending(self, row: StoredEnding) -> LogEntry:
        """Return an ending with the whole answer."""

        async def whole() -> Event:
            return RunChange(run=(await self.store.run(row.run.id)).view)

        entry = await self._entry((row.boot_id, row.seq, False), whole)
        assert entry is not None
        return entry

    async def _entry(
        self, key: EventKey, load: Callable[[], Awaitable[Event | None]]
    ) -> LogEntry | None:
        """Return an entry; concurrent readers share one load."""
        await trio.lowlevel.checkpoint()
        while key in self._loading:
            await self._loading[key].wait()
        if (known := self._entries.get(key)) is not None:
            return known
        loaded = self._loading[key] = trio.Event()
        try:
            event = await load()
            if event is None:
                return None
            entry = self._entries[key] = LogEntry(key[1], event, key[0], ByteMeter())
        finally:
            del self._loading[key]
            loaded.set()
        return entry

    async def _event(self, row: TailEvent, *, new: bool) -> Event | None:
        named: Mapping[str, Json] = orjson.loads(row.event)
        if "message" in named:
            return await self._message(named, new=new)
        if "run" in named:
            return RunChange(run=(await self.store.run(RunId(named["run"]))).view)
        await trio.lowlevel.checkpoint()
        envelope = decode(row.event, Envelope)
        return Fact(
            payload_type=envelope.payload_type,
            change=envelope.event_type,
            entity=envelope.entity,
        )

    async def _message(self, named: Mapping[str, Json], *, new: bool) -> MessageChange | None:
        """Return the newest state of a message; None if it was deleted with its session.

        Without its finish part if it had none when the event was published: that part comes later.
        """
        await trio.lowlevel.checkpoint()
        message_id = MessageId(named["message"])
        if named["change"] == EventType.DELETED:
            gone = Message(id=message_id, role=Role.UNSET, session_id=SessionId(named["session"]))
            return MessageChange(change=EventType.DELETED, view=GrowingMessage(gone).view())
        try:
            message = (await self.store.message(message_id)).message
        except MessageNotFound:
            return None
        if "open" in named:
            unfinished = (part for part in message.parts if not isinstance(part, FinishPart))
            message = evolve(message, parts=tuple(unfinished))
        change = EventType.CREATED if new else EventType.UPDATED
        return MessageChange(change=change, view=GrowingMessage(message).view())
