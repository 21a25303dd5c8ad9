"""How runs ended after a place among the events, in every store: each ending once, none left out."""

import pytest
from attrs import evolve

from crush_trio.store.base import UNPLACED
from crush_trio.store.changes import BootClosed, RunEnded, RunRetracted, SessionDeleted, TailKept
from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import RunState
from tests.store.stores import run, session

pytestmark = pytest.mark.real_clock

CLOSED = BootClosed(at=200)


def accepted(*names):
    return [run(name, seq=number) for number, name in enumerate(names)]


def ended(*names, text="", error="", state=RunState.COMPLETED):
    more = {"state": state, "ended_at": 9, "text": text, "error": error}
    return [RunEnded(run=evolve(run(name).run, **more)) for name in names]


def told(name, seq, keep=100):
    """The event of an ending is kept: its place is known from then on."""
    return TailKept(seq=seq, terminal=True, event="{}", keep=keep, ended=RunId(name))


async def start(openings, *changes):
    """One start of the program that makes these changes and ends, or is killed."""
    async with openings.open() as store:
        await store.commit(*changes)
        return store.boot_id


async def after(store, boot_id, seq, upto=0, **more):
    found = await store.endings_after(boot_id, seq, upto=upto, **more)
    return None if found is None else [(each.boot_id, each.seq, each.run.id) for each in found]


async def test_endings_whose_events_were_kept_have_their_places(openings):
    await start(
        openings, *accepted("a", "b", "c"), *ended("a", "b"), told("b", 4), told("a", 7), CLOSED
    )
    async with openings.open() as store:
        everything = [("boot-1", 4, "b"), ("boot-1", 7, "a")]
        assert await after(store, "boot-1", 0) == everything
        assert await after(store, "boot-1", 3) == everything
        assert await after(store, "boot-1", 4) == everything[1:]
        assert await after(store, "boot-1", 7) == []


async def test_endings_that_were_stored_and_never_told_come_after_everything_else(openings):
    names = ("a", "b", "c", "d")
    await start(openings, *accepted(*names), *ended("c", "b", "a"), told("c", 5))
    async with openings.open() as store:
        placed, first, second = await after(store, "boot-1", 0)
        assert placed == ("boot-1", 5, "c")
        assert [first[2], second[2]] == ["a", "b"], "in the order of acceptance"
        assert UNPLACED < first[1] < second[1]
        assert await after(store, "boot-1", 10**9) == [first, second]
        assert await after(store, *first[:2]) == [second]
        assert await after(store, *second[:2]) == []


async def test_an_ending_of_this_start_is_found_by_its_place_and_not_before_it_has_one(openings):
    async with openings.open() as store:
        await store.commit(*accepted("a", "b", "c"), *ended("a", "b", "c"), told("a", 3))
        assert await after(store, store.boot_id, 0, upto=10) == [("boot-1", 3, "a")]
        store.post(told("b", 8))
        found = [("boot-1", 3, "a"), ("boot-1", 8, "b")]
        assert await after(store, store.boot_id, 0, upto=10) == found, "what was posted is seen"
        assert await after(store, store.boot_id, 0, upto=7) == found[:1]
        assert await after(store, store.boot_id, 3, upto=8) == found[1:]


async def test_endings_follow_a_place_through_several_starts(openings):
    await start(openings, *accepted("a", "b", "c", "d"), *ended("a", "b"), told("a", 1))
    await start(openings, *ended("c"), told("c", 2), CLOSED)
    await start(openings)
    async with openings.open() as store:
        await store.commit(*ended("d"), told("d", 6))
        one, two, three, four = await after(store, "boot-1", 0, upto=6)
        assert [one[2], two[2], three, four] == ["a", "b", ("boot-2", 2, "c"), ("boot-4", 6, "d")]
        assert await after(store, "boot-2", 0, upto=6) == [three, four]
        assert await after(store, "boot-2", 2, upto=6) == [four]
        assert await after(store, "boot-3", 99, upto=6) == [four]


async def test_a_run_that_a_later_start_ended_belongs_to_that_one(openings):
    await start(openings, *accepted("orphan"))
    await start(openings, *ended("orphan", state=RunState.INTERRUPTED), told("orphan", 1))
    async with openings.open() as store:
        (ending,) = await store.endings_after("boot-1", 5, upto=0)
        assert (ending.boot_id, ending.seq) == ("boot-2", 1)
        assert ending.run.state is RunState.INTERRUPTED


