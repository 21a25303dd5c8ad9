"""Attendance: deadlines that follow who comes and goes, without anybody being woken to look."""

from math import inf

import pytest
import trio

from crush_trio.agent.asks.attendance import Attendance


async def wait_for_ever(attendance, *, interactive=True):
    """Return how long the body was given."""
    began = trio.current_time()
    with attendance.of(interactive=interactive).patiently():
        await trio.sleep_forever()
    return trio.current_time() - began


async def come_and_go(attendance, *stays):
    """Be there from one time to another, for each pair."""
    for begin, end in stays:
        await trio.sleep_until(begin)
        with attendance.present():
            await trio.sleep_until(end)


@pytest.mark.parametrize(
    ("stays", "given"),
    [
        ([], 10),
        ([(9, 20)], 30),
        ([(9, 20), (29, 30)], 40),
        ([(0, 5)], 15),
        ([(3, 3)], 13),
    ],
    ids=["nobody", "came just in time", "came back", "was there", "looked in"],
)
async def test_patience_counts_from_the_last_one_who_left(stays, given):
    attendance = Attendance(10.0)
    offset = trio.current_time()
    async with trio.open_nursery() as nursery:
        moved = [(offset + begin, offset + end) for begin, end in stays]
        nursery.start_soon(come_and_go, attendance, *moved)
        assert await wait_for_ever(attendance) == given
        nursery.cancel_scope.cancel()


async def test_with_somebody_there_it_waits_as_long_as_it_takes():
    attendance = Attendance(10.0)
    with attendance.present(), trio.move_on_after(1_000_000) as limit:
        await wait_for_ever(attendance)
    assert limit.cancelled_caught


async def test_the_first_of_two_who_leaves_changes_nothing():
    attendance = Attendance(10.0)
    attendance.arrive()
    attendance.arrive()
    with attendance.of(interactive=True).patiently() as scope:
        attendance.leave()
        assert scope.deadline == inf
        attendance.leave()
        assert scope.deadline == trio.current_time() + 10
        attendance.arrive()
        assert scope.deadline == inf
    attendance.leave()


async def test_what_is_not_interactive_waits_for_people_whatever_streams_there_are():
    attendance = Attendance(10.0)
    assert attendance.refuses(interactive=False)
    assert not attendance.refuses(interactive=True)
    attendance.set_people(2)
    assert not attendance.refuses(interactive=False)
    with attendance.present(), attendance.of(interactive=False).patiently() as scope:
        assert scope.deadline == inf
        attendance.set_people(1)
        assert scope.deadline == inf
        attendance.set_people(0)
        gone = trio.current_time()
        await trio.sleep(3)
        attendance.set_people(0)
        attendance.arrive()
        assert scope.deadline == gone + 10
        attendance.set_people(1)
        assert scope.deadline == inf
        attendance.set_people(0)
        await trio.sleep_forever()
    assert trio.current_time() == gone + 3 + 10


async def test_a_person_who_may_come_back_is_waited_for_and_one_who_may_not_is_not():
    attendance = Attendance(10.0)
    attendance.set_people(1)
    attendance.set_people(0, expected=True)
    assert not attendance.refuses(interactive=False)
    with attendance.of(interactive=False).patiently() as scope:
        attendance.set_people(0, expected=False)
        assert scope.deadline == trio.current_time()
        attendance.set_people(1)
        assert scope.deadline == inf
    attendance.set_people(0, expected=False)
    assert attendance.refuses(interactive=False)
    assert await wait_for_ever(attendance, interactive=False) == 0


async def test_what_waits_no_longer_is_forgotten():
    attendance = Attendance(10.0)
    with attendance.of(interactive=True).patiently():
        await trio.lowlevel.checkpoint()
    await wait_for_ever(attendance)
    assert attendance.of(interactive=True)._waiting == set()


async def test_who_is_there_is_counted_out_by_any_way_out():
    attendance = Attendance()

    def hang_up():
        with attendance.present():
            assert attendance.streams == 1
            raise ConnectionError

    with pytest.raises(ConnectionError):
        hang_up()
    assert attendance.streams == 0
