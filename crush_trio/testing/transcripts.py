"""A journal that writes turns down as a store would, in memory.

`TranscriptJournal` keeps, per session, the messages that a stored turn consists of, and publishes
each as it is written. Tests read `messages` where a deployment would read the database.
"""

import trio
from attrs import define, field

from crush_trio.clock import Clock
from crush_trio.events.facts import MessageChange
from crush_trio.events.growing import GrowingMessage
from crush_trio.events.log import EventLog
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.outcome import Outcome
from crush_trio.wire.codec import USER_CANCELLED
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Part, Role, TextPart
from crush_trio.wire.native import RunState


@define(eq=False)
class TranscriptJournal:
    """Satisfies the runtime's `Journal`; `rows` are what a restart would find."""

    events: EventLog
    clock: Clock
    rows: dict[RunId, RunState] = field(factory=dict, init=False)
    """The stored state of every accepted run."""
    endings: dict[RunId, Outcome] = field(factory=dict, init=False)
    messages: dict[SessionId, list[Message]] = field(factory=dict, init=False)
    """The stored messages of every session, in order."""

    async def accept(self, run: AcceptedRun) -> None:
        """Store the acceptance."""
        await trio.lowlevel.checkpoint()
        self.rows[run.id] = RunState.ACCEPTED

    def retract(self, run: AcceptedRun) -> None:
        """Remove an acceptance that was not confirmed."""
        self.rows.pop(run.id, None)

    def moved(self, run: AcceptedRun) -> None:
        """Store the state."""
        self.rows[run.id] = run.state

    async def record_prompt(self, run: AcceptedRun) -> None:
        """Store the prompt as a message of the user's."""
        await trio.lowlevel.checkpoint()
        self._write_prompt(run)

    async def end(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Store the ending, and of a cancelled turn whatever its record lacks (A21, D20)."""
        assert run.id not in self.endings, "a run ends once"
        await trio.lowlevel.checkpoint()
        if not run.prompt_recorded:
            self._write_prompt(run)
        if outcome.state is RunState.CANCELLED and not outcome.message_id:
            self._write(
                run,
                "cancelled",
                Role.ASSISTANT,
                FinishPart(
                    reason=FinishReason.CANCELLED, time=self.clock.unix(), message=USER_CANCELLED
                ),
            )
        self.rows[run.id] = outcome.state
        self.endings[run.id] = outcome

    async def amend(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Do nothing: what a test made fail stays failed."""
        await trio.lowlevel.checkpoint()

    def _write_prompt(self, run: AcceptedRun) -> None:
        text = TextPart(text=run.submission.prompt)
        self._write(run, "prompt", Role.USER, text, FinishPart(reason=FinishReason.STOP, time=0))

    def _write(self, run: AcceptedRun, name: str, role: Role, *parts: Part) -> None:
        now = self.clock.unix()
        message = Message(
            id=MessageId(f"{name}-{run.id}"),
            role=role,
            session_id=run.session_id,
            parts=parts,
            created_at=now,
            updated_at=now,
        )
        self.messages.setdefault(run.session_id, []).append(message)
        view = GrowingMessage(message).view()
        self.events.publish(MessageChange(change=EventType.CREATED, view=view))
