"""Sessions, in every store: created, edited column by column, listed, deleted."""

import pytest
from attrs import evolve

from crush_trio.errors import SessionNotFound
from crush_trio.store.base import Totals
from crush_trio.store.changes import (
    RunAccepted,
    RunEnded,
    SessionCreated,
    SessionDeleted,
    SessionEdited,
    UsageAdded,
)
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.runs import RunKind, RunState, RunView
from crush_trio.wire.views import DAY, Session, Todo, TodoStatus, UsageDay
from tests.store.stores import S, ids, message, run, session

pytestmark = pytest.mark.real_clock

TODOS = (
    Todo(content="look", status=TodoStatus.COMPLETED, active_form="Looking"),
    Todo(content="think"),
)


async def test_a_new_session_has_its_name_its_times_and_nothing_else(openings):
    async with openings.open() as store:
        await store.commit(session("s", parent="p", title="A title", at=7))
        assert await store.session(S) == Session(
            id=S,
            parent_session_id=SessionId("p"),
            title="A title",
            created_at=7,
            updated_at=7,
        )
        assert await store.totals(S) == Totals()


async def test_counters_of_a_session_start_at_zero_whatever_its_creator_says(openings):
    async with openings.open() as store:
        plain = session("s").session
        rich = evolve(plain, cost=5.0, message_count=5, prompt_tokens=5, todos=TODOS)
        await store.commit(SessionCreated(session=rich))
        assert await store.session(S) == plain


async def test_creating_a_session_again_changes_nothing(openings):
    async with openings.open() as store:
        await store.commit(session("s", title="first"), message("m"))
        await store.commit(session("s", title="second", at=900))
        stored = await store.session(S)
        assert (stored.title, stored.message_count, stored.updated_at) == ("first", 1, 100)


async def test_editing_sets_what_is_given_and_leaves_the_rest(openings):
    async with openings.open() as store:
        await store.commit(session("s", title="old"))
        await store.commit(
            SessionEdited(
                id=S,
                at=101,
                prompt_tokens=10,
                completion_tokens=20,
                cost=0.5,
                summary_message_id=MessageId("m"),
                todos=TODOS,
            )
        )
        await store.commit(SessionEdited(id=S, at=102, title="new"))
        assert await store.session(S) == Session(
            id=S,
            title="new",
            prompt_tokens=10,
            completion_tokens=20,
            cost=0.5,
            summary_message_id=MessageId("m"),
            todos=TODOS,
            created_at=100,
            updated_at=102,
        )


async def test_a_title_that_may_replace_only_some_titles_replaces_no_other(openings):
    async with openings.open() as store:
        await store.commit(session("s", title="New Session"))
        for title, over in (("made", ("", "New Session")), ("late", ("New Session",))):
            await store.commit(SessionEdited(id=S, at=101, title=title, title_over=over, cost=2.0))
            stored = await store.session(S)
            assert (stored.title, stored.cost) == ("made", 2.0)
        with pytest.raises(SessionNotFound):
            await store.commit(SessionEdited(id="x", at=1, title="a", title_over=("b",)))


async def test_editing_can_empty_a_column(openings):
    async with openings.open() as store:
        await store.commit(
            session("s", title="old"),
            SessionEdited(id=S, at=100, summary_message_id=MessageId("m"), todos=TODOS),
            SessionEdited(
                id=S,
                at=100,
                title="",
                summary_message_id=MessageId(""),
                todos=(),
                prompt_tokens=0,
            ),
        )
        assert await store.session(S) == Session(id=S, created_at=100, updated_at=100)


@pytest.mark.item("L44")
async def test_usage_sets_the_gauges_and_adds_to_the_totals_and_the_cost(openings):
    async with openings.open() as store:
        await store.commit(session("s"))
        for at in (101, 102):
            await store.commit(
                UsageAdded(
                    id=S,
                    at=at,
                    prompt_tokens=1000 + at,
                    completion_tokens=at,
                    spent_prompt_tokens=10,
                    spent_completion_tokens=3,
                    cost=0.25,
                )
            )
        await store.commit(UsageAdded(id=S, at=103, spent_prompt_tokens=5, cost=0.5))
        stored = await store.session(S)
        assert (stored.prompt_tokens, stored.completion_tokens) == (1102, 102)
        assert (stored.cost, stored.updated_at) == (1.0, 103)
        assert await store.totals(S) == Totals(prompt_tokens=25, completion_tokens=6)


