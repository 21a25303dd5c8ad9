"""The watchdog of the suite ends what hangs, names it, and leaves alone what is only slow."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

HANGS = """
import threading, subprocess, sys

def test_before():
    pass

def test_that_hangs():
    wait_for_something_that_never_comes()

def test_after():
    pass

def wait_for_something_that_never_comes():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    open("child", "w").write(str(child.pid))
    child.wait()
"""

POLLS = """
import time

def test_that_hangs():
    while True:
        time.sleep(0.02)
"""

SPINS = """
def test_that_hangs():
    while True:
        pass
"""

# Longer than a test may wait, spent in ways that are no waiting.
BUSY = """
import subprocess, sys, time

def compute(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def test_that_computes():
    compute(3)

def test_whose_child_computes():
    code = "import time\\nwhile time.process_time() < 3: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
"""

# Each test waits for less than is allowed, all of them for more.
PATIENT = """
import pytest, time

@pytest.mark.parametrize("n", range(3))
def test_that_waits(n):
    time.sleep(0.7)
"""

pytestmark = [pytest.mark.slow, pytest.mark.long]


def run(folder, text, *options, waiting=1.5, computing=1000.0):
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").touch()
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    env.pop("PYTEST_ADDOPTS", None)
    limits = (f"--hang-waiting={waiting}", f"--hang-computing={computing}", "--hang-first-look=0")
    plugins = ("-p", "tests.watchdog", "-p", "no:cacheprovider", "-p", "no:crush_trio")
    words = (sys.executable, "-m", "pytest", "-q", *plugins, *limits, *options)
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def has_ended(pid):
    """Wait until *pid* has ended, which takes the kernel a moment after it was killed."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.05)
    return False


def test_a_test_that_waits_for_ever_is_ended_and_named_and_its_processes_killed(tmp_path):
    code, _, errors = run(tmp_path, HANGS)
    assert code == 70
    assert "it has waited for" in errors
    assert "test_it.py::test_that_hangs" in errors
    assert "in wait_for_something_that_never_comes" in errors
    assert has_ended(int((tmp_path / "child").read_text()))


def test_under_xdist_it_counts_as_failed_and_the_others_are_run(tmp_path):
    code, out, errors = run(tmp_path, HANGS, "-n", "2", "--dist", "worksteal")
    assert code == 1
    assert "in wait_for_something_that_never_comes" in errors
    assert "crashed while running 'test_it.py::test_that_hangs'" in out
    assert "1 failed, 2 passed" in out


@pytest.mark.parametrize(
    ("text", "reason", "limits"),
    [(POLLS, "it has waited for", {}), (SPINS, "seconds of CPU", {"computing": 2.0})],
    ids=["polls", "spins"],
)
def test_a_test_that_is_awake_in_vain_is_ended_too(tmp_path, text, reason, limits):
    code, _, errors = run(tmp_path, text, **limits)
    assert code == 70
    assert reason in errors
    assert "in test_that_hangs" in errors


@pytest.mark.parametrize("text", [BUSY, PATIENT], ids=["busy", "patient"])
def test_a_test_that_gets_on_is_not_ended(tmp_path, text):
    code, out, errors = run(tmp_path, text)
    assert (code, errors) == (0, ""), out
