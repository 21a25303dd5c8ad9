"""The pytest plugin, seen from suites that use it and from suites that do not."""

from importlib.metadata import entry_points
from importlib.util import find_spec, module_from_spec

import pytest

pytest_plugins = ["pytester"]

FOREIGN = (
    "[pytest]\ntrio_mode = true\nfilterwarnings = error\naddopts = --strict-markers -p no:anyio\n"
)
"""A project that has crush_trio in its environment and did not ask for the plugin."""

TRIO_MODE = f"{FOREIGN}crush_trio_mode = true\n"

# Where the package is installed its entry point loads the plugin; in a bare checkout the option does.
INSTALLED = bool(entry_points(group="pytest11", name="crush_trio"))
LOAD = [] if INSTALLED else ["-p", "crush_trio.testing.plugin"]

TRACE = """
import random, trio, pytest

async def trace():
    seen = []
    async def walk(name):
        for _ in range(4):
            seen.append(name)
            await trio.lowlevel.checkpoint()
    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(walk, name)
    return "".join(seen)
"""


@pytest.fixture
def run(pytester):
    """Run a suite of one file and return pytest's result."""

    def run_suite(source: str, *args: str, ini: str = TRIO_MODE) -> pytest.RunResult:
        pytester.makeini(ini)
        pytester.makepyfile(source)
        return pytester.runpytest_inprocess(*LOAD, *args)

    return run_suite


def traces(result: pytest.RunResult) -> list[str]:
    return [line.removeprefix("TRACE ") for line in result.outlines if line.startswith("TRACE ")]


def test_an_hour_passes_at_once(run):
    run(
        """
        import trio
        async def test_hour():
            before = trio.current_time()
            await trio.sleep(3600)
            assert trio.current_time() - before == 3600
        class TestInAClass:
            async def test_hour(self):
                await trio.sleep(3600)
        """
    ).assert_outcomes(passed=2)


def test_a_test_may_bring_its_own_clock(run):
    run(
        """
        import pytest, trio
        from trio.testing import MockClock
        @pytest.fixture
        def slow_clock():
            return MockClock(rate=1000)
        async def test_mock(mock_clock):
            assert trio.lowlevel.current_clock() is mock_clock
        async def test_autojump(autojump_clock):
            assert trio.lowlevel.current_clock() is autojump_clock
        async def test_own(slow_clock):
            assert trio.lowlevel.current_clock() is slow_clock
        """
    ).assert_outcomes(passed=3)


def test_real_clock_tests_run_in_real_time_and_unseeded(run):
    run(
        """
        import pytest, trio
        from trio._core import _run
        from trio.testing import MockClock
        @pytest.mark.real_clock
        async def test_real():
            assert not isinstance(trio.lowlevel.current_clock(), MockClock)
            assert "shuffle" not in vars(_run._r)
        async def test_virtual():
            assert isinstance(trio.lowlevel.current_clock(), MockClock)
            assert "shuffle" in vars(_run._r)
        """
    ).assert_outcomes(passed=2)


@pytest.mark.heavy
def test_task_order_is_that_of_seed_0_or_of_the_option(run):
    source = TRACE + "async def test_trace():\n    print('TRACE', await trace(), sep=' ')\n"
    default = traces(run(source, "-s", "-q"))
    again = traces(run(source, "-s", "-q", "--trio-seed", "0"))
    others = [traces(run(source, "-s", "-q", "--trio-seed", str(seed))) for seed in range(1, 6)]
    assert len(default) == 1
    assert default == again
    assert all(len(other) == 1 for other in others)
    assert any(other != default for other in others)


def test_a_seed_parameter_sets_the_seed_of_its_case(run):
    source = (
        TRACE
        + """
@pytest.mark.parametrize("seed", [*range(10), 3])
async def test_trace(seed):
    print("\\nTRACE", seed, await trace())
"""
    )
    lines = traces(run(source, "-s", "-q"))
    by_seed = dict(line.split() for line in lines)
    assert len(lines) == 11
    assert len(set(lines)) == 10
    assert len(set(by_seed.values())) > 5
    plain = TRACE + "async def test_trace():\n    print('\\nTRACE', 7, await trace())\n"
    assert traces(run(plain, "-s", "-q", "--trio-seed", "7")) == [f"7 {by_seed['7']}"]


def test_a_failure_tells_its_seed_and_how_to_repeat_it(run):
    result = run(
        """
        import pytest
        async def test_plain():
            assert False
        @pytest.mark.parametrize("seed", [7])
        async def test_race(seed):
            assert False
        """,
        "--trio-seed",
        "4",
    )
    result.assert_outcomes(failed=2)
    name = "test_a_failure_tells_its_seed_and_how_to_repeat_it.py"
    result.stdout.fnmatch_lines(
        [
            "*- Task order -*",
            "This was seed 4. To repeat it:",
            f'    pytest "{name}::test_plain" --trio-seed 4',
            "This was seed 7. To repeat it:",
            f'    pytest "{name}::test_race[[]7[]]" --trio-seed 7',
        ]
    )


def test_nothing_is_said_about_seeds_when_they_played_no_part(run):
    result = run(
        """
        import pytest
        def test_sync(): assert False
        @pytest.mark.real_clock
        async def test_real(): assert False
        async def test_passes(): pass
        """
    )
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.no_fnmatch_line("*Task order*")


