"""Ending the runs that a crash left behind.

Every run that an earlier start of the program accepted and did not end is ended now, as
*interrupted*. Its prompt is in its session, its answer is finished, its tool calls have results,
and it has one ending. Each run is one commit: a crash in the middle of recovery leaves the rest for
the next start, and a second recovery finds nothing to do.
"""

from collections.abc import Iterable
from typing import Protocol

from attrs import define, evolve, field

from crush_trio.agent.closing import (
    close_answer,
    closing_answer,
    missing_results,
    prompt_message,
    result_message,
    session_exists,
)
from crush_trio.agent.growth import changes_between
from crush_trio.clock import Clock, IdSource
from crush_trio.events.facts import Event, MessageChange, RunChange
from crush_trio.events.growing import GrowingMessage, MessageView
from crush_trio.events.log import EventLog
from crush_trio.runtime.outcome import Outcome, Submission
from crush_trio.store.base import Changes, MessageReads, RunReads, SessionReads, StoredRun
from crush_trio.store.changes import Change, MessageCreated, RunEnded, RunPrompted
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, ToolCallId
from crush_trio.wire.messages import Message, Role, ToolCallPart, ToolResultPart
from crush_trio.wire.native import RunView


class RecoveryStore(Changes, SessionReads, MessageReads, RunReads, Protocol):
    """What recovery needs of a store."""


async def recover(
    store: RecoveryStore, events: EventLog, clock: Clock, ids: IdSource
) -> tuple[RunView, ...]:
    """End every run that was left without an ending; return how they ended.

    Runs before anything is accepted, so nobody else touches the sessions meanwhile.
    """
    ended = []
    for orphan in await store.orphaned_runs():
        mending = _Mending(orphan, clock.unix(), ids)
        await mending.look(store)
        await store.commit(*mending.changes)
        for event in mending.events:
            events.publish(event)
        ended.append(mending.view)
    return tuple(ended)


@define(eq=False)
class _Mending:
    """What one orphaned run needs, collected and then written at once."""

    orphan: StoredRun
    now: int
    ids: IdSource
    outcome: Outcome = field(factory=Outcome.interrupted, init=False)
    changes: list[Change] = field(factory=list, init=False)
    events: list[Event] = field(factory=list, init=False)
    view: RunView = field(init=False)

    async def look(self, store: RecoveryStore) -> None:
        """Compare what is stored of the run's turn with what a complete turn has."""
        answer = self.orphan.view.message_id
        if await session_exists(store, self.orphan.view.session_id):
            self._add_prompt()
            answer = await self._finish_answers(store)
        self.view = evolve(
            self.orphan.view,
            state=self.outcome.state,
            error=self.outcome.error,
            ended_at=self.now,
            message_id=answer,
        )
        self.changes.append(RunEnded(run=self.view))
        self.events.append(RunChange(run=self.view))

    def _add_prompt(self) -> None:
        """Write the prompt, if the crash came before it was written."""
        run = self.orphan
        if run.prompt_message_id is not None or not run.view.kind.prompted:
            return
        submission = Submission(
            session_id=run.view.session_id, prompt=run.prompt, attachments=run.attachments
        )
        message = prompt_message(run.view.id, submission, self.now)
        self._create(message, RunPrompted(id=run.view.id, message_id=message.id))

    async def _finish_answers(self, store: RecoveryStore) -> MessageId:
        """Finish the answers of the run's turn, or write one that says it never had any.

        The stored state does not tell whether the run was active: it is written without waiting,
        and a crash may have taken it. The recorded prompt does.
        """
        session_id = self.orphan.view.session_id
        turn = await self._stored_turn(store)
        unfinished = {message.id for message in await store.unfinished_messages(session_id)}
        answers = [message for message in turn if message.role is Role.ASSISTANT]
        open_answers = [message for message in answers if message.id in unfinished]
        for message in open_answers:
            self._close(message)
        for result in missing_results(_calls(turn), _answered(turn), self.outcome):
            self._create(result_message(result, session_id, self._message_id(), self.now))
        if answers:
            # What stands after the answer may be the record of a run that was cancelled meanwhile.
            return (open_answers or answers)[-1].id
        closing = closing_answer(self.outcome, session_id, self._message_id(), self.now)
        self._create(closing)
        return closing.id

    async def _stored_turn(self, store: RecoveryStore) -> list[Message]:
        """Return the messages from the run's prompt on; none if it was never recorded.

        The turn of a summary is the summary. An unfinished answer beside it is another run's: that
        one was active, and the summary still waited.
        """
        messages = await store.messages(self.orphan.view.session_id)
        if not self.orphan.view.kind.prompted:
            unfinished = await store.unfinished_messages(self.orphan.view.session_id)
            return [message for message in unfinished if message.is_summary_message]
        for index, message in enumerate(messages):
            if message.id == self.orphan.prompt_message_id:
                return messages[index:]
        return []

    def _close(self, message: Message) -> None:
        growing = GrowingMessage(message)
        before = growing.view()
        close_answer(growing, self.outcome, self.now)
        after = growing.view(self.now)
        self.changes.extend(changes_between(before, after, self.now))
        self.events.append(MessageChange(change=EventType.UPDATED, view=after))

    def _create(self, message: Message, *together: Change) -> None:
        self.changes.extend((MessageCreated(message=message), *together))
        view: MessageView = GrowingMessage(message).view()
        self.events.append(MessageChange(change=EventType.CREATED, view=view))

    def _message_id(self) -> MessageId:
        return MessageId(self.ids.new())


def _calls(messages: Iterable[Message]) -> list[ToolCallPart]:
    return [part for m in messages for part in m.parts if isinstance(part, ToolCallPart)]


def _answered(messages: Iterable[Message]) -> set[ToolCallId]:
    results = (part for m in messages for part in m.parts if isinstance(part, ToolResultPart))
    return {result.tool_call_id for result in results}
