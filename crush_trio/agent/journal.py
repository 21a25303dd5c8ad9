"""The runtime's journal, on a store.

Acceptance is one commit. An ending is one commit too, whatever it takes: the end of the answer, the
results of tools that will never give one, the prompt if it was not written yet, and the run's
outcome. Either all of it is there after a crash, or the run is found unfinished and recovered.
"""

import trio
from attrs import define, field

from crush_trio.agent.closing import (
    close_answer,
    closing_answer,
    missing_results,
    prompt_message,
    result_message,
    session_exists,
)
from crush_trio.agent.transcript import OpenMessage, Transcript
from crush_trio.clock import Clock, IdSource
from crush_trio.errors import MessageNotFound, SessionNotFound
from crush_trio.events.growing import GrowingMessage, MessageView
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.outcome import Outcome
from crush_trio.store.base import Changes, SessionReads
from crush_trio.store.changes import (
    Change,
    MessageCreated,
    RunAccepted,
    RunEnded,
    RunMoved,
    RunPrompted,
    RunRetracted,
)
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import Message, ToolResultPart
from crush_trio.wire.native import RunState


@define(eq=False)
class _Record:
    """What an ending writes besides the outcome, and what it tells the readers afterwards."""

    changes: list[Change] = field(factory=list, init=False)
    updated: list[MessageView] = field(factory=list, init=False)
    created: list[Message] = field(factory=list, init=False)
    abandoned: list[OpenMessage] = field(factory=list, init=False)
    """Messages whose writers were told to give up, and may not have got round to it."""

    def update(self, opened: OpenMessage) -> None:
        """Bring a message up to date that its writer no longer looks after."""
        view, changes = opened.remaining()
        if changes:
            self.changes.extend(changes)
            self.updated.append(view)

    def create(self, message: Message, *together: Change) -> None:
        """Add a complete message."""
        self.changes.extend((MessageCreated(message=message), *together))
        self.created.append(message)


@define(eq=False)
class StoreJournal:
    """Satisfies the runtime's `Journal` durably."""

    transcript: Transcript
    sessions: SessionReads
    clock: Clock
    ids: IdSource
    _refused: dict[RunId, _Record] = field(factory=dict, init=False)

    async def accept(self, run: AcceptedRun) -> None:
        """Store the acceptance, with all that is needed to end the run after a crash."""
        await self._store.commit(
            RunAccepted(
                run=run.view,
                prompt=run.submission.prompt,
                attachments=run.submission.attachments,
            )
        )

    def retract(self, run: AcceptedRun) -> None:
        """Take the acceptance back, after it has landed if it still does."""
        self._store.post(RunRetracted(id=run.id))

    def moved(self, run: AcceptedRun) -> None:
        """Note where the run is; nothing after a restart depends on it."""
        self._store.post(RunMoved(id=run.id, state=run.state, at=self.clock.unix()))

    async def record_prompt(self, run: AcceptedRun) -> None:
        """Write the prompt into its session; raises `SessionNotFound` if there is none (B7)."""
        message = prompt_message(run.id, run.submission, self.clock.unix())
        await self.transcript.write(message, RunPrompted(id=run.id, message_id=message.id))

    async def end(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Store the ending and complete the turn's record, in one commit; then publish the record."""
        now = self.clock.unix()
        ended = RunEnded(run=run.ended_view(outcome, now))
        try:
            record = await self._complete(run, outcome, now)
        except trio.Cancelled:
            self._refused[run.id] = self._salvage(run, outcome, now)
            raise
        finally:
            if run.state is RunState.ACTIVE:
                self.transcript.forget(run.session_id)
        try:
            await self._store.commit(*record.changes, ended)
        except (SessionNotFound, MessageNotFound):
            # The session was deleted under the run: its record went with it, the ending stays.
            record = _Record()
            await self._store.commit(ended)
        except Exception:
            self._refused[run.id] = record  # none of it is stored, and that is certain
            raise
        self._publish(record)

    async def _complete(self, run: AcceptedRun, outcome: Outcome, now: int) -> _Record:
        """Return what the run's turn still lacks; nothing if its session does not exist."""
        record = _Record()
        await trio.lowlevel.checkpoint()
        if not (run.prompt_recorded or await session_exists(self.sessions, run.session_id)):
            return record
        if run.submission.kind.prompted and not run.prompt_recorded:
            message = prompt_message(run.id, run.submission, now)
            record.create(message, RunPrompted(id=run.id, message_id=message.id))
        answers: tuple[OpenMessage, ...] = ()
        if run.state is RunState.ACTIVE:
            for message in self.transcript.doubtful_in(run.session_id):
                record.create(message)
            answers = self.transcript.open_in(run.session_id)
            await self._close_answers(answers, outcome, now, record)
            self._answer_calls(run.session_id, outcome, now, record)
        silent = not (answers or outcome.message_id) and run.submission.kind.prompted
        if outcome.state is RunState.CANCELLED and silent:
            record.create(closing_answer(outcome, run.session_id, self._message_id(), now))
        return record

    async def _close_answers(
        self, answers: tuple[OpenMessage, ...], outcome: Outcome, now: int, record: _Record
    ) -> None:
        """Take the open answers of the turn from their writers and complete them."""
        await trio.lowlevel.checkpoint()
        for opened in answers:
            await opened.take_over()
            close_answer(opened.growing, outcome, now)
            record.update(opened)

    def _salvage(self, run: AcceptedRun, outcome: Outcome, now: int) -> _Record:
        """Return what the turn lacks if a write hangs; its messages are taken from their writers.

        Otherwise they would stay open, and the session's next run would end them in its own name.
        """
        record = _Record()
        if run.prompt_recorded and run.state is RunState.ACTIVE:
            for opened in self.transcript.open_in(run.session_id):
                opened.abandon()
                record.abandoned.append(opened)
                close_answer(opened.growing, outcome, now)
                record.update(opened)
            self._answer_calls(run.session_id, outcome, now, record)
        return record

    def _answer_calls(
        self, session_id: SessionId, outcome: Outcome, now: int, record: _Record
    ) -> None:
        """Give every tool call of the turn a result that has none, whichever step made it."""
        calls = self.transcript.calls_in(session_id)
        for result in missing_results(calls, self._answered_in(session_id), outcome):
            record.create(result_message(result, session_id, self._message_id(), now))

    def _answered_in(self, session_id: SessionId) -> set[ToolCallId]:
        """The tool calls that have a result, or will have one with the ending."""
        doubtful = (part for m in self.transcript.doubtful_in(session_id) for part in m.parts)
        results = {part.tool_call_id for part in doubtful if isinstance(part, ToolResultPart)}
        return results | self.transcript.answered_in(session_id)

    async def amend(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Store an ending that the store has refused, record and all; then publish the record.

        Not one that took too long: it may still land, and would then be written twice.
        """
        await trio.lowlevel.checkpoint()
        record = self._refused.pop(run.id, None)
        if record is not None:
            ended = RunEnded(run=run.ended_view(outcome, self.clock.unix()))
            for opened in record.abandoned:
                await opened.take_over()
            await self._store.commit(*record.changes, ended)
            self._publish(record)

    def _publish(self, record: _Record) -> None:
        """Tell the readers what an ending has added to the record of its turn."""
        for view in record.updated:
            self.transcript.publish(EventType.UPDATED, view)
        for message in record.created:
            self.transcript.publish(EventType.CREATED, GrowingMessage(message).view())

    @property
    def _store(self) -> Changes:
        return self.transcript.store

    def _message_id(self) -> MessageId:
        return MessageId(self.ids.new())
