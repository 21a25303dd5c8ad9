"""The benchmarks run: both servers start, two workloads are measured, the report is complete."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).parents[2]


def test_a_quick_run_measures_both_servers_and_reports_it(tmp_path):
    found = tmp_path / "found.json"
    command = (sys.executable, "-m", "benchmarks", "--quick", "--only", "c,e,k,l", "--json", found)
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    figures = {each["name"]: each for each in orjson.loads(found.read_bytes())["figures"]}
    lag = figures["model's first word to client, p50"]
    assert lag["own"]
    assert lag["baseline"]
    assert figures["storm: cancels without an ending"]["own"] == [0]
    assert figures["prompt sent to model asked, p50"]["baseline"]
    assert figures["session created, p50"]["ratio"]
    assert "Latency of the first word" in ran.stdout
