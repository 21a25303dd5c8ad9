"""The events that outlive a restart, in every store: the exact continuation, or none."""

import pytest

from crush_trio.store.base import TailEvent
from crush_trio.store.changes import BootClosed, TailKept

pytestmark = pytest.mark.real_clock


def kept(*seqs, keep=100):
    return [
        TailKept(seq=seq, terminal=seq % 2 == 0, event=f'{{"n":{seq}}}', keep=keep) for seq in seqs
    ]


CLOSED = BootClosed(at=200)


async def start(openings, *changes):
    """One start of the program that makes these changes and ends."""
    async with openings.open() as store:
        await store.commit(*changes)
        return store.boot_id


async def tail(openings, *place):
    """What a start finds after a place in an earlier one."""
    async with openings.open() as store:
        found = await store.tail_after(*place)
    return None if found is None else [(event.boot_id, event.seq) for event in found]


async def test_the_events_after_a_place_are_there_after_a_restart(openings):
    await start(openings, *kept(3, 5, 8), CLOSED)
    async with openings.open() as store:
        assert await store.tail_after("boot-1", 3) == [
            TailEvent(boot_id="boot-1", seq=5, terminal=False, event='{"n":5}'),
            TailEvent(boot_id="boot-1", seq=8, terminal=True, event='{"n":8}'),
        ]
        assert await store.tail_after("boot-1", 8) == []
        assert len(await store.tail_after("boot-1", 0)) == 3


async def test_a_start_that_did_not_end_in_good_order_has_no_certain_continuation(openings):
    await start(openings, *kept(1, 2))
    assert await tail(openings, "boot-1", 1) is None


async def test_an_unknown_start_has_none(openings):
    await start(openings, *kept(1, 2), CLOSED)
    assert await tail(openings, "boot-9", 1) is None


async def test_events_of_this_start_are_in_its_log_and_not_here(openings):
    await start(openings, *kept(1), CLOSED)
    async with openings.open() as store:
        await store.commit(*kept(1, 2))
        assert [event.boot_id for event in await store.tail_after("boot-1", 0)] == ["boot-1"]
        assert await store.tail_after(store.boot_id, 0) == []


async def test_a_place_goes_on_through_later_starts(openings):
    await start(openings, *kept(1, 2), CLOSED)
    await start(openings, CLOSED)
    await start(openings, *kept(1, 4), CLOSED)
    assert await tail(openings, "boot-1", 1) == [("boot-1", 2), ("boot-3", 1), ("boot-3", 4)]


async def test_a_later_start_that_crashed_makes_the_continuation_uncertain(openings):
    await start(openings, *kept(1, 2), CLOSED)
    await start(openings, *kept(1))
    assert await tail(openings, "boot-1", 1) is None
    await start(openings, *kept(1), CLOSED)
    assert await tail(openings, "boot-1", 1) is None
    # but not that of a place after it; tail() itself opened two starts in between that crashed
    last = await start(openings, *kept(1, 2), CLOSED)
    assert await tail(openings, last, 1) == [(last, 2)]


async def test_only_the_newest_events_are_kept_over_all_starts(openings):
    await start(openings, *kept(1, 2, 3, keep=4), CLOSED)
    await start(openings, *kept(1, 2, keep=4), CLOSED)
    async with openings.open() as store:
        assert await store.tail_after("boot-1", 0) is None
        expected = [("boot-1", 2), ("boot-1", 3), ("boot-2", 1), ("boot-2", 2)]
        found = await store.tail_after("boot-1", 1)
        assert [(event.boot_id, event.seq) for event in found] == expected
        await store.commit(*kept(7, keep=1))
        assert await store.tail_after("boot-1", 3) is None
        assert await store.tail_after("boot-2", 1) is None
        assert await store.tail_after("boot-2", 2) == []


async def test_what_was_dropped_before_a_place_does_not_matter_to_it(openings):
    await start(openings, *kept(1, 2, 3, 4, keep=2), CLOSED)
    async with openings.open() as store:
        assert await store.tail_after("boot-1", 1) is None
        assert [event.seq for event in await store.tail_after("boot-1", 2)] == [3, 4]
        assert [event.seq for event in await store.tail_after("boot-1", 3)] == [4]


async def test_a_store_that_keeps_nothing_says_so(openings):
    await start(openings, *kept(1, 2, keep=0), CLOSED)
    await start(openings, *kept(1, 2, keep=0), CLOSED)
    async with openings.open() as store:
        assert await store.tail_after("boot-1", 1) is None
        assert await store.tail_after("boot-1", 2) is None
        assert await store.tail_after("boot-2", 1) is None
        assert await store.tail_after("boot-2", 2) == []


async def test_keeping_an_event_twice_changes_nothing(openings):
    await start(openings, *kept(1, 2), *kept(2, keep=2), *kept(1, keep=2), CLOSED)
    assert await tail(openings, "boot-1", 0) == [("boot-1", 1), ("boot-1", 2)]


async def test_the_number_kept_can_change_from_one_event_to_the_next(openings):
    await start(openings, *kept(1, 2, 3), *kept(4, keep=2), *kept(5, 6), CLOSED)
    async with openings.open() as store:
        assert await store.tail_after("boot-1", 1) is None
        assert [event.seq for event in await store.tail_after("boot-1", 2)] == [3, 4, 5, 6]
