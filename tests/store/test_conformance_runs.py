"""Runs and asks, in every store: accepted, moved, ended once; found again after a crash."""

import pytest
from attrs import evolve

from crush_trio.errors import RunIdTaken, RunNotFound
from crush_trio.store.base import Orphan, PendingAsk, StoredRun
from crush_trio.store.changes import (
    AskOpened,
    AskResolved,
    RunEdited,
    RunEnded,
    RunMoved,
    RunRecorded,
    RunRetracted,
    SessionDeleted,
)
from crush_trio.wire.ids import AskId, MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunKind, RunState
from tests.store.stores import S, ids, message, run, session, text

pytestmark = pytest.mark.real_clock

R = RunId("r")
FILE = Attachment(
    file_path="/a/b.png", file_name="b.png", mime_type="image/png", content=b"\x00\xff"
)


def moved(state, identity="r", at=110):
    return RunMoved(id=RunId(identity), state=state, at=at)


def ended(
    state=RunState.COMPLETED, identity="r", at=120, withdrawn=False, if_there=False, **fields
):
    view = evolve(run(identity).run, state=state, ended_at=at, **fields)
    return RunEnded(run=view, withdrawn=withdrawn, if_there=if_there)


async def test_an_accepted_run_is_read_back_with_all_that_is_needed_to_end_it(openings):
    async with openings.open() as store:
        accepted = run("r", run_id="mine", prompt="do it", attachments=(FILE,))
        accepted = evolve(accepted, run=evolve(accepted.run, kind=RunKind.SUMMARIZE, seq=7))
        await store.commit(accepted)
        assert await store.run(R) == StoredRun(
            view=accepted.run, boot_id="boot-1", prompt="do it", attachments=(FILE,)
        )
        assert await store.run(RunId("mine")) == await store.run(R)


def piece(n, data, session_id=S):
    return RunRecorded(run_id=R, session_id=session_id, n=n, data=data)


async def test_a_recording_is_read_back_in_order_and_deleted_with_its_session(openings):
    async with openings.open() as store:
        await store.commit(session(), run("r"), piece(0, "a\n"), piece(10, "c\n"), piece(2, "b\n"))
    async with openings.open() as store:
        assert await store.recording(R) == ["a\n", "b\n", "c\n"]
        assert await store.recording(RunId("other")) == []
        await store.commit(SessionDeleted(id=S))
        store.post(piece(11, "late\n"))
        await store.commit()
        assert await store.recording(R) == []
        assert store.degraded is None


async def test_an_ended_run_is_read_back_with_its_notices(openings):
    async with openings.open() as store:
        await store.commit(run("r"), ended(notices=("one", "\u201ctwo\u201d")))
        await store.commit(ended(notices=("late",)))
    async with openings.open() as store:
        assert (await store.run(R)).view.notices == ("one", "\u201ctwo\u201d")
        [listed] = await store.runs()
        assert listed.notices == ("one", "\u201ctwo\u201d")


async def test_a_run_needs_no_session(openings):
    async with openings.open() as store:
        await store.commit(run("r", session="nowhere"))
        assert (await store.run(R)).view.session_id == "nowhere"


async def test_a_run_id_of_a_caller_names_one_run(openings):
    async with openings.open() as store:
        await store.commit(run("r", run_id="mine"))
        with pytest.raises(RunIdTaken, match="mine"):
            await store.commit(run("q", run_id="mine"))
        await store.commit(run("a"), run("b"))
        assert len(await store.runs()) == 3


async def test_accepting_the_same_run_again_changes_nothing(openings):
    async with openings.open() as store:
        await store.commit(run("r", run_id="mine", prompt="first"), moved(RunState.QUEUED))
        await store.commit(run("r", run_id="mine", prompt="second"))
        stored = await store.run(R)
        assert (stored.prompt, stored.view.state) == ("first", RunState.QUEUED)


async def test_a_retracted_run_leaves_nothing_not_even_its_id(openings):
    async with openings.open() as store:
        await store.commit(RunRetracted(id=R))
        await store.commit(run("r", run_id="mine"))
        await store.commit(RunRetracted(id=R))
        for name in ("r", "mine"):
            with pytest.raises(RunNotFound, match=name):
                await store.run(RunId(name))
        await store.commit(run("q", run_id="mine"))


