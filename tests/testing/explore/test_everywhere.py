"""A cancellation or an exception at every checkpoint of a scenario."""

from contextlib import suppress

import pytest
import trio

from crush_trio.testing import Deadlock, ScheduleFailure, StepLimit, replay
from crush_trio.testing.explore import (
    CancelSwallowed,
    ExplorerBroken,
    PlaceFailure,
    TasksLeft,
    cancel_everywhere,
    cancelled_at,
    explain,
    fail_everywhere,
    failing_at,
    target,
)

checkpoint = trio.lowlevel.checkpoint


async def transfer(accounts: dict[str, int]) -> None:
    await checkpoint()
    accounts["from"] -= 30
    await checkpoint()
    accounts["to"] += 30


async def half_a_transfer() -> int:
    accounts = {"from": 100, "to": 0}
    with target():
        await transfer(accounts)
    assert sum(accounts.values()) == 100, "money is lost"
    return accounts["to"]


async def swallows() -> None:
    with target():
        with suppress(trio.Cancelled):
            await trio.sleep(1)


async def waits_shielded() -> None:
    event = trio.Event()

    async def wait() -> None:
        with trio.CancelScope(shield=True):
            await event.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        event.set()


async def loops() -> None:
    done = False
    while not done:
        with suppress(trio.Cancelled):
            await trio.sleep(1)
            done = True


async def catches_everything() -> None:
    while True:
        try:
            await trio.sleep(1)
        except BaseException:  # noqa: BLE001 - that is the mistake
            pass
        else:
            return


async def leaves_a_task() -> None:
    event = trio.Event()
    trio.lowlevel.spawn_system_task(event.wait)  # noqa: TID251 - that is the mistake
    await trio.sleep(1)
    event.set()
    await checkpoint()


async def raises_another() -> None:
    try:
        await trio.sleep(1)
    except trio.Cancelled:
        raise KeyError("lost") from None


async def two_sleepers() -> str:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 1)
        nursery.start_soon(trio.sleep, 2)
    return "slept"


@pytest.mark.parametrize(
    ("scenario", "cause"),
    [
        (half_a_transfer, AssertionError),
        (swallows, CancelSwallowed),
        (waits_shielded, Deadlock),
        (loops, StepLimit),
        (catches_everything, StepLimit),
        (leaves_a_task, TasksLeft),
        (raises_another, KeyError),
    ],
)
def test_what_a_cancellation_breaks_is_told_and_can_be_repeated(scenario, cause):
    with pytest.raises(PlaceFailure) as caught:
        cancel_everywhere(scenario, max_steps=50)
    failure = caught.value
    assert isinstance(failure.__cause__, cause)
    command = f'replay(cancelled_at(scenario, "{failure.place}"), "{failure.token}")'
    assert str(failure).endswith(f"To repeat it: {command}")
    with pytest.raises(cause):
        replay(cancelled_at(scenario, failure.place), failure.token, max_steps=50)
    replay(scenario, "x1", max_steps=50)  # undisturbed it passes


def test_the_story_says_where_the_cancellation_came_and_whom_it_reached():
    with pytest.raises(PlaceFailure) as caught:
        cancel_everywhere(swallows)
    text = str(caught.value)
    assert text.startswith("cancelled at place 1.t0, after step 1, when swallows waits at ")
    assert "[cancelled here; is cancelled at line " in text


def test_the_whole_scenario_is_cancelled_at_each_step_and_before_the_first():
    result = cancel_everywhere(two_sleepers)
    assert str(result) == "6 places, 2 outcomes"
    # After its last step there is nothing left to cancel.
    assert result.outcomes == {"cancelled": 5, "slept": 1}


def test_every_scope_of_every_task_is_cancelled():
    # Five steps in the scenario's scope and the nursery's, two of them also in that of a sleep.
    assert str(cancel_everywhere(two_sleepers, scopes="all")) == "12 places, 2 outcomes"
    assert cancel_everywhere(two_sleepers, scopes="innermost").outcomes == {"slept": 5}


