"""The story of a schedule: who did what, what deviated, and where it went wrong."""

import re
import sys
import traceback
from pathlib import Path

import pytest
import trio

from crush_trio.testing import (
    ExplorerBroken,
    Random,
    ScheduleFailure,
    StepLimit,
    explain,
    find_violation,
    replay,
)
from crush_trio.testing.explore import explore
from crush_trio.testing.explore.shrink import shrunk


class Counter:
    def __init__(self) -> None:
        self.value = 0

    async def increment(self) -> None:
        value = self.value
        await trio.lowlevel.checkpoint()
        self.value = value + 1


async def lost_update() -> None:
    counter = Counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(counter.increment)
        nursery.start_soon(counter.increment, name="the second")
    assert counter.value == 2, "an update is lost"


def without_lines(text: str) -> str:
    return re.sub(r"(\.py:)\d+( → )?\d*", r"\1N\2", text)


def test_the_story_of_a_lost_update():
    story = explain(lost_update, "x1-1.1")
    assert without_lines(str(story)) == without_lines(
        """\
What happened under schedule x1-1.1 (3 tasks, 6 steps, 1 deviation from the usual order):
    1      0s  lost_update        begins → test_story.py:34  async with trio.open_nursery() as nursery:  \
[starts Counter.increment; starts the second]
    2      0s  Counter.increment  begins → test_story.py:28  await trio.lowlevel.checkpoint()
>   3      0s  the second         ahead of Counter.increment: begins → test_story.py:28  await trio.lowlevel.checkpoint()
    4      0s  the second         test_story.py:28 → ends
    5      0s  Counter.increment  test_story.py:28 → ends  [wakes lost_update]
!   6      0s  lost_update        test_story.py:34 → 37  assert counter.value == 2, "an update is lost"  \
[raises AssertionError: an update is lost]
First bad step: 6, lost_update at tests/testing/explore/test_story.py:37: assert counter.value == 2, "an update is lost"
Last deviation before it: step 3, the second ran; the usual order has Counter.increment there."""
    )
    assert isinstance(story.failure, AssertionError)
    assert story.first_bad_step is story.steps[5]
    lines = traceback.extract_tb(story.failure.__traceback__)
    assert story.first_bad_step.raised.line == lines[-1].lineno


def test_a_failure_has_its_story_and_a_short_traceback():
    with pytest.raises(ScheduleFailure) as caught:
        explore(lost_update)
    failure = caught.value
    assert failure.story == str(explain(lost_update, failure.token))
    assert failure.story in str(failure)
    printed = traceback.format_exception(failure.__cause__)
    assert len(printed) == 3  # the heading, the assertion, the exception
    assert f'replay(scenario, "{failure.token}")' in str(failure)


def test_a_schedule_that_passes_has_a_story_too():
    story = explain(lost_update, "x1")
    assert story.failure is None
    assert story.first_bad_step is None
    assert str(story).endswith("\nThe scenario passes under this schedule.")
    assert ">" not in str(story)


def test_a_token_that_does_not_fit_is_refused_as_in_replay():
    with pytest.raises(ExplorerBroken, match="does not fit"):
        explain(lost_update, "x1-99.1")
    with pytest.raises(ValueError, match="not a schedule token"):
        explain(lost_update, "x7")


def test_the_clock_deadlines_and_cancels_are_told():
    async def scenario() -> None:
        async def slow() -> None:
            with scope:
                await trio.sleep(60)

        async def late() -> None:
            with trio.fail_after(5):
                await trio.sleep_forever()

        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow)
            nursery.start_soon(late)
            await trio.sleep(1.5)
            scope.cancel()

    lines = str(explain(scenario, "x1")).splitlines()
    assert re.search(r" 4    1\.5s  scenario .* \[woken by the clock; wakes slow]", lines[4])
    assert re.search(r" 5    1\.5s  slow .* \[is cancelled (by scenario )?at line \d+]", lines[5])
    assert re.search(
        r"!   6      5s  late .*with trio.fail_after\(5\):  "
        r"\[woken by the clock; is cancelled (by a deadline )?at line \d+; wakes scenario; raises TooSlow",
        lines[6],
    )
    assert lines[7] == "     … 1 more step until the scenario ended"


def test_wake_ups_that_no_task_did_say_so():
    async def scenario() -> None:
        done = trio.Event()
        trio.lowlevel.current_trio_token().run_sync_soon(done.set)
        await done.wait()
        await trio.testing.wait_all_tasks_blocked()

    story = explain(scenario, "x1")
    assert [step.notes for step in story.steps] == [
        [],
        ["woken by run_sync_soon"],
        ["woken because all tasks waited"],
    ]


def test_the_bad_step_is_the_one_that_raised_and_not_the_one_that_ended():
    async def scenario() -> None:
        async def clean_up_slowly() -> None:
            try:
                raise OSError("disk full")
            finally:
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(clean_up_slowly)

    story = explain(scenario, "x1")
    assert (story.first_bad_step.number, story.first_bad_step.time) == (2, 0)
    assert "raises OSError: disk full" in story.first_bad_step.notes
    assert "failed: OSError: disk full\n" in str(find_violation(scenario))


