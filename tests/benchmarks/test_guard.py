"""The guard: what counts as missed by half, and how often it is measured before it does."""

from types import SimpleNamespace

import pytest

from benchmarks.__main__ import WORKLOADS
from benchmarks.figures import MS, Figure, at_most, ratio_at_most
from benchmarks.guard import NOT_MET, SLACK, TRIES, allowed, missed_each_time, misses

pytestmark = pytest.mark.real_clock


def row(ratio, name="n", promise=None):
    promise = ratio_at_most(2) if promise is None else promise
    return Figure(workload="k", name=name, unit=MS, ours=(ratio,), theirs=(1.0,), promise=promise)


def workload(*tries):
    """Return a workload that measures one list of rows after the other, and the number of its tries."""
    left = list(tries)

    async def measure(bench):
        assert bench.quick
        return left.pop(0)

    return SimpleNamespace(measure=measure), left


def test_a_ratio_may_be_half_above_its_promise():
    assert misses([row(2 * SLACK)]) == []
    assert [each.name for each in misses([row(2 * SLACK + 0.1)])] == ["n"]


def test_only_ratios_count():
    assert allowed(row(9.0, promise=at_most(1))) is None
    assert misses([Figure(workload="k", name="n", unit=MS, ours=(9.0,))]) == []


@pytest.mark.parametrize("name", NOT_MET)
def test_a_promise_that_is_not_met_yet_gets_no_worse(name):
    promise = ratio_at_most(0.1)
    assert misses([row(NOT_MET[name] * SLACK, name, promise)]) == []
    assert misses([row(NOT_MET[name] * SLACK + 0.1, name, promise)])


async def test_what_is_met_once_is_no_failure():
    measured, left = workload([row(9.0), row(1.0, "m")], [row(1.0), row(9.0, "m")], [row(9.0)])
    assert await missed_each_time(measured) == []
    assert len(left) == 1, "the second try had nothing that was missed before"


async def test_what_is_missed_each_time_is_a_failure():
    measured, left = workload(*[[row(9.0), row(1.0, "m")]] * TRIES)
    assert [each.name for each in await missed_each_time(measured)] == ["n"]
    assert left == []


def test_every_guarded_workload_is_one_of_the_benchmarks():
    from benchmarks import guard

    assert set(guard.WORKLOADS) <= set(WORKLOADS)
