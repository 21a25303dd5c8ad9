"""What the whole suite shares: fixed examples, limits, programs that tests need, and the summary."""

import gc
import logging
import os
import shutil
import unittest
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from benchmarks.chaos.counts import table

pytest_plugins = ["tests.watchdog"]

EXPLORED = "explored"
CHAOS = "chaos"
CPU = "cpu"
CPU_LIMIT = 20
"""Seconds of CPU that one test may need; the summary names those that need more."""
PACKAGES = dict(
    line.split(maxsplit=1)
    for line in Path(__file__).with_name("programs.txt").read_text().splitlines()
    if line and not line.startswith("#")
)
OPTIONAL = {"chromium"}
# Where .ci/programs puts what is no Debian package. Set here, so that programs find it too.
os.environ["PATH"] = f"{Path(__file__).parents[1] / '.programs' / 'bin'}:{os.environ['PATH']}"
_BEFORE = pytest.StashKey[float]()

# The same examples in every run: whether the suite is green says something about the code alone.
SUITE = settings(derandomize=True, deadline=None, database=None)
settings.register_profile("suite", SUITE)
settings.register_profile("quick", SUITE, max_examples=5)
settings.load_profile("suite")

QUICK_SEEDS = 3


def pytest_addoption(parser):
    parser.addoption(
        "--quick",
        action="store_true",
        help=f"no explorations, nothing heavy, {QUICK_SEEDS} seeds of a race, few examples of a property",
    )
    parser.addoption(
        "--cpu",
        type=int,
        default=0,
        metavar="N",
        help="list the N tests that used most CPU; unlike --durations this is the same on a busy machine",
    )


def pytest_configure(config):
    if config.getoption("--quick"):
        settings.load_profile("quick")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Check what tests need, leave out what is not quick, and put the tests in order.

    First the explorations, then the slow ones: a worker that is done steals from the end of
    another's list, and the last tests should be short, or one core would work alone at the end.
    """
    for item in items:
        # A unittest case is a state machine of Hypothesis: there are no others.
        is_model = item.cls is not None and issubclass(item.cls, unittest.TestCase)
        if is_model or "report_exploration" in item.fixturenames:
            item.add_marker("explored")
        for program in needed(item):
            if program not in PACKAGES:
                raise pytest.UsageError(f"{item.nodeid} needs {program}: add it to programs.txt")
    items.sort(
        key=lambda item: (
            item.get_closest_marker("explored") is None,
            item.get_closest_marker("slow") is None,
        )
    )
    if config.getoption("--quick"):
        left_out = [item for item in items if not is_quick(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_quick(item)]


def is_quick(item):
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    seed = parameters.get("seed", 0)
    many_seeds = isinstance(seed, int) and seed >= QUICK_SEEDS
    return not (many_seeds or {"explored", "heavy"} & {mark.name for mark in item.iter_markers()})


def pytest_collection_finish():
    """Take the collected tests out of garbage collection: they are there until the end.

    A test that calls `gc.collect()` would pay for all of them, half a second each time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def state_directory(tmp_path_factory):
    """Keep the audit of the servers that tests start out of the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


# ── Explorations ────────────────────────────────────────────────────────────────────────────────


class Unstored(logging.Handler):
    """Formats the message of each record and keeps nothing."""

    def emit(self, record):
        record.getMessage()


@pytest.fixture
def report_exploration(request):
    """Return a function that adds an exploration to the summary of the whole run."""

    def note(exploration):
        request.node.user_properties.append((EXPLORED, (exploration.schedules, str(exploration))))

    return note


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item):
    """Drop the log records of an exploration.

    pytest would keep them all, each traceback with the tasks of its schedule: for thousands of
    schedules that costs as much as running them. The token of a failure replays it with its log.
    """
    if "report_exploration" not in item.fixturenames:
        return (yield)
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, [Unstored()]
    try:
        return (yield)
    finally:
        root.handlers = handlers


# ── Programs ────────────────────────────────────────────────────────────────────────────────────


def needed(item):
    return [program for marker in item.iter_markers("needs") for program in marker.args]


def pytest_runtest_setup(item):
    """Fail where a program is missing: `make test` deselects what needs one.

    Skip what comes from npm or Go on a machine that has neither, and what only root can install and few
    people need.
    """
    for program in needed(item):
        if shutil.which(program) is None:
            source, _, package = PACKAGES[program].rpartition(":")
            sentence = f"needs {program} ({source or 'Debian'} package {package}); see .ci/programs"
            no_source = source in {"npm", "go"} and shutil.which(source) is None
            if no_source or (program in OPTIONAL and os.geteuid() != 0):
                pytest.skip(sentence)
            pytest.fail(sentence, pytrace=False)


# ── CPU ─────────────────────────────────────────────────────────────────────────────────────────


def cpu():
    """CPU seconds of this process and of the children it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    item.stash[_BEFORE] = cpu()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    if call.when == "teardown":
        item.user_properties.append((CPU, cpu() - item.stash[_BEFORE]))
    return (yield)


# ── Summary ─────────────────────────────────────────────────────────────────────────────────────


def pytest_terminal_summary(terminalreporter):
    reports = terminalreporter.getreports("passed")
    explored = [row for r in reports if r.when == "call" for row in properties(r, EXPLORED)]
    if explored:
        terminalreporter.section("explored schedules")
        for nodeid, (_, text) in explored:
            terminalreporter.write_line(f"{nodeid.rpartition('::')[2]}: {text}")
        total = sum(schedules for _, (schedules, _) in explored)
        terminalreporter.write_line(f"in total: {total} schedules without a violation")
    played = [value for r in reports for _, value in properties(r, CHAOS) if r.when == "call"]
    if played:
        terminalreporter.section("rounds of faults against a cluster")
        terminalreporter.write_line(table({name: Counter(counts) for name, counts in played}))
    every = [report for group in terminalreporter.stats.values() for report in group]
    ends = [r for r in every if getattr(r, "when", None) == "teardown"]
    used = sorted((row[::-1] for r in ends for row in properties(r, CPU)), reverse=True)
    listed = terminalreporter.config.getoption("--cpu")
    rows = [row for n, row in enumerate(used) if n < listed or row[0] > CPU_LIMIT]
    if rows:
        total = sum(seconds for seconds, _ in used)
        terminalreporter.section(f"CPU: {total:.0f} s in {len(used)} tests")
        for seconds, nodeid in rows:
            note = f" (more than {CPU_LIMIT} s: split it)" if seconds > CPU_LIMIT else ""
            terminalreporter.write_line(f"{seconds:8.2f} s  {nodeid}{note}")


def properties(report, name):
    return [(report.nodeid, value) for key, value in report.user_properties if key == name]
