"""Messages on their way into the store and to the readers, in that order.

A message in progress has one writer: a task of its own among the workspace's services. Whoever
changes the message only says so; the writer stores what is new and then publishes it. So writes of
one message never overlap, an older state is never published after a newer one, and cancelling the
run does not strand what it has said (D7, D9).

Plain changes (more text) are paced: the first is stored and published at once, the next ones
together when the window is over. Structural changes (tool calls, the end of reasoning, the finish)
do not wait (D4, D5). Each flush stores what was appended since the last one, not the message.

Nothing is published that is not stored. A write that fails leaves the message dirty; the next
flush tries again (D8).
"""

import logging
from collections.abc import Iterable

import trio
from attrs import define, evolve, field

from crush_trio.agent.growth import changes_between
from crush_trio.clock import Clock
from crush_trio.events.facts import MessageChange
from crush_trio.events.growing import GrowingMessage, MessageView
from crush_trio.events.log import EventLog
from crush_trio.store.base import Changes
from crush_trio.store.changes import Change, MessageCreated, MessageDeleted, PartsCut
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, SessionId, ToolCallId
from crush_trio.wire.messages import (
    FinishPart,
    FinishReason,
    Message,
    Role,
    ToolCallPart,
    ToolResultPart,
)

log = logging.getLogger(__name__)

PACE = 0.033
"""Seconds between two flushes of a message that only grows."""

RETRY = 1.0
"""Seconds until a flush is tried again that failed, unless something structural comes first."""

WRITE_LIMIT = 5.0
"""Seconds that a write may take before its run is told that it failed."""

STOPPED = FinishPart(reason=FinishReason.STOP, time=0)
"""What every message ends with that no model wrote (D1)."""


