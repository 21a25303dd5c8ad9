"""The programs in `examples/` run as they are, print what they claim, and are short enough to read."""

import ast
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"

# Where the package is installed its entry point loads the plugin; in a bare checkout the option does.
INSTALLED = bool(entry_points(group="pytest11", name="crush_trio"))
LOAD = [] if INSTALLED else ["-p", "crush_trio.testing.plugin"]


def names():
    return {path.name for path in EXAMPLES.glob("*.py")}


def test_every_example_is_run_here():
    assert names() == {
        "agent.py",
        "asyncio_client.py",
        "cancel_anywhere.py",
        "cluster_demo.py",
        "custom_provider.py",
        "custom_tool.py",
        "demo.py",
        "embed.py",
        "script.py",
        "supervise.py",
        "test_your_agent.py",
    }


@pytest.mark.parametrize("name", sorted(names() - {"cluster_demo.py", "demo.py"}))
def test_an_example_is_at_most_sixty_lines_besides_its_imports(name):
    text = (EXAMPLES / name).read_text("utf-8")
    imports = [
        node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    imported = sum(node.end_lineno - node.lineno + 1 for node in imports)
    assert len(text.splitlines()) - imported <= 60


def run_example(name, home, seconds=60):
    """Run an example as a reader would, in a process of its own, and return what it prints."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        capture_output=True,
        check=False,
        env=environment,
        text=True,
        timeout=seconds,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


# ── Programs ────────────────────────────────────────────────────────────────────────────────────


def test_cancel_anywhere_shows_one_ending_to_both_clients(capsys):
    runpy.run_path(str(EXAMPLES / "cancel_anywhere.py"), run_name="__main__")
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "anna saw her run accepted then cancelled",
        "ben saw it accepted then cancelled",
        "receipt: accepted when hit, cancelled after 0 s",
    ]


@pytest.mark.slow
def test_embed_answers_inside_a_program_that_goes_on(tmp_path):
    [answer, ended, program] = run_example("embed.py", tmp_path).splitlines()
    assert len(answer.split()) == 24
    assert ended == "the run is completed"
    assert program == "the server is gone; the program went on beside it: True"


@pytest.mark.slow
def test_asyncio_client_asks_twice_beside_other_work(tmp_path):
    assert run_example("asyncio_client.py", tmp_path).splitlines() == [
        "long 5: 5 words, completed",
        "long 25: 25 words, completed",
        "the program went on beside it: True",
    ]


@pytest.mark.slow
def test_agent_uses_its_tools_asks_streams_and_is_cancelled(tmp_path):
    assert run_example("agent.py", tmp_path).splitlines() == [
        "The door squeaks.",
        "permit close_ticket? Close T-7",
        "T-7 is closed",
        "A task that nobody waits for is a",
        "permit write? Create a.txt",
        "written: False",
        "4 conversations",
    ]


@pytest.mark.slow
def test_custom_tool_is_called_and_tells_the_model_of_its_error(tmp_path):
    printed = run_example("custom_tool.py", tmp_path)
    assert "    T-7 is closed; 1 left\n" in printed
    assert "    there is no open ticket T-7\n" in printed


@pytest.mark.slow
def test_custom_provider_is_the_model_of_the_workspace(tmp_path):
    lines = run_example("custom_provider.py", tmp_path).splitlines()
    assert [line.strip() for line in lines] == ["Grey Parrot", "WHO IS A PRETTY BIRD"]


@pytest.mark.slow
def test_script_without_async_allows_and_prints(tmp_path):
    lines = run_example("script.py", tmp_path).splitlines()
    assert lines[0] == "allowed: write"
    assert lines[-2:] == ["write hello to hello.txt: completed", "hello"]


@pytest.mark.slow
def test_supervise_allows_refuses_and_stops(tmp_path):
    assert sorted(run_example("supervise.py", tmp_path).splitlines()) == [
        "supervisor: files may be written",
        "supervisor: no bash, please",
        "supervisor: that is enough; 1 run stopped",
        "worker: long 5000: cancelled",
        "worker: run `touch evil.txt`: completed",
        "worker: write hello to hello.txt: completed",
    ]


# ── The demo ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_demo_shows_what_it_says_and_leaves_nothing_behind(tmp_path):
    printed = run_example("demo.py", tmp_path)
    assert "\x1b" not in printed  # this is no terminal
    assert printed.count("processes left: 0") == 2
    assert len(re.search(r"processes stopped: ([\d ]+);", printed)[1].split()) >= 3
    assert "hello.txt has: hello from anna" in printed
    assert "four runs, four endings: cancelled, completed, cancelled, interrupted" in printed
    assert printed.splitlines()[-1].endswith("ends with exit code 0")
    home = re.search(r"unix://(\S+)/crush\.sock", printed)[1]
    assert not Path(home).exists()


@pytest.mark.slow
def test_the_demo_of_a_cluster_shows_a_client_that_finishes_on_another_server(tmp_path):
    printed = run_example("cluster_demo.py", tmp_path)
    assert "\x1b" not in printed
    assert len(set(re.findall(r"has workspace +(\S+)", printed))) == 1
    assert len(re.findall(r"has workspace +(\S+)", printed)) == 3
    killed = printed.partition("node 1 │ is killed")[2]
    doing = [
        "leads to node 2",
        "goes on after her last event",
        "end: interrupted",
        "end: completed",
    ]
    places = [killed.index(each) for each in doing]
    assert places == sorted(places)
    assert "three runs, three endings: completed, interrupted, completed" in printed
    owners = re.findall(r"lease of the workspace: (\S+), epoch (\d)", printed)
    assert [epoch for _, epoch in owners] == ["1", "2"]
    assert owners[0][0] != owners[1][0]
    assert printed.count("ends with exit code 0") == 2
    [port] = re.findall(r"PostgreSQL on port (\d+)", printed)
    assert not is_open(int(port))


@pytest.mark.slow
@pytest.mark.long
def test_the_demo_of_a_cluster_leaves_nothing_behind_after_ctrl_c(tmp_path):
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with TemporaryDirectory() as temporary:
        Path(temporary).chmod(0o755)  # as root, PostgreSQL runs as another user
        assert interrupted_demo({**environment, "TMPDIR": temporary}) == []
        assert list(Path(temporary).iterdir()) == []


def interrupted_demo(environment):
    """Interrupt the demo of a cluster at its worst moment; return the ports that are still open."""
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / "cluster_demo.py")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as demo:
        printed = ""
        for line in demo.stdout:
            printed += line
            if "is killed (SIGKILL)" in line:
                os.killpg(demo.pid, signal.SIGINT)  # as a terminal does it
        assert demo.wait(60) == 130, printed
    assert printed.splitlines()[-1].endswith("nothing is left behind")
    assert "Traceback" not in printed
    ports = {*map(int, re.findall(r"(?:port |127\.0\.0\.1:)(\d+)", printed))}
    assert len(ports) == 5
    return [port for port in ports if is_open(port)]


def is_open(port):
    try:
        socket.create_connection(("127.0.0.1", port), 10).close()
    except ConnectionRefusedError:
        return False
    return True


# ── Tests of somebody else's agent ──────────────────────────────────────────────────────────────


@pytest.fixture
def other_project(pytester):
    """A project of someone else's that has the example as its test file."""
    pytester.makeini(
        "[pytest]\ntrio_mode = true\ncrush_trio_mode = true\nfilterwarnings = error\n"
        "addopts = -p no:anyio\n"
    )
    return pytester


def test_your_agent_passes_in_a_project_of_its_own(other_project):
    other_project.makepyfile(test_agent=(EXAMPLES / "test_your_agent.py").read_text("utf-8"))
    other_project.runpytest_inprocess(*LOAD).assert_outcomes(passed=21)


def test_your_agent_fails_when_the_agent_keeps_its_lease(other_project):
    """The example can fail: without its `finally` the agent is caught, and the report says how."""
    source = (EXAMPLES / "test_your_agent.py").read_text("utf-8")
    broken = source.replace("        finally:\n", "        except ValueError:\n")
    assert broken != source
    other_project.makepyfile(test_agent=broken)
    result = other_project.runpytest_inprocess(*LOAD, "-q", "-x", "-k", "cancelling")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ScheduleFailure: schedule x1*", "*To repeat it: replay*"])
