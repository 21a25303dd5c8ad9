"""`CallPermit`: the permit of one tool call, and the sentences of its refusals."""

from collections.abc import Mapping
from typing import Final, Literal, Protocol

import trio
from attrs import define, field

from crush_trio.agent.asks.attendance import Attendance
from crush_trio.agent.asks.pending import Ending, Resolution
from crush_trio.tools.base import ToolError, Wanted
from crush_trio.wire.asks import REFUSAL_KEY, PermissionPolicy, PermissionRequest, Refusal
from crush_trio.wire.ids import RunId, SessionId, ToolCallId

DENIED: Final = "User denied permission"
"""The tool error if a person denied permission (F5); a reason follows after a colon."""

FORBIDDEN: Final = "Permission denied: the permission policy of this run does not allow it"
"""The tool error if the policy of the submission denies everything that would be asked."""

UNATTENDED: Final = "Permission denied: no client was connected for {seconds:g} seconds"
"""The tool error if an ask was given up because no client was connected that can answer."""

UNANSWERED: Final = (
    "Permission denied: this run is not interactive and no attached client can answer; allow it by a "
    "permission rule or the policy of the run, or attach a client that can answer"
)
"""The tool error if no one can answer: it is refused at once, also if the last person leaves meanwhile."""

ALWAYS_ASKED: Final = (
    "Permission denied: a person has to allow this each time, and this run can ask no one"
)
"""The tool error if the policy cannot allow it and no one can be asked."""

RULED_OUT: Final = "Permission denied: a rule of the user's configuration denies it"
"""The tool error if a rule of the configuration denies it."""

_SENTENCES: Final[Mapping[Refusal, str]] = {
    Refusal.DENIED: DENIED,
    Refusal.FORBIDDEN: FORBIDDEN,
    Refusal.UNATTENDED: UNATTENDED,
    Refusal.UNANSWERED: UNANSWERED,
    Refusal.RULE: RULED_OUT,
    Refusal.ALWAYS_ASKED: ALWAYS_ASKED,
}

Granted = Literal[Resolution.GRANTED]


class Judge(Protocol):
    """What a permit needs from the permissions of its workspace; `Permissions` satisfies it."""

    attendance: Attendance

    def judge(self, call: "CallPermit", wanted: Wanted) -> Granted | Refusal | PermissionRequest:
        """Return the decision of the rules, or the request that must be asked."""

    async def ask(
        self, call: "CallPermit", request: PermissionRequest, *, always: bool = False
    ) -> Ending:
        """Ask a request that no rule settles, and wait for the answer."""


@define(eq=False)
class CallPermit:
    """The permit of one tool call. Made by `Permissions.permit_for`; satisfies `tools.base.Permit`."""

    _permissions: Judge = field(repr=False)
    session_id: SessionId
    run_id: RunId
    tool_call_id: ToolCallId
    tool_name: str
    policy: PermissionPolicy
    interactive: bool
    approved: bool = field(default=False, init=False)
    """Whether a hook has approved this call; it cannot apply to another (F8)."""

    def approve(self) -> None:
        """Grant what this call wants without asking, because a hook has approved it."""
        self.approved = True

    async def __call__(self, wanted: Wanted, /) -> None:
        """Return if *wanted* is allowed; raise a `ToolError` if it is not.

        That stops the turn, unless a person said why: then the model can act on the reason.
        The metadata of the error names the `Refusal`, so that programs need not read the sentence.
        """
        await trio.lowlevel.checkpoint()
        verdict = self._permissions.judge(self, wanted)
        reason = ""
        if isinstance(verdict, PermissionRequest):
            ending = await self._permissions.ask(self, verdict, always=wanted.always)
            verdict, reason = self._verdict(ending.resolution), ending.reason
        if isinstance(verdict, Refusal):
            text = _SENTENCES[verdict].format(seconds=self._permissions.attendance.patience)
            metadata = {**wanted.denied, REFUSAL_KEY: verdict.value}
            by_person = verdict is Refusal.DENIED
            raise ToolError(
                f"{text}: {reason}" if reason else text,
                stop_turn=not reason,
                metadata=metadata,
                by_person=by_person,
            )

    def _verdict(self, resolution: Resolution) -> Granted | Refusal:
        """Return what an ask that has ended means for the call."""
        if resolution is Resolution.GRANTED:
            return Resolution.GRANTED
        if resolution is Resolution.DENIED:
            return Refusal.DENIED
        return Refusal.UNATTENDED if self.interactive else Refusal.UNANSWERED
