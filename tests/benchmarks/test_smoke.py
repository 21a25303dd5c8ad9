"""The benchmarks run: the servers start, workloads are measured, the report is complete."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).parents[2]


def quick_run(workloads, tmp_path):
    """Return the figures of a quick run by name, and what it printed."""
    found = tmp_path / "found.json"
    command = (sys.executable, "-m", "benchmarks", "--quick", "--only", workloads, "--json", found)
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    figures = {each["name"]: each for each in orjson.loads(found.read_bytes())["figures"]}
    return figures, ran


def test_a_quick_run_measures_both_servers_and_reports_it(tmp_path):
    figures, ran = quick_run("c,e,k,l", tmp_path)
    lag = figures["model's first word to client, p50"]
    assert lag["own"]
    assert lag["baseline"]
    assert figures["storm: cancels without an ending"]["own"] == [0]
    assert figures["prompt sent to model asked, p50"]["baseline"]
    assert figures["session created, p50"]["ratio"]
    assert "Latency of the first word" in ran.stdout


def test_a_quick_run_measures_acceptance_on_postgres_and_streams_through_another_node(tmp_path):
    figures, _ = quick_run("p,q", tmp_path)
    assert figures["64 sessions at once, p50: PostgreSQL / SQLite"]["limit"] == 2
    assert figures["5 clients, 5 ms per token: CPU per event of a stream, forwarded / direct"]


def test_a_quick_run_measures_runs_and_a_takeover(tmp_path):
    figures, _ = quick_run("r,t", tmp_path)
    for store in ("on SQLite", "on PostgreSQL"):
        assert len(figures[store]["own"]) == len(figures[store]["baseline"]) == 1
    name = "SIGKILL to the first prompt accepted by the other node, leases of 3 s"
    [taken] = figures[name]["own"]
    assert taken > 1000  # the lease was renewed at most a second before
