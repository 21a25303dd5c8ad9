"""The programs in `examples/` run as they are, and print what they claim."""

import runpy
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

EXAMPLES = Path(__file__).parents[1] / "examples"

# Where the package is installed its entry point loads the plugin; in a bare checkout the option does.
INSTALLED = bool(entry_points(group="pytest11", name="crush_trio"))
LOAD = [] if INSTALLED else ["-p", "crush_trio.testing.plugin"]


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "cancel_anywhere.py",
        "test_your_agent.py",
    }


def test_cancel_anywhere_shows_one_ending_to_both_clients(capsys):
    runpy.run_path(str(EXAMPLES / "cancel_anywhere.py"), run_name="__main__")
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "anna saw her run accepted then cancelled",
        "ben saw it accepted then cancelled",
        "receipt: accepted when hit, cancelled after 0 s",
    ]


@pytest.fixture
def other_project(pytester):
    """A project of someone else's that has the example as its test file."""
    pytester.makeini("[pytest]\ntrio_mode = true\nfilterwarnings = error\naddopts = -p no:anyio\n")
    return pytester


def test_your_agent_passes_in_a_project_of_its_own(other_project):
    other_project.makepyfile(test_agent=(EXAMPLES / "test_your_agent.py").read_text("utf-8"))
    other_project.runpytest_inprocess(*LOAD).assert_outcomes(passed=22)


def test_your_agent_fails_when_the_agent_keeps_its_lease(other_project):
    """The example can fail: without its `finally` the agent is caught, and the report says how."""
    source = (EXAMPLES / "test_your_agent.py").read_text("utf-8")
    broken = source.replace("        finally:\n", "        except ValueError:\n")
    assert broken != source
    other_project.makepyfile(test_agent=broken)
    result = other_project.runpytest_inprocess(*LOAD, "-q", "-x", "-k", "cancelling")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ScheduleFailure: schedule x1*", "*To see it again: replay*"])
