"""Committing and posting, in every store: all or nothing, in order, seen by whoever reads next."""

import pytest
import trio

from crush_trio.errors import MessageNotFound, RunIdTaken, SessionNotFound
from crush_trio.store.changes import (
    MessageFinished,
    RunMoved,
    SessionDeleted,
    SessionEdited,
    TextAppended,
    UsageAdded,
)
from crush_trio.wire.ids import FileId, MessageId, RunId
from crush_trio.wire.runs import RunState
from tests.store.stores import M, S, ids, message, run, session, text

pytestmark = pytest.mark.real_clock


async def test_changes_given_together_are_made_in_their_order(openings):
    async with openings.open() as store:
        await store.commit(
            session("s"),
            message("m", text("a")),
            TextAppended(message_id=M, index=0, text="b", at=100),
            TextAppended(message_id=M, index=0, text="c", at=100),
            MessageFinished(message_id=M, at=100),
        )
        assert (await store.message(M)).message.parts == (text("abc"),)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (TextAppended(message_id=MessageId("x"), index=0, text="b", at=1), MessageNotFound),
        (message("x", session="x"), SessionNotFound),
        (run("x", run_id="taken"), RunIdTaken),
    ],
)
async def test_of_changes_given_together_all_are_made_or_none(openings, wrong, error):
    async with openings.open() as store:
        await store.commit(session("s"), run("r", run_id="taken"), message("m", text("a")))
        with pytest.raises(error):
            await store.commit(
                session("t"),
                message("n"),
                TextAppended(message_id=M, index=0, text="b", at=500),
                RunMoved(id=RunId("r"), state=RunState.ACTIVE, at=500),
                wrong,
                UsageAdded(id=S, at=500, cost=1.0),
            )
        assert ids(await store.sessions()) == ["s"]
        assert ids(await store.messages(S)) == ["m"]
        assert (await store.message(M)).message.parts == (text("a"),)
        assert (await store.run(RunId("r"))).view.state is RunState.ACCEPTED
        assert (await store.session(S)).updated_at == 100
        assert store.degraded is None


async def test_committing_nothing_is_allowed(openings):
    async with openings.open() as store:
        await store.commit()
        store.post()
        assert await store.sessions() == []


@pytest.mark.item("D12")
async def test_a_read_sees_what_was_posted_before(openings):
    async with openings.open() as store:
        await store.commit(session("s"), message("m", text()))
        for n in range(1, 30):
            store.post(TextAppended(message_id=M, index=0, text="x", at=100))
            assert (await store.messages(S))[0].parts == (text("x" * n),)


async def test_posts_and_commits_take_effect_in_the_order_in_which_they_were_given(openings):
    async with openings.open() as store:
        store.post(session("s"), message("m", text()))
        for piece in "acegik":
            store.post(TextAppended(message_id=M, index=0, text=piece, at=100))
            after = chr(ord(piece) + 1)
            await store.commit(TextAppended(message_id=M, index=0, text=after, at=100))
        assert (await store.message(M)).message.parts == (text("abcdefghijkl"),)


async def test_a_post_that_was_given_after_a_commit_does_not_overtake_it(openings):
    async with openings.open() as store:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.commit, session("s", title="first"))
            await trio.testing.wait_all_tasks_blocked()
            store.post(SessionEdited(id=S, at=100, title="second"))
        assert (await store.session(S)).title == "second"
        assert store.degraded is None


async def test_a_post_that_fails_is_logged_and_shows_until_the_next_succeeds(openings, caplog):
    async with openings.open() as store:
        store.post(session("s"), message("n", session="x"))
        assert await store.sessions() == []
        assert store.degraded == "session not found: x"
        assert caplog.records[0].message == "store.write_lost"
        store.post(session("t"))
        assert ids(await store.sessions()) == ["t"]
        assert store.degraded is None


async def test_a_refused_commit_is_the_callers_business_alone(openings, caplog):
    async with openings.open() as store:
        with pytest.raises(SessionNotFound):
            await store.commit(SessionDeleted(id=S))
        assert store.degraded is None
        assert caplog.records == []


async def test_a_commit_whose_wait_is_cancelled_takes_place_as_a_whole(openings):
    async with openings.open() as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.commit(session("s"), message("m", text("a")))
        assert scope.cancelled_caught
        assert (await store.messages(S))[0].parts == (text("a"),)


async def test_a_refusal_that_nobody_waits_for_any_more_is_logged(openings, caplog):
    async with openings.open() as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.commit(session("s"), message("m", session="x"))
        assert await store.sessions() == []
        assert store.degraded == "session not found: x"
        assert caplog.records[0].message == "store.write_lost"


async def test_a_file_whose_wait_is_cancelled_is_stored(openings):
    async with openings.open() as store:
        await store.commit(session("s"))
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.add_file(FileId("f"), S, "/a", "x", 100)
        assert ids(await store.files(S)) == ["f"]


@pytest.mark.item("L25")
async def test_a_title_and_usage_written_at_the_same_time_both_survive(openings):
    """Neither writes a row that the other has read before."""
    async with openings.open() as store:
        await store.commit(session("s", title="old"))

        async def rename(n):
            await store.commit(SessionEdited(id=S, at=100 + n, title=f"title {n}"))

        async def spend():
            await store.commit(UsageAdded(id=S, at=100, prompt_tokens=5, cost=0.5))

        async with trio.open_nursery() as nursery:
            for n in range(10):
                nursery.start_soon(rename, n)
                nursery.start_soon(spend)
        stored = await store.session(S)
        assert stored.title.startswith("title ")
        assert (stored.cost, stored.prompt_tokens, stored.updated_at) == (5.0, 5, 109)


async def test_everything_given_is_there_after_a_restart(openings):
    async with openings.open() as store:
        await store.commit(session("s"))
        store.post(message("m", text("posted")))
        assert store.boot_id == "boot-1"
    async with openings.open() as store:
        assert store.boot_id == "boot-2"
        assert ids(await store.messages(S)) == ["m"]
