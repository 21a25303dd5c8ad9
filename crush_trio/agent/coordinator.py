"""What an active run of a workspace does: the agent, as one turn function.

The workspace decides when a run executes, whether, and how it ends. This decides what it does
meanwhile: answer a prompt, do a task for another run, or summarise the session.
"""

from functools import partial

from attrs import define, field

from crush_trio.agent.plan import Desk, Planner
from crush_trio.agent.spans import RunSpan
from crush_trio.agent.steps import Steps
from crush_trio.agent.summaries import Summarizer
from crush_trio.agent.titles import Titles
from crush_trio.runtime.outcome import Completion
from crush_trio.runtime.run import Run
from crush_trio.wire.native import RunKind


@define(eq=False)
class Coordinator:
    """Satisfies the runtime's `Turn`. Without *titles*, sessions keep the names they were given."""

    desk: Desk
    planner: Planner = field(repr=False)
    titles: Titles | None = field(default=None, repr=False)

    async def __call__(self, run: Run) -> Completion:
        """Play one turn."""
        with self.desk.spans.run(run) as span:
            return await self._play(run, span)

    async def _play(self, run: Run, span: RunSpan) -> Completion:
        """Do what the kind of the run asks for."""
        if run.kind is RunKind.SUMMARIZE:
            plan = await self.planner.plan(run)
            span.planned(plan.model)
            return await Summarizer(run, plan, self.desk).summarize()
        plan = await self.planner.plan(run)
        span.planned(plan.model)
        steps = Steps(run, plan, self.desk)
        if self.titles is not None and run.kind is RunKind.PROMPT:
            steps.opening = partial(self.titles.begin, run)
        with self.desk.permissions.granting(run.id):
            return await steps.play()