@define(eq=False)
class OpenMessage:
    """A message in progress. Made by `Transcript.create`; ends when it is finished or deleted."""

    _transcript: "Transcript"
    _growing: GrowingMessage
    _stored: MessageView
    _version: int = field(default=0, init=False)
    _stored_version: int = field(default=0, init=False)
    _urgent_version: int = field(default=0, init=False)
    _structural_version: int = field(default=0, init=False)
    _closed: bool = field(default=False, init=False)
    _failure: Exception | None = field(default=None, init=False)
    _attempts: int = field(default=0, init=False)
    _writing: bool = field(default=False, init=False)
    _doubtful: bool = field(default=False, init=False)
    _adrift: bool = field(default=False, init=False)
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    _changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _hurried: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _attempted: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    @property
    def id(self) -> MessageId:
        """The message's id."""
        return self._growing.head.id

    @property
    def session_id(self) -> SessionId:
        """The session the message belongs to."""
        return self._growing.head.session_id

    @property
    def open(self) -> bool:
        """Whether the message can still change."""
        return not self._closed

    def message(self) -> Message:
        """The message as it is now, stored or not."""
        return self._view().message()

    # ── Plain changes: said at once, stored and published at the message's pace ─────────────────

    def append_text(self, delta: str) -> None:
        """Add to the answer."""
        self._growing.append_text(delta)
        self._touch()

    def append_reasoning(self, delta: str) -> None:
        """Add to the reasoning."""
        self._growing.append_reasoning(delta, started_at=self._transcript.clock.unix())
        self._touch()

    # ── Structural changes: stored and published before the call returns ────────────────────────

    async def close_reasoning(self, signature: str | None = None) -> None:
        """End the reasoning, if there is any that is open."""
        now = self._transcript.clock.unix()
        self._growing.close_reasoning(finished_at=now, signature=signature)
        await self._structural()

    async def put_tool_call(self, call: ToolCallPart) -> None:
        """Add a tool call, or replace the one with its id."""
        self._growing.put(call)
        self._transcript.called(self.session_id, call)
        await self._structural()

    async def reset(self) -> None:
        """Forget what the model streamed, before it is asked again (D14a)."""
        self._transcript.recalled(self.session_id, self._growing.tool_calls())
        self._growing.reset()
        await self._structural()

    async def finish(self, finish: FinishPart) -> None:
        """End the message; its writer and its buffers are gone when this returns."""
        self._growing.put(finish)
        await self._structural()
        await self.take_over()

    def seal(self, finish: FinishPart) -> None:
        """End the message; its run stores that together with its own end, and its writer no more."""
        self._touch()
        self._growing.put(finish)
        self._close()

    async def flush(self) -> None:
        """Store and publish what there is; raise if that fails. Does nothing if all is stored."""
        await self._structural()

    async def delete(self) -> None:
        """Take the message away; what was not yet stored never will be (D11)."""
        await self.take_over()
        self._transcript.recalled(self.session_id, self._growing.tool_calls())
        await self._transcript.commit(MessageDeleted(id=self.id))
        self._transcript.publish(EventType.DELETED, self._stored)

    # ── Ending together with the run ────────────────────────────────────────────────────────────

    @property
    def growing(self) -> GrowingMessage:
        """The message itself, for whoever has taken it over."""
        assert self._closed, "the message still has a writer"
        return self._growing

    async def take_over(self) -> None:
        """Stop the message's writer, wait for what it is writing; the caller writes what is left."""
        self._close()
        await trio.lowlevel.checkpoint()
        while self._writing:
            await self._attempted.park()
        self._transcript.release(self)

    def _close(self) -> None:
        """Let the writer end, and whoever waits for it: what is left is not its business now."""
        self._closed = True
        self._changed.unpark_all()
        self._hurried.unpark_all()
        self._attempted.unpark_all()

    def abandon(self) -> None:
        """Take the message from a writer that does not come back; afterwards it writes nothing.

        Nobody knows how much of the message is stored, so what remains is all of it.
        """
        self._adrift = True
        self._close()
        self._scope.cancel()
        self._transcript.release(self)

    def doubt(self) -> None:
        """Nobody knows whether the message was created; whoever takes it over creates it again."""
        self._doubtful = True
        self._close()

    def remaining(self) -> tuple[MessageView, list[Change]]:
        """Return the message as it is now, and the changes that bring the store up to it."""
        view = self._view()
        at = view.head.updated_at
        if self._adrift:
            anew = PartsCut(message_id=self.id, length=0, at=at)
            return view, [anew, *changes_between(MessageView(view.head, ()), view, at)]
        changes = changes_between(self._stored, view, at)
        return view, [*creation(self._stored), *changes] if self._doubtful else changes

    # ── The writer ──────────────────────────────────────────────────────────────────────────────

    async def write(self) -> None:  # noqa: ASYNC910  # a closed message has nothing to wait for
        """Store and publish until the message is closed. A task of the workspace's services.

        After each flush it lets some time go by before it looks again, so what is appended meanwhile
        wakes nobody.
        """
        with self._scope:
            await self._write_on()

    async def _write_on(self) -> None:  # noqa: ASYNC910  # a closed message has nothing to wait for
        while not self._closed:
            while self._stored_version == self._version and not self._closed:
                await self._changed.park()
            if not self._closed:
                await self._flush_once()
            with trio.move_on_after(self._transcript.pace if self._failure is None else RETRY):
                while not self._hurry:
                    await self._hurried.park()

    @property
    def _hurry(self) -> bool:
        return self._closed or self._urgent_version > self._stored_version

    async def _flush_once(self) -> None:  # noqa: ASYNC910  # nothing new, nothing to wait for
        """Store what is new and publish it, or leave everything as it was."""
        version, plain = self._version, self._structural_version <= self._stored_version
        view, changes = self.remaining()
        self._writing = True
        try:
            if changes:
                await self._transcript.store.commit(*changes)
        except Exception as exc:
            if self._failure is None:
                log.exception("message.not_stored", extra={"message_id": self.id})
            self._failure = exc
            self._urgent_version = min(self._urgent_version, self._stored_version)
        else:
            self._failure = None
            self._stored, self._stored_version = view, version
            if changes:
                self._transcript.publish(EventType.UPDATED, view, plain=plain)
        finally:
            self._writing = False
            self._attempts += 1
            self._attempted.unpark_all()

    def _touch(self) -> None:
        assert not self._closed, "the message has ended"
        self._version += 1
        self._changed.unpark()

    async def _structural(self) -> None:
        """Have everything up to now stored and published, and wait for it."""
        self._touch()
        version = self._urgent_version = self._structural_version = self._version
        attempts = self._attempts
        self._hurried.unpark()
        await trio.lowlevel.checkpoint()
        with trio.fail_after(WRITE_LIMIT):
            while self._stored_version < version and self.open:
                if self._failure is not None and self._attempts > attempts:
                    raise self._failure
                await self._attempted.park()

    def _view(self) -> MessageView:
        return self._growing.view(self._transcript.clock.unix())


