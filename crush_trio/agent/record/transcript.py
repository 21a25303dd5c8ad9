"""`Transcript`: the messages of a workspace. `TurnRecord`: what one run has written into its session.

Each active run writes its messages through its `TurnRecord`, first to the store and then to the readers:
nothing is published that is not stored. The record knows which messages are still open, which could not
be stored, and which tool calls have no result yet. When the run ends, everything that the stored turn
lacks becomes one list of changes (`Remainder`), which is part of the run's own ending.

Native readers see that a call is finished, then its result, then the finish of the answer. The ending
knows all three at once, so an answer with calls that readers know as unfinished is published twice: first
without its finish part (`Remainder.show_calls`), and after the results.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

import trio
from attrs import define, field

from crush_trio.agent.record.message import OpenMessage, changes_between
from crush_trio.agent.record.unfinished_turn import (
    close_answer,
    closing_answer,
    finished,
    missing_results,
    result_message,
)
from crush_trio.clock import Clock, IdSource
from crush_trio.events.facts import Event, MessageChange, called_change, session_fact
from crush_trio.events.growing_message import GrowingMessage, MessageView
from crush_trio.events.log import EventLog
from crush_trio.runtime.outcome import Outcome
from crush_trio.store.base import Changes
from crush_trio.store.changes import Change, MessageCreated, MessageDeleted, PartsCut, UsageAdded
from crush_trio.store.errors import StoreUnavailable
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import (
    Message,
    Role,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.views import Session

PACE: Final = 0.033
"""Seconds between two writes of a message to which only text is appended."""

FLUSH_LIMIT: Final = 2.0
"""Seconds that readers wait for pending writes."""


@define(eq=False)
class Remainder:
    """The changes that complete a turn, and the message events to publish for them."""

    changes: list[Change] = field(factory=list, init=False)
    _calls: list[MessageView] = field(factory=list, init=False)
    _events: list[tuple[EventType, MessageView | Message]] = field(factory=list, init=False)

    @property
    def events(self) -> Iterator[MessageChange]:
        """The events to publish once the changes are stored, all in one step."""
        for called in self._calls:
            yield called_change(called)
        for change, said in self._events:
            view = said if isinstance(said, MessageView) else GrowingMessage(said).view()
            yield MessageChange(change=change, view=view)

    def show_calls(self, called: MessageView | None) -> None:
        """Publish an answer without its finish part before everything else; None does nothing."""
        if called is not None:
            self._calls.append(called)

    def create(self, message: Message, run_id: RunId, *, if_there: bool = False) -> None:
        """Add a complete message."""
        created = MessageCreated(message=message, run_id=run_id, if_there=if_there)
        self.changes.append(created)
        self._events.append((EventType.CREATED, message))

    def update(self, opened: OpenMessage) -> None:
        """Add the unsaved changes of a released message."""
        view, changes = opened.remaining()
        if changes:
            self.changes.extend(changes)
            self._events.append((EventType.UPDATED, view))

    def rewrite(self, opened: OpenMessage, outcome: Outcome, at: int) -> None:
        """Add a released message as it is stored, and finished: its rest cannot be stored."""
        growing = GrowingMessage(opened.stored.message())
        self.show_calls(close_answer(growing, outcome, at, opened.stored))
        view = growing.view(at)
        self.changes.append(PartsCut(message_id=opened.id, length=0, at=at))
        self.changes.extend(changes_between(MessageView(view.head, ()), view, at))
        self._events.append((EventType.UPDATED, view))

    def delete(self, opened: OpenMessage) -> None:
        """Add the deletion of a message."""
        self.changes.append(MessageDeleted(id=opened.id))
        self._events.append((EventType.DELETED, opened.remaining()[0]))


@define(eq=False)
class TurnRecord:
    """The messages of one run. Made by `Transcript.turn`."""

    run_id: RunId
    session_id: SessionId
    transcript: "Transcript" = field(repr=False)
    asked: bool = field(default=False, init=False)
    """Whether a model was called: an answer was begun."""
    usage: UsageAdded | None = field(default=None, init=False)
    """The usage of the last step; stored with the ending."""
    notice: Callable[[Session], Event] | None = field(default=None, init=False)
    """Makes the event that is published with a completed ending (D28)."""
    _open: dict[MessageId, OpenMessage] = field(factory=dict, init=False)
    _discarded: list[OpenMessage] = field(factory=list, init=False)
    _unstored: list[Message] = field(factory=list, init=False)
    _calls: dict[ToolCallId, ToolCallPart] = field(factory=dict, init=False)
    _answered: set[ToolCallId] = field(factory=set, init=False)

    # ── For the turn ────────────────────────────────────────────────────────────────────────────

    async def create(self, message: Message) -> OpenMessage:
        """Store and publish a new message in progress (D1). A cancel waits for the store."""
        new = self.begin(message)
        await new.store()
        return new.opened

    def begin(self, message: Message) -> "NewMessage":
        """Return a new message in progress, which is to be stored before it grows."""
        growing = GrowingMessage(message)
        return NewMessage(self, OpenMessage(self, growing, growing.view()))

    def opened(self, message: OpenMessage) -> None:
        """Publish a new message that is stored, and start its writer."""
        self.asked = True
        self._open[message.id] = message
        self.transcript.publish(EventType.CREATED, message.stored)
        self.transcript.services.start_soon(message.write, name=f"writer of {message.id}")

    async def write(self, message: Message) -> Message:
        """Store and publish a complete message. If it cannot be stored, the ending retries."""
        message = finished(message)
        try:
            await self.transcript.write(message, self.run_id)
        except Exception:
            self._unstored.append(message)
            raise
        if message.role is Role.TOOL:
            self._answered.update(_results(message))
        return message

    def called(self, call: ToolCallPart) -> None:
        """Record a tool call; if it has no result by then, the ending writes one (D17)."""
        self._calls[call.id] = call

    def recalled(self, calls: Iterable[ToolCallPart]) -> None:
        """Forget tool calls that were removed from their message and need no result."""
        for call in calls:
            self._calls.pop(call.id, None)

    async def finish(self, opened: OpenMessage, *together: Change) -> None:
        """Store the rest of a released message *together* with other changes, and publish both.

        If that fails, the ending retries with the message and its usage.
        """
        view, changes = opened.remaining()
        commit = self.transcript.store.submit(*changes, *together, session=self.session_id)
        self.usage = next((each for each in together if isinstance(each, UsageAdded)), None)
        session = await commit.certain()
        self.usage = None
        del self._open[opened.id]
        if together and session is not None:
            self.transcript.events.publish(session_fact(session, busy=True))
        self.transcript.publish(EventType.UPDATED, view)

    def discard(self, opened: OpenMessage) -> None:
        """Delete a message when the run ends; its unsaved text is dropped (D11)."""
        self.recalled(opened.release().tool_calls())
        self._open.pop(opened.id, None)
        self._discarded.append(opened)

    @property
    def open_messages(self) -> tuple[OpenMessage, ...]:
        """The messages in progress, in the order of their creation."""
        return tuple(self._open.values())

    # ── For the ending ──────────────────────────────────────────────────────────────────────────

    def close(self, outcome: Outcome, at: int, ids: IdSource, remainder: Remainder) -> None:
        """Release all messages from their writers, and add what the turn lacks to *remainder*."""
        answered = set(self._answered)
        for message in self._unstored:
            remainder.create(message, self.run_id)
            answered |= _results(message)
        for opened in self._discarded:
            remainder.delete(opened)
        self._answer(self._calls.values(), answered, outcome, at, ids, remainder)
        for opened in self.open_messages:  # clients show calls of a finished answer as ended
            remainder.show_calls(close_answer(opened.release(), outcome, at, opened.stored))
            remainder.update(opened)

    def close_stored(self, outcome: Outcome, at: int, ids: IdSource, remainder: Remainder) -> None:
        """Add what completes the turn as far as it is stored: the rest of it cannot be stored.

        The messages were released by `close`.
        """
        unstored: set[ToolCallId] = set()
        for opened in self.open_messages:
            kept = GrowingMessage(opened.stored.message()).tool_calls()
            unstored |= _ids(opened.release().tool_calls()) - _ids(kept)
        calls = [call for call in self._calls.values() if call.id not in unstored]
        for opened in self._discarded:
            remainder.delete(opened)
        self._answer(calls, self._answered, outcome, at, ids, remainder)
        for opened in self.open_messages:
            remainder.rewrite(opened, outcome, at)

    def _answer(
        self,
        calls: Iterable[ToolCallPart],
        answered: Collection[ToolCallId],
        outcome: Outcome,
        at: int,
        ids: IdSource,
        remainder: Remainder,
    ) -> None:
        """Add an error result for each of *calls* without a result."""
        for result in missing_results(calls, answered, outcome):
            message_id = MessageId(ids.new())
            remainder.create(result_message(result, self.session_id, message_id, at), self.run_id)

    def close_unasked(self, outcome: Outcome, at: int, ids: IdSource, remainder: Remainder) -> None:
        """Add the answer of a turn that was cancelled before a model was called (A21, D20)."""
        answer = closing_answer(outcome, self.session_id, MessageId(ids.new()), at)
        remainder.create(answer, self.run_id, if_there=True)


@define(eq=False)
class NewMessage:
    """A message in progress that is not stored yet. Made by `TurnRecord.begin`."""

    _turn: TurnRecord
    opened: OpenMessage
    stored: trio.Event = field(factory=trio.Event, init=False)
    """Set once the message may grow."""

    async def store(self) -> None:
        """Store the message and publish it. A cancel waits for the store."""
        view = self.opened.stored
        await self._turn.transcript.commit(
            MessageCreated(message=view.head, run_id=self._turn.run_id),
            *changes_between(MessageView(view.head, ()), view, view.head.updated_at),
        )
        self._turn.opened(self.opened)
        self.stored.set()


def _ids(calls: Iterable[ToolCallPart]) -> set[ToolCallId]:
    return {call.id for call in calls}


def _results(message: Message) -> set[ToolCallId]:
    return {part.tool_call_id for part in message.parts if isinstance(part, ToolResultPart)}


@define(eq=False)
class Transcript:
    """The messages of a workspace. The nursery *services* owns the writers."""

    store: Changes
    events: EventLog
    clock: Clock
    services: trio.Nursery = field(repr=False)
    pace: float = PACE
    _turns: dict[RunId, TurnRecord] = field(factory=dict, init=False)

    def turn(self, run_id: RunId, session_id: SessionId) -> TurnRecord:
        """Return the record of a run's turn; creates it if needed."""
        if run_id not in self._turns:
            self._turns[run_id] = TurnRecord(run_id, session_id, self)
        return self._turns[run_id]

    def end_turn(self, run_id: RunId, session_id: SessionId) -> TurnRecord:
        """Return the record of a run that has ended, and forget it (L28)."""
        record = self.turn(run_id, session_id)
        del self._turns[run_id]
        return record

    async def write(self, message: Message, run_id: RunId | None = None) -> Message:
        """Store and publish a complete message. A cancel waits for the store.

        A finish part is added if the message has none.
        """
        message = finished(message)
        await self.commit(MessageCreated(message=message, run_id=run_id))
        self.publish(EventType.CREATED, GrowingMessage(message).view())
        return message

    async def commit(self, *changes: Change) -> None:
        """Store *changes*; when this returns or raises, it is certain whether they are stored.

        A cancel waits for the store. Otherwise changes could be stored but not published: a message
        that no client sees, or a second result for a tool call.
        """
        await self.store.submit(*changes).certain()

    async def flush_all(self) -> None:
        """Store and publish all pending text, before a reader lists messages (D10, D12).

        A slow or failing store only means that the reader sees less; it raises no error.
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
        """Publish a change of a message that is stored."""
        self.events.publish(MessageChange(change=change, view=view, plain=plain))
