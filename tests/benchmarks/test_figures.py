"""Figures, ratios and promises: what a run of the benchmarks comes to."""

import pytest

from benchmarks.figures import (
    COUNT,
    MS,
    Figure,
    Notes,
    at_least,
    at_most,
    percentile,
    ratio_at_most,
)


def figure(ours, theirs=(), promise=None):
    return Figure(workload="d", name="n", unit=MS, ours=ours, theirs=theirs, promise=promise)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_a_percentile_is_a_value_that_was_measured(share, value):
    assert percentile(reversed(range(1, 101)), share) == value


def test_a_percentile_of_one_value_is_that_value():
    assert percentile([7], 0.5) == percentile([7], 0.99) == 7


def test_a_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_medians():
    measured = figure((1.0, 2.0, 90.0), (10.0, 2.0, 9.0))
    assert measured.ratios == (0.1, 1.0, 10.0)
    assert measured.ratio == 1.0
    assert measured.value == 2.0


def test_without_a_baseline_there_is_no_ratio_and_no_verdict_about_it():
    assert figure((1.0,)).ratio is None
    assert figure((1.0,), promise=ratio_at_most(2)).met is None
    assert figure((1.0,)).met is None


@pytest.mark.parametrize(
    ("promise", "met"),
    [
        (at_most(5), True),
        (at_most(4.9), False),
        (at_least(5), True),
        (at_least(5.1), False),
        (ratio_at_most(0.5), True),
        (ratio_at_most(0.4), False),
    ],
)
def test_a_promise_is_about_the_value_or_about_the_ratio(promise, met):
    assert figure((5.0,), (10.0,), promise).met is met


def test_a_baseline_of_nothing_or_less_gives_no_ratio():
    assert figure((1.0, 2.0, 3.0), (0.0, 1.0, -1.0)).ratios == (2.0,)


def test_notes_keep_servers_apart_and_leave_out_what_could_not_be_measured():
    notes = Notes("e", own="ours", baseline="baseline", other="third")
    seen = [("ours", 1.0), ("baseline", 4.0), ("ours", None), ("third", 8.0), ("ours", 3.0)]
    for server, value in seen:
        notes.add("lost", server, value)
    [found] = notes.figure("lost", COUNT, at_most(0))
    assert (found.ours, found.theirs, found.others) == ((1.0, 3.0), (4.0,), (8.0,))
    assert (found.ratios, found.others_ratios) == ((0.25,), (2.0,))
    assert not notes.figure("never noted", COUNT)
    assert notes.names() == ["lost"]
