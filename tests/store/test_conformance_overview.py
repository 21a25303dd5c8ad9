"""Reads over many sessions, in every store: the overview and the search."""

import pytest
from attrs import evolve

from crush_trio.store.changes import RunEnded
from crush_trio.store.overview import snippet_of
from crush_trio.store.sqlite.statements import overview
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Role
from crush_trio.wire.runs import RunState
from crush_trio.wire.views import ModelName
from tests.store.stores import STOP, message, run, session, text, thought

pytestmark = pytest.mark.real_clock


def written(identity, *parts, model="", **more):
    made = message(identity, *parts, STOP, **more)
    return evolve(made, message=evolve(made.message, model=model, provider="p" if model else ""))


def ended(accepted, state, **more):
    return RunEnded(run=evolve(accepted.run, state=state, ended_at=200, **more))


async def test_the_overview_has_the_last_run_and_the_last_model(openings):
    first, second, third = run("r1", seq=1), run("r2", seq=2), run("r3", seq=3)
    async with openings.open() as store:
        await store.commit(session("s"), session("t", at=90), session("child", parent="s"))
        await store.commit(first, ended(first, RunState.COMPLETED))
        await store.commit(second, ended(second, RunState.ERRORED))
        await store.commit(third, ended(third, RunState.FOLDED, folded_into=RunId("r2")))
        await store.commit(written("m1", model="old"), written("m2", model="new"), written("m3"))
        found = await store.overview()
        assert [each.session.id for each in found] == ["s", "t"]
        assert [each.last_run for each in found] == [RunState.ERRORED, None]
        assert [each.model for each in found] == [ModelName(provider="p", model="new"), None]
        assert found[0].session == await store.session(SessionId("s"))
        chosen = await store.overview([SessionId("t"), SessionId("child"), SessionId("none")])
        assert [each.session.id for each in chosen] == ["t"]
        assert await store.overview([]) == []


async def test_the_search_finds_titles_and_texts_the_newest_first(openings):
    async with openings.open() as store:
        await store.commit(session("s", title="About Größe", at=50), session("t", at=60))
        await store.commit(session("child", parent="s", title="größe"))
        await store.commit(
            written("m1", text("die GRÖSSE"), at=101, role=Role.USER),
            written("m2", text("nothing"), text("Die Größe zählt, größe"), at=102),
            written("m3", thought("größe"), at=103),
            written("m4", text("größe"), at=104, session="child"),
            written("m5", text("größe"), at=105, role=Role.TOOL),
            written("m6", text("größe 100% _"), at=106, session="t"),
        )
        found = await store.search("GRÖßE", 10)
        assert [(each.message_id, each.role) for each in found] == [
            ("m6", Role.ASSISTANT),
            (None, Role.UNSET),  # as new as the newest message of its session
            ("m2", Role.ASSISTANT),
        ]
        assert found[1].title == "About Größe"
        assert [each.message_id for each in await store.search("größe", 1)] == ["m6"]
        assert [each.message_id for each in await store.search("0% _", 5)] == [MessageId("m6")]
        assert await store.search("%", 5) != []
        assert await store.search("absent", 5) == []


def test_a_snippet_is_one_line_around_what_was_found():
    assert snippet_of("a" * 100 + " the\n\n WORD " + "b" * 100, "word") == (
        "…" + "a" * 53 + " the WORD " + "b" * 59 + "…"
    )
    assert snippet_of("word", "word") == "word"
    assert snippet_of("wor", "word") is None


@pytest.mark.parametrize("openings", ["sqlite"], indirect=True)
async def test_a_search_that_takes_too_long_returns_what_it_has(openings):
    async with openings.open() as store:
        await store.commit(session("s"))
        await store.commit(*(written(f"m{n}", text("word"), at=100 + n) for n in range(9)))
        found = await store._read(lambda c: overview.search(c, "word", 9, seconds=-1))
        assert [each.message_id for each in found] == ["m8"]
