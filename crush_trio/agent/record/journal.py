"""`StoreJournal`, the runtime's journal on a store; `open_recorded_runs`, a runtime workspace that uses it.

Every change of a run is one commit, submitted synchronously when it happens: an acceptance, with the
prompt if the run begins at once; the beginning of a turn, with the prompt otherwise; prompts that another
run folds; runs that are cancelled before they begin; an ending, with everything that the record of its
turn still lacks. After a crash each of them is stored completely or not at all.

`open_recorded_runs` ends in the background what an earlier start left without an ending: its sessions
wait for that, all others can be used at once. Closing goes from the inside out. The runs end and write
their endings; then the message writers have nothing left to do; then the event log closes, which ends the
streams of clients; then the store is told that this start of the program ended in good order.
"""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing, nullcontext
from functools import partial
from typing import Final

import trio
from attrs import define, field, frozen
from outcome import Error

from crush_trio.agent.record.event_tail import MAX_TAIL, EventTail
from crush_trio.agent.record.recovery import Recovery, find_orphans
from crush_trio.agent.record.transcript import (
    PACE,
    Remainder,
    Transcript,
    TurnRecord,
)
from crush_trio.agent.record.unfinished_turn import closing_answer, prompt_message
from crush_trio.clock import Clock, IdSource, RandomIds, SystemClock
from crush_trio.errors import NotFound
from crush_trio.events.facts import session_fact
from crush_trio.events.growing_message import GrowingMessage
from crush_trio.events.log import EventLog, Window, open_event_log
from crush_trio.limits import DEFAULTS, Limits, SizeLimits
from crush_trio.nursery import open_hidden_nursery
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.journal import ImmediateEntry, JournalEntry
from crush_trio.runtime.lane import Capacity
from crush_trio.runtime.outcome import Outcome
from crush_trio.runtime.run import Turn
from crush_trio.runtime.workspace import Workspace, open_workspace
from crush_trio.store.base import Changes, Store
from crush_trio.store.changes import (
    BootClosed,
    Change,
    MessageCreated,
    RunAccepted,
    RunEnded,
    RunMoved,
    RunRetracted,
)
from crush_trio.store.commit import Commit
from crush_trio.store.errors import RecordNotStored, StoreLost, StoreUnavailable
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import RunState
from crush_trio.wire.views import Session

CLOSE_LIMIT: Final = 5.0
"""Seconds that the store may take to note that this start has ended."""

Publish = Callable[[Session | None], None]
"""Publishes what was stored, given the current session; None if it does not exist."""

log = logging.getLogger(__name__)


