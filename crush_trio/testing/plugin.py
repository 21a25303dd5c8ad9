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

`@pytest.mark.explore(deviations=2)` runs an async test under every task order within that bound, as
`crush_trio.testing.explore` does; the keywords are those of `explore`. A failure tells its story and the
command that repeats it, with `--replay TOKEN`.

Names that another project may use itself, the markers `real_clock` and `explore` and the option
`--replay`, exist only with the ini key; a project that only marks tests registers the markers itself and
replays with `--crush-trio-replay TOKEN`.
"""

from argparse import ArgumentError
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Final

import pytest

# Trio and the rest of the harness are imported when a test asks for them: this module is loaded in
# every pytest run of an environment that has crush_trio. What surrounds tests is in `controlled_tests`,
# which is registered only where a test asked: its frames would change what pytest prints of other
# plugins' failures.

MODE: Final = "crush_trio_mode"
"""The ini key that switches the plugin on for a project."""

MARKER: Final = "crush_trio"
"""The marker that switches the plugin on for a test."""

EXPLORE: Final = "explore"
"""The marker that explores a test, in a project or on a test that asked for the plugin."""

REPLAY: Final = "crush_trio_replay"
"""The option with the token of the one schedule to run."""

LONG_OPTION: Final = "--crush-trio-replay"
OPTION: Final = pytest.StashKey[str]()
"""The name of that option in this project, if it has a shorter one."""

TITLE: Final = "Story of a schedule"

_CONTROLLED: Final = "crush_trio_controlled_tests"


def _wrapper() -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator of a hook wrapper; with pluggy before 1.2 it drops the hook.

    Pytest that old cannot run this plugin, but a project that did not ask for it must still be able
    to start: crush_trio's entry point is loaded wherever it is installed.
    """
    try:
        return pytest.hookimpl(wrapper=True)
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

    _add_replay(parser, LONG_OPTION)


@_wrapper()
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser
) -> Generator[None, object, object]:
    """Add `--replay` in a project that asked, once it is known that no one else has an option so named."""
    result = yield
    if early_config.getini(MODE):
        with suppress(ValueError, ArgumentError):
            _add_replay(parser, "--replay")
            early_config.stash[OPTION] = "--replay"
    return result


def _add_replay(parser: pytest.Parser, name: str) -> None:
    parser.getgroup("trio").addoption(
        name,
        dest=REPLAY,
        metavar="TOKEN",
        help="run tests marked `explore` under this one schedule, and tell what happens",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers; those with names that others may use only where the project asked."""
    config.addinivalue_line(
        "markers", f"{MARKER}: run an async test on a virtual clock, in a seeded task order"
    )
    if config.getini(MODE):
        config.addinivalue_line(
            "markers", "real_clock: run an async test in real time, in the order Trio picks"
        )
        config.addinivalue_line(
            "markers",
            f"{EXPLORE}(deviations=2, strategy=None, limit=None, max_steps=10000): "
            "run an async test under every task order within this bound",
        )
        _register(config)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Register what runs tests, if one of them has the marker."""
    if any(item.get_closest_marker(MARKER) is not None for item in session.items):
        _register(session.config)


def _register(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(_CONTROLLED):
        from crush_trio.testing import controlled_tests

        config.pluginmanager.register(controlled_tests, _CONTROLLED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the stories of replayed schedules that passed; pytest shows those of failures itself."""
    for report in terminalreporter.stats.get("passed", ()):
        for title, text in getattr(report, "sections", ()):
            if title == TITLE:
                terminalreporter.section(f"{title}: {report.nodeid}")
                terminalreporter.line(text)
