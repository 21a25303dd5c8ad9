"""A whole cluster simulated in one process, from seeds (`benchmarks.simulation`).

`make chaos` plays ten thousand seeds; the report of a broken one names the command that replays it.
"""

import pytest

from benchmarks.simulation.__main__ import report, table
from benchmarks.simulation.bugs import BUGS
from benchmarks.simulation.world import play

SEEDS = 240
CHUNK = 12
LOOK = 150
"""Among how many seeds a planted bug is found."""


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept_in_every_seed(first):
    check(range(first, first + CHUNK))


def test_every_promise_is_kept_in_a_few_seeds():
    check(range(10_000, 10_008))


def check(seeds):
    broken, accepted = [], 0
    for seed in seeds:
        played = play(seed)
        accepted += played.counts["prompts accepted"]
        if played.broken:
            broken.append(f"{report(played)}\n{played.trace}")
    assert not broken, "\n\n".join(broken)
    assert accepted >= 3 * len(seeds)


def test_a_seed_happens_in_the_same_way_again():
    first, again, other = play(7), play(7), play(8)
    assert first.trace == again.trace
    assert first.counts == again.counts
    assert first.trace != other.trace
    assert "claims workspace 1" in first.trace


@pytest.mark.long
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug])
def test_a_planted_bug_is_found(bug):
    for seed in range(LOOK):
        played = play(seed, bug)
        if played.broken:
            break
    else:
        pytest.fail(f"not found in {LOOK} seeds")
    assert f"--seed {seed} --bug '{bug}'" in report(played, bug)
    assert played.trace


def test_counts_are_shown_in_lines():
    played = play(3)
    assert "  prompts accepted\n" in table(played.counts)