async def test_an_ending_that_was_told_before_it_could_be_stored_keeps_its_place(openings):
    """The write failed and was repeated; meanwhile readers had been told."""
    async with openings.open() as store:
        await store.commit(*accepted("a"), told("a", 4))
        assert await after(store, store.boot_id, 0, upto=9) == [], "it has not ended in the store"
        await store.commit(*ended("a"))
        assert await after(store, store.boot_id, 0, upto=9) == [("boot-1", 4, "a")]
        assert await after(store, store.boot_id, 4, upto=9) == []


async def test_an_ending_that_was_told_and_never_stored_is_the_business_of_recovery(openings):
    await start(openings, *accepted("a"), told("a", 4))
    async with openings.open() as store:
        await store.commit(*ended("a", state=RunState.INTERRUPTED), told("a", 1))
        assert await after(store, "boot-1", 0, upto=9) == [("boot-2", 1, "a")]


async def test_ending_a_run_again_does_not_move_its_place(openings):
    await start(openings, *accepted("a"), *ended("a"), told("a", 4))
    async with openings.open() as store:
        await store.commit(*ended("a", state=RunState.ERRORED))
        assert await after(store, "boot-1", 0, upto=9) == [("boot-1", 4, "a")]


async def test_places_outlive_the_events_and_the_sessions(openings):
    await start(openings, session(), *accepted("a", "b"), *ended("a", "b"))
    async with openings.open() as store:
        await store.commit(told("a", 1, keep=1), told("b", 2, keep=1), SessionDeleted(id="s"))
        place = store.boot_id
    async with openings.open() as store:
        assert await after(store, place, 0) == [(place, 1, "a"), (place, 2, "b")]


async def test_a_run_that_was_retracted_has_no_ending(openings):
    await start(openings, *accepted("a"), RunRetracted(id=RunId("a")))
    async with openings.open() as store:
        assert await after(store, "boot-1", 0) == []


async def test_an_unknown_start_is_not_the_beginning_of_all(openings):
    await start(openings, *accepted("a"), *ended("a"), told("a", 1))
    async with openings.open() as store:
        assert await store.endings_after("boot-9", 0, upto=0) is None


async def test_endings_come_in_pages(openings):
    names = [f"run-{number}" for number in range(10)]
    places = [told(name, 2 * number + 1) for number, name in enumerate(names[:6])]
    await start(openings, *accepted(*names), *ended(*names), *places)
    async with openings.open() as store:
        found, place = [], ("boot-1", 0)
        while page := await after(store, *place, limit=4):
            assert len(page) <= 4
            found += [name for _, _, name in page]
            place = page[-1][:2]
        assert found == names


async def test_a_page_has_no_more_after_it_is_long_enough_and_long_answers_are_cut(openings):
    await start(
        openings,
        *accepted("a", "b", "c", "d"),
        *ended("a", text="x" * 30),
        *ended("b", text="y" * 30),
        *ended("c", text="z" * 51),
        *ended("d", error="e" * 60),
        *(told(name, seq) for seq, name in enumerate("abcd", 1)),
    )
    async with openings.open() as store:
        page = await store.endings_after("boot-1", 0, upto=0, size=50)
        assert [(each.run.text[:1], each.cut) for each in page] == [("x", False), ("y", False)]
        page = await store.endings_after("boot-1", 2, upto=0, size=50)
        assert [(each.run.text, each.cut) for each in page] == [("", True), ("", False)]
        assert page[1].run.error == "e" * 60


async def test_kept_events_come_in_pages_too(openings):
    events = [
        TailKept(seq=seq, terminal=False, event=f'"{seq:08}"', keep=100) for seq in range(1, 8)
    ]
    await start(openings, *events, CLOSED)
    async with openings.open() as store:
        found = await store.tail_after("boot-1", 1, limit=3)
        assert [event.seq for event in found] == [2, 3, 4]
        found = await store.tail_after("boot-1", 4, size=15)
        assert [event.seq for event in found] == [5, 6]
        assert await store.tail_after("boot-1", 7, limit=3) == []