def test_dull_stretches_are_folded_and_deviations_are_kept():
    async def scenario() -> None:
        async def talk(times: int) -> None:
            for _ in range(times):
                await trio.sleep(1)
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(talk, 60)

    story = explain(scenario, "x1-100.1-200.1", shrink=False)
    lines = str(story).splitlines()
    assert len(lines) <= 43
    assert len([line for line in lines if line.startswith(">")]) == 2
    folded = [line for line in lines if re.fullmatch(r"     … \d+ steps of .*talk.*", line)]
    assert folded
    assert len(story.steps) > 300
    assert len(story.text(lines=None).splitlines()) > 300
    assert len(story.text(lines=10).splitlines()) <= 13


def test_a_polling_loop_is_one_line():
    async def scenario() -> None:
        for _ in range(30):
            await trio.lowlevel.checkpoint()
        await trio.sleep(1)

    told = str(explain(scenario, "x1"))
    assert "await trio.lowlevel.checkpoint()  (30 steps)" in told
    assert len(told.splitlines()) == 5


def test_a_scenario_that_never_ends_has_a_story():
    async def scenario() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    failure = find_violation(scenario, max_steps=50)
    assert isinstance(failure.__cause__, StepLimit)
    assert "(49 steps)" in failure.story
    assert "First bad step: 50, scenario" in failure.story


def test_the_story_of_a_deadlock_ends_where_all_wait():
    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.Event().wait)
            await trio.lowlevel.checkpoint()

    failure = find_violation(scenario)
    assert "now all tasks wait" in failure.story
    assert "(for its tasks Event.wait)" in str(failure)
    assert "cancelled" not in failure.story  # that is how the explorer ended it


def test_a_scenario_that_keeps_state_is_not_told_wrongly():
    runs = 0

    async def scenario() -> None:
        nonlocal runs
        runs += 1
        await trio.lowlevel.checkpoint()
        assert runs > 1, "only the first run fails"

    failure = find_violation(scenario)
    assert "only the first run fails" in str(failure)
    assert "keeps something from one run to the next" in failure.story


def test_a_debugger_or_a_coverage_tool_is_back_after_a_story():
    def tracer(*_: object) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        explain(lost_update, "x1-1.1")
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("seed", range(3))
def test_a_sampled_failure_is_told_with_the_fewest_deviations(seed):
    async def scenario() -> None:
        async def noise() -> None:
            for _ in range(5):
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(noise)
            await lost_update()

    failure = find_violation(scenario, strategy=Random(schedules=500, seed=seed))
    assert failure.token.count("-") == 1
    assert "1 deviation from the usual order" in failure.story
    with pytest.RaisesGroup(AssertionError):
        replay(scenario, failure.token)


def test_shrinking_keeps_to_the_same_failure_and_to_its_bound():
    runs = 0

    async def scenario() -> None:
        nonlocal runs
        runs += 1
        order = []

        async def walk(name: str) -> None:
            for _ in range(3):
                order.append(name)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(walk, name)
        first, text = order[0], "".join(order)
        if first == "b":
            raise ValueError("an easier failure of another kind")
        assert "ca" not in text

    failing = "x1-1.1-2.1-3.1-5.1"
    with pytest.raises(AssertionError) as caught:
        replay(scenario, failing)
    runs = 0
    token, failure = shrunk(scenario, failing, caught.value, max_steps=1000)
    assert isinstance(failure, AssertionError)
    assert token.count("-") < failing.count("-")
    with pytest.raises(AssertionError):
        replay(scenario, token)
    runs = 0
    shrunk(scenario, failing, caught.value, max_steps=1000, tries=2)
    assert runs <= 2
    assert explain(scenario, failing).token == token
    assert explain(scenario, failing, shrink=False).token == failing


def test_a_task_whose_function_is_trios_own_waits_and_fails_where_it_does():
    async def scenario() -> None:
        send, receive = trio.open_memory_channel[int](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            nursery.start_soon(receive.receive, name="reader")
            nursery.start_soon(send.aclose)

    story = explain(scenario, "x1")
    slept, waits = (next(s for s in story.steps if s.task == name) for name in ("sleep", "reader"))
    assert Path(slept.end.file).name == "_timeouts.py"
    assert Path(waits.end.file).name == "_channel.py"
    assert story.first_bad_step.task == "reader"
    assert "raises EndOfChannel" in story.first_bad_step.notes

    async def asleep() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)

    stuck = explain(asleep, "x1")
    assert stuck.steps[-1].end is not None
    assert "\n  sleep_forever: " in str(stuck.failure)


def test_a_debugger_that_is_entered_while_a_story_is_recorded_can_step():
    async def scenario() -> bool:
        await trio.lowlevel.checkpoint()
        assert sys._getframe().f_trace_lines

    assert explain(scenario, "x1").failure is None
