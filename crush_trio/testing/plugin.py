"""The pytest plugin: async tests on a virtual clock, in a task order that a seed repeats.

It is loaded in every project whose environment has crush_trio, and does nothing there until it is
asked to: for a whole project with an ini key, for a module or a test with a marker.

```toml
[tool.pytest.ini_options]
trio_mode = true          # pytest-trio: async tests run under Trio
crush_trio_mode = true    # this plugin: they get a virtual clock and a seeded order
```

```python
@pytest.mark.crush_trio            # or `pytestmark = pytest.mark.crush_trio` for a module
async def test_an_hour_passes_at_once():
    await trio.sleep(3600)
```

For each async test that pytest-trio runs and that asked for it, the plugin adds two things:

* a `MockClock` that jumps ahead when every task waits, unless the test takes a clock of its own
  (`mock_clock`, `autojump_clock`, or any fixture that returns a `trio.abc.Clock`);
* a task order that is a function of a seed: 0, or `--trio-seed N`, or the test's own parameter
  `seed`. A failing test prints the seed and the command that repeats it.

`@pytest.mark.real_clock` turns both off again, for tests that wait for threads, sockets or processes.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Final

import pytest

# Trio and the rest of the harness are imported when a test asks for them: this module is loaded in
# every pytest run of an environment that has crush_trio.

MODE: Final = "crush_trio_mode"
"""The ini key that switches the plugin on for a project."""

MARKER: Final = "crush_trio"
"""The marker that switches the plugin on for a test."""

_CLOCK: Final = "crush_trio_default_clock"
_SEED: Final = pytest.StashKey[int]()


def _wrapper(*, tryfirst: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator of a hook wrapper; with pluggy before 1.2 it drops the hook.

    Pytest that old cannot run this plugin, but a project that did not ask for it must still be able
    to start: crush_trio's entry point is loaded wherever it is installed.
    """
    try:
        return pytest.hookimpl(wrapper=True, tryfirst=tryfirst)
    except TypeError:
        return lambda _hook: None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini key and `--trio-seed`."""
    parser.addini(
        MODE,
        "run Trio tests on a virtual clock, in a seeded task order",
        type="bool",
        default=False,
    )
    parser.getgroup("trio").addoption(
        "--trio-seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the task order in async tests that have no `seed` parameter (default: 0)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    config.addinivalue_line(
        "markers", f"{MARKER}: run an async test on a virtual clock, in a seeded task order"
    )
    config.addinivalue_line(
        "markers", "real_clock: run an async test in real time, in the order Trio picks"
    )


@_wrapper(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Prepare a Trio test before pytest-trio wraps it, and seed the run."""
    __tracebackhide__ = True
    if not isinstance(item, pytest.Function) or not _is_ours(item):
        return (yield)
    from crush_trio.testing.explore.schedule import seeded

    item.stash[_SEED] = seed = _seed_of(item)
    with _replaced(item, _without_clock), seeded(seed):
        return (yield)


@_wrapper()
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Give the test its clock, now that pytest-trio has wrapped it."""
    __tracebackhide__ = True
    if _SEED not in pyfuncitem.stash:
        return (yield)
    with _replaced(pyfuncitem, _with_clock):
        return (yield)


@_wrapper()
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell under which seed a test failed."""
    report = yield
    if call.when == "call" and report.failed and _SEED in item.stash:
        seed = item.stash[_SEED]
        again = f'pytest "{item.nodeid}" --trio-seed {seed}'
        report.sections.append(("Task order", f"This was seed {seed}. To repeat it:\n    {again}"))
    return report


def _is_ours(item: pytest.Function) -> bool:
    """Whether pytest-trio is going to run this test, and the virtual clock was asked for."""
    if not item.config.getini(MODE) and item.get_closest_marker(MARKER) is None:
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
