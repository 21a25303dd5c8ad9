"""How another project tests its own agent with crush_trio's harness.

The agent below is a turn function like any other: it takes a lease on a workbench, works in two
steps and gives the lease back. The tests ask the question that matters for such code: is the lease
given back whatever happens, in whatever order things happen?

Install `crush-trio[testing]`, set `trio_mode = true` under `[tool.pytest.ini_options]`, and run
`pytest examples/test_your_agent.py`. The plugin comes with the package; async tests get a virtual
clock and a task order that is a function of a seed.
"""

import pytest
import trio
from attrs import define, field

from crush_trio import Completion, Run, RunState
from crush_trio.testing import explore
from crush_trio.testing.harness import open_test_workspace
from crush_trio.testing.promises import check_promises


@define(eq=False)
class LeasingAgent:
    """The agent under test: holds a lease while it works, one per run."""

    leases: set[str] = field(factory=set, init=False)

    async def __call__(self, run: Run) -> Completion:
        """Answer the prompt of one run."""
        await run.record_prompt()
        self.leases.add(run.id)
        try:
            await trio.sleep(30)  # a model thinks
            await trio.sleep(30)  # a tool works
        finally:
            self.leases.discard(run.id)
        return Completion(text=run.prompt.upper())


async def test_the_agent_answers() -> None:
    """A minute of work costs no real time: the clock jumps when every task waits."""
    async with open_test_workspace(LeasingAgent()) as bench:
        outcome = await bench.accept("hello").wait()
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, "HELLO")


@pytest.mark.parametrize("seed", range(20))
async def test_a_cancel_gives_the_lease_back(seed: int) -> None:
    """Each case runs under another task order; a failure prints the seed that repeats it."""
    agent = LeasingAgent()
    async with open_test_workspace(agent) as bench:
        runs = [bench.accept("one"), bench.accept("two", run_id="mine")]
        await trio.sleep(seed * 5)
        receipt = await bench.cancel().settled()
        check_promises(bench, runs)
    assert receipt.complete
    assert agent.leases == set()


def test_no_order_of_finishing_and_cancelling_leaves_a_lease_behind() -> None:
    """Not some orders, but every one that two deviations from the default can produce.

    The cancel comes at the very second at which the run is done, so either may win.
    """

    async def scenario() -> RunState:
        agent = LeasingAgent()
        async with open_test_workspace(agent) as bench:
            run = bench.accept("one")
            await trio.sleep(60)
            bench.cancel()
            outcome = await run.wait()
            check_promises(bench, [run])
        assert agent.leases == set()
        return outcome.state

    exploration = explore(scenario, deviations=2)
    assert exploration.exhaustive
    assert set(exploration.outcomes) == {RunState.CANCELLED, RunState.COMPLETED}
