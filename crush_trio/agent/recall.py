"""Stored events as entries again, shared by all readers that want them.

After a restart many readers come back at once and want the same events. Each event is read from the
store once, and is there for as long as a reader is in the middle of it.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol, TypeAlias
from weakref import WeakValueDictionary

import orjson
import trio
from attrs import define, field

from crush_trio.errors import MessageNotFound
from crush_trio.events.entry import Entry, Meter
from crush_trio.events.facts import Event, Fact, MessageChange, RunChange
from crush_trio.events.growing import GrowingMessage
from crush_trio.store.base import MessageReads, RunReads, StoredEnding, TailEvent
from crush_trio.wire.codec import decode
from crush_trio.wire.events import Envelope, EventType
from crush_trio.wire.fields import Json
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Message, Role

Key: TypeAlias = tuple[str, int, bool]
"""The place of an event, and whether it is to be told as something new."""


class RecallStore(MessageReads, RunReads, Protocol):
    """What recalling needs of a store."""


@define(eq=False)
class Recall:
    """The stored events that readers of a workspace are being told."""

    store: RecallStore
    _entries: WeakValueDictionary[Key, Entry] = field(factory=WeakValueDictionary, init=False)
    _loading: dict[Key, trio.Event] = field(factory=dict, init=False)

    async def event(self, row: TailEvent, *, new: bool) -> Entry | None:
        """Return a kept event; None if the message it is about has gone with its session.

        It shows a message in its newest state; *new* says that the reader does not know it.
        """
        return await self._entry((row.boot_id, row.seq, new), partial(self._event, row, new=new))

    async def ending(self, row: StoredEnding) -> Entry:
        """Return an ending with the whole answer."""

        async def whole() -> Event:
            return RunChange(run=(await self.store.run(row.run.id)).view)

        entry = await self._entry((row.boot_id, row.seq, False), whole)
        assert entry is not None
        return entry

    async def _entry(self, key: Key, load: Callable[[], Awaitable[Event | None]]) -> Entry | None:
        """Return an entry, loaded once for all readers that want it at the same time."""
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
            entry = self._entries[key] = Entry(key[1], event, key[0], Meter())
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
        """Return the newest state of a message; None if it has gone with its session."""
        await trio.lowlevel.checkpoint()
        message_id = MessageId(named["message"])
        if named["change"] == EventType.DELETED:
            gone = Message(id=message_id, role=Role.UNSET, session_id=SessionId(named["session"]))
            return MessageChange(change=EventType.DELETED, view=GrowingMessage(gone).view())
        try:
            stored = await self.store.message(message_id)
        except MessageNotFound:
            return None
        change = EventType.CREATED if new else EventType.UPDATED
        return MessageChange(change=change, view=GrowingMessage(stored.message).view())
