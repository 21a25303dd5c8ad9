"""The scheduler switch: what a chooser can do, what a seed promises, and that nothing is left behind."""

import gc
import random
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
import trio
from trio._core import _run
from trio.testing import MockClock, wait_all_tasks_blocked

from crush_trio.testing import controlled, seeded
from crush_trio.testing.explore.schedule import Suspendable, UnsupportedTrio


async def trace_of(tasks: int, steps: int) -> str:
    """Who took a step when: one letter for each."""
    trace = []

    async def walk(name: str) -> None:
        for _ in range(steps):
            trace.append(name)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for name in "abcdefgh"[:tasks]:
            nursery.start_soon(walk, name)
    return "".join(trace)


def run_seeded(seed: int, tasks: int = 3, steps: int = 4) -> str:
    with seeded(seed):
        return trio.run(trace_of, tasks, steps)


def test_trio_still_has_the_names_the_switch_relies_on():
    advice = "Trio moved its scheduler: crush_trio.testing.explore.schedule must follow"
    assert type(_run._r) is random.Random, advice
    assert hasattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING"), advice

    async def main() -> None:
        runner = _run.GLOBAL_RUN_CONTEXT.runner
        task = trio.lowlevel.current_task()
        assert isinstance(task._counter, int), advice
        assert runner.main_task is task, advice
        assert runner.init_task is trio.lowlevel.current_root_task(), advice
        assert len(runner.runq) == 0, advice

    trio.run(main)


def test_trio_still_lets_the_switch_decide():
    with controlled(lambda runnable: runnable):
        forwards = trio.run(trace_of, 3, 2)
    with controlled(lambda runnable: runnable[::-1]):
        backwards = trio.run(trace_of, 3, 2)
    assert (forwards, backwards) == ("abcabc", "cbacba")


def test_tasks_held_back_keep_their_place_in_the_line():
    with controlled(lambda runnable: runnable[:1]):
        assert trio.run(trace_of, 3, 2) == "abcabc"


def test_a_task_held_back_long_enough_sees_another_finish_first():
    with controlled(lambda runnable: runnable[-1:]):
        assert trio.run(trace_of, 2, 3) == "bbbaaa"


def test_a_chooser_is_told_when_nothing_can_run():
    given = []

    def note(runnable):
        given.append(len(runnable))
        return runnable

    with controlled(note):
        trio.run(trio.sleep, 1, clock=MockClock(autojump_threshold=0))
    assert 0 in given


