"""One walk through a scenario: fair by default, ended when it must be, and named by its token."""

import re
import signal
import threading
from pathlib import Path

import pytest
import trio

from crush_trio.testing import (
    Deadlock,
    ExplorerBroken,
    NotUnderControl,
    StepLimit,
    find_violation,
    replay,
)
from crush_trio.testing.explore import explore


@pytest.mark.parametrize(
    "token", ["", "x1-", "x2-1.1", "x1-1", "x1-a.b", "x1-1.0", "x1-3.1-2.1", "x1-1.1.1", "1.1"]
)
def test_a_malformed_token_is_refused(token):
    with pytest.raises(ValueError, match=re.escape(f"not a schedule token: {token!r}")):
        replay(trio.lowlevel.checkpoint, token)


@pytest.mark.parametrize("pollers", [1, 3])
def test_a_polling_loop_does_not_starve_the_task_it_polls_for(pollers):
    async def scenario() -> int:
        done = False
        polls = 0

        async def poll() -> None:
            nonlocal polls
            while not done:
                polls += 1
                await trio.lowlevel.checkpoint()

        async def work() -> None:
            nonlocal done
            await trio.lowlevel.checkpoint()
            done = True

        async with trio.open_nursery() as nursery:
            for _ in range(pollers):
                nursery.start_soon(poll)
            nursery.start_soon(work)
        return polls

    result = explore(scenario, deviations=1, max_steps=200)
    assert result.exhaustive
    assert 0 in result.outcomes
    assert max(result.outcomes) > 1


def test_trios_own_tasks_are_served_but_are_no_decisions():
    async def scenario() -> str:
        done = trio.Event()
        trio.lowlevel.current_trio_token().run_sync_soon(done.set)
        await done.wait()
        return "done"

    result = explore(scenario, deviations=None)
    assert (result.decision_points, result.outcomes) == (0, {"done": 1})


@pytest.mark.parametrize(
    "checkpoint", [trio.lowlevel.checkpoint, trio.lowlevel.cancel_shielded_checkpoint]
)
def test_a_scenario_that_does_not_end_fails_with_its_token(checkpoint):
    async def scenario() -> None:
        while True:
            await checkpoint()

    failure = find_violation(scenario, max_steps=50)
    assert failure.token == "x1"
    with pytest.raises(StepLimit, match="not finished after 50 task steps"):
        replay(scenario, failure.token, max_steps=50)


@pytest.mark.parametrize("shield", [False, True])
def test_a_deadlock_is_a_failure_that_says_who_waits_where(shield):
    async def scenario() -> None:
        first, second = trio.Lock(), trio.Lock()

        async def take(one: trio.Lock, other: trio.Lock) -> None:
            with trio.CancelScope(shield=shield):
                async with one:
                    await trio.lowlevel.checkpoint()
                    async with other:
                        pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, first, second)
            nursery.start_soon(take, second, first)

    assert find_violation(scenario, deviations=0) is None
    failure = find_violation(scenario)
    assert isinstance(failure.__cause__, Deadlock)
    where = rf"\S+{Path(__file__).name}:\d+: async with other:"
    for one, other in [("take", r"take \(2\)"), (r"take \(2\)", "take")]:
        assert re.search(rf"\n  {one}: {where} \(Lock.acquire, held by {other}\)\n", str(failure))
    assert "scenario: " in str(failure)
    assert "(for its tasks take, take (2))" in str(failure)


def test_waiting_for_a_deadline_is_not_a_deadlock():
    async def scenario() -> bool:
        with trio.move_on_after(5) as scope:
            await trio.sleep_forever()
        return scope.cancelled_caught

    assert explore(scenario).outcomes == {True: 1}


def test_an_internal_error_of_trio_breaks_the_explorer():
    async def scenario() -> None:
        raise trio.TrioInternalError("as if Trio had failed")

    with pytest.raises(ExplorerBroken, match="Trio failed"):
        explore(scenario)


async def wait_for_thread() -> None:
    with trio.move_on_after(3600):  # the virtual clock would jump here, past what the thread does
        await trio.to_thread.run_sync(int)


async def wait_for_thread_with_own_limiter() -> None:
    await trio.to_thread.run_sync(int, limiter=trio.CapacityLimiter(1))


async def wait_for_process() -> None:
    await trio.run_process(["sleep", "60"])


async def wait_for_socket() -> None:
    one, other = trio.socket.socketpair()
    with one, other:
        await one.recv(1)


async def wait_for_signal() -> None:
    with trio.open_signal_receiver(signal.SIGUSR1) as signals:
        await anext(signals)


@pytest.mark.parametrize(
    ("scenario", "kind", "advice"),
    [
        (wait_for_thread, "a thread", "Give the scenario an async function"),
        (wait_for_thread_with_own_limiter, "a thread", "Give the scenario an async function"),
        (wait_for_process, "a process", "does in memory what the process would"),
        (wait_for_socket, "a socket or a pipe", "memory_stream_pair"),
        (wait_for_signal, "a signal", "wait for a trio.Event"),
    ],
)
@pytest.mark.slow
def test_a_wait_for_something_outside_is_no_deadlock(scenario, kind, advice, capfd):
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scenario)

    for _ in range(3):
        with pytest.raises(NotUnderControl, match=advice) as caught:
            explore(main)
        source = Path(__file__).read_text("utf-8").split("\n")
        found = re.match(rf"{scenario.__name__} waits for {kind} in \S+:(\d+): ", str(caught.value))
        assert "await " in source[int(found[1]) - 1]
    assert capfd.readouterr() == ("", "")


def test_a_thread_that_the_scenario_started_itself_is_named():
    go = threading.Event()

    async def scenario() -> None:
        threading.Thread(target=go.wait, name="own thread").start()
        await trio.sleep_forever()

    try:
        with pytest.raises(NotUnderControl, match=r"started a thread \(own thread\)"):
            explore(scenario)
    finally:
        go.set()


def test_a_timeout_that_a_thread_had_no_time_to_prevent_is_no_failure():
    go = threading.Event()

    async def scenario() -> None:
        threading.Thread(target=go.wait, name="own thread").start()
        with trio.fail_after(5):
            await trio.sleep_forever()

    try:
        with pytest.raises(NotUnderControl, match=r"\(own thread\)") as caught:
            explore(scenario)
    finally:
        go.set()
    assert isinstance(caught.value.__cause__, trio.TooSlowError)


@pytest.mark.slow
def test_a_fast_thread_is_seen_although_other_tasks_are_runnable():
    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_thread)
            for _ in range(50):
                await trio.lowlevel.checkpoint()

    for _ in range(20):
        with pytest.raises(NotUnderControl, match="wait_for_thread waits for a thread"):
            explore(scenario, deviations=0)
