"""`Recovery`: ends the runs that a crash interrupted.

Every run that an earlier start of the program accepted and did not end is ended as *interrupted*: its
prompt is written to its session, its answer is finished, its tool calls get results, and it gets its one
ending.

Recovery runs concurrently with the workspace: a session with such runs waits for them, all others can be
used at once. Runs are ended a hundred per commit, so a crash during recovery leaves the rest for the next
start, and a second recovery has nothing to do.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import trio
from attrs import define, evolve, field

from crush_trio.agent.record.message import changes_between
from crush_trio.agent.record.unfinished_turn import (
    close_answer,
    closing_answer,
    missing_results,
    prompt_message,
    result_message,
)
from crush_trio.clock import Clock, IdSource
from crush_trio.events.facts import Event, MessageChange, RunChange, called_change
from crush_trio.events.growing_message import GrowingMessage
from crush_trio.events.log import EventLog
from crush_trio.runtime.outcome import Outcome, Submission
from crush_trio.store.base import Changes, MessageReads, Orphan, RunReads, StoredMessage, StoredRun
from crush_trio.store.changes import Change, MessageCreated, RunEnded
from crush_trio.store.errors import RecordNotStored, StoreFailed, StoreUnavailable
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, SessionId, ToolCallId
from crush_trio.wire.messages import Message, Role, ToolCallPart, ToolResultPart
from crush_trio.wire.runs import RunView

log = logging.getLogger(__name__)

TOGETHER: Final = 100
"""Runs ended in one commit."""

RETRY: Final = 1.0
"""Seconds until endings that could not be stored are retried."""


class RecoveryStore(Changes, MessageReads, RunReads, Protocol):
    """What recovery needs from a store."""


@define(eq=False)
class Recovery:
    """Ends the *orphans* of earlier starts, in the order of their acceptance."""

    store: RecoveryStore = field(repr=False)
    events: EventLog = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    orphans: Sequence[Orphan] = field(repr=False)
    ended: list[RunView] = field(factory=list, init=False)
    """The runs ended so far."""
    done: trio.Event = field(factory=trio.Event, init=False)

    @property
    def sessions(self) -> frozenset[SessionId]:
        """The sessions that wait for recovery."""
        return frozenset(orphan.session_id for orphan in self.orphans)

    async def run(self, release: Callable[[SessionId], None]) -> None:
        """End all orphans; *release* is called for each session whose runs have ended."""
        last = {orphan.session_id: place for place, orphan in enumerate(self.orphans)}
        for start in range(0, len(self.orphans), TOGETHER):
            group = self.orphans[start : start + TOGETHER]
            if not await self._end(group):
                return
            for session_id in dict.fromkeys(orphan.session_id for orphan in group):
                if last[session_id] < start + TOGETHER:
                    release(session_id)
        self.done.set()
        await trio.lowlevel.checkpoint()

    async def _end(self, group: Sequence[Orphan]) -> bool:
        """End some runs, retrying as often as needed; False if the store has failed for good.

        If no store can hold what their records lack, the records stay as they are.
        """
        bare = False
        while True:
            try:
                mendings = await self._mend(group)
                kept = [m.changes[-1:] if bare else m.changes for m in mendings]
                await self.store.commit(*(change for changes in kept for change in changes))
            except StoreFailed:
                log.exception("recovery.given_up")
                return False  # noqa: ASYNC910  # the store has been waited for
            except StoreUnavailable:
                log.exception("recovery.not_stored")
                await trio.sleep(RETRY)
                continue
            except Exception:
                if bare:
                    raise
                log.exception("run.record_not_stored", extra={"code": RecordNotStored.code})
                bare = True
                continue
            for mending in mendings:
                for event in mending.events[-1:] if bare else mending.events:
                    self.events.publish(event)
                self.ended.append(mending.view)
            return True  # noqa: ASYNC910  # the store has been waited for

    async def _mend(self, group: Sequence[Orphan]) -> "list[_Mending]":
        there = {orphan.run_id: orphan.has_session for orphan in group}
        turns = await self.store.run_messages(list(there))
        now = self.clock.unix()
        return [
            _Mending(run, turns[run.view.id], now, self.ids, there[run.view.id])
            for run in await self.store.stored_runs(list(there))
        ]


async def find_orphans(
    store: RecoveryStore, events: EventLog, clock: Clock, ids: IdSource
) -> Recovery:
    """Return the recovery of the orphans of earlier starts; the caller runs it."""
    return Recovery(store, events, clock, ids, await store.orphans())


@define(eq=False)
class _Mending:
    """The changes and events that complete the turn of one orphaned run."""

    orphan: StoredRun
    turn: list[StoredMessage]
    now: int
    ids: IdSource
    has_session: bool
    outcome: Outcome = field(factory=Outcome.interrupted, init=False)
    changes: list[Change] = field(factory=list, init=False)
    events: list[Event] = field(factory=list, init=False)
    view: RunView = field(init=False)

    def __attrs_post_init__(self) -> None:
        answers = [each for each in self.turn if each.message.role is Role.ASSISTANT]
        answer = self._complete(answers) if self.has_session else self.orphan.view.message_id
        self.view = evolve(
            self.orphan.view,
            state=self.outcome.state,
            error=self.outcome.error,
            ended_at=self.now,
            message_id=answer,
        )
        self.changes.append(RunEnded(run=self.view, withdrawn=not answers))
        self.events.append(RunChange(run=self.view))

    def _complete(self, answers: list[StoredMessage]) -> MessageId:
        """Complete the turn; return the id of its last answer."""
        if self.orphan.prompt_message_id is None and self.orphan.view.kind.prompted:
            self._add_prompt()
        return self._finish(answers) if answers else self._answer()

    def _add_prompt(self) -> None:
        """Write the prompt, which the crash prevented."""
        run = self.orphan
        submission = Submission(
            session_id=run.view.session_id, prompt=run.prompt, attachments=run.attachments
        )
        self._create(prompt_message(run.view.id, submission, self.now))

    def _answer(self) -> MessageId:
        """Write the closing answer of a turn without an answer."""
        closing = closing_answer(
            self.outcome, self.orphan.view.session_id, self._message_id(), self.now
        )
        self._create(closing)
        return closing.id

    def _finish(self, answers: list[StoredMessage]) -> MessageId:
        """Finish the open answers, and add missing tool results; return the id of the last answer."""
        open_answers = [each.message for each in answers if not each.finished]
        closed = [self._close(message) for message in open_answers]
        messages = [each.message for each in self.turn]
        for result in missing_results(_calls(messages), _answered(messages), self.outcome):
            session_id = self.orphan.view.session_id
            self._create(result_message(result, session_id, self._message_id(), self.now))
        self.events.extend(closed)
        return (open_answers or [each.message for each in answers])[-1].id

    def _close(self, message: Message) -> MessageChange:
        """Finish an answer; return the event that follows the results of its calls."""
        growing = GrowingMessage(message)
        before = growing.view()
        called = close_answer(growing, self.outcome, self.now, before)
        if called is not None:
            self.events.append(called_change(called))
        after = growing.view(self.now)
        self.changes.extend(changes_between(before, after, self.now))
        return MessageChange(change=EventType.UPDATED, view=after)

    def _create(self, message: Message) -> None:
        run_id = self.orphan.view.id
        self.changes.append(MessageCreated(message=message, run_id=run_id, if_there=True))
        view = GrowingMessage(message).view()
        self.events.append(MessageChange(change=EventType.CREATED, view=view))

    def _message_id(self) -> MessageId:
        return MessageId(self.ids.new())


def _calls(messages: Iterable[Message]) -> list[ToolCallPart]:
    return [part for m in messages for part in m.parts if isinstance(part, ToolCallPart)]


def _answered(messages: Iterable[Message]) -> set[ToolCallId]:
    results = (part for m in messages for part in m.parts if isinstance(part, ToolResultPart))
    return {result.tool_call_id for result in results}