async def test_our_own_id_of_a_run_comes_before_a_callers(openings):
    async with openings.open() as store:
        await store.commit(run("a", run_id="b"), run("b", run_id="c"))
        assert (await store.run(RunId("b"))).view.id == "b"
        assert (await store.run(RunId("c"))).view.id == "b"


async def test_a_run_starts_when_it_first_becomes_active(openings):
    async with openings.open() as store:
        await store.commit(run("r"), moved(RunState.QUEUED, at=105))
        view = (await store.run(R)).view
        assert (view.state, view.started_at) == (RunState.QUEUED, 0)
        await store.commit(moved(RunState.ACTIVE, at=110), moved(RunState.ACTIVE, at=115))
        view = (await store.run(R)).view
        assert (view.state, view.started_at) == (RunState.ACTIVE, 110)


async def test_an_ending_says_how_and_keeps_when_it_was_accepted_and_started(openings):
    async with openings.open() as store:
        await store.commit(
            run("r", run_id="mine", seq=4, attachments=(FILE,)),
            moved(RunState.ACTIVE),
        )
        end = ended(RunState.ERRORED, message_id=MessageId("a"), text="so far", error="broken")
        await store.commit(end)
        stored = await store.run(R)
        assert stored.view == evolve(
            end.run, run_id=RunId("mine"), seq=4, accepted_at=100, started_at=110
        )
        assert stored.attachments == ()  # they were for ending it


@pytest.mark.item("A35")
async def test_a_run_ends_once(openings):
    async with openings.open() as store:
        await store.commit(run("r"), ended(RunState.CANCELLED))
        before = await store.run(R)
        await store.commit(ended(RunState.COMPLETED, at=130, text="late"))
        await store.commit(moved(RunState.ACTIVE, at=140))
        assert await store.run(R) == before


async def test_an_ending_of_a_run_that_may_not_be_there_is_passed_over(openings):
    async with openings.open() as store:
        await store.commit(run("q"), ended(if_there=True), ended(identity="q", if_there=True))
        assert (await store.run(RunId("q"))).view.state is RunState.COMPLETED
        with pytest.raises(RunNotFound):
            await store.run(R)


async def test_a_run_knows_the_message_that_its_prompt_has_become(openings):
    async with openings.open() as store:
        await store.commit(session(), run("r"), run("q"), message("r", text("hello"), run_id="r"))
        assert (await store.run(R)).prompt_message_id == "r"
        assert (await store.run(RunId("q"))).prompt_message_id is None


async def test_a_retracted_run_takes_its_messages_along(openings):
    async with openings.open() as store:
        await store.commit(session(), run("r"), message("r", run_id="r"), message("m"))
        await store.commit(RunRetracted(id=R))
        assert ids(await store.messages(S)) == ["m"]
        assert (await store.session(S)).message_count == 1


async def test_the_messages_of_runs_are_found_by_their_run(openings):
    async with openings.open() as store:
        await store.commit(
            session(),
            *(run(name, seq=seq) for seq, name in enumerate("rq")),
            *(message(name, run_id=owner) for name, owner in ["ar", "bq", "cr", ("d", None)]),
        )
        found = await store.run_messages([R, RunId("q"), RunId("nobody")])
        assert {name: ids(m.message for m in all_) for name, all_ in found.items()} == {
            "r": ["a", "c"],
            "q": ["b"],
            "nobody": [],
        }


async def test_an_edited_prompt_is_the_one_that_is_kept(openings):
    async with openings.open() as store:
        await store.commit(run("r", prompt="first", attachments=(FILE,)), moved(RunState.QUEUED))
        before = await store.run(R)
        await store.commit(RunEdited(id=R, prompt="second"))
        assert await store.run(R) == evolve(before, prompt="second")
    async with openings.open() as store:
        orphans = [orphan.run_id for orphan in await store.orphans()]
        assert [run.prompt for run in await store.stored_runs(orphans)] == ["second"]


async def test_an_edit_that_comes_after_the_ending_changes_nothing(openings):
    async with openings.open() as store:
        await store.commit(run("r", prompt="first"), ended())
        await store.commit(RunEdited(id=R, prompt="late"))
        assert (await store.run(R)).prompt == "first"


