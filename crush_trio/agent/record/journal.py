"""The runtime's journal, on a store.

Every change of a run is one commit, handed over in the step in which it happens: an acceptance, with
the prompt if the run begins at once; the beginning of a turn, with the prompt otherwise; prompts that
another run folds; runs that are cancelled before they begin; an ending, with all that the record of its
turn still lacks. After a crash each of them is there as a whole, or not at all.
"""

from collections.abc import Callable, Sequence

from attrs import define, field

from crush_trio.agent.record.transcript import Transcript
from crush_trio.agent.record.turn_record import (
    Remainder,
    TurnRecord,
    closing_answer,
    prompt_message,
)
from crush_trio.clock import Clock, IdSource
from crush_trio.events.facts import session_fact
from crush_trio.events.growing_message import GrowingMessage
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.journal import ImmediateEntry, JournalEntry
from crush_trio.runtime.outcome import Outcome
from crush_trio.store.base import Changes
from crush_trio.store.changes import (
    Change,
    MessageCreated,
    RunAccepted,
    RunEnded,
    RunMoved,
    RunRetracted,
)
from crush_trio.store.commit import Commit
from crush_trio.store.errors import StoreUnavailable
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import RunState
from crush_trio.wire.views import Session

Publish = Callable[[Session | None], None]
"""Tells readers what was stored, given the session as it is now; None if there is none."""


def _nothing(_session: Session | None) -> None:
    """Tell nothing."""


@define(eq=False)
class _Entry:
    """Satisfies `JournalEntry`.

    Of the changes, the *essential* ones are those that must be stored. If the others can never be,
    because their session is gone, they are left out.
    """

    store: Changes = field(repr=False)
    changes: Sequence[Change]
    essential: Sequence[Change] = ()
    session_id: SessionId | None = None
    publish: Publish = field(default=_nothing, repr=False)
    commit: Commit[Session | None] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.again()

    def tell(self) -> None:
        """Publish what was stored."""
        self.publish(self.commit.unwrap())

    def reduce(self, error: Exception) -> bool:
        """Leave out the record if it is what was refused, and not the store that failed."""
        if isinstance(error, StoreUnavailable) or len(self.changes) == len(self.essential):
            return False
        self.changes, self.publish = self.essential, _nothing
        self.again()
        return True

    def again(self) -> None:
        """Hand the changes over, for the first time or once more."""
        self.commit = self.store.submit(*self.changes, session=self.session_id)


