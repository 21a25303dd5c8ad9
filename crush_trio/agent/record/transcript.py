"""The messages of a workspace on their way into the store and to the readers, in that order.

Each active run has a record of its turn here, through which it writes. Nothing is published that is not
stored.
"""

from contextlib import suppress
from typing import Final

import trio
from attrs import define, field

from crush_trio.agent.record.message_writer import OpenMessage
from crush_trio.agent.record.turn_record import TurnRecord, finished
from crush_trio.clock import Clock
from crush_trio.events.facts import MessageChange
from crush_trio.events.growing_message import GrowingMessage, MessageView
from crush_trio.events.log import EventLog
from crush_trio.store.base import Changes
from crush_trio.store.changes import Change, MessageCreated
from crush_trio.store.errors import StoreUnavailable
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.messages import Message

PACE: Final = 0.033
"""Seconds between two writes of a message that only grows."""

FLUSH_LIMIT: Final = 2.0
"""Seconds for which readers wait for what is still to be stored."""


@define(eq=False)
class Transcript:
    """The messages of a workspace. *services* owns the writers."""

    store: Changes
    events: EventLog
    clock: Clock
    services: trio.Nursery = field(repr=False)
    pace: float = PACE
    _turns: dict[RunId, TurnRecord] = field(factory=dict, init=False)

    def turn(self, run_id: RunId, session_id: SessionId) -> TurnRecord:
        """Return the record of a run's turn; it is begun if there is none."""
        if run_id not in self._turns:
            self._turns[run_id] = TurnRecord(run_id, session_id, self)
        return self._turns[run_id]

    def end_turn(self, run_id: RunId, session_id: SessionId) -> TurnRecord:
        """Return the record of a run that has ended, and forget it (L28)."""
        record = self.turn(run_id, session_id)
        del self._turns[run_id]
        return record

    async def write(self, message: Message, run_id: RunId | None = None) -> Message:
        """Store and publish a message that is complete. A cancel waits for the store.

        A message that no model wrote ends with a finish part that says so; it is added if missing.
        """
        message = finished(message)
        await self.commit(MessageCreated(message=message, run_id=run_id))
        self.publish(EventType.CREATED, GrowingMessage(message).view())
        return message

    async def commit(self, *changes: Change) -> None:
        """Store *changes*; afterwards it is certain whether they are stored.

        A cancelled wait would leave them stored and nobody told: a message without a reader, a
        tool call with a second result. So a cancel waits.
        """
        await self.store.submit(*changes).certain()

    async def flush_all(self) -> None:
        """Store and publish what is waiting to be, for readers that want to see all (D10, D12).

        They see what is stored in any case, so neither a slow store nor a failing one is their
        trouble.
        """
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(FLUSH_LIMIT), suppress(StoreUnavailable):
            for opened in self.open_messages():
                if opened.open:
                    await opened.flush()

    def open_messages(self) -> tuple[OpenMessage, ...]:
        """The messages in progress, turn by turn."""
        return tuple(opened for turn in self._turns.values() for opened in turn.open_messages)

    def publish(self, change: EventType, view: MessageView, *, plain: bool = False) -> None:
        """Tell the readers about a message that is stored."""
        self.events.publish(MessageChange(change=change, view=view, plain=plain))
