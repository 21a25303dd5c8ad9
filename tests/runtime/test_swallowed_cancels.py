"""`CancelWatch`: it changes nothing between a turn and Trio, and notices one thing."""

from math import inf

import outcome
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.runtime.watch import CancelWatch

MINE = "run a was cancelled"


class Trap:
    """Yields itself to whoever drives the coroutine, as a foreign library would."""

    def __await__(self):
        return (yield self)


async def asleep(seconds=inf):
    await trio.sleep(seconds)


async def driven(work, *, reason=MINE):
    """Await *work* under a watch; return what it returned and whether the cancel was delivered."""
    watch = CancelWatch(reason)
    value = await watch.drive(work)
    return value, watch.delivered


# ── It changes nothing ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("checkpoints", [0, 1, 5])
async def test_a_value_passes_and_the_work_waits_as_often_as_it_would_alone(checkpoints):
    async def work():
        for _ in range(checkpoints):
            await trio.sleep(1)
        return "value"

    began = trio.current_time()
    assert await driven(work()) == ("value", False)
    assert trio.current_time() - began == checkpoints


async def test_an_exception_passes_as_the_same_object():
    error = ValueError("mine")

    async def work():
        await trio.lowlevel.checkpoint()
        raise error

    with pytest.raises(ValueError, match="mine") as caught:
        await driven(work())
    assert caught.value is error


def test_what_is_said_in_either_direction_is_not_touched():
    trap = Trap()

    async def work():
        return await trap

    steps = CancelWatch(MINE).drive(work()).__await__()
    assert next(steps) is trap
    reply = object()
    with pytest.raises(StopIteration) as done:
        steps.send(reply)
    assert done.value.value is reply


async def test_an_awaitable_that_is_no_coroutine_is_driven_too():
    class Late:
        def __await__(self):
            yield from asleep(1).__await__()
            return "value"

    assert await driven(Late()) == ("value", False)


def test_closing_the_driver_closes_what_it_drives_there_and_then():
    closed = []

    async def work():
        try:
            await Trap()
        finally:
            closed.append(True)

    inner = work()  # held on to, so that the garbage collector cannot be the one who closes it
    steps = CancelWatch(MINE).drive(inner).__await__()
    next(steps)
    steps.close()
    assert closed == [True]


def test_an_exception_thrown_in_arrives_where_the_work_waits():
    async def work():
        try:
            await Trap()
        except KeyError:
            return await Trap()

    steps = CancelWatch(MINE).drive(work()).__await__()
    next(steps)
    assert isinstance(steps.throw(KeyError("thrown in")), Trap)
    with pytest.raises(StopIteration) as done:
        steps.send("value")
    assert done.value.value == "value"


async def test_a_foreign_await_gets_trios_usual_error_where_it_stands():
    """Trio throws it into the coroutine; a turn that awaits in its clean-up must survive it."""
    cleaned_up = []

    async def work():
        try:
            await Trap()
        finally:
            await trio.lowlevel.checkpoint()
            cleaned_up.append(True)

    with pytest.raises(TypeError, match="unrecognized yield message") as caught:
        await driven(work())
    assert cleaned_up == [True]
    assert "work" in [entry.name for entry in caught.traceback]


# ── It notices its own cancel ──────────────────────────────────────────────────────────────────


async def test_a_cancel_with_the_reason_is_noticed_and_still_passes():
    watch = CancelWatch(MINE)
    with trio.CancelScope() as scope:
        scope.cancel(MINE)
        await watch.drive(asleep())
        pytest.fail("the cancel was held back")
    assert scope.cancelled_caught
    assert watch.delivered


async def test_a_cancel_that_is_swallowed_is_noticed():
    async def work():
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            return "as if nothing had happened"

    with trio.CancelScope() as scope:
        scope.cancel(MINE)
        assert await driven(work()) == ("as if nothing had happened", True)


@pytest.mark.parametrize("reason", [None, "run b was cancelled", MINE + "!"])
async def test_a_cancel_with_another_reason_is_not_ours(reason):
    watch = CancelWatch(MINE)
    with trio.CancelScope() as scope:
        scope.cancel(reason)
        await watch.drive(asleep())
    assert scope.cancelled_caught
    assert not watch.delivered


