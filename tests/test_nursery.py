"""`open_hidden_nursery`: nobody outside can tell that there is a nursery."""

import traceback

import pytest
import trio
import trio.testing

from crush_trio.nursery import open_hidden_nursery


async def fail(error):
    await trio.lowlevel.checkpoint()
    raise error


async def fail_once_cancelled(error):
    try:
        await trio.sleep_forever()
    finally:
        raise error


async def test_a_lone_exception_of_the_body_leaves_as_itself():
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        async with open_hidden_nursery():
            await fail(error)
    assert caught.value is error


async def test_a_lone_exception_of_a_child_leaves_as_itself():
    error = ValueError("the child's")
    with pytest.raises(ValueError, match="the child's") as caught:
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(fail, error)
    assert caught.value is error


async def test_the_traceback_still_shows_where_it_was_raised():
    with pytest.raises(ValueError, match="mine") as caught:
        async with open_hidden_nursery():
            await fail(ValueError("mine"))
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "fail"
    assert "test_the_traceback_still_shows_where_it_was_raised" in names


async def test_the_cause_of_an_exception_stays():
    cause = KeyError("the cause")
    with pytest.raises(ValueError, match="mine") as caught:
        async with open_hidden_nursery():
            raise ValueError("mine") from cause
    assert caught.value.__cause__ is cause


def fail_while_handling(context):
    try:
        raise context
    except KeyError:
        raise ValueError("mine")  # noqa: B904 - the point is that there is no `from`


async def test_the_context_of_an_exception_stays():
    """What was being handled when it was raised is part of the story a traceback tells."""
    context = KeyError("handled just then")
    with pytest.raises(ValueError, match="mine") as caught:
        async with open_hidden_nursery():
            fail_while_handling(context)
    assert caught.value.__context__ is context
    assert not caught.value.__suppress_context__


async def test_the_nursery_leaves_no_trace_in_what_is_printed():
    with pytest.raises(ValueError, match="mine") as caught:
        async with open_hidden_nursery():
            await fail(ValueError("mine"))
    text = "".join(traceback.format_exception(caught.value))
    assert "Exceptions from Trio nursery" not in text


async def test_two_exceptions_leave_as_a_group():
    with pytest.RaisesGroup(ValueError, KeyError):
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(fail_once_cancelled, KeyError("the child's"))
            await trio.testing.wait_all_tasks_blocked()
            raise ValueError("mine")


@pytest.mark.parametrize("members", [1, 2])
async def test_a_group_that_the_body_raised_on_purpose_stays_one(members):
    group = ExceptionGroup("on purpose", [ValueError(str(n)) for n in range(members)])
    with pytest.raises(ExceptionGroup, match="on purpose") as caught:
        async with open_hidden_nursery():
            raise group
    # Trio rebuilds a group on its way through a scope; what is in it stays what it was.
    assert caught.value.exceptions == group.exceptions


async def test_a_group_that_a_child_raised_stays_one():
    group = ExceptionGroup("on purpose", [ValueError("a")])
    with pytest.raises(ExceptionGroup, match="on purpose") as caught:
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(fail, group)
    assert caught.value.exceptions == group.exceptions


async def test_a_cancellation_from_outside_passes():
    with trio.CancelScope() as outside:
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            outside.cancel()
            await trio.sleep_forever()
    assert outside.cancelled_caught


async def test_an_exception_beside_a_cancellation_is_not_lost():
    with pytest.RaisesGroup(ValueError):
        with trio.CancelScope() as outside:
            async with open_hidden_nursery() as nursery:
                nursery.start_soon(fail_once_cancelled, ValueError("while being cancelled"))
                await trio.testing.wait_all_tasks_blocked()
                outside.cancel()
                await trio.sleep_forever()


async def test_cancelling_the_nursery_itself_ends_it_without_an_exception():
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.cancel_scope.cancel()
    assert nursery.cancel_scope.cancel_called
    assert not nursery.child_tasks


async def test_the_block_is_left_only_when_every_child_has_ended():
    ended = []

    async def child():
        await trio.sleep(5)
        ended.append(trio.current_time())

    before = trio.current_time()
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(child)
    assert ended == [before + 5]


async def test_a_keyboard_interrupt_leaves_as_itself():
    with pytest.raises(KeyboardInterrupt):
        async with open_hidden_nursery():
            raise KeyboardInterrupt


async def test_one_cancellation_leaves_however_many_tasks_it_reached():
    async def wait_together():
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()

    with trio.move_on_after(1):
        with pytest.raises(trio.Cancelled):
            await wait_together()
