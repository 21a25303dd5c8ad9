"""A fault at every checkpoint of a run that is accepted, queued, promoted and active.

The run's whole task is driven by hand, journal included, and at each of its checkpoints in turn
something goes wrong: an exception, a cancel, or a task that is woken late. Whatever it is, the run
has exactly one outcome and one terminal event, and its neighbours never notice.
"""

from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing
from attrs import define

from crush_trio.errors import AcceptanceNotStored
from crush_trio.testing import Call, CheckpointFaults, Fault, Gate, Raise, Stall
from crush_trio.testing.server.turns import Fold, Pause, Say, ScriptedTurns
from crush_trio.testing.server.workspace import check_promises, open_test_workspace
from crush_trio.wire.runs import RunState

CHECKPOINTS = 10
"""Of the faulty run's task, from its first step to its last; a test keeps this number true."""

pytestmark = pytest.mark.item("A13", "A25", "A26", "B1", "B18")


@define
class DrivenNursery:
    """Starts the run of one name under fault injection, and all others as they are."""

    nursery: trio.Nursery
    faults: CheckpointFaults
    name: str

    def start_soon(self, async_fn, *args, name=None):
        if name == self.name:
            async_fn = self.faults.wrap(async_fn)
        self.nursery.start_soon(async_fn, *args, name=name)


@asynccontextmanager
async def two_runs(*faults, benches=None):
    """Yield a bench where *faults* befall the second of two runs, which waits behind the first."""
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate)], "two": [Say("a"), Fold(), Say("b")]})
    async with open_test_workspace(turns) as bench:
        if benches is not None:
            benches.append(bench)
        driven = CheckpointFaults(faults)
        bench.workspace._runs = DrivenNursery(bench.workspace._runs, driven, "run run-2")
        first = bench.accept("one")
        await gate.reached()
        second = bench.accept("two", run_id="second")
        await trio.testing.wait_all_tasks_blocked()
        gate.open()
        yield bench, first, second, driven


def check(bench, first, second, allowed):
    """The run with the fault ended once, in an allowed way, or was refused; the other completed."""
    assert first.outcome.state is RunState.COMPLETED
    if second.outcome is None:
        assert bench.transcript.endings.keys() == {first.id}
        assert [view.id for view in bench.recorder.endings] == [first.id]
    else:
        assert second.outcome.state in allowed
        seen = bench.recorder.endings_per_run
        assert seen == {first.id: 1, second.id: 1}
        assert bench.transcript.endings.keys() <= {first.id, second.id}
    assert bench.workspace.runs == ()


async def test_the_number_of_checkpoints_is_what_the_other_tests_cover():
    async with two_runs() as (bench, first, second, driven):
        await second.wait()
    assert driven.count == CHECKPOINTS
    check_promises(bench, [first, second])


@pytest.mark.parametrize("at", range(CHECKPOINTS))
async def test_an_exception_at_any_checkpoint_ends_the_run_once(at):
    fault = Fault(at, Raise(RuntimeError("out of the blue")))
    async with two_runs(fault) as (bench, first, second, _):
        await first.wait()
        await second.wait_ended()
    check(bench, first, second, {RunState.ERRORED, RunState.COMPLETED})
    if fault.fired and second.outcome is not None:
        stored = at == CHECKPOINTS - 1
        assert second.outcome.error == ("" if stored else "out of the blue")
    if second.outcome is None:
        with pytest.raises(AcceptanceNotStored, match="out of the blue"):
            await second.journaled()


@pytest.mark.parametrize("at", range(CHECKPOINTS))
async def test_a_cancel_at_any_checkpoint_ends_the_run_once(at):
    benches, receipts = [], []
    fault = Fault(at, Call(lambda: receipts.append(benches[0].workspace.cancel_run("second"))))
    async with two_runs(fault, benches=benches) as (bench, first, second, _):
        await first.wait()
        outcome = await second.wait()
    assert fault.fired
    check(bench, first, second, {RunState.CANCELLED, RunState.COMPLETED})
    check_promises(bench, [first, second])
    assert receipts[0].complete
    if outcome.state is RunState.COMPLETED:
        assert at >= CHECKPOINTS - 1, "only a run whose turn had returned may complete"


@pytest.mark.parametrize("at", range(CHECKPOINTS))
async def test_a_run_that_is_woken_late_anywhere_can_still_be_cancelled(at):
    fault = Fault(at, Stall(partial(trio.sleep, 60)))
    async with two_runs(fault) as (bench, first, second, _):
        await first.wait()
        await trio.sleep(1)
        bench.cancel()
        await second.wait_ended()
    check(bench, first, second, {RunState.CANCELLED, RunState.COMPLETED, RunState.ERRORED})


@pytest.mark.parametrize("at", range(CHECKPOINTS))
async def test_closing_the_workspace_with_a_run_asleep_anywhere_ends_it_once(at):
    fault = Fault(at, Stall(partial(trio.sleep, 60)))
    async with two_runs(fault) as (bench, first, second, _):
        await first.wait()
        report = await bench.workspace.stop()
        assert report.took <= 16
        assert all(hit.run is second for hit in report.unfinished), "it is named, and waited for"
    check(bench, first, second, {RunState.CANCELLED, RunState.COMPLETED, RunState.ERRORED})