async def test_a_cancel_that_comes_after_the_last_checkpoint_is_not_delivered():
    async def work():
        await trio.lowlevel.checkpoint()
        scope.cancel(MINE)
        return "whole"

    with trio.CancelScope() as scope:
        assert await driven(work()) == ("whole", False)


async def test_an_error_that_merely_carries_the_reason_is_no_cancel():
    async def work():
        try:
            await trio.lowlevel.wait_task_rescheduled(refuse_abort)
        except ValueError:
            return "handled"

    def refuse_abort(_raise_cancel):
        return trio.lowlevel.Abort.FAILED

    task = trio.lowlevel.current_task()

    async def wake():
        await wait_all_tasks_blocked()
        trio.lowlevel.reschedule(task, outcome.Error(ValueError(MINE)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wake)
        assert await driven(work()) == ("handled", False)


# ── It is not fooled ───────────────────────────────────────────────────────────────────────────


async def test_a_timeout_inside_is_not_a_swallowed_cancel():
    async def work():
        with trio.move_on_after(1):
            await trio.sleep_forever()
        with pytest.raises(trio.TooSlowError), trio.fail_after(1):
            await trio.sleep_forever()
        return "went on"

    assert await driven(work()) == ("went on", False)


async def test_a_scope_that_the_work_cancels_itself_is_not_a_swallowed_cancel():
    async def work():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.cancel_scope.cancel("enough")
            await trio.sleep_forever()
        return "went on"

    assert await driven(work()) == ("went on", False)


async def test_a_shielded_cleanup_that_times_out_under_the_cancel_is_not_the_cancel():
    async def work():
        scope.cancel(MINE)
        with trio.move_on_after(1, shield=True) as cleanup:
            await trio.sleep_forever()
        assert cleanup.cancelled_caught
        return "whole"  # no checkpoint since: nobody has told it of the cancel

    with trio.CancelScope() as scope:
        assert await driven(work()) == ("whole", False)


async def test_a_cancel_during_a_shielded_step_is_noticed_at_the_next_checkpoint():
    async def work():
        with trio.CancelScope(shield=True):
            scope.cancel(MINE)
            await trio.sleep(1)
        assert not watch.delivered
        await trio.lowlevel.checkpoint()

    watch = CancelWatch(MINE)
    with trio.CancelScope() as scope:
        await watch.drive(work())
    assert scope.cancelled_caught
    assert watch.delivered


async def test_a_timeout_inside_does_not_hide_the_cancel_that_reaches_through_it():
    async def work():
        with trio.move_on_after(60):
            await trio.sleep_forever()

    watch = CancelWatch(MINE)
    with trio.move_on_after(100), trio.CancelScope() as scope:
        scope.cancel(MINE)
        await watch.drive(work())
    assert scope.cancelled_caught
    assert watch.delivered


# ── Nurseries inside ───────────────────────────────────────────────────────────────────────────


async def test_children_work_as_they_would_without_the_watch():
    results = []

    async def child(n):
        await trio.sleep(n)
        results.append(n)

    async def work():
        async with trio.open_nursery() as nursery:
            for n in (2, 1):
                nursery.start_soon(child, n)
        return results

    assert await driven(work()) == ([1, 2], False)


async def test_the_errors_of_children_leave_as_a_group():
    async def child():
        await trio.lowlevel.checkpoint()
        raise ValueError("the child's")

    async def work():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    with pytest.RaisesGroup(ValueError):
        await driven(work())


async def test_a_cancel_ends_the_children_and_is_noticed_in_the_block_of_the_nursery():
    async def work():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()

    watch = CancelWatch(MINE)
    with trio.CancelScope() as scope:
        scope.cancel(MINE)
        await watch.drive(work())
    assert scope.cancelled_caught
    assert watch.delivered


async def test_a_cancel_that_only_a_child_was_handed_is_not_seen():
    """The limit of what can be known: children are tasks of their own, and driven by Trio alone."""

    async def child():
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            return

    async def work():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
        return "went on"

    with trio.CancelScope() as scope:
        scope.cancel(MINE)
        assert await driven(work()) == ("went on", False)
