"""Gates: who waits, who is told, and what cancellation does to them."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.testing import Gate
from crush_trio.testing.explore import explore


async def test_code_waits_at_a_closed_gate_until_it_is_opened():
    gate = Gate("before commit")
    passed = []

    async def work() -> None:
        await gate.wait()
        passed.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await gate.reached()
        await wait_all_tasks_blocked()
        assert (gate.arrivals, gate.waiting, gate.is_open, passed) == (1, 1, False, [])
        gate.open()
        assert gate.is_open
    assert passed == [True]
    assert gate.waiting == 0


async def test_an_open_gate_lets_everyone_pass_and_counts_them():
    gate = Gate()
    gate.open()
    for _ in range(3):
        with trio.testing.assert_checkpoints():
            await gate.wait()
    assert gate.arrivals == 3


async def test_reached_waits_for_the_asked_number_of_arrivals():
    gate = Gate()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.wait)
        await gate.reached()
        with trio.move_on_after(60) as scope:
            await gate.reached(2)
        assert scope.cancelled_caught
        nursery.start_soon(gate.wait)
        await gate.reached(2)
        gate.open()


async def test_reached_is_a_checkpoint_also_when_it_need_not_wait():
    gate = Gate()
    gate.open()
    await gate.wait()
    with trio.testing.assert_checkpoints():
        await gate.reached()


async def test_an_arrival_counts_even_if_it_is_cancelled_at_once():
    gate = Gate()
    with trio.CancelScope() as scope:
        scope.cancel()
        await gate.wait()
    await gate.reached()
    assert (gate.arrivals, gate.waiting) == (1, 0)


async def test_a_cancelled_watcher_leaves_the_gate_usable():
    gate = Gate()
    with trio.move_on_after(1):
        await gate.reached()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.reached)
        nursery.start_soon(gate.reached)
        await wait_all_tasks_blocked()
        gate.open()
        await gate.wait()


def test_no_task_order_makes_a_watcher_miss_an_arrival():
    async def scenario() -> None:
        gate = Gate()

        async def arrive() -> None:
            with trio.move_on_after(1):
                await gate.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.reached, 2)
            nursery.start_soon(arrive)
            nursery.start_soon(arrive)

    assert explore(scenario).exhaustive


def test_a_gate_says_its_name():
    assert repr(Gate("before commit")) == "Gate(name='before commit', arrivals=0)"


@pytest.mark.parametrize("seed", range(20))
async def test_work_behind_the_gate_never_happens_before_it_opens(seed):
    gate = Gate()
    order = []

    async def work(name: int) -> None:
        await gate.wait()
        order.append(name)

    async with trio.open_nursery() as nursery:
        for name in range(3):
            nursery.start_soon(work, name)
        await gate.reached(3)
        order.append("open")
        gate.open()
    assert order[0] == "open"
    assert sorted(order[1:]) == [0, 1, 2]
