"""A journal that writes turns down as a store would, in memory.

`TranscriptJournal` keeps, per session, the messages that a stored turn consists of, and publishes
each when it is told of. Tests read `messages` where a deployment would read the database.
"""

from collections.abc import Sequence

import trio
from attrs import define, field

from crush_trio.clock import Clock
from crush_trio.events.facts import MessageChange
from crush_trio.events.growing import GrowingMessage
from crush_trio.events.log import EventLog
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.journal import JournalEntry, Noted
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
    _untold: list[Message] = field(factory=list, init=False)

    def accept(self, run: AcceptedRun, *, begins: bool) -> JournalEntry:
        """Store the acceptance, and the prompt of a run that nothing is in the way of."""

        def note() -> None:
            self.rows[run.id] = RunState.ACCEPTED
            if begins:
                self._write_prompt(run)

        return Noted(note)

    def retract(self, run: AcceptedRun) -> None:
        """Remove an acceptance that was not confirmed."""
        self.rows.pop(run.id, None)
        kept = [m for m in self.messages.get(run.session_id, []) if m.id != _prompt_id(run)]
        self.messages[run.session_id] = kept

    def begin(self, run: AcceptedRun) -> JournalEntry:
        """Store the state, and the prompt as a message of the user's."""

        def note() -> None:
            self.rows[run.id] = run.state
            self._write_prompt(run)

        return Noted(note, self._publish)

    def fold(self, runs: Sequence[AcceptedRun], into: AcceptedRun) -> JournalEntry:
        """Store the prompts and the endings."""
        return self._ended(runs, Outcome.folded(into.id))

    def withdraw(self, runs: Sequence[AcceptedRun]) -> JournalEntry:
        """Store the prompts, and for each an answer that says it was cancelled (A21)."""
        accepted = [run for run in runs if run.id in self.rows]
        return self._ended(accepted, Outcome.cancelled())

    def end(self, run: AcceptedRun, outcome: Outcome) -> JournalEntry:
        """Store the ending, and of a cancelled turn whatever its record lacks (D20)."""
        return self._ended((run,), outcome)

    async def answers(self, within: float) -> bool:
        """Return True: everything is stored at once."""
        await trio.lowlevel.checkpoint()
        return within > 0

    def give_up(self) -> None:
        """Do nothing: everything is stored at once."""

    def _ended(self, runs: Sequence[AcceptedRun], outcome: Outcome) -> JournalEntry:
        def note() -> None:
            for run in runs:
                self._end(run, outcome)

        return Noted(note, self._publish)

    def _end(self, run: AcceptedRun, outcome: Outcome) -> None:
        assert run.id not in self.endings, "a run ends once"
        self._write_prompt(run)
        if outcome.state is RunState.CANCELLED and not outcome.message_id:
            now = self.clock.unix()
            finish = FinishPart(reason=FinishReason.CANCELLED, time=now, message=USER_CANCELLED)
            self._write(run, MessageId(f"cancelled-{run.id}"), Role.ASSISTANT, finish)
        self.rows[run.id] = outcome.state
        self.endings[run.id] = outcome

    def _write_prompt(self, run: AcceptedRun) -> None:
        """Write the prompt, unless it is there."""
        if _prompt_id(run) not in {m.id for m in self.messages.get(run.session_id, [])}:
            text = TextPart(text=run.submission.prompt)
            stop = FinishPart(reason=FinishReason.STOP, time=0)
            self._write(run, _prompt_id(run), Role.USER, text, stop)

    def _write(self, run: AcceptedRun, identity: MessageId, role: Role, *parts: Part) -> None:
        now = self.clock.unix()
        message = Message(
            id=identity,
            role=role,
            session_id=run.session_id,
            parts=parts,
            created_at=now,
            updated_at=now,
        )
        self.messages.setdefault(run.session_id, []).append(message)
        self._untold.append(message)

    def _publish(self) -> None:
        """Publish what was written and not told of yet, in order."""
        untold, self._untold = self._untold, []
        for message in untold:
            view = GrowingMessage(message).view()
            self.events.publish(MessageChange(change=EventType.CREATED, view=view))


def _prompt_id(run: AcceptedRun) -> MessageId:
    return MessageId(f"prompt-{run.id}")
