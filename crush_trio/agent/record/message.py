"""`OpenMessage`: a message in progress, and the task that writes it.

The turn changes the message and wakes the task; the task stores what is new and then publishes it. So
writes of one message never overlap, an older state is never published after a newer one, and a cancel of
the run does not lose text (D7, D9). Nothing is published that is not stored. A write that fails leaves
the message as it is and is retried (D8).

`MessageState` decides when to write: without a task, a clock or a store. It counts changes: how many were
made, how many are stored, which of them a caller waits for, and whether a write is in progress. The next
action follows from that. The current time is passed in. `changes_between` decides what to write: only the
difference between two views, so an answer of n pieces costs n writes of one piece each.

A message belongs to its writer until it is released. From then on its run writes the rest, together with
its own ending; the result of a write that was in progress at that moment is ignored.
"""

import logging
from math import inf
from typing import TYPE_CHECKING, Final

import trio
from attrs import define, field, frozen

from crush_trio.events.growing_message import (
    FixedPart,
    GrowingMessage,
    GrownPart,
    MessageView,
    PartView,
)
from crush_trio.store.changes import Change, MessageFinished, PartPut, PartsCut, TextAppended
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import FinishPart, Message, ToolCallPart

if TYPE_CHECKING:
    from crush_trio.agent.record.transcript import TurnRecord

RETRY: Final = 1.0
"""Seconds until a failed write is retried, unless a structural change comes first."""

log = logging.getLogger(__name__)


@define(eq=False)
class OpenMessage:
    """A message in progress. Made by `TurnRecord.create`; ends when it is finished or released."""

    _turn: "TurnRecord"
    _growing: GrowingMessage
    stored: MessageView
    """The message as it is stored."""
    _state: "MessageState" = field(init=False)
    _writer: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _callers: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._state = MessageState(self._turn.transcript.pace, RETRY)

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
        return not self._state.released

    def message(self) -> Message:
        """The current message, stored or not."""
        return self._view().message()

    # ── Appended text: stored and published at the message's pace ───────────────────────────────

    def append_text(self, delta: str) -> None:
        """Add to the answer."""
        self._growing.append_text(delta)
        self._changed()

    def append_reasoning(self, delta: str) -> None:
        """Add to the reasoning."""
        self._growing.append_reasoning(delta, started_at=self._now())
        self._changed()

    # ── Structural changes: stored and published before the call returns ────────────────────────

    async def close_reasoning(self, signature: str | None = None, replay: str = "") -> None:
        """End the reasoning, if it is open."""
        now = self._now()
        self._growing.close_reasoning(finished_at=now, signature=signature, replay=replay)
        await self.flush()

    async def put_tool_call(self, call: ToolCallPart) -> None:
        """Add a tool call, or replace the one with the same id."""
        self._growing.put(call)
        self._turn.called(call)
        await self.flush()

    async def reset(self) -> None:
        """Discard what the model streamed, before a retry (D14a)."""
        self._turn.recalled(self._growing.tool_calls())
        self._growing.reset()
        await self.flush()

    async def finish(self, finish: FinishPart, *together: Change) -> None:
        """Finish the message, in one commit with other changes; a cancel waits for the store."""
        self.seal(finish)
        await self._turn.finish(self, *together)

    async def flush(self) -> None:
        """Store and publish everything up to now; raise if that fails.

        Waits as long as the store takes. If the wait is cancelled, the changes are still written.
        """
        self._changed(structural=True)
        ticket = self._state.demand()
        self._writer.unpark()
        await trio.lowlevel.checkpoint()
        while (answer := self._state.answer(ticket)) is None:
            await self._callers.park()
        if answer.error is not None:
            raise answer.error

    # ── Ending together with the run ────────────────────────────────────────────────────────────

    def seal(self, finish: FinishPart) -> None:
        """Finish the message and release it; its run stores the rest together with its ending."""
        self._growing.put(finish)
        self._changed()
        self.release()

    def release(self) -> GrowingMessage:
        """Release the message from its writer, which ends; its run writes the rest."""
        self._state.release()
        self._writer.unpark_all()
        self._callers.unpark_all()
        return self._growing

    def remaining(self) -> tuple[MessageView, list[Change]]:
        """Return the released message, and the changes that bring the store up to date.

        If a write was in progress at the release, it is unknown whether it will be stored before these
        changes. Then all parts are written again, which gives the same result in both cases.
        """
        assert self._state.released, "the message still has a writer"
        view = self._view()
        at = view.head.updated_at
        if self._state.in_doubt:
            anew = PartsCut(message_id=self.id, length=0, at=at)
            return view, [anew, *changes_between(MessageView(view.head, ()), view, at)]
        return view, changes_between(self.stored, view, at)

    # ── The writer ──────────────────────────────────────────────────────────────────────────────

    async def write(self) -> None:  # noqa: ASYNC910  # a released message has nothing to wait for
        """Store and publish until the message is released. A task of the workspace's services."""
        while True:
            match self._state.next(trio.current_time()):
                case Stop():
                    return  # noqa: ASYNC910  # it was released
                case WaitUntil(at=at):
                    with trio.move_on_at(at):
                        await self._writer.park()
                case Write() as write:
                    await self._store(write)

    async def _store(self, write: "Write") -> None:  # noqa: ASYNC910  # nothing new, nothing to wait for
        """Store what is new and publish it; on failure nothing changes."""
        view = self._view()
        changes = changes_between(self.stored, view, view.head.updated_at)
        self._state.began(write)
        try:
            if changes:
                await self._turn.transcript.store.commit(*changes)
        except Exception as exc:
            if self._state.failed(exc, trio.current_time()):
                log.exception("message.not_stored", extra={"message_id": self.id})
        else:
            if self._state.succeeded(trio.current_time()):
                self.stored = view
                if changes:
                    self._turn.transcript.publish(EventType.UPDATED, view, plain=write.plain)
        finally:
            self._callers.unpark_all()

    def _changed(self, *, structural: bool = False) -> None:
        """Count a change; wake the writer only if it can write now.

        Text within the pace does not wake it: it wakes by itself when the time is over.
        """
        self._state.change(structural=structural)
        if isinstance(self._state.next(trio.current_time()), Write):
            self._writer.unpark()

    def _view(self) -> MessageView:
        return self._growing.view(self._now())

    def _now(self) -> int:
        return self._turn.transcript.clock.unix()


