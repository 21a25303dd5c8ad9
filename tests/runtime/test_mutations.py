"""The explorer finds the bugs that the real core cannot have.

A check that never fails proves nothing. Here the naive core gets each of its three flaws in turn,
and the explorer must find it, name the schedule, and find it again from the name alone; with the
flaw switched off it must find nothing.
"""

import pytest
import trio

from crush_trio.testing import Deadlock, find_violation, replay
from crush_trio.testing.explore import explore
from tests.runtime.naive_core import NaiveCore


async def turn(_run):
    await trio.lowlevel.checkpoint()


def lost_cancel(**flaws):
    """A cancel after acceptance: the run may complete only if it had finished its turn."""

    async def scenario():
        finished = []

        async def noted_turn(run):
            await turn(run)
            finished.append(run.name)

        async with trio.open_nursery() as nursery:
            core = NaiveCore(nursery, noted_turn, **flaws)
            core.accept("one")
            late = []

            async def cancel():
                await trio.lowlevel.checkpoint()
                late.extend(finished)
                core.cancel()

            nursery.start_soon(cancel)
        assert core.states["one"] == "cancelled" or late, "the cancel was lost"
        return core.states["one"]

    return scenario


def double_ending(**flaws):
    """An active run, one queued behind it, and a cancel."""

    async def scenario():
        async with trio.open_nursery() as nursery:
            core = NaiveCore(nursery, turn, **flaws)
            core.accept("one")
            core.accept("two")

            async def cancel():
                await trio.lowlevel.checkpoint()
                core.cancel()

            nursery.start_soon(cancel)
        assert core.endings == {"one": 1, "two": 1}, "a run ended twice"
        return tuple(core.states.values())

    return scenario


def stranded_queue(**flaws):
    """A prompt that arrives after the cancel and before the cancelled run is gone."""

    async def scenario():
        async with trio.open_nursery() as nursery:
            core = NaiveCore(nursery, turn, **flaws)
            core.accept("one")

            async def cancel_then_accept():
                await trio.lowlevel.checkpoint()
                core.cancel()
                core.accept("two")

            nursery.start_soon(cancel_then_accept)
        return tuple(core.states.values())

    return scenario


FLAWS = [
    pytest.param(lost_cancel, "scope_at_start", AssertionError, id="lost cancel"),
    pytest.param(double_ending, "two_publishers", AssertionError, id="double terminal event"),
    pytest.param(stranded_queue, "no_promotion_after_trouble", Deadlock, id="stranded queue"),
]


@pytest.mark.parametrize(("scenario", "flaw", "symptom"), FLAWS)
def test_the_explorer_finds_the_planted_bug_and_its_token_replays_it(scenario, flaw, symptom):
    broken = scenario(**{flaw: True})
    failure = find_violation(broken)
    assert failure is not None, f"{flaw} was not found"
    assert isinstance(failure.__cause__, symptom)
    with pytest.raises(symptom):
        replay(broken, failure.token)


@pytest.mark.parametrize(("scenario", "flaw", "symptom"), FLAWS)
def test_without_the_flaw_nothing_is_found(scenario, flaw, symptom):
    report = explore(scenario(**{flaw: False}))
    assert report.exhaustive
    assert report.schedules > 1
