"""Whatever happens to two stores, they say the same about it.

Random changes, to things that are there and to things that are not, are given to both stores; after
every start of the program all that can be read of one must equal all that can be read of the other.
"""

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from attrs import evolve, frozen
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from outcome import Error, acapture

from crush_trio.store.changes import (
    AskOpened,
    AskResolved,
    BootClosed,
    FileRead,
    MessageDeleted,
    MessageFinished,
    PartPut,
    PartsCut,
    RunEdited,
    RunEnded,
    RunMoved,
    RunRetracted,
    SessionDeleted,
    SessionEdited,
    SessionPruned,
    TailKept,
    TextAppended,
    UsageAdded,
)
from crush_trio.wire.ids import AskId, FileId, MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import BinaryPart, Role
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunState
from crush_trio.wire.views import Todo
from tests.store.stores import (
    END,
    MemoryOpenings,
    PostgresOpenings,
    SqliteOpenings,
    call,
    message,
    run,
    session,
    text,
    thought,
)

pytestmark = pytest.mark.real_clock

same_every_time = settings(
    derandomize=True,
    deadline=None,
    max_examples=50,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

SESSIONS = [SessionId(name) for name in ("s", "t", "s$$c")]
MESSAGES = [MessageId(name) for name in ("m", "n", "o", "p", "r")]
RUNS = [RunId(name) for name in ("r", "q", "mine")]
ASKS = [AskId(name) for name in ("a", "b")]
PATHS = ["/a", "/b/é", "relative"]
FILE = Attachment(file_path="/f", file_name="f", mime_type="image/png", content=b"\xff")

ended_states = st.sampled_from([state for state in RunState if state.terminal])
times = st.integers(90, 110)
counts = st.integers(0, 3)
maybe_counts = st.none() | counts
session_ids = st.sampled_from(SESSIONS)
message_ids = st.sampled_from(MESSAGES)
run_ids = st.sampled_from(RUNS[:2])
ask_ids = st.sampled_from(ASKS)
costs = st.sampled_from([0.0, 0.1, 0.2, 1e-9])
words = st.sampled_from(["", "x", 'q"\\', "\x00", "é😀", "\ud83d", "\ude00", "line\n"])
parts = st.one_of(
    st.builds(text, words),
    st.builds(thought, words, words),
    st.builds(call, finished=st.booleans()),
    st.just(END),
    st.builds(BinaryPart, path=words, mime_type=words, data=st.binary(max_size=3)),
)


def ending(run_id, state, at, said, withdrawn, if_there):
    view = evolve(run(run_id).run, state=state, ended_at=at, text=said, started_at=at % 3)
    view = evolve(view, folded_into=RUNS[0] if state is RunState.FOLDED else None)
    return RunEnded(run=view, withdrawn=withdrawn, if_there=if_there)


changes = st.one_of(
    st.builds(
        session,
        session_ids,
        title=words,
        at=times,
        parent=st.sampled_from(["", "", "s"]),
    ),
    st.builds(
        SessionEdited,
        id=session_ids,
        at=times,
        title=st.none() | words,
        prompt_tokens=maybe_counts,
        completion_tokens=maybe_counts,
        summary_message_id=st.none() | message_ids,
        cost=st.none() | costs,
        todos=st.none() | st.lists(st.builds(Todo, content=words), max_size=2).map(tuple),
    ),
    st.builds(
        UsageAdded,
        id=session_ids,
        at=times,
        prompt_tokens=maybe_counts,
        completion_tokens=maybe_counts,
        spent_prompt_tokens=counts,
        spent_completion_tokens=counts,
        cost=costs,
    ),
    st.builds(SessionDeleted, id=session_ids),
    st.builds(SessionPruned, id=session_ids, before=times),
    st.tuples(
        message_ids,
        st.lists(parts, max_size=3),
        st.fixed_dictionaries(
            {
                "session": session_ids,
                "role": st.sampled_from([Role.USER, Role.ASSISTANT]),
                "at": times,
                "run_id": st.none() | run_ids,
                "if_there": st.booleans(),
            }
        ),
    ).map(lambda drawn: message(drawn[0], *drawn[1], **drawn[2])),
    st.builds(PartPut, message_id=message_ids, index=counts, part=parts, at=times),
    st.builds(TextAppended, message_id=message_ids, index=counts, text=words, at=times),
    st.builds(TextAppended, message_id=message_ids, index=st.just(0), text=words, at=times),
    st.builds(PartsCut, message_id=message_ids, length=counts, at=times),
    st.builds(MessageFinished, message_id=message_ids, at=times),
    st.builds(MessageDeleted, id=message_ids),
    st.builds(
        run,
        run_ids,
        run_id=st.none() | st.just("mine"),
        session=session_ids,
        seq=counts,
        at=times,
        prompt=words,
        attachments=st.sampled_from([(), (FILE,)]),
    ),
    st.builds(RunRetracted, id=run_ids),
    st.builds(
        RunMoved, id=run_ids, state=st.sampled_from([RunState.QUEUED, RunState.ACTIVE]), at=times
    ),
    st.builds(RunEdited, id=run_ids, prompt=words),
    st.builds(ending, run_ids, ended_states, times, words, st.booleans(), st.booleans()),
    st.builds(
        AskOpened,
        id=ask_ids,
        kind=words,
        session_id=session_ids,
        run_id=run_ids,
        tool_call_id=st.just(ToolCallId("c")),
        payload=words,
        at=times,
    ),
    st.builds(AskResolved, id=ask_ids, resolution=words, at=times),
    st.builds(FileRead, session_id=session_ids, path=st.sampled_from(PATHS), at=times),
    st.builds(
        TailKept, seq=st.integers(1, 6), terminal=st.booleans(), event=words, keep=st.integers(0, 5)
    ),
)


@frozen
class Commit:
    changes: list

    async def do(self, store):
        return described(await acapture(store.commit, *self.changes))


@frozen
class Post:
    changes: list

    async def do(self, store):
        store.post(*self.changes)
        await store.commit()  # so that both have heard of it
        return store.degraded


@frozen
class AddFile:
    arguments: tuple

    async def do(self, store):
        return described(await acapture(store.add_file, *self.arguments))


steps = st.one_of(
    st.builds(Commit, st.lists(changes, min_size=1, max_size=3)),
    st.builds(Commit, st.lists(changes, min_size=1, max_size=1)),
    st.builds(Post, st.lists(changes, min_size=1, max_size=2)),
    st.builds(
        AddFile,
        st.tuples(
            st.sampled_from([FileId(name) for name in "fgh"]),
            session_ids,
            st.sampled_from(PATHS),
            words,
            times,
        ),
    ),
)
founding = Commit([session("s"), session("t"), message("m", text("a")), run("r", run_id="mine")])
starts = st.tuples(st.lists(steps, max_size=15), st.booleans())


def described(result):
    """What came of a call, in a form that can be compared."""
    if isinstance(result, Error):
        return type(result.error), str(result.error)
    return result.value


async def everything(store):
    """Read all there is to read."""
    found = {}

    async def read(name, *arguments):
        found[name, *arguments] = described(await acapture(getattr(store, name), *arguments))

    for name in ("sessions", "user_messages", "runs", "orphans", "pending_asks"):
        await read(name)
    await read("usage", 0)
    for session_id in SESSIONS:
        for name in (
            "session", "totals", "messages", "user_messages", "unfinished_messages", "runs", "files",
            "read_paths", "conversation",
        ):  # fmt: skip
            await read(name, session_id)
        await read("conversation", session_id, RUNS[0])
        for path in PATHS[:2]:
            await read("latest_file", session_id, path)
            await read("last_read", session_id, path)
    for message_id in MESSAGES:
        await read("message", message_id)
    for run_id in RUNS:
        await read("run", run_id)
    await read("run_messages", tuple(RUNS))
    await read("stored_runs", tuple(RUNS))
    for boot in ("boot-1", "boot-2", "boot-3", "never"):
        for seq in (0, 2, 4):
            await read("tail_after", boot, seq)
    return found


@pytest.mark.explored
@same_every_time
@given(st.lists(starts, min_size=1, max_size=3))
async def test_the_stores_agree_about_everything(starts):
    await agree_about(starts, SqliteOpenings)


@pytest.mark.slow
@pytest.mark.explored
@same_every_time
@given(st.lists(starts, min_size=1, max_size=3))
async def test_the_store_on_postgres_agrees_as_well(starts):
    await agree_about(starts, PostgresOpenings)


async def agree_about(starts, other_openings):
    """Do the same to the store in memory and to another one, and compare all answers."""
    with tempfile.TemporaryDirectory() as directory:
        openings = MemoryOpenings(None), other_openings(Path(directory))
        for place, (steps, closes) in enumerate(starts):
            async with AsyncExitStack() as stack:
                memory, other = [await stack.enter_async_context(o.open()) for o in openings]
                for step in [founding, *steps] if place == 0 else steps:
                    answer = await step.do(memory)
                    assert answer == await step.do(other), step
                    event("refused" if answer is not None else "done")
                if closes:
                    for store in (memory, other):
                        await store.commit(BootClosed(at=120))
                assert await everything(memory) == await everything(other)
