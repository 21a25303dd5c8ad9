"""Faults at checkpoints: each kind fires where Trio allows it, and leaves nothing behind."""

import gc
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.runtime.watch import CancelWatch
from crush_trio.testing import Call, CheckpointFaults, Fault, Gate, Raise, Stall, checkpoints_of
from crush_trio.testing.explore import explore


class Disk(Exception):
    """The error that the tests inject."""


async def three_naps(done: list[int]) -> str:
    for nap in range(3):
        await trio.sleep(1)
        done.append(nap)
    return "rested"


async def test_without_faults_nothing_changes_but_the_count():
    done = []
    faults = CheckpointFaults()
    assert await faults.drive(three_naps(done)) == "rested"
    assert done == [0, 1, 2]
    assert faults.count == 3


async def test_the_exception_of_driven_code_leaves_as_it_is():
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise Disk

    with pytest.raises(Disk):
        await CheckpointFaults().drive(fail())


async def test_checkpoints_of_counts_every_kind():
    async def mixed() -> None:
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.cancel_shielded_checkpoint()
        await trio.sleep(1)
        await trio.lowlevel.checkpoint_if_cancelled()

    assert await checkpoints_of(mixed) == 3


async def test_code_without_checkpoints_has_none():
    async def straight() -> None:
        pass

    assert await checkpoints_of(straight) == 0


@pytest.mark.parametrize("k", range(3))
async def test_raise_interrupts_the_kth_wait(k):
    done = []
    fault = Fault(k, Raise(Disk()))
    with pytest.raises(Disk):
        await CheckpointFaults([fault]).drive(three_naps(done))
    assert fault.fired
    assert done == list(range(k))
    assert trio.current_time() == k


async def test_driven_code_may_handle_the_error_and_go_on():
    async def stubborn() -> int:
        tries = 0
        while True:
            tries += 1
            with suppress(Disk):
                await trio.sleep(1)
                return tries

    faults = CheckpointFaults([Fault(0, Raise(Disk())), Fault(1, Raise(Disk()))])
    assert await faults.drive(stubborn()) == 3
    assert faults.count == 3


async def test_a_fault_beyond_the_last_checkpoint_does_not_fire():
    fault = Fault(3, Raise(Disk()))
    assert await CheckpointFaults([fault]).drive(three_naps([])) == "rested"
    assert not fault.fired


async def test_raise_takes_the_wait_off_what_it_was_registered_with():
    event, semaphore = trio.Event(), trio.Semaphore(0)
    sender, receiver = trio.open_memory_channel[int](0)
    for wait in (event.wait, semaphore.acquire, receiver.receive, partial(sender.send, 1)):
        with pytest.raises(Disk):
            await CheckpointFaults([Fault(0, Raise(Disk()))]).drive(wait())
    assert trio.lowlevel.current_task().custom_sleep_data is None
    assert event.statistics().tasks_waiting == 0
    assert semaphore.statistics().tasks_waiting == 0
    assert sender.statistics().tasks_waiting_send == 0
    assert sender.statistics().tasks_waiting_receive == 0
    event.set()
    semaphore.release()
    assert semaphore.value == 1
    await wait_all_tasks_blocked()


def test_other_tasks_may_run_before_an_injected_error_surfaces():
    async def scenario() -> str:
        seen = []

        async def bystander() -> None:
            seen.append("bystander")

        async def driven() -> None:
            try:
                await trio.sleep_forever()
            except Disk:
                seen.append("error")

        faults = CheckpointFaults([Fault(0, Raise(Disk()))])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(faults.wrap(driven))
            nursery.start_soon(bystander)
        return " ".join(seen)

    assert set(explore(scenario).outcomes) == {"error bystander", "bystander error"}


async def test_a_plain_checkpoint_can_be_interrupted():
    fault = Fault(0, Raise(Disk()))
    with pytest.raises(Disk):
        await CheckpointFaults([fault]).wrap(trio.lowlevel.checkpoint)()
    assert fault.fired


async def test_a_shielded_checkpoint_cannot():
    fault = Fault(0, Raise(Disk()))
    await CheckpointFaults([fault]).wrap(trio.lowlevel.cancel_shielded_checkpoint)()
    assert not fault.fired


async def test_an_item_that_was_sent_is_not_reported_as_failed():
    # a send that need not wait ends in a shielded checkpoint, after the item has gone out
    sender, receiver = trio.open_memory_channel[int](1)
    fault = Fault(0, Raise(Disk()))
    await CheckpointFaults([fault]).drive(sender.send(1))
    assert not fault.fired
    assert receiver.receive_nowait() == 1


@pytest.mark.real_clock
async def test_a_thread_that_cannot_be_abandoned_is_waited_for():
    finished = []

    async def work() -> None:
        await trio.to_thread.run_sync(finished.append, True)

    total = await checkpoints_of(work)
    for k in range(total):
        fault = Fault(k, Raise(Disk()))
        await CheckpointFaults([fault]).drive(work())
        assert not fault.fired
    assert total > 0
    assert finished == [True] * (total + 1)


async def test_a_nursery_interrupted_at_its_end_cancels_its_children():
    ended = []

    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    async def parent() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    faults = CheckpointFaults([fault := Fault(0, Raise(Disk()))])
    with pytest.RaisesGroup(Disk):
        await faults.drive(parent())
    assert fault.fired
    assert ended == [True]
    assert faults.count == 1  # the child is a task of its own: its waits are not counted