def test_the_order_of_tasks_is_explored_at_each_place():
    result = cancel_everywhere(two_sleepers, deviations=1)
    assert str(result).startswith("6 places in ")
    assert result.schedules > 6


def test_places_can_be_chosen():
    assert cancel_everywhere(two_sleepers, where=lambda spot: spot.step == 2).places == 1


def test_a_scenario_that_fails_undisturbed_is_told_as_that():
    async def fails() -> None:
        await checkpoint()
        raise KeyError("always")

    with pytest.raises(ScheduleFailure) as caught:
        cancel_everywhere(fails)
    assert not isinstance(caught.value, PlaceFailure)


async def consume_two() -> str:
    """The sender gives up on an error, and forgets to close its channel."""
    send, receive = trio.open_memory_channel[int](0)

    async def produce() -> None:
        try:
            await send.send(1)
            await send.send(2)
        except OSError:
            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        await receive.receive()
        await receive.receive()
    return "both"


def test_an_exception_at_each_checkpoint_is_told_and_can_be_repeated():
    with pytest.raises(PlaceFailure, match="OSError raised at place 3") as caught:
        fail_everywhere(consume_two)
    with pytest.raises(Deadlock):
        replay(failing_at(consume_two, caught.value.place), caught.value.token)


def test_an_exception_may_come_out_of_the_scenario():
    error = ConnectionResetError("gone")
    result = fail_everywhere(two_sleepers, error)
    assert result.outcomes == {"ConnectionResetError": 2}
    assert error.__traceback__ is None  # copies of it are raised


def test_an_exception_is_not_raised_where_trio_cannot_interrupt():
    async def shielded() -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()

    assert fail_everywhere(shielded).places == 0


class Refusal(Exception):
    """Cannot be copied: its class wants other arguments than the text that it keeps."""

    def __init__(self, path: str, *, code: int) -> None:
        super().__init__(f"{path}: {code}")
        self.code = code


@pytest.mark.parametrize("error", [Refusal("/a", code=403), ExceptionGroup("two", [OSError()])])
def test_an_exception_of_any_class_is_raised_and_may_come_out(error):
    seen = []

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            try:
                await trio.sleep(2)
            except Exception as exc:
                seen.append((type(exc), str(exc), vars(exc)))
                raise

    assert fail_everywhere(scenario, error).places
    assert seen == [(type(error), str(error), vars(error))]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError, r"the error is the class OSError: write OSError\(…\)"),
        ("boom", "the error is a str"),
        (KeyboardInterrupt(), "the error is a KeyboardInterrupt, not an Exception"),
    ],
)
def test_what_cannot_be_raised_is_refused(error, told):
    with pytest.raises(TypeError, match=told):
        fail_everywhere(two_sleepers, error)
    with pytest.raises(TypeError, match=told):
        failing_at(two_sleepers, "1", error)


def test_scopes_that_there_are_not_are_refused():
    with pytest.raises(ValueError, match="one of scenario, innermost, all: 'everything'"):
        cancel_everywhere(two_sleepers, scopes="everything")


@pytest.mark.parametrize("disturb", [cancelled_at, failing_at])
def test_a_place_that_the_scenario_does_not_reach_is_told(disturb):
    with pytest.raises(ExplorerBroken, match="no place 99: it has only"):
        replay(disturb(two_sleepers, "99"), "x1")


def test_a_target_that_is_not_open_at_a_place_is_told():
    with pytest.raises(ExplorerBroken, match=r"no place 1\.t7"):
        explain(cancelled_at(two_sleepers, "1.t7"), "x1")


@pytest.mark.parametrize("token", ["", "x1", "3.", "t1", "3.x"])
def test_what_is_not_a_place_is_refused(token):
    with pytest.raises(ValueError, match="not a place"):
        cancelled_at(two_sleepers, token)


async def test_a_target_is_a_plain_scope_elsewhere():
    with target() as scope:
        scope.cancel()
        await checkpoint()
    assert scope.cancelled_caught
