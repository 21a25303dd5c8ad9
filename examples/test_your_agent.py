"""How another project tests its own agent for races, with crush_trio's harness.

The agent takes a lease, works in two steps and gives the lease back. The tests check that it does
so in every order of events. With `crush-trio[testing]`, `trio_mode = true` and
`crush_trio_mode = true`, tests have a virtual clock and a seeded task order.
"""

import pytest
import trio
from attrs import define, field

from crush_trio import Completion, Run, RunState
from crush_trio.testing import check_promises, open_test_workspace
from crush_trio.testing.explore import explore


@define(eq=False)
class LeasingAgent:
    """The agent under test: holds a lease while it works, one per run."""

    leases: set[str] = field(factory=set, init=False)

    async def __call__(self, run: Run) -> Completion:
        """Answer the prompt of one run."""
        await trio.lowlevel.checkpoint()
        self.leases.add(run.id)
        try:
            await trio.sleep(30)  # a model thinks
            await trio.sleep(30)  # a tool works
        finally:
            self.leases.discard(run.id)
        return Completion(text=run.prompt.upper())


@pytest.mark.parametrize("seed", range(20))
async def test_a_cancel_gives_the_lease_back(seed: int) -> None:
    """Each case has another task order; waiting is free: time jumps when every task waits."""
    agent = LeasingAgent()
    async with open_test_workspace(agent) as bench:
        runs = [bench.accept("one"), bench.accept("two", run_id="mine")]
        await trio.sleep(seed * 5)
        receipt = await bench.cancel().settled()
        check_promises(bench, runs)
    assert (receipt.complete, agent.leases) == (True, set())


def test_no_order_of_finishing_and_cancelling_leaves_a_lease_behind() -> None:
    """Every order that two deviations can produce: the cancel comes as the run is done."""

    async def scenario() -> RunState:
        async with open_test_workspace(agent := LeasingAgent()) as bench:
            run = bench.accept("one")
            await trio.sleep(60)
            bench.cancel()
            outcome = await run.wait()
            check_promises(bench, [run])
        assert agent.leases == set()
        return outcome.state

    assert set(explore(scenario).outcomes) == {RunState.CANCELLED, RunState.COMPLETED}
