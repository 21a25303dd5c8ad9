"""The tool `agent`: starts another run, which does a task.

The task is a run like any other, in its own session: it is stored before it begins, can be watched and
cancelled, and has one ending. It belongs to the call that started it: however the call ends, the task has
ended by then.
"""

import logging
from typing import Annotated

import trio
from attrs import define, evolve, field, frozen

from crush_trio.agent.turn.plan import Desk
from crush_trio.errors import PromptTooLong
from crush_trio.events.facts import session_fact
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.outcome import Outcome, Submission
from crush_trio.runtime.run import Run
from crush_trio.runtime.timeline import timed
from crush_trio.store.changes import SessionCreated, UsageAdded
from crush_trio.tools.base import About, BuiltIn, ToolCall, ToolError, ToolResult, read_arguments
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import SessionId
from crush_trio.wire.runs import RunKind, RunState, SpanKind
from crush_trio.wire.views import Session

log = logging.getLogger(__name__)

END_LIMIT = 20.0
"""Seconds that a cancelled task may take to write its ending."""


@frozen(kw_only=True)
class AgentArguments:
    """The arguments of `agent`."""

    prompt: Annotated[str, About("What is to be found out, with everything needed to do it")]


@define(eq=False)
class AgentTool(BuiltIn):
    """The tool `agent`: runs a task in a child session of *parent*'s session."""

    name = "agent"
    parallel = True
    arguments = AgentArguments

    parent: Run
    desk: Desk = field(repr=False)

    async def run(self, call: ToolCall) -> ToolResult:
        """Start the task, wait for it, and return its last answer."""
        prompt = read_arguments(call.input, AgentArguments).prompt
        if not prompt.strip():
            raise ToolError("prompt is required")
        child = task_session(call)
        submission = Submission(session_id=child, prompt=prompt, kind=RunKind.TASK)
        try:
            submission.check(self.desk.sizes)
        except PromptTooLong as error:
            raise ToolError(str(error)) from error
        await self._open_session(child, call.session_id)
        # A closing workspace would refuse the task with an error; here its cancel comes first.
        await trio.lowlevel.checkpoint_if_cancelled()
        accepted = self.parent.host.accept(_with_policies(submission, self.parent.submission))
        try:
            with timed(SpanKind.SUBAGENT, self.name, accepted.id):
                outcome = await _ended(accepted)
        finally:
            call.reaped(accepted.reaped, accepted.left)
        await self._charge(call.session_id, child)
        return _result(outcome)

    async def _open_session(self, child: SessionId, parent: SessionId) -> None:
        """Create the task's session."""
        now = self.desk.clock.unix()
        session = Session(
            id=child,
            parent_session_id=parent,
            title="New Agent Session",
            created_at=now,
            updated_at=now,
        )
        await self.desk.transcript.commit(SessionCreated(session=session))
        self.parent.publish(session_fact(session, EventType.CREATED))

    async def _charge(  # noqa: ASYNC910  # the barrier is around the checkpoints too
        self, payer: SessionId, child: SessionId
    ) -> None:
        """Add the task's cost to its parent session; a failure does not affect the answer."""
        try:
            cost = (await self.desk.store.session(child)).cost
            if cost:
                await self.desk.transcript.commit(
                    UsageAdded(id=payer, at=self.desk.clock.unix(), cost=cost, counted=True)
                )
        except Exception:  # barrier: the task is done, even if its cost cannot be stored (D33)
            log.exception("task.cost_not_added", extra={"session_id": payer})


def task_session(call: ToolCall) -> SessionId:
    """Return the id of a task's session, which contains the ids of its message and call."""
    return SessionId(f"{call.message_id}$${call.id}")


async def _ended(accepted: AcceptedRun) -> Outcome:
    """Wait for a task; a cancel cancels the task and waits until it has written its ending."""
    try:
        return await accepted.wait()
    finally:
        accepted.cancel()
        with trio.move_on_after(END_LIMIT, shield=True):
            await accepted.wait_ended()


def _with_policies(task: Submission, parent: Submission) -> Submission:
    """Return *task* with the policies and the model of its parent run."""
    return evolve(
        task,
        when_unclaimed=parent.when_unclaimed,
        permissions=parent.permissions,
        interactive=parent.interactive,
        model=parent.model,
    )


def _result(outcome: Outcome) -> ToolResult:
    if outcome.state is not RunState.COMPLETED:
        raise ToolError(f"the task did not succeed: {outcome.error or outcome.state}")
    if not outcome.text:
        raise ToolError("the task ended without an answer")
    return ToolResult(content=outcome.text)