# ── When to write ───────────────────────────────────────────────────────────────────────────────


@frozen
class Write:
    """Store everything up to *version*, then publish it; *plain* if only text was appended."""

    version: int
    plain: bool


@frozen
class WaitUntil:
    """Wait until a time, or until something changes; `inf` means only the latter."""

    at: float


@frozen
class Stop:
    """The message has been released: the writer ends."""


WriterAction = Write | WaitUntil | Stop
"""The next action of a message's writer."""


@frozen
class WriteTicket:
    """What a caller waits for: that a version is stored, by an attempt after number *attempts*."""

    version: int
    attempts: int


@frozen
class TicketResult:
    """The end of a caller's wait: success, or the error of the write."""

    error: Exception | None = None


DONE = TicketResult()


@define(eq=False)
class MessageState:
    """The state of one message in progress.

    Writes that no caller waits for are *pace* seconds apart; after a failure the next waits *retry*.
    """

    pace: float
    retry: float
    version: int = 0
    """The number of changes made."""
    stored: int = 0
    """The version that is stored and published."""
    structural: int = 0
    """The version of the newest change that did more than append text."""
    demanded: int = 0
    """The newest version that a caller waits for and whose write has not failed."""
    writing: int | None = None
    """The version of the write in progress."""
    not_before: float = -inf
    """When the next write may begin that no caller waits for."""
    released: bool = False
    in_doubt: bool = False
    """Whether a write was in progress at the release, so that what it stored is unknown."""
    attempts: int = 0
    failure: Exception | None = None

    # ── For the turn ────────────────────────────────────────────────────────────────────────────

    def change(self, *, structural: bool = False) -> None:
        """Count one more change."""
        assert not self.released, "the message has ended"
        self.version += 1
        if structural:
            self.structural = self.version

    def demand(self) -> WriteTicket:
        """Request a write of everything up to now without delay; return a ticket to wait with."""
        self.demanded = self.version
        return WriteTicket(self.version, self.attempts)

    def answer(self, ticket: WriteTicket) -> TicketResult | None:
        """Return the result for a ticket; None if its caller must keep waiting."""
        if self.stored >= ticket.version or self.released:
            return DONE
        if self.failure is not None and self.attempts > ticket.attempts:
            return TicketResult(self.failure)
        return None

    def release(self) -> None:
        """Release the message from its writer."""
        if not self.released:
            self.released = True
            self.in_doubt = self.writing is not None

    # ── For the writer ──────────────────────────────────────────────────────────────────────────

    def next(self, now: float) -> WriterAction:
        """Return the writer's next action."""
        if self.released:
            return Stop()
        if self.writing is not None:
            return WaitUntil(inf)
        behind = self.stored < self.version
        if now < self.not_before and not (behind and self.demanded > self.stored):
            return WaitUntil(self.not_before)
        if behind:
            return Write(self.version, plain=self.structural <= self.stored)
        return WaitUntil(inf)

    def began(self, write: Write) -> None:
        """Record that a write has begun."""
        assert self.writing is None, "one write at a time"
        self.writing = write.version

    def succeeded(self, now: float) -> bool:
        """Record that the write is stored; return whether to publish it (not after a release)."""
        version = self._ended()
        if self.released:
            return False
        self.stored, self.failure = version, None
        self.not_before = now + self.pace
        return True

    def failed(self, error: Exception, now: float) -> bool:
        """Record that the write failed; return whether it is the first failure in a row, to log it."""
        self._ended()
        if self.released:
            return False
        first = self.failure is None
        self.failure = error
        self.demanded = self.stored  # waiting callers get the error; a new demand retries at once
        self.not_before = now + self.retry
        return first

    def _ended(self) -> int:
        assert self.writing is not None, "no write is under way"
        version, self.writing = self.writing, None
        self.attempts += 1
        return version