@define(eq=False)
class StoreJournal:
    """Satisfies the runtime's `Journal` with a store."""

    transcript: Transcript
    clock: Clock
    ids: IdSource
    _prompts: dict[RunId, Message] = field(factory=dict, init=False)
    """The prompts that were submitted with an acceptance and are not published yet."""

    # ── Before a turn ───────────────────────────────────────────────────────────────────────────

    def accept(self, run: AcceptedRun, *, begins: bool) -> JournalEntry:
        """Store the acceptance, with everything needed to end the run after a crash."""
        accepted = RunAccepted(
            run=run.view, prompt=run.submission.prompt, attachments=run.submission.attachments
        )
        if not (begins and run.submission.kind.prompted):
            return _Entry(self._store, (accepted,))
        message = self._prompts[run.id] = self._prompt(run)
        prompt = MessageCreated(message=message, run_id=run.id, if_there=True)

        def note(session: Session | None) -> None:
            if session is None:  # no session to write the prompt into (A5)
                self._prompts.pop(run.id, None)

        return _Entry(self._store, (accepted, prompt), (), run.session_id, note)

    def retract(self, run: AcceptedRun) -> None:
        """Remove the acceptance, also if its commit is still pending and lands first."""
        self._prompts.pop(run.id, None)
        self._store.post(RunRetracted(id=run.id))

    def begin(self, run: AcceptedRun) -> JournalEntry:
        """Store that the run is active, and its prompt; its commit may raise `SessionNotFound` (B7)."""
        message = self._prompts.pop(run.id, None)
        if message is None and run.submission.kind.prompted:
            message = self._prompt(run)
            changes = (MessageCreated(message=message, run_id=run.id), self._began(run))
            return _Entry(self._store, changes, publish=lambda _: self._created(message))
        self._store.post(self._began(run))
        return ImmediateEntry(lambda: None, lambda: self._created(message))

    def fold(self, runs: Sequence[AcceptedRun], into: AcceptedRun) -> JournalEntry:
        """Store the prompts as part of the other run's turn, and the endings of their runs."""
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
                    self._publish(record)

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
                self._publish_ending(turn, record, outcome, session)

        entry = _Entry(self._store, [*record.changes, ended], [ended], run.session_id, publish)
        entry.shorter = partial(self._end_stored, run, turn)
        return entry

    def _end_stored(self, run: AcceptedRun, turn: TurnRecord, outcome: Outcome) -> JournalEntry:
        """Store the ending, and complete the record of the turn as far as it is stored."""
        record = Remainder()
        turn.close_stored(outcome, self.clock.unix(), self.ids, record)
        ended = RunEnded(run=run.ending)

        def publish(session: Session | None) -> None:
            if session is not None:
                self._publish(record)

        return _Entry(self._store, [*record.changes, ended], [ended], run.session_id, publish)

    async def answers(self, within: float) -> bool:
        """Whether the store answers *within* this many seconds."""
        return await self._store.submit().known_within(within)

    def give_up(self) -> None:
        """Abandon the store: the workspace has to close."""
        self._store.abandon()

    # ── Publishing ──────────────────────────────────────────────────────────────────────────────

    def _publish_ending(
        self, turn: TurnRecord, record: Remainder, outcome: Outcome, session: Session
    ) -> None:
        """Publish an ending's changes: the session, the messages, the notice (D28)."""
        if turn.usage is not None:
            self.transcript.events.publish(session_fact(session, busy=True))
        self._publish(record)
        if turn.notice is not None and outcome.state is RunState.COMPLETED:
            self.transcript.events.publish(turn.notice(session))

    def _publish(self, record: Remainder) -> None:
        for event in record.events:
            self.transcript.events.publish(event)

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


def _nothing(_session: Session | None) -> None:
    """Publish nothing."""


@define(eq=False)
class _Entry:
    """Satisfies `JournalEntry`.

    The *essential* changes must be stored. The others are left out if they cannot be stored because
    their session was deleted; and if there is no *shorter* entry, also if no store can hold them.
    """

    store: Changes = field(repr=False)
    changes: Sequence[Change]
    essential: Sequence[Change] = ()
    session_id: SessionId | None = None
    publish: Publish = field(default=_nothing, repr=False)
    shorter: Callable[[Outcome], JournalEntry] | None = field(default=None, init=False, repr=False)
    commit: Commit[Session | None] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.again()

    def tell(self) -> None:
        """Publish what was stored."""
        self.publish(self.commit.unwrap())

    def reduce(self, error: Exception) -> bool:
        """Retry with the essential changes only, if that may help; return whether so."""
        if isinstance(error, StoreUnavailable) or len(self.changes) == len(self.essential):
            return False
        if not isinstance(error, NotFound):
            if self.shorter is not None:
                return False
            extra = {"session_id": self.session_id, "code": RecordNotStored.code}
            log.error("run.record_not_stored", extra=extra, exc_info=error)
        self.changes, self.publish = self.essential, _nothing
        self.again()
        return True

    def again(self) -> None:
        """Submit the changes, the first time or again."""
        self.commit = self.store.submit(*self.changes, session=self.session_id)

    @property
    def unstorable(self) -> bool:
        """Whether the write failed, and not for the state of the disk."""
        if not self.commit.known or self.commit.stored:
            return False
        assert isinstance(self.commit.result, Error)
        return not isinstance(self.commit.result.error, StoreUnavailable)

    def shortened(self, outcome: Outcome) -> JournalEntry:
        """Submit the ending with a record of only what is stored."""
        assert self.shorter is not None
        return self.shorter(outcome)