@define(eq=False)
class StoreJournal:
    """Satisfies the runtime's `Journal` durably."""

    transcript: Transcript
    clock: Clock
    ids: IdSource
    _prompts: dict[RunId, Message] = field(factory=dict, init=False)
    """The prompts that were handed over with an acceptance and that readers have not been told of."""

    # ── On the way to a turn ────────────────────────────────────────────────────────────────────

    def accept(self, run: AcceptedRun, *, begins: bool) -> JournalEntry:
        """Store the acceptance, with all that is needed to end the run after a crash."""
        accepted = RunAccepted(
            run=run.view, prompt=run.submission.prompt, attachments=run.submission.attachments
        )
        if not (begins and run.submission.kind.prompted):
            return _Entry(self._store, (accepted,))
        message = self._prompts[run.id] = self._prompt(run)
        prompt = MessageCreated(message=message, run_id=run.id, if_there=True)

        def note(session: Session | None) -> None:
            if session is None:  # there is nothing to write a prompt into (A5)
                self._prompts.pop(run.id, None)

        return _Entry(self._store, (accepted, prompt), (), run.session_id, note)

    def retract(self, run: AcceptedRun) -> None:
        """Take the acceptance back, after it has landed if it still does."""
        self._prompts.pop(run.id, None)
        self._store.post(RunRetracted(id=run.id))

    def begin(self, run: AcceptedRun) -> JournalEntry:
        """Store that the run is active, and its prompt; raises `SessionNotFound` later (B7)."""
        message = self._prompts.pop(run.id, None)
        if message is None and run.submission.kind.prompted:
            message = self._prompt(run)
            changes = (MessageCreated(message=message, run_id=run.id), self._began(run))
            return _Entry(self._store, changes, publish=lambda _: self._created(message))
        self._store.post(self._began(run))
        return ImmediateEntry(lambda: None, lambda: self._created(message))

    def fold(self, runs: Sequence[AcceptedRun], into: AcceptedRun) -> JournalEntry:
        """Store the prompts as part of the other run's turn, and that their runs ended with it."""
        messages = [self._prompt(run) for run in runs]
        changes: list[Change] = []
        for run, message in zip(runs, messages, strict=True):
            changes += [
                MessageCreated(message=message, run_id=into.id),
                RunEnded(run=run.ending),
            ]
        return _Entry(self._store, changes, publish=lambda _: self._created(*messages))

    # ── Endings ─────────────────────────────────────────────────────────────────────────────────

    def withdraw(self, runs: Sequence[AcceptedRun]) -> JournalEntry:
        """Store the endings of runs that never began, each with a complete record (A21)."""
        records: list[tuple[AcceptedRun, Remainder]] = []
        changes: list[Change] = []
        for run in runs:
            record = self._withdrawn(run)
            records.append((run, record))
            changes += record.changes
        endings = [RunEnded(run=run.ending, withdrawn=True, if_there=True) for run in runs]

        def publish(session: Session | None) -> None:
            for run, record in records:
                if session is not None and not run.refused:
                    self._tell(record)

        return _Entry(self._store, [*changes, *endings], endings, runs[0].session_id, publish)

    def _withdrawn(self, run: AcceptedRun) -> Remainder:
        """Return the record of a run that was cancelled before it began."""
        record = Remainder()
        if run.submission.kind.prompted:
            message = self._prompts.pop(run.id, None) or self._prompt(run)
            record.create(message, run.id, if_there=True)
            answer = closing_answer(
                Outcome.cancelled(), run.session_id, MessageId(self.ids.new()), self.clock.unix()
            )
            record.create(answer, run.id, if_there=True)
        return record

    def end(self, run: AcceptedRun, outcome: Outcome) -> JournalEntry:
        """Store the ending of an active run, and complete the record of its turn."""
        turn = self.transcript.end_turn(run.id, run.session_id)
        now = self.clock.unix()
        record = Remainder()
        if run.submission.kind.prompted and not (run.begun and run.begun.commit.stored):
            record.create(self._prompt(run), run.id, if_there=True)
        turn.close(outcome, now, self.ids, record)
        unasked = (
            outcome.state is RunState.CANCELLED
            and run.submission.kind.prompted
            and not (turn.asked or outcome.message_id)
        )
        if unasked:
            turn.close_unasked(outcome, now, self.ids, record)
        if turn.usage is not None:
            record.changes.append(turn.usage)
        ended = RunEnded(run=run.ending, withdrawn=unasked)

        def publish(session: Session | None) -> None:
            if session is not None:
                self._tell_ending(turn, record, outcome, session)

        return _Entry(self._store, [*record.changes, ended], [ended], run.session_id, publish)

    async def answers(self, within: float) -> bool:
        """Whether the store answers *within* so many seconds."""
        return await self._store.submit().known_within(within)

    def give_up(self) -> None:
        """Let nothing be stored any more: the workspace has to close."""
        self._store.abandon()

    # ── Telling ─────────────────────────────────────────────────────────────────────────────────

    def _tell_ending(
        self, turn: TurnRecord, record: Remainder, outcome: Outcome, session: Session
    ) -> None:
        """Publish what an ending has added: to the session, to the turn, and of itself (D28)."""
        if turn.usage is not None:
            self.transcript.events.publish(session_fact(session))
        self._tell(record)
        if turn.notice is not None and outcome.state is RunState.COMPLETED:
            self.transcript.events.publish(turn.notice(session))

    def _tell(self, record: Remainder) -> None:
        for change, view in record.told:
            self.transcript.publish(change, view)

    def _created(self, *messages: Message | None) -> None:
        for message in messages:
            if message is not None:
                self.transcript.publish(EventType.CREATED, GrowingMessage(message).view())

    def _prompt(self, run: AcceptedRun) -> Message:
        return prompt_message(run.id, run.submission, self.clock.unix())

    def _began(self, run: AcceptedRun) -> RunMoved:
        return RunMoved(id=run.id, state=run.state, at=self.clock.unix())

    @property
    def _store(self) -> Changes:
        return self.transcript.store
