"""The run core with reduced schedules: all shared state of the package is watched."""

import pytest

from crush_trio.testing.explore import HoldBack, explore
from tests.runtime.test_explored import accept_cancel_enter


@pytest.mark.heavy
@pytest.mark.explored
@pytest.mark.item("A9", "A15")
def test_fewer_schedules_show_the_same_endings_of_a_cancelled_run(report_exploration):
    report = explore(accept_cancel_enter, strategy=HoldBack(2, reduce=True, watched=["crush_trio"]))
    report_exploration(report)
    everything = explore(accept_cancel_enter, deviations=2)
    assert set(report.outcomes) == set(everything.outcomes)
    assert report.exhaustive
    assert report.schedules * 2 < everything.schedules