# ── Recorded runs ───────────────────────────────────────────────────────────────────────────────

MakeTurn = Callable[[Transcript], Turn]
"""Makes the turn function of a workspace, given the transcript it writes to."""


@frozen(eq=False, kw_only=True)
class RecordedRuns:
    """What `open_recorded_runs` has opened."""

    runs: Workspace
    events: EventLog
    transcript: Transcript = field(repr=False)
    recovery: Recovery = field(repr=False)


@asynccontextmanager
async def open_recorded_runs(
    store: Store,
    make_turn: MakeTurn,
    *,
    events: EventLog | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    limits: Limits | None = None,
    sizes: SizeLimits = DEFAULTS,
    capacity: Capacity | None = None,
    window: Window | None = None,
    pace: float = PACE,
    kept: int = MAX_TAIL,
    leased: bool = False,
) -> AsyncIterator[RecordedRuns]:
    """Open a runtime workspace on *store*; *make_turn* is given the transcript its turns write to.

    *events* is the log of the workspace; without one, it has a log of its own with that *window*. The
    store keeps what the log publishes from now on, *kept* events at most. *leased* says that another server
    may take the workspace over. Leaving the block closes the log, also one that was given: its readers are
    to see every ending. If it was closed before, because a lease ran out, they were not: they resync.
    """
    clock = SystemClock() if clock is None else clock
    ids = RandomIds() if ids is None else ids
    tail = EventTail(store, kept, leased)
    async with (
        nullcontext(events)
        if events is not None
        else open_event_log(store.boot_id, window=window) as the_log
    ):
        with closing(the_log):
            async with _open_writers() as writers:
                tail.attach(the_log, writers)
                transcript = Transcript(store, the_log, clock, writers, pace)
                recovery = await find_orphans(store, the_log, clock, ids)
                with closing(tail):
                    async with open_workspace(
                        make_turn(transcript),
                        events=the_log,
                        journal=StoreJournal(transcript, clock, ids),
                        clock=clock,
                        ids=ids,
                        limits=limits,
                        sizes=sizes,
                        capacity=capacity,
                    ) as runs:
                        for session_id in recovery.sessions:
                            runs.hold(session_id)
                        runs.services.start_soon(recovery.run, runs.release, name="recovery")
                        yield RecordedRuns(
                            runs=runs, events=the_log, transcript=transcript, recovery=recovery
                        )
                    told = not the_log.closed
    tail.flush()
    if told:
        await _close_boot(store, BootClosed(at=clock.unix(), last=tail.last))


async def _close_boot(store: Store, closed: BootClosed) -> None:  # noqa: ASYNC910  # it waits for the store
    """Note that this start ended in good order; without the note, readers from before will resync."""
    try:
        await store.submit(closed).certain(CLOSE_LIMIT)
    except StoreLost:
        pass  # it was logged when the store was found to be lost
    except StoreUnavailable:
        log.exception("workspace.end_not_stored")


@asynccontextmanager
async def _open_writers() -> AsyncIterator[trio.Nursery]:
    """Open the nursery of the message writers; leave the block when the runs have ended.

    A cancel from outside does not reach into it. A write that is cut short may still land, and the
    ending of its run, which does not know, would write the same words again.
    """
    async with open_hidden_nursery() as keeper:
        writers = await keeper.start(_keep_writers)
        # Not before: a task that shields itself in `start` outlives a cancel of that wait.
        writers.cancel_scope.shield = True
        try:
            yield writers
        finally:
            writers.cancel_scope.cancel()


async def _keep_writers(task_status: "trio.TaskStatus[trio.Nursery]") -> None:
    async with open_hidden_nursery() as writers:
        task_status.started(writers)
        await trio.sleep_forever()
