"""Random command lines that the judge calls read-only, run with the real programs under a tracer."""

import secrets

import pytest

from tests.tools.command_fuzz import make_place, read_only_lines, run_lines, snapshot, trace

pytestmark = [pytest.mark.slow, pytest.mark.heavy]
traced = pytest.mark.needs("strace", "tree", "rg")

SEED = 15
LINES = 350
BATCH = 1000


@pytest.fixture
def place(tmp_path):
    return make_place(tmp_path.resolve() / "place")


def changes(before, after):
    return {path for path in before | after if before.get(path) != after.get(path)}


@pytest.mark.item("H10")
def test_a_line_that_is_called_read_only_changes_nothing(place, tmp_path):
    lines = read_only_lines(place, SEED, LINES)
    assert sum(line.startswith("git ") for line in lines) > LINES // 3
    before = snapshot(place.root)
    run_lines(place, lines, tmp_path / "lines.sh")
    assert changes(before, snapshot(place.root)) == set()


@traced
@pytest.mark.item("H10")
@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_lines_that_are_called_read_only_change_nothing_and_run_nothing_else(part, place, tmp_path):
    seed = secrets.randbits(32)
    lines = read_only_lines(place, seed, 2 * BATCH)
    for at in range(0, len(lines), BATCH):
        before = snapshot(place.root)
        assert trace(place, lines[at : at + BATCH], tmp_path / "log") == [], f"seed {seed}"
        assert changes(before, snapshot(place.root)) == set(), f"seed {seed}"


HARMFUL = {
    "touch F": "openat",
    "echo x > src/F": "openat",
    "rm -f src/c.py": "unlinkat",
    "mkdir new": "mkdir",
    "cat out/secret": "openat",
    "cat ../neighbour/secret": "openat",
    "bin/program": "execve",
    "python3 -c 1": "execve",
    "tree -Po x F": "openat",
    "git log -1 --format=%B -s --unified --output=F": "openat",
    "git tag --format --list v9": "openat",
    "git -c core.hooksPath=.git/hooks -c diff.autoRefreshIndex=true diff": "openat",
    "git -c diff.external=bin/program diff": "execve",
    "git -c gpg.program=bin/program log --format=%+GK": "execve",
}


@traced
def test_the_tracer_sees_what_a_line_does(place, tmp_path):
    found = trace(place, ["true", *HARMFUL, "true"], tmp_path / "log")
    for line, call in HARMFUL.items():
        assert any(each.startswith(f"{line!r}: {call}") for each in found), line
    assert not any(each.startswith("'true'") for each in found)


def test_the_workspace_of_the_fuzzer_is_dangerous_without_our_settings(place, tmp_path):
    before = snapshot(place.root)
    bare = {name: value for name, value in place.env.items() if not name.startswith("GIT_")}
    place.env.clear()
    place.env.update(bare)
    run_lines(place, ["git status", "git diff", "git log -p"], tmp_path / "lines.sh")
    assert str(place.root / "mark") in changes(before, snapshot(place.root))