async def test_children_are_reached_by_wrapping_them():
    fault = Fault(1, Raise(Disk()))
    faults = CheckpointFaults([fault])
    done = []
    with pytest.RaisesGroup(Disk):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(faults.wrap(three_naps), done)
    assert fault.fired
    assert done == [0]
    assert faults.wrap(three_naps).__name__ == "three_naps"


@pytest.mark.parametrize("k", range(3))
async def test_call_can_cancel_at_the_kth_wait(k):
    done = []
    with trio.CancelScope() as scope:
        fault = Fault(k, Call(scope.cancel))
        await CheckpointFaults([fault]).drive(three_naps(done))
    assert fault.fired
    assert scope.cancelled_caught
    assert done == list(range(k))
    assert trio.current_time() == k


async def test_call_at_a_plain_checkpoint_cancels_there():
    after = False
    with trio.CancelScope() as scope:
        faults = CheckpointFaults([Fault(0, Call(scope.cancel))])
        await faults.wrap(trio.lowlevel.checkpoint)()
        after = True
    assert not after


async def test_call_may_wake_the_very_task_that_waits():
    event = trio.Event()
    with trio.CancelScope() as scope:

        def wake_and_cancel() -> None:
            event.set()
            scope.cancel()

        faults = CheckpointFaults([Fault(0, Call(wake_and_cancel))])
        await faults.drive(event.wait())
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert event.statistics().tasks_waiting == 0


async def test_call_that_raises_is_heard_of():
    def fail() -> None:
        raise Disk

    done = []
    with pytest.raises(Disk):
        await CheckpointFaults([Fault(1, Call(fail))]).drive(three_naps(done))
    assert done == [0]


async def test_stall_delays_what_comes_after_the_wait():
    gate = Gate("late")
    done = []

    async def three_steps() -> None:
        for step in range(3):
            await trio.lowlevel.checkpoint()
            done.append(step)

    fault = Fault(1, Stall(gate.wait))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(CheckpointFaults([fault]).drive, three_steps())
        await gate.reached()
        await trio.sleep(60)
        assert done == [0]
        assert fault.fired
        gate.open()
    assert done == [0, 1, 2]


async def test_a_wait_that_was_cancelled_is_not_stalled():
    fault = Fault(0, Stall())
    assert await CheckpointFaults([fault]).drive(three_naps([])) == "rested"
    assert not fault.fired


async def test_a_cancelled_stall_does_not_lose_what_the_wait_returned():
    sender, receiver = trio.open_memory_channel[str](0)
    got = []

    async def receive() -> None:
        got.append(await receiver.receive())
        await trio.lowlevel.checkpoint()
        got.append("not reached")

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(5) as scope:
            nursery.start_soon(sender.send, "item")
            await CheckpointFaults([Fault(0, Stall())]).drive(receive())
    assert got == ["item"]
    assert scope.cancelled_caught
    assert trio.current_time() == 5


async def test_stall_that_raises_is_heard_of():
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise Disk

    faults = CheckpointFaults([Fault(0, Stall(fail))])
    with pytest.raises(Disk):
        await faults.wrap(trio.lowlevel.checkpoint)()
    assert faults.count == 1  # the stall's own checkpoints are not the driven code's


async def test_cancellation_from_outside_passes_through():
    done = []
    with trio.move_on_after(1.5) as scope:
        await CheckpointFaults().drive(three_naps(done))
    assert scope.cancelled_caught
    assert done == [0]


async def test_a_foreign_await_gets_trios_usual_error():
    class Foreign:
        def __await__(self):
            yield "not a message that Trio knows"

    async def driven() -> None:
        await Foreign()

    with pytest.raises(TypeError, match="unrecognized yield message"):
        await CheckpointFaults().drive(driven())


def test_a_driven_coroutine_that_is_closed_closes_what_it_drives():
    closed = []

    async def driven() -> None:
        try:
            await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            closed.append(True)

    coro = CheckpointFaults().drive(driven())
    coro.send(None)
    coro.close()
    gc.collect()
    assert closed == [True]


async def test_the_loop_over_all_checkpoints_finds_a_forgotten_cleanup():
    async def transfer(books: dict[str, int], *, careful: bool) -> None:
        books["from"] -= 1
        try:
            await trio.sleep(1)
        except BaseException:
            if careful:
                books["from"] += 1
            raise
        books["to"] += 1
        await trio.lowlevel.checkpoint()

    async def broken_at(careful: bool) -> list[int]:
        broken = []
        for k in range(
            await checkpoints_of(partial(transfer, {"from": 1, "to": 0}, careful=careful))
        ):
            books = {"from": 1, "to": 0}
            with suppress(Disk):
                await CheckpointFaults([Fault(k, Raise(Disk()))]).drive(
                    transfer(books, careful=careful)
                )
            if sum(books.values()) != 1:
                broken.append(k)
        return broken

    assert await broken_at(careful=False) == [0]
    assert await broken_at(careful=True) == []


@pytest.mark.parametrize("drive", [CancelWatch("stop").drive, lambda coro: coro])
async def test_an_exception_is_raised_at_a_checkpoint_however_deep_it_is_hidden(drive):
    @asynccontextmanager
    async def manager():
        await trio.lowlevel.checkpoint()
        yield

    async def enter() -> None:
        async with manager():
            pass

    async def outermost() -> None:
        await drive(enter())

    with pytest.raises(Disk):
        await CheckpointFaults([Fault(0, Raise(Disk()))]).drive(outermost())