def test_trios_own_tasks_are_not_offered():
    names = set()

    def note(runnable):
        names.update(task.name for task in runnable)
        return runnable

    async def main() -> None:
        done = trio.Event()
        trio.lowlevel.current_trio_token().run_sync_soon(done.set)
        await done.wait()

    with controlled(note):
        trio.run(main)
    assert names == {f"{__name__}.{main.__qualname__}"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("chosen", [lambda runnable: (), lambda runnable: [*runnable, *runnable]])
def test_a_choice_that_is_not_some_of_the_tasks_is_refused(chosen):
    with controlled(chosen), pytest.raises(trio.TrioInternalError) as caught:
        trio.run(trio.lowlevel.checkpoint)
    assert "is not some of" in str(caught.value.__cause__)
    del caught
    gc.collect()  # the run broke off: let its tasks complain about it here, where that is expected


@pytest.mark.parametrize("before", [False, True])
def test_everything_is_as_before_after_the_block(monkeypatch, before):
    monkeypatch.setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", before)
    source = _run._r
    with suppress(ZeroDivisionError), seeded(1), seeded(2):
        assert _run._r is source
        assert "shuffle" in vars(source)
        raise ZeroDivisionError
    assert _run._r is source
    assert "shuffle" not in vars(source)
    assert _run._ALLOW_DETERMINISTIC_SCHEDULING is before


def test_the_innermost_block_decides_and_then_the_outer_one_again():
    with controlled(lambda runnable: runnable[::-1]):
        with controlled(lambda runnable: runnable):
            inner = trio.run(trace_of, 2, 2)
        outer = trio.run(trace_of, 2, 2)
    assert (inner, outer) == ("abab", "baba")


def test_several_threads_have_orders_of_their_own_and_end_in_any_order():
    """The first one to enter is the first one to leave."""
    both, ended = threading.Barrier(2, timeout=30), threading.Event()
    orders = {}

    def trace(name, chooser, first):
        with controlled(chooser):
            both.wait()
            orders[name] = trio.run(trace_of, 2, 3)
            both.wait()
            if not first:
                assert ended.wait(30)
        ended.set()

    source, before = _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING
    threads = [
        threading.Thread(target=trace, args=("first", lambda runnable: runnable[:1], True)),
        threading.Thread(target=trace, args=("second", lambda runnable: runnable[-1:], False)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert orders == {"first": "ababab", "second": "bbbaaa"}
    assert "shuffle" not in vars(source)
    assert _run._ALLOW_DETERMINISTIC_SCHEDULING is before


@pytest.mark.heavy
def test_importing_hypothesis_inside_a_block_still_makes_trio_deterministic_for_good():
    program = """
import random, sys, trio
from trio._core import _run
from crush_trio.testing import seeded
assert not _run._ALLOW_DETERMINISTIC_SCHEDULING
with seeded(3):
    pass
assert _run._ALLOW_DETERMINISTIC_SCHEDULING is False
with seeded(3):
    import hypothesis
assert _run._ALLOW_DETERMINISTIC_SCHEDULING is True
assert type(_run._r) is random.Random
"""
    assert in_a_process(program) == ""


def test_other_threads_are_left_alone():
    def never(runnable):
        raise AssertionError("asked for a task of another thread")

    results = []
    thread = threading.Thread(target=lambda: results.append(trio.run(trace_of, 1, 3)))
    with controlled(never):
        thread.start()
        thread.join()
    assert results == ["aaa"]


def test_one_seed_gives_one_trace():
    assert [run_seeded(5) for _ in range(10)] == [run_seeded(5)] * 10


def test_every_run_in_a_block_starts_the_sequence_anew():
    with seeded(9):
        traces = [trio.run(trace_of, 3, 4) for _ in range(3)]
    assert traces == [run_seeded(9)] * 3


@pytest.mark.heavy
def test_a_seed_gives_the_same_trace_in_another_process():
    program = f"""
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("again", {__file__!r})
module = module_from_spec(spec)
spec.loader.exec_module(module)
print(*(module.run_seeded(seed) for seed in range(20)))
"""
    assert in_a_process(program).split() == [run_seeded(seed) for seed in range(20)]


@pytest.mark.parametrize("started", ["abc", "bca", "cba"])
def test_the_order_in_which_pytest_trio_starts_fixtures_makes_no_difference(started):
    async def main(names: str) -> str:
        trace = []

        async def walk(name: str) -> None:
            for _ in range(4):
                trace.append(name)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(walk, name, name=f"<fixture {name!r}>")
        return "".join(trace)

    with seeded(5):
        assert trio.run(main, started) == trio.run(main, "abc")


def test_seeds_reach_all_orders_of_first_steps():
    firsts = {run_seeded(seed, tasks=3, steps=1) for seed in range(100)}
    assert len(firsts) == 6


def test_seeds_break_the_lock_step_that_shuffling_alone_keeps():
    traces = [run_seeded(seed, tasks=2, steps=3) for seed in range(100)]
    assert "aaabbb" in traces
    assert "bbbaaa" in traces
    assert any(trace in {"ababab", "abbaab", "baabba", "bababa"} for trace in traces)


@pytest.mark.parametrize("seed", range(30))
async def test_no_seed_starves_a_task_behind_one_that_polls(seed):
    done = False
    polls = 0

    async def poll() -> None:
        nonlocal polls
        while not done:
            polls += 1
            await trio.lowlevel.checkpoint()

    async def work() -> None:
        nonlocal done
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        done = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        nursery.start_soon(work)
    assert 0 < polls < 20 * 20


@pytest.mark.parametrize("seed", range(10))
async def test_held_tasks_count_as_runnable(seed):
    steps = 0

    async def walk() -> None:
        nonlocal steps
        for _ in range(5):
            steps += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(walk)
        await wait_all_tasks_blocked()
        assert steps == 20


def in_a_process(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["_r", "GLOBAL_RUN_CONTEXT", "_ALLOW_DETERMINISTIC_SCHEDULING"])
def test_a_trio_without_the_switch_is_named_with_what_it_lacks(name, monkeypatch):
    monkeypatch.delattr(_run, name)
    with pytest.raises(UnsupportedTrio, match=rf"Trio {trio.__version__} has no {name}\b"):
        run_seeded(1)
    monkeypatch.undo()
    assert run_seeded(1)


# ── Suspension ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(20))
async def test_suspended_tasks_do_not_run_and_find_out_later(seed):
    group, told, bell = Suspendable(), [], trio.Event()

    async def child():
        await bell.wait()
        told.append(("bell", trio.current_time() - began))

    async def parent():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            with trio.move_on_after(1) as patience:
                await trio.sleep(5)
            told.append(("patience", trio.current_time() - began, patience.cancelled_caught))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        group.start_soon(nursery, parent)
        await wait_all_tasks_blocked()
        group.suspend()
        await trio.sleep(0.5)
        bell.set()
        await trio.sleep(9.5)
        assert not told
        group.resume()
    assert sorted(told) == [("bell", 10), ("patience", 10, True)]


async def test_others_are_not_suspended_with_a_group():
    group, other = Suspendable(), Suspendable()
    ended = trio.Event()

    async def end():
        await trio.sleep(1)
        ended.set()

    async with trio.open_nursery() as nursery:
        group.start_soon(nursery, trio.sleep, 1)
        other.start_soon(nursery, end)
        group.suspend()
        await ended.wait()
        assert len(nursery.child_tasks) == 1
        group.resume()
