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


@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are Linux's")
@pytest.mark.parametrize(
    ("minutes", "at_least"), [(0.15, 1), pytest.param(0.4, 3, marks=pytest.mark.long)]
)
def test_a_short_soak_finds_nothing_and_has_done_something_of_everything(
    tmp_path, minutes, at_least
):
    command = (sys.executable, "-m", "benchmarks.soak", "--minutes", str(minutes), "--seed", "7")
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
    assert sum(found[name] for name in faults) >= at_least, ran.stdout
    assert not any(tmp_path.iterdir()), "what is not needed as evidence is removed"
