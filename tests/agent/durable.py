"""Recorded runs on a store in memory, and turns that write a real transcript.

`open_desk` is a transcript alone, `open_bench` the whole workspace. Both stand on a `FaultyStore`,
which keeps book of every commit; leaving either checks that no two commits of one message overlapped.
"""

from collections import Counter
from contextlib import asynccontextmanager

import trio
import trio.testing
from attrs import define, evolve, field

from crush_trio.agent.record.event_reader import new_reader
from crush_trio.agent.record.event_tail import StoredEventCache
from crush_trio.agent.record.journal import RecordedRuns, open_recorded_runs
from crush_trio.agent.record.transcript import PACE, Remainder, Transcript
from crush_trio.clock import CountingIds, TrioClock
from crush_trio.events.facts import MessageChange, RunChange
from crush_trio.events.log import EventLog, open_event_log
from crush_trio.runtime.outcome import Completion, Outcome
from crush_trio.store.changes import RunEnded
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.server.faulty_store import FaultyStore
from crush_trio.testing.server.turns import prompt
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import (
    FinishPart,
    FinishReason,
    Message,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from tests.store.stores import session

S = SessionId("s")
END = FinishPart(reason=FinishReason.END_TURN, time=9)


# ── Places to work in ───────────────────────────────────────────────────────────────────────────


async def memory(boot_id="b1", *sessions):
    """Return a store in memory that has some sessions; "s" if none are named."""
    store = MemoryStore(boot_id)
    await store.commit(*(session(name) for name in sessions or ("s",)))
    return store


@define(eq=False)
class Desk:
    """A transcript with nothing around it."""

    transcript: Transcript
    store: FaultyStore
    events: EventLog

    @property
    def turn(self):
        """The record that the answers of "s" belong to."""
        return self.transcript.turn(RunId("r"), S)

    async def create(self, identity="m", *parts, session="s"):
        """Begin an answer."""
        turn = self.transcript.turn(RunId("r" if session == "s" else session), SessionId(session))
        return await turn.create(assistant(identity, *parts, session=session))

    async def end(self, outcome=None):
        """Write what the turn of "s" lacks, as the ending of its run would."""
        outcome = Outcome.cancelled() if outcome is None else outcome
        remainder, turn = Remainder(), self.transcript.end_turn(RunId("r"), S)
        turn.close(outcome, self.transcript.clock.unix(), CountingIds("end"), remainder)
        await self.transcript.commit(*remainder.changes)
        for event in remainder.events:
            self.events.publish(event)

    async def stored(self, identity="m"):
        """Return a message as the store has it."""
        return (await self.store.message(MessageId(identity))).message

    def published(self, identity="m"):
        """Return every event of a message so far."""
        return message_events(self.events, identity)


@asynccontextmanager
async def open_desk(*faults, pace=PACE, latency=0.0, sessions=("s",)):
    store = FaultyStore(await memory("b1", *sessions), faults, latency)
    async with open_event_log("b1") as events, trio.open_nursery() as services:
        transcript = Transcript(store, events, TrioClock(), services, pace)
        yield Desk(transcript, store, events)
        store.heal()
        for opened in transcript.open_messages():
            opened.release()
        await trio.testing.wait_all_tasks_blocked()
        services.cancel_scope.cancel()
    assert store.overlaps == []


@define(eq=False)
class Bench:
    """Recorded runs and their store."""

    workspace: RecordedRuns
    store: FaultyStore
    turns: "Turns"
    recall: StoredEventCache = field(init=False)

    def __attrs_post_init__(self):
        self.recall = StoredEventCache(self.store)

    @property
    def transcript(self):
        return self.workspace.transcript

    @property
    def events(self):
        return self.workspace.events

    def accept(self, text, session="s", run_id=None, **more):
        return self.workspace.runs.accept(prompt(text, session, run_id, **more))

    def cancel(self, session="s"):
        return self.workspace.runs.cancel(SessionId(session))

    async def new_reader(self, form=None, after=None):
        return await new_reader(self.events, self.store, self.recall, after, form)

    async def messages(self, session="s"):
        return await self.store.messages(SessionId(session))

    async def stored(self, run):
        """Return a run's ending as the store has it."""
        return (await self.store.run(run.id)).view

    def endings(self):
        """The terminal events so far."""
        return endings(self.events)


@asynccontextmanager
async def open_bench(turns=None, *, store=None, faults=(), **options):
    """Open a workspace on *store*, or on a fresh one with the session "s"."""
    if not isinstance(store, FaultyStore):
        store = FaultyStore(await memory() if store is None else store, faults)
    turns = Turns() if turns is None else turns
    ids = CountingIds(store.boot_id)
    async with open_recorded_runs(store, turns, clock=TrioClock(), ids=ids, **options) as workspace:
        await workspace.recovery.done.wait()
        yield Bench(workspace, store, turns)
    assert store.overlaps == []


def entries_of(log):
    """Return everything in a log, also what readers may not see yet."""
    return tuple(log._entries)


# ── What turns do ───────────────────────────────────────────────────────────────────────────────


async def done(run, transcript):
    """Say one word and finish."""
    opened = await answer(run, transcript)
    opened.append_text("done")
    await opened.finish(END)
    return completion(opened)


@define(eq=False)
class Turns:
    """Plays, for each run, the function of its run and transcript that its prompt names."""

    scripts: dict = field(factory=dict)
    default: object = done
    transcript: Transcript = field(default=None, init=False)

    def __call__(self, transcript):
        self.transcript = transcript
        return self.play

    async def play(self, run):
        await trio.lowlevel.checkpoint()
        return await self.scripts.get(run.prompt, self.default)(run, self.transcript)


async def answer(run, transcript, name="answer"):
    """Begin an answer of *run*, and let the run know what it has said so far."""
    turn = transcript.turn(run.id, run.session_id)
    opened = await turn.create(assistant(f"{name}-{run.id}", session=run.session_id))
    run.partial = lambda: completion(opened)
    return opened


def completion(opened):
    return Completion(message_id=opened.id, text=text_of(opened.message()))


async def give_result(run, transcript, call_id, content="seen"):
    """Write the result of a tool call."""
    part = ToolResultPart(tool_call_id=ToolCallId(call_id), name="bash", content=content)
    identity = MessageId(f"result-{call_id}")
    return await transcript.turn(run.id, run.session_id).write(
        Message(id=identity, role=Role.TOOL, session_id=run.session_id, parts=(part,))
    )


def assistant(identity="m", *parts, session="s"):
    return Message(
        id=MessageId(identity), role=Role.ASSISTANT, session_id=SessionId(session), parts=parts
    )


# ── What is found afterwards ────────────────────────────────────────────────────────────────────


def text_of(message):
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def parts_of(message, kind):
    return [part for part in message.parts if isinstance(part, kind)]


def finish_of(message):
    """Return the finish part, which is the last, and the only one."""
    (finish,) = parts_of(message, FinishPart)
    assert message.parts[-1] is finish
    return finish


def all_events(events):
    """Everything a log has published, also what later events have made superfluous."""
    return tuple(entry.event for entry in entries_of(events) if not entry.merged)


def message_events(events, identity):
    found = (e for e in all_events(events) if isinstance(e, MessageChange))
    return [event for event in found if event.message_id == identity]


def endings(events):
    return [e.run for e in all_events(events) if isinstance(e, RunChange) and e.terminal]


def ending_commit(bench, run):
    """Return the commit that ended a run; there is only one, and nothing of the run after it."""
    (commit,) = [
        commit
        for commit in bench.store.commits
        if any(isinstance(change, RunEnded) and change.run.id == run.id for change in commit)
    ]
    return commit


def kinds(commit):
    return [type(change) for change in commit]


def roles(messages):
    return [message.role for message in messages]


def told(message):
    """Return a message without its time of change, which an event and a store may see apart."""
    return evolve(message, updated_at=0)


async def check_complete(store, *sessions, besides=lambda _message: False):
    """Raise unless every run has ended and its turn lacks nothing; return the runs by id.

    One terminal record and one prompt each, every message finished, every call answered once.
    *besides* tells which messages of the user's there may be that no run was sent with.
    """
    assert await store.orphans() == []
    runs = {run.id: run for run in await store.runs(limit=1000)}
    for run in runs.values():
        assert run.state.terminal, f"{run} has no ending"
    for name in sessions or ("s",):
        await _check_session(store, SessionId(name), runs.values(), besides)
    return runs


async def _check_session(store, session_id, runs, besides):
    messages = await store.messages(session_id)
    assert await store.unfinished_messages(session_id) == []
    for message in messages:
        finish_of(message)
        for thought in parts_of(message, ReasoningPart):
            assert thought.finished_at, f"{message} is still thinking"
    calls = [call for message in messages for call in parts_of(message, ToolCallPart)]
    results = [part for message in messages for part in parts_of(message, ToolResultPart)]
    assert all(call.finished for call in calls)
    assert Counter(call.id for call in calls) == Counter(part.tool_call_id for part in results)
    prompts = [m.id for m in messages if m.role is Role.USER and not besides(m)]
    prompted = [r for r in runs if r.session_id == session_id and r.kind.prompted]
    recorded = [(await store.run(r.id)).prompt_message_id for r in prompted]
    assert Counter(recorded) == Counter(prompts), "a prompt is lost, or there twice"