@define(eq=False)
class Transcript:
    """The messages of a workspace. *services* owns the writers."""

    store: Changes
    events: EventLog
    clock: Clock
    services: trio.Nursery = field(repr=False)
    pace: float = PACE
    _open: dict[MessageId, OpenMessage] = field(factory=dict, init=False)
    _calls: dict[SessionId, dict[ToolCallId, ToolCallPart]] = field(factory=dict, init=False)
    _answered: dict[SessionId, set[ToolCallId]] = field(factory=dict, init=False)
    _doubtful: dict[SessionId, list[Message]] = field(factory=dict, init=False)

    async def create(self, message: Message) -> OpenMessage:
        """Store and publish a new message that will grow (D1).

        If the store does not answer in time, nobody knows whether the message is there. It stays
        open then, for the end of its run to settle: writing it again is writing it once.
        """
        growing = GrowingMessage(message)
        view = growing.view()
        opened = OpenMessage(self, growing, view)
        self._open[opened.id] = opened
        try:
            await self.commit(*creation(view))
        except trio.TooSlowError:
            opened.doubt()
            raise
        except BaseException:
            self.release(opened)
            raise
        self.publish(EventType.CREATED, view)
        self.services.start_soon(opened.write, name=f"writer of {opened.id}")
        return opened

    async def write(self, message: Message, *together: Change) -> Message:
        """Store and publish a message that is complete, *together* with other changes.

        A message that no model wrote ends with a finish part that says so; it is added if missing.
        """
        message = finished(message)
        try:
            await self.commit(MessageCreated(message=message), *together)
        except trio.TooSlowError:
            self._doubtful.setdefault(message.session_id, []).append(message)
            raise
        self.wrote(message)
        return message

    async def commit(self, *changes: Change) -> None:
        """Store *changes*; afterwards it is certain whether they are stored.

        A cancelled wait would leave them stored and nobody told: a message without a reader, a
        tool call with a second result. So a cancel waits, for as long as a write may take.
        """
        with trio.fail_after(WRITE_LIMIT, shield=True):
            await self.store.commit(*changes)

    def wrote(self, message: Message) -> None:
        """Publish a complete message that has just been stored."""
        self.publish(EventType.CREATED, GrowingMessage(message).view())
        if message.role is Role.TOOL:
            answered = self._answered.setdefault(message.session_id, set())
            answered.update(p.tool_call_id for p in message.parts if isinstance(p, ToolResultPart))

    async def flush_all(self) -> None:
        """Store and publish everything that is waiting to be (D10, D12)."""
        await trio.lowlevel.checkpoint()
        for opened in list(self._open.values()):
            if opened.open:
                await opened.flush()

    def open_in(self, session_id: SessionId) -> tuple[OpenMessage, ...]:
        """The messages of a session that are in progress, in the order of their creation."""
        return tuple(o for o in self._open.values() if o.session_id == session_id)

    def called(self, session_id: SessionId, call: ToolCallPart) -> None:
        """Take note of a tool call: its run has to see to it that it gets a result (D17)."""
        self._calls.setdefault(session_id, {})[call.id] = call

    def recalled(self, session_id: SessionId, calls: Iterable[ToolCallPart]) -> None:
        """Forget tool calls that are in no message any more: nothing is to answer them."""
        for call in calls:
            self._calls.get(session_id, {}).pop(call.id, None)

    def calls_in(self, session_id: SessionId) -> tuple[ToolCallPart, ...]:
        """The tool calls of the session's turn, of all its steps."""
        return tuple(self._calls.get(session_id, {}).values())

    def doubtful_in(self, session_id: SessionId) -> tuple[Message, ...]:
        """The complete messages of a session of which nobody knows whether they are stored."""
        return tuple(self._doubtful.get(session_id, ()))

    def answered_in(self, session_id: SessionId) -> frozenset[ToolCallId]:
        """The tool calls whose results were written since the session's last run ended."""
        return frozenset(self._answered.get(session_id, ()))

    def forget(self, session_id: SessionId) -> None:
        """A run of the session has ended: what was only needed to end it is dropped (L28)."""
        self._calls.pop(session_id, None)
        self._answered.pop(session_id, None)
        self._doubtful.pop(session_id, None)

    def release(self, opened: OpenMessage) -> None:
        """Let go of a message that has ended."""
        self._open.pop(opened.id, None)

    def publish(self, change: EventType, view: MessageView, *, plain: bool = False) -> None:
        """Tell the readers about a message that is stored."""
        self.events.publish(MessageChange(change=change, view=view, plain=plain))


def creation(view: MessageView) -> list[Change]:
    """Return the changes that store a new message, its text in a form that can grow."""
    bare = MessageView(view.head, ())
    return [
        MessageCreated(message=view.head),
        *changes_between(bare, view, view.head.updated_at),
    ]


def finished(message: Message) -> Message:
    """Return *message* with the finish part that every message of its kind ends with."""
    if any(isinstance(part, FinishPart) for part in message.parts):
        return message
    return evolve(message, parts=(*message.parts, STOPPED))
