"""The pytest plugin, seen from suites that use it and from suites that do not."""

import re
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
def run(pytester, monkeypatch):
    """Run a suite of one file and return pytest's result."""
    # In CI pytest's short summary repeats whole messages instead of their first lines.
    for variable in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(variable, raising=False)

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


LOST_UPDATE = """
        import pytest, trio
        async def add_up(times):
            value = 0
            async def add():
                nonlocal value
                seen = value
                await trio.lowlevel.checkpoint()
                value = seen + 1
            async with trio.open_nursery() as nursery:
                for _ in range(times):
                    nursery.start_soon(add)
            return value
"""


def test_an_explored_test_fails_with_a_story_and_the_command_that_repeats_it(run, pytester):
    source = (
        LOST_UPDATE
        + """
        @pytest.fixture
        def step():
            return 1
        @pytest.mark.explore(deviations=1)
        @pytest.mark.parametrize("times", [1, 2])
        async def test_sum(times, step):
            assert await add_up(times) == times * step
        async def test_not_explored():
            assert await add_up(1) == 1
        """
    )
    result = run(source)
    result.assert_outcomes(failed=1, passed=2)
    name = "test_an_explored_test_fails_with_a_story_and_the_command_that_repeats_it.py"
    command = f'pytest "{name}::test_sum[2]" --replay x1-1.1'
    result.stdout.fnmatch_lines(
        [
            ">       assert await add_up(times) == times [*] step",
            "E   *ScheduleFailure: schedule x1-1.1, number 3 tried, failed: AssertionError: assert 1*",
            "*What happened under schedule x1-1.1 (3 tasks, 6 steps, 1 deviation from the usual order):",
            "*>   3 * add (2) *ahead of add: begins → *",
            "*!   6 * test_sum *raises AssertionError*",
            "*First bad step: 6, test_sum at *",
            "*To repeat it:",
            f"*{command.replace('[', '[[]', 1)}",
        ]
    )
    result.stdout.no_fnmatch_line("*walk.py*")
    again = pytester.runpytest_inprocess(*LOAD, f"{name}::test_sum[2]", "--replay", "x1-1.1")
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(
        ["E   *assert 1 == *", "*- Story of a schedule -*", "What happened*"]
    )
    again.stdout.no_fnmatch_line("*ScheduleFailure*")
    usual = pytester.runpytest_inprocess(*LOAD, f"{name}::test_sum[2]", "--replay", "x1")
    usual.assert_outcomes(passed=1)
    usual.stdout.fnmatch_lines(["*= Story of a schedule: *", "The scenario passes under this*"])
    wrong = pytester.runpytest_inprocess(*LOAD, f"{name}::test_sum[2]", "--replay", "x1-99.1")
    wrong.assert_outcomes(failed=1)
    wrong.stdout.fnmatch_lines(["ExplorerBroken: schedule x1-99.1 does not fit: *"])


