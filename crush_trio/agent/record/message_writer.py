"""`OpenMessage`: a message in progress, and the task that writes it.

The turn changes the message and wakes the task; the task stores what is new and then publishes it. So
writes of one message never overlap, an older state is never published after a newer one, and a cancel of
the run does not lose text (D7, D9). `MessageState` decides when to write.

Nothing is published that is not stored. A write that fails leaves the message as it is and is retried
(D8). What is left when the run ends is written with the run's ending.
"""

import logging
from typing import TYPE_CHECKING, Final

import trio
from attrs import define, field

from crush_trio.agent.record.message import MessageState, Stop, WaitUntil, Write, changes_between
from crush_trio.events.growing_message import GrowingMessage, MessageView
from crush_trio.store.changes import Change, PartsCut
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import FinishPart, Message, ToolCallPart

if TYPE_CHECKING:
    from crush_trio.agent.record.transcript import TurnRecord

log = logging.getLogger(__name__)

RETRY: Final = 1.0
"""Seconds until a failed write is retried, unless a structural change comes first."""


@define(eq=False)
class OpenMessage:
    """A message in progress. Made by `TurnRecord.create`; ends when it is finished or released."""

    _turn: "TurnRecord"
    _growing: GrowingMessage
    _stored: MessageView
    _state: MessageState = field(init=False)
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

    async def close_reasoning(self, signature: str | None = None) -> None:
        """End the reasoning, if it is open."""
        self._growing.close_reasoning(finished_at=self._now(), signature=signature)
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
        return view, changes_between(self._stored, view, at)

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

    async def _store(self, write: Write) -> None:  # noqa: ASYNC910  # nothing new, nothing to wait for
        """Store what is new and publish it; on failure nothing changes."""
        view = self._view()
        changes = changes_between(self._stored, view, view.head.updated_at)
        self._state.began(write)
        try:
            if changes:
                await self._turn.transcript.store.commit(*changes)
        except Exception as exc:
            if self._state.failed(exc, trio.current_time()):
                log.exception("message.not_stored", extra={"message_id": self.id})
        else:
            if self._state.succeeded(trio.current_time()):
                self._stored = view
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