async def test_a_folded_run_names_the_one_that_absorbed_it(openings):
    async with openings.open() as store:
        await store.commit(run("r"), ended(RunState.FOLDED, folded_into=RunId("q")))
        assert (await store.run(R)).view.folded_into == "q"


@pytest.mark.parametrize(
    "change",
    [moved(RunState.ACTIVE), ended(), RunEdited(id=R, prompt="x")],
    ids=lambda change: type(change).__name__,
)
async def test_changing_an_unknown_run_is_refused(openings, change):
    async with openings.open() as store:
        with pytest.raises(RunNotFound, match="r"):
            await store.commit(change)


async def test_runs_are_listed_from_the_newest_up_to_a_limit(openings):
    async with openings.open() as store:
        await store.commit(
            run("a", seq=2, at=10),
            run("b", seq=1, at=10),
            run("c", seq=3, at=20, session="t"),
            run("d", seq=4, at=20),
            run("e", seq=5, at=15),
        )
        await store.commit(ended(identity="d"))
        assert ids(await store.runs()) == ["d", "c", "e", "a", "b"]
        assert ids(await store.runs(limit=2)) == ["d", "c"]
        assert ids(await store.runs(S)) == ["d", "e", "a", "b"]
        assert ids(await store.runs(S, limit=1)) == ["d"]
        assert await store.runs(SessionId("u")) == []


@pytest.mark.item("L22")
async def test_runs_that_a_crash_left_without_an_ending_are_found_in_the_order_of_acceptance(
    openings,
):
    async with openings.open() as store:
        await store.commit(run("b", seq=2), run("a", seq=1), run("done", seq=3), run("c", seq=4))
        await store.commit(moved(RunState.ACTIVE, "a"), moved(RunState.QUEUED, "c"))
        await store.commit(ended(identity="done"))
        assert await store.orphans() == []
    async with openings.open() as store:
        await store.commit(session(), run("d", seq=1), run("e", seq=2, attachments=(FILE,)))
        assert await store.orphans() == [Orphan(RunId(name), S) for name in "abc"]
        await store.commit(ended(RunState.INTERRUPTED, "b"), SessionDeleted(id=S))
    async with openings.open() as store:
        assert await store.orphans() == [Orphan(RunId(name), S, False) for name in "acde"]
        runs = await store.stored_runs([RunId(name) for name in "acdex"])
        assert [run.view.id for run in runs] == ["a", "c", "d", "e"]
        assert [run.boot_id for run in runs] == ["boot-1", "boot-1", "boot-2", "boot-2"]
        assert [run.view.state for run in runs] == [
            RunState.ACTIVE,
            RunState.QUEUED,
            RunState.ACCEPTED,
            RunState.ACCEPTED,
        ]
        assert runs[-1].attachments == (FILE,)


# ── Asks ────────────────────────────────────────────────────────────────────────────────────────


def opened(identity, at=100):
    return AskOpened(
        id=AskId(identity),
        kind="permission",
        session_id=S,
        run_id=R,
        tool_call_id=ToolCallId("c"),
        payload='{"a":1}',
        at=at,
    )


async def test_asks_wait_from_the_oldest_to_the_newest_until_they_are_resolved(openings):
    async with openings.open() as store:
        await store.commit(opened("c", 20), opened("a", 20), opened("b", 10))
        pending = await store.pending_asks()
        assert ids(pending) == ["b", "c", "a"]
        assert pending[0] == PendingAsk(
            id=AskId("b"),
            kind="permission",
            session_id=S,
            run_id=R,
            tool_call_id=ToolCallId("c"),
            payload='{"a":1}',
            created_at=10,
        )
        await store.commit(AskResolved(id=AskId("c"), resolution="allow", at=30))
        assert ids(await store.pending_asks()) == ["b", "a"]
    async with openings.open() as store:
        assert ids(await store.pending_asks()) == ["b", "a"]


async def test_an_ask_that_was_resolved_cannot_be_opened_or_resolved_again(openings):
    async with openings.open() as store:
        await store.commit(AskResolved(id=AskId("a"), resolution="deny", at=5))
        await store.commit(opened("a"))
        for _ in range(2):
            await store.commit(AskResolved(id=AskId("a"), resolution="allow", at=30))
            await store.commit(opened("a"))
            assert await store.pending_asks() == []