def test_a_failure_of_pytest_itself_has_a_story_as_well(run):
    result = run(
        LOST_UPDATE
        + """
        @pytest.mark.explore
        class TestRaises:
            async def test_it(self):
                with pytest.raises(ZeroDivisionError):
                    1 / (await add_up(2) - 2)
        @pytest.mark.explore
        async def test_skipped():
            pytest.skip("not today")
        @pytest.mark.explore
        async def test_expected():
            pytest.xfail("known")
        """
    )
    result.assert_outcomes(failed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(
        ["*failed: AssertionError: DID NOT RAISE*", "*!   6 *test_it *raises Failed: DID NOT*"]
    )


def test_a_failure_of_pytest_in_a_child_task_has_one_story(run):
    result = run(
        """
        import pytest, trio
        @pytest.mark.explore
        async def test_it():
            seen = []
            async def see(number):
                await trio.lowlevel.checkpoint()
                seen.append(number)
                if seen == [2]:
                    pytest.fail("two came first")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(see, 1)
                nursery.start_soon(see, 2)
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ['>  *pytest.fail("two came first")', "*!   3 * see (2) *raises Failed: two came first*"]
    )
    assert result.stdout.str().count("What happened under") == 1


@pytest.mark.heavy
def test_examples_of_hypothesis_are_explored_each(run):
    result = run(
        LOST_UPDATE
        + """
        from hypothesis import given, settings, strategies as st
        @pytest.mark.explore(deviations=1)
        @settings(max_examples=5, deadline=None, database=None)
        @given(times=st.integers(0, 1))
        async def test_few(times):
            assert await add_up(times) == times
        @pytest.mark.explore(deviations=1)
        @settings(max_examples=5, deadline=None, database=None, derandomize=True)
        @given(times=st.just(2))
        async def test_two(times):
            assert await add_up(times) == times
        """
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*What happened under schedule x1-1.1 *"])


def test_what_cannot_be_explored_says_why(run):
    result = run(
        """
        import pytest, trio
        @pytest.fixture
        async def thing():
            yield 1
        @pytest.mark.explore
        async def test_async_fixture(thing): pass
        @pytest.mark.explore
        async def test_clock(autojump_clock): pass
        @pytest.mark.explore
        @pytest.mark.real_clock
        async def test_real(): pass
        @pytest.mark.explore
        def test_sync(): pass
        @pytest.mark.explore(3)
        async def test_positional(): pass
        @pytest.mark.explore(deviation=3)
        async def test_misspelt(): pass
        @pytest.mark.explore
        async def test_thread():
            await trio.to_thread.run_sync(int)
        """
    )
    result.assert_outcomes(failed=7)
    result.stdout.fnmatch_lines(
        [
            "*takes the async fixture 'thing', which is made once*open it in the test*",
            "*each schedule has its own clock, not 'autojump_clock'",
            "*explored time is virtual",
            "*is not async: call explore() in it instead",
            "*takes keywords only, such as deviations=2",
            "*unexpected keyword argument 'deviation'*",
            "NotUnderControl: test_thread waits for a thread in *to_thread.run_sync(int)",
        ]
    )


def test_a_marked_test_is_explored_without_the_ini_key_and_without_pytest_trio(run, pytester):
    source = (
        LOST_UPDATE
        + """
        @pytest.mark.crush_trio
        @pytest.mark.explore
        async def test_sum():
            assert await add_up(2) == 2
        """
    )
    ini = "[pytest]\naddopts = --strict-markers -p no:anyio\nmarkers =\n    explore: our own\n"
    result = run(source, "-p", "no:trio", ini=ini)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*test_sum* --crush-trio-replay x1-1.1"])
    again = pytester.runpytest_inprocess(*LOAD, "-p", "no:trio", "--crush-trio-replay", "x1")
    again.assert_outcomes(passed=1)


OWN_OPTION = """
        def pytest_addoption(parser):
            parser.addoption("--replay", type=int, default=0)
"""


@pytest.mark.parametrize("ini", [FOREIGN, TRIO_MODE])
def test_a_project_may_have_an_option_replay_of_its_own(run, pytester, ini):
    pytester.makeconftest(OWN_OPTION)
    source = "def test_it(pytestconfig): assert pytestconfig.getoption('--replay') == 7\n"
    run(source, "--replay", "7", ini=ini).assert_outcomes(passed=1)


@pytest.mark.parametrize("marker", ["real_clock", "explore"])
def test_markers_of_general_names_are_not_ours_in_a_project_that_did_not_ask(run, marker):
    source = f"import pytest\n@pytest.mark.{marker}\nasync def test_it(): pass\n"
    result = run(source, "--markers", ini=FOREIGN)
    result.stdout.fnmatch_lines(["@pytest.mark.crush_trio: *"])
    result.stdout.no_fnmatch_line(f"@pytest.mark.{marker}*")
    run(source, "--markers").stdout.fnmatch_lines([f"@pytest.mark.{marker}*"])
    own = f"{FOREIGN}markers =\n    {marker}: our own\n"
    run(source, ini=own).assert_outcomes(passed=1)


FOREIGN_SUITE = {
    "conftest.py": """
        import pytest
        def pytest_addoption(parser):
            parser.addoption("--replay", action="store_true", help="replay recorded answers")
        @pytest.fixture
        def explore():
            return "a fixture"
        @pytest.fixture
        async def ready():
            import trio
            event = trio.Event()
            event.set()
            yield event
    """,
    "test_sync.py": """
        import logging, pytest, warnings
        def test_passes(): print("out")
        def test_fails(tmp_path):
            logging.getLogger("app").warning("about to fail")
            assert {"a": 1, "b": [1, 2]} == {"a": 1, "b": [1, 3]}
        def test_warns(): warnings.warn("an old thing", DeprecationWarning)
        @pytest.mark.skip(reason="not now")
        def test_skipped(): pass
        @pytest.mark.xfail
        def test_xfails(): raise KeyError("x")
        @pytest.mark.parametrize("seed", [1, 2])
        def test_seed(seed): assert seed == 1
        def test_option(pytestconfig, explore): assert not pytestconfig.getoption("--replay")
        class TestUnclosed:
            def test_error(self, no_such_fixture): pass
    """,
    "test_trio.py": """
        import pytest, trio, random
        async def test_process():
            with trio.fail_after(60):
                await trio.run_process(["true"])
        async def test_time():
            before = trio.current_time()
            with trio.move_on_after(0.01):
                await trio.sleep_forever()
            assert 0.01 <= trio.current_time() - before < 60
        async def test_fixture(ready, nursery):
            await ready.wait()
        async def test_fails():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, 0)
                raise ValueError("wrong")
        @pytest.mark.real_clock
        async def test_marked(): pass
        @pytest.mark.explore(rooms=3)
        async def test_explored(autojump_clock): await trio.sleep(60)
        async def test_thread():
            assert await trio.to_thread.run_sync(lambda: 3) == 3
    """,
}


def told(result):
    """Return what a run printed, without what differs from run to run: times, addresses, plugins."""
    text = "\n".join([*result.outlines, "--", *result.errlines])
    text = re.sub(r"^plugins: .*$", "plugins:", text, flags=re.MULTILINE)
    text = re.sub(r"=+ (.*) in \d+\.\d+s.*", r"\1", text)
    text = re.sub(r"0x[0-9a-f]+|pytest-\d+", "N", text)
    return re.sub(r"basetemp=\S+", "", text)


@pytest.mark.slow
@pytest.mark.parametrize("strict", ["", "--strict-markers"])
def test_a_foreign_suite_prints_the_same_with_and_without_the_plugin(pytester, strict):
    pytester.makeini(f"[pytest]\ntrio_mode = true\naddopts = -ra -v -p no:anyio {strict}\n")
    for name, source in FOREIGN_SUITE.items():
        pytester.makepyfile(**{name.removesuffix(".py"): source})
    with_plugin = pytester.runpytest_subprocess(*LOAD)
    without = pytester.runpytest_subprocess("-p", "no:crush_trio")
    assert with_plugin.ret == without.ret
    assert told(with_plugin) == told(without)
    if strict:
        with_plugin.assert_outcomes(errors=1)
    else:
        with_plugin.assert_outcomes(passed=10, failed=3, skipped=1, xfailed=1, errors=1, warnings=3)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["auto", "short", "native"])
def test_a_failure_without_a_line_of_the_test_prints_the_same(pytester, style):
    """The frames of a plugin around the test would be all that is left of its traceback."""
    pytester.makeini(f"[pytest]\naddopts = -p no:anyio --tb={style}\n")
    pytester.makepyfile(
        conftest="""
            def pytest_pyfunc_call(pyfuncitem):
                if "refused" in pyfuncitem.name:
                    raise RuntimeError("refused by a plugin")
        """,
        test_it="""
            async def test_that_no_plugin_runs(): pass
            def test_refused(): pass
        """,
    )
    with_plugin = pytester.runpytest_subprocess(*LOAD)
    with_plugin.assert_outcomes(failed=2)
    assert told(with_plugin) == told(pytester.runpytest_subprocess("-p", "no:crush_trio"))


@pytest.mark.slow
def test_a_foreign_suite_does_not_load_trio(pytester):
    pytester.makeini("[pytest]\naddopts = -p no:anyio -p no:trio -p no:hypothesispytest\n")
    pytester.makepyfile("import sys\ndef test_it(): assert 'trio' not in sys.modules\n")
    pytester.runpytest_subprocess(*LOAD).assert_outcomes(passed=1)


def test_a_suite_without_pytest_trio_is_left_alone(run):
    run("def test_sync(): pass\n", "-p", "no:trio", ini="[pytest]\n").assert_outcomes(passed=1)


@pytest.mark.parametrize("asks", ["", "@pytest.mark.crush_trio"])
def test_an_async_test_that_asks_without_pytest_trio_is_told_what_to_install(run, asks):
    mode = "" if asks else "crush_trio_mode = true\n"
    result = run(
        f"""
        import pytest, sys
        sys.modules["pytest_trio"] = None
        {asks or "# by the ini key"}
        async def test_it(): pass
        def test_sync(): pass
        """,
        "-p",
        "no:trio",
        ini=f"[pytest]\n{mode}",
    )
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["*not installed: pip install 'crush-trio[[]testing]'*"])


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
    assert module.pytest_load_initial_conftests is None
