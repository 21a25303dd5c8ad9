"""Runs the tests that asked for the pytest plugin: with a clock, a seed, or under every schedule.

`plugin` registers this module as a plugin of its own where a project or a test asked.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Any, Final

import pytest

from crush_trio.testing.plugin import EXPLORE, LONG_OPTION, MARKER, MODE, OPTION, REPLAY, TITLE

NO_PYTEST_TRIO: Final = (
    "crush_trio was asked to run this test, which takes the package pytest-trio, and that is not "
    "installed: pip install 'crush-trio[testing]'"
)

_OTHERS: Final = ("anyio", "asyncio", EXPLORE)
"""Markers of async tests that run without pytest-trio."""

_CLOCK: Final = "crush_trio_default_clock"
_SEED: Final = pytest.StashKey[int]()
_EXPLORED: Final = pytest.StashKey[Callable[..., Any]]()
_STORY: Final = pytest.StashKey[str]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail an async test that asked for this plugin where pytest-trio, which runs it, is missing."""
    if not isinstance(item, pytest.Function) or not iscoroutinefunction(_test_of(item)):
        return
    asked = item.config.getini(MODE) or item.get_closest_marker(MARKER) is not None
    if (
        asked
        and find_spec("pytest_trio") is None
        and not any(map(item.get_closest_marker, _OTHERS))
    ):
        pytest.fail(NO_PYTEST_TRIO, pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Prepare a Trio test before pytest-trio wraps it, and seed the run."""
    __tracebackhide__ = True
    if not isinstance(item, pytest.Function):
        return (yield)
    if _has_asked(item) and item.get_closest_marker(EXPLORE) is not None:
        item.stash[_EXPLORED] = _test_of(item)
        return (yield)
    if not _is_ours(item):
        return (yield)
    from crush_trio.testing.explore.schedule import seeded

    item.stash[_SEED] = seed = _seed_of(item)
    with _replaced(item, _without_clock), seeded(seed):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Give the test its clock, now that pytest-trio has wrapped it."""
    __tracebackhide__ = True
    if _EXPLORED in pyfuncitem.stash:
        with _replaced(pyfuncitem, lambda _: _explorer(pyfuncitem)):
            return (yield)
    if _SEED not in pyfuncitem.stash:
        return (yield)
    with _replaced(pyfuncitem, _with_clock):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell under which seed a test failed."""
    report = yield
    if call.when == "call" and report.failed and _SEED in item.stash:
        seed = item.stash[_SEED]
        again = f'pytest "{item.nodeid}" --trio-seed {seed}'
        report.sections.append(("Task order", f"This was seed {seed}. To repeat it:\n    {again}"))
    if call.when == "call" and _STORY in item.stash:
        report.sections.append((TITLE, item.stash[_STORY]))
    return report


def _has_asked(item: pytest.Function) -> bool:
    return bool(item.config.getini(MODE)) or item.get_closest_marker(MARKER) is not None


def _is_ours(item: pytest.Function) -> bool:
    """Whether pytest-trio is going to run this test, and the virtual clock was asked for."""
    if not _has_asked(item):
        return False
    if item.get_closest_marker("trio") is None or item.get_closest_marker("real_clock") is not None:
        return False
    return iscoroutinefunction(_test_of(item))


def _seed_of(item: pytest.Function) -> int:
    own = item.callspec.params.get("seed") if hasattr(item, "callspec") else None
    return own if isinstance(own, int) else int(item.config.getoption("--trio-seed"))


def _test_of(item: pytest.Function) -> Callable[..., Any]:
    """The function that runs the test body; for a Hypothesis test, the one called per example."""
    holder = getattr(item.obj, "hypothesis", None)
    test: Callable[..., Any] = item.obj if holder is None else holder.inner_test
    return test


@contextmanager
def _replaced(
    item: pytest.Function, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Generator[None]:
    """Put `wrapper(test)` in the place of the test body for a while.

    The old one is put back, because the cases of a parametrized Hypothesis test share their holder.
    """
    test = _test_of(item)
    holder = getattr(item.obj, "hypothesis", None)
    owner, name = (item, "obj") if holder is None else (holder, "inner_test")
    setattr(owner, name, wrapper(test))
    try:
        yield
    finally:
        setattr(owner, name, test)


# pytest-trio hands `trio.run` the clock it finds among the arguments of a test, and then passes all
# of them on to the test. So the default clock travels as one more argument, which the test never
# sees.


def _with_clock(run_test: Callable[..., object]) -> Callable[..., object]:
    @wraps(run_test)
    def call(*args: object, **kwargs: object) -> object:
        __tracebackhide__ = True
        from trio.abc import Clock
        from trio.testing import MockClock

        if not any(isinstance(value, Clock) for value in kwargs.values()):
            kwargs[_CLOCK] = MockClock(autojump_threshold=0)
        return run_test(*args, **kwargs)

    return call


def _without_clock(test: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    @wraps(test)
    async def call(*args: object, **kwargs: object) -> None:
        __tracebackhide__ = True
        kwargs.pop(_CLOCK, None)
        await test(*args, **kwargs)

    return call


# An explored test is called once for pytest and runs once per schedule, each in a `trio.run` of its own.


def _explorer(item: pytest.Function) -> Callable[..., None]:
    """Return the sync function that takes the place of an explored test."""
    test = item.stash[_EXPLORED]

    @wraps(test)
    def call(*args: object, **kwargs: object) -> None:
        __tracebackhide__ = True

        @wraps(test)
        async def scenario() -> None:
            try:
                await test(*args, **kwargs)
            except (pytest.fail.Exception, BaseExceptionGroup) as exc:
                if (failure := _plain(exc)) is exc:
                    raise
                raise failure from None

        if problem := _why_not(item, test):
            pytest.fail(problem, pytrace=False)
        if failure := _explored(item, scenario):
            raise failure from failure.__cause__

    return call


def _plain(error: BaseException) -> BaseException:
    """Return *error* with an AssertionError for each failure of pytest, which is not an Exception.

    `pytest.raises` fails so, too; in a child task it leaves the nursery in a group. What is no failure
    (`pytest.xfail`, `pytest.skip`, an exit) stays as it is.
    """
    if isinstance(error, BaseExceptionGroup):
        inner = [_plain(one) for one in error.exceptions]
        if all(new is old for new, old in zip(inner, error.exceptions, strict=True)):
            return error
        return error.derive(inner).with_traceback(error.__traceback__)
    if not isinstance(error, pytest.fail.Exception) or isinstance(error, pytest.xfail.Exception):
        return error
    failure = AssertionError(error.msg).with_traceback(error.__traceback__)
    failure.__context__, failure.__suppress_context__ = error, True  # the story finds it there
    return failure


def _alone(error: BaseException | None) -> BaseException | None:
    """Return what is in a group of one; pytest shows its source, but tells the whole story twice for a group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        [error] = error.exceptions
    return error


def _explored(
    item: pytest.Function, scenario: Callable[[], Awaitable[None]]
) -> BaseException | None:
    """Explore *scenario*, or run the one schedule that the command line names; return its failure."""
    __tracebackhide__ = True
    from crush_trio.testing.explore import ExplorerBroken, ScheduleFailure, explain, explore

    marks = reversed(list(item.iter_markers(EXPLORE)))
    options = {name: value for mark in marks for name, value in mark.kwargs.items()}
    token = item.config.getoption(REPLAY)
    try:
        if token is None:
            explore(scenario, **options)
            return None
        limits = {name: value for name, value in options.items() if name == "max_steps"}
        story = explain(scenario, token, shrink=False, **limits)
    except ScheduleFailure as failure:
        option = item.config.stash.get(OPTION, LONG_OPTION)
        failure.repeat_with(f'pytest "{item.nodeid}" {option} {failure.token}')
        failure.__cause__ = _alone(failure.__cause__)
        return failure
    except (ExplorerBroken, TypeError, ValueError) as exc:
        if exc.__cause__ is not None:
            raise
        return pytest.fail.Exception(f"{type(exc).__name__}: {exc}", pytrace=False)
    item.stash[_STORY] = str(story)
    return story.failure


def _why_not(item: pytest.Function, test: Callable[..., Any]) -> str | None:
    """Say why a test cannot be explored; None if it can."""
    from trio.abc import Clock

    if not iscoroutinefunction(test):
        return f"{item.name} is marked `{EXPLORE}`, but is not async: call explore() in it instead"
    if item.get_closest_marker("real_clock") is not None:
        return f"{item.name} is marked `{EXPLORE}` and `real_clock`, but explored time is virtual"
    if any(mark.args for mark in item.iter_markers(EXPLORE)):
        return f"the marker `{EXPLORE}` takes keywords only, such as deviations=2"
    for name, value in item.funcargs.items():
        if type(value).__name__ == "TrioFixture":
            return (
                f"{item.name} is marked `{EXPLORE}` and takes the async fixture {name!r}, which is made "
                "once, but the test runs once per schedule: open it in the test with `async with`"
            )
        if isinstance(value, Clock):
            return (
                f"{item.name} is marked `{EXPLORE}`: each schedule has its own clock, not {name!r}"
            )
    return None