# ── What to write ───────────────────────────────────────────────────────────────────────────────


def changes_between(before: MessageView, after: MessageView, at: int) -> list[Change]:
    """Return the changes that turn the stored message *before* into *after*."""
    message_id = after.head.id
    kept = _kept(before.parts, after.parts)
    changes: list[Change] = []
    if kept < len(before.parts):
        changes.append(PartsCut(message_id=message_id, length=kept, at=at))
    for index, view in enumerate(after.parts):
        old = before.parts[index] if index < kept else None
        changes.extend(_part_changes(message_id, index, old, view, at))
    if after.finished and not before.finished:
        changes.append(MessageFinished(message_id=message_id, at=at))
    return changes


def _kept(before: tuple[PartView, ...], after: tuple[PartView, ...]) -> int:
    """Return how many leading parts of *before* are still in *after*, changed or not."""
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        if isinstance(old, GrownPart) and isinstance(new, GrownPart):
            if old.cut.source is not new.cut.source:
                return index
        elif type(old) is not type(new):
            return index
    return min(len(before), len(after))


def _part_changes(
    message_id: MessageId, index: int, old: PartView | None, new: PartView, at: int
) -> list[Change]:
    """Return the changes that turn the stored part *old* into *new*."""
    if new is old:
        return []
    if isinstance(new, FixedPart):
        return [PartPut(message_id=message_id, index=index, part=new.part, at=at)]
    known = old if isinstance(old, GrownPart) else None
    changes: list[Change] = []
    if known is None or known.blank is not new.blank:
        changes.append(PartPut(message_id=message_id, index=index, part=new.blank, at=at))
    text = new.cut.text(known.cut if known is not None else None)
    if text:
        changes.append(TextAppended(message_id=message_id, index=index, text=text, at=at))
    return changes