def test_hypothesis_tests_get_the_clock_and_the_seed_for_every_example(run):
    run(
        TRACE
        + """
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock

seen = set()

@pytest.mark.parametrize("case", "xy")
@settings(max_examples=15, deadline=None)
@given(number=st.integers())
async def test_property(case, number):
    assert trio.current_time() == 0
    await trio.sleep(3600)
    seen.add(await trace())

def test_afterwards():
    assert len(seen) == 1
"""
    ).assert_outcomes(passed=3)


def test_fixtures_of_pytest_trio_keep_working(run):
    run(
        """
        import pytest, trio
        @pytest.fixture
        async def channel(nursery):
            send, receive = trio.open_memory_channel(0)
            nursery.start_soon(send.send, 1)
            yield receive
            await trio.sleep(60)
        async def test_uses_both(channel, nursery):
            assert await channel.receive() == 1
            nursery.start_soon(trio.sleep, 3600)
            await trio.sleep(60)
        """
    ).assert_outcomes(passed=1)


@pytest.mark.heavy
def test_the_order_of_fixture_tasks_depends_on_the_seed_alone(run):
    source = """
        import pytest, trio
        seen = []
        def make(name):
            async def walker(nursery):
                async def walk():
                    for _ in range(4):
                        seen.append(name)
                        await trio.lowlevel.checkpoint()
                nursery.start_soon(walk)
                yield
            return pytest.fixture(walker)
        a, b, c = map(make, "abc")
        async def test_trace(a, b, c):
            await trio.testing.wait_all_tasks_blocked()
            print("\\nTRACE", "".join(seen))
        """
    found = [traces(run(source, "-s", "-q", "--trio-seed", "5")) for _ in range(8)]
    assert len(found[0]) == 1
    assert found == [found[0]] * 8


def test_the_switch_is_off_again_between_tests(run):
    run(
        """
        from trio._core import _run
        async def test_async(): assert "shuffle" in vars(_run._r)
        def test_sync(): assert "shuffle" not in vars(_run._r)
        """
    ).assert_outcomes(passed=2)


def test_markers_are_registered(run):
    run(
        """
        import pytest
        @pytest.mark.crush_trio
        @pytest.mark.real_clock
        async def test_marked(): pass
        """
    ).assert_outcomes(passed=1)


CLOCKS = """
        import pytest, trio
        from trio._core import _run
        from trio.testing import MockClock

        def virtual():
            return isinstance(trio.lowlevel.current_clock(), MockClock), "shuffle" in vars(_run._r)
"""


def test_a_project_that_did_not_ask_keeps_its_clock_and_its_order(run):
    run(
        CLOCKS
        + """
        async def test_plain():
            assert virtual() == (False, False)
        async def test_a_process_is_waited_for_in_real_time():
            with trio.fail_after(60):
                await trio.run_process(["true"])
        @pytest.mark.parametrize("seed", [1])
        async def test_with_a_parameter_called_seed(seed):
            assert virtual() == (False, False)
        """,
        ini=FOREIGN,
    ).assert_outcomes(passed=3)


def test_a_marker_asks_for_one_test(run):
    run(
        CLOCKS
        + """
        @pytest.mark.crush_trio
        async def test_marked():
            assert virtual() == (True, True)
            await trio.sleep(3600)
        async def test_not_marked():
            assert virtual() == (False, False)
        @pytest.mark.crush_trio
        class TestMarkedClass:
            async def test_in_it(self):
                assert virtual() == (True, True)
        """,
        ini=FOREIGN,
    ).assert_outcomes(passed=3)


def test_a_suite_without_trio_mode_needs_the_trio_marker_as_well(run):
    run(
        CLOCKS
        + """
        async def check():
            assert virtual() == (False, False)
        def test_sync():
            trio.run(check)
        @pytest.mark.trio
        async def test_marked_for_trio():
            assert virtual() == (True, True)
        """,
        ini="[pytest]\naddopts = --strict-markers -p no:anyio\ncrush_trio_mode = true\n",
    ).assert_outcomes(passed=2)


@pytest.mark.slow
def test_a_foreign_suite_does_not_load_trio(pytester):
    pytester.makeini("[pytest]\naddopts = -p no:anyio -p no:trio -p no:hypothesispytest\n")
    pytester.makepyfile("import sys\ndef test_it(): assert 'trio' not in sys.modules\n")
    pytester.runpytest_subprocess(*LOAD).assert_outcomes(passed=1)


def test_a_suite_without_pytest_trio_is_left_alone(run):
    run("def test_sync(): pass\n", "-p", "no:trio", ini="[pytest]\n").assert_outcomes(passed=1)


def test_a_sync_test_with_a_seed_is_left_alone(run):
    result = run(
        """
        import pytest
        @pytest.mark.parametrize("seed", [1])
        def test_sync(seed): assert seed != 1
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*Task order*")


def test_a_pytest_that_is_too_old_for_the_plugin_is_not_broken_by_it(monkeypatch):
    def old(function=None, **options):
        if "wrapper" in options:
            raise TypeError("unexpected keyword argument 'wrapper'")
        return function

    with monkeypatch.context() as patch:
        patch.setattr(pytest, "hookimpl", old)
        spec = find_spec("crush_trio.testing.plugin")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    assert module.pytest_runtest_call is None