async def test_usage_is_counted_by_day_and_stays_when_the_session_is_gone(openings):
    async with openings.open() as store:
        await store.commit(session("s"))
        used = {"spent_prompt_tokens": 10, "spent_completion_tokens": 3, "cost": 0.25}
        for at in (DAY - 1, DAY, 2 * DAY - 1):
            await store.commit(UsageAdded(id=S, at=at, **used))
        await store.commit(UsageAdded(id=S, at=DAY, cost=9, counted=True))
        await store.commit(UsageAdded(id=S, at=5 * DAY, prompt_tokens=7))
        with pytest.raises(SessionNotFound):
            await store.commit(UsageAdded(id="nobody", at=DAY, **used))
        for number, (kind, started) in enumerate([("prompt", 1), ("task", 1), ("prompt", 0)]):
            view = RunView(
                id=f"r{number}",
                session_id=S,
                state=RunState.ACCEPTED,
                kind=RunKind(kind),
                seq=number + 1,
                accepted_at=DAY,
                started_at=started and DAY,
            )
            await store.commit(RunAccepted(run=view, prompt="go"))
            ended = evolve(view, state=RunState.COMPLETED, ended_at=3 * DAY + 7)
            await store.commit(RunEnded(run=ended))
        await store.commit(SessionDeleted(id=S))
        second = UsageDay(day="1970-01-02", tokens_in=20, tokens_out=6, cost=0.5)
        fourth = UsageDay(day="1970-01-04", runs=1)
        assert await store.usage(DAY) == [second, fourth]
        assert await store.usage(2 * DAY) == [fourth]
        assert (await store.usage(0))[0] == UsageDay(
            day="1970-01-01", tokens_in=10, tokens_out=3, cost=0.25
        )


async def test_an_edit_that_comes_late_does_not_turn_the_clock_back(openings):
    async with openings.open() as store:
        await store.commit(session("s", at=100))
        await store.commit(SessionEdited(id=S, at=50, title="late"), UsageAdded(id=S, at=60))
        stored = await store.session(S)
        assert (stored.title, stored.updated_at) == ("late", 100)


@pytest.mark.parametrize(
    "change",
    [
        SessionEdited(id=S, at=1, title="x"),
        UsageAdded(id=S, at=1),
        SessionDeleted(id=S),
        message("m"),
    ],
    ids=lambda change: type(change).__name__,
)
async def test_changing_an_unknown_session_is_refused(openings, change):
    async with openings.open() as store:
        with pytest.raises(SessionNotFound, match="s"):
            await store.commit(change)


async def test_reading_an_unknown_session_is_refused(openings):
    async with openings.open() as store:
        for read in (store.session, store.totals):
            with pytest.raises(SessionNotFound):
                await read(S)
        assert await store.sessions() == []


@pytest.mark.item("G15")
async def test_sessions_are_listed_from_the_most_recently_updated(openings):
    async with openings.open() as store:
        await store.commit(session("a", at=10), session("b", at=30), session("c", at=20))
        assert ids(await store.sessions()) == ["b", "c", "a"]
        await store.commit(SessionEdited(id=SessionId("a"), at=40, title="x"))
        assert ids(await store.sessions()) == ["a", "b", "c"]
        await store.commit(message("m", session="c", at=50))
        assert ids(await store.sessions()) == ["c", "a", "b"]


async def test_of_sessions_updated_in_the_same_second_the_newest_comes_first(openings):
    async with openings.open() as store:
        await store.commit(session("b", at=10), session("a", at=10), session("c", at=10))
        assert ids(await store.sessions()) == ["c", "a", "b"]


async def test_a_deleted_session_is_gone_and_its_runs_stay_on_record(openings):
    async with openings.open() as store:
        await store.commit(session("s"), session("t"), message("m"), run("r"))
        await store.commit(SessionDeleted(id=S))
        assert ids(await store.sessions()) == ["t"]
        assert await store.messages(S) == []
        assert ids(await store.runs(S)) == ["r"]


async def test_sessions_outlive_the_program(openings):
    async with openings.open() as store:
        await store.commit(session("s", title="kept"), SessionEdited(id=S, at=100, todos=TODOS))
        before = await store.session(S)
    async with openings.open() as store:
        assert await store.session(S) == before
