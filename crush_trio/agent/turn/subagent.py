"""The `agent` tool: a run that has another run do a task for it.

The task is a run like any other, in a session of its own: it is stored before it begins, can be
watched and cancelled, and has one ending. It belongs to the call that started it. However the call is
left, the task has ended by then.
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
from crush_trio.store.changes import SessionCreated, UsageAdded
from crush_trio.tools.arguments import About, BuiltIn, read_arguments
from crush_trio.tools.base import ToolCall, ToolError, ToolResult
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import SessionId
from crush_trio.wire.runs import RunKind, RunState
from crush_trio.wire.views import Session

log = logging.getLogger(__name__)

END_LIMIT = 20.0
"""Seconds that a cancelled task may take to write its ending."""


@frozen(kw_only=True)
class AgentArguments:
    """What the task is."""

    prompt: Annotated[str, About("What is to be found out, with everything needed to do it")]


@define(eq=False)
class AgentTool(BuiltIn):
    """Has a task done in a session below the one of *parent*."""

    name = "agent"
    parallel = True
    arguments = AgentArguments

    parent: Run
    desk: Desk = field(repr=False)

    async def run(self, call: ToolCall) -> ToolResult:
        """Start the task, wait for it, and return what it said last."""
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
        await trio.lowlevel.checkpoint_if_cancelled()  # a closing workspace would refuse the task
        accepted = self.parent.host.accept(_like(submission, self.parent.submission))
        try:
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
        """Add the task's cost to the session it was done for; the answer does not depend on it."""
        try:
            cost = (await self.desk.store.session(child)).cost
            if cost:
                await self.desk.transcript.commit(
                    UsageAdded(id=payer, at=self.desk.clock.unix(), cost=cost)
                )
        except Exception:  # the task is done, whatever the book-keeping says (D33)
            log.exception("task.cost_not_added", extra={"session_id": payer})


def task_session(call: ToolCall) -> SessionId:
    """Return the id of a task's session, which says which call it belongs to."""
    return SessionId(f"{call.message_id}$${call.id}")


async def _ended(accepted: AcceptedRun) -> Outcome:
    """Wait for a task; leaving early cancels it and waits until it has written its ending."""
    try:
        return await accepted.wait()
    finally:
        accepted.cancel()
        with trio.move_on_after(END_LIMIT, shield=True):
            await accepted.wait_ended()


def _like(task: Submission, parent: Submission) -> Submission:
    """Return *task* under the policies of the run that has it done."""
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
