"""The soak runs: everything is mixed for some seconds, and no promise is broken."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def figures(printed):
    """Return the rows of the table that have a plain number."""
    rows = (line.rsplit(maxsplit=1) for line in printed.splitlines() if line)
    return {name: int(value) for name, value in rows if value.isdigit()}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are Linux's")
def test_a_short_soak_finds_nothing_and_has_done_something_of_everything(tmp_path):
    command = (sys.executable, "-m", "benchmarks.soak", "--minutes", "0.3", "--seed", "7")
    ran = subprocess.run(
        (*command, "--folder", tmp_path),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    found = figures(ran.stdout)
    assert found["violations"] == 0
    some = ("accepted", "cancels", "endings told", "requests to the model", "ended: completed")
    assert all(found[name] > 20 for name in some), ran.stdout
    faults = ("disk faults", "stalls", "kills", "restarts")
    assert sum(found[name] for name in faults) >= 3, ran.stdout
    assert not any(tmp_path.iterdir()), "what is not needed as evidence is removed"
