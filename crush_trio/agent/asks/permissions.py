"""Whether a tool may do what it wants to do: by a rule, or by asking a person.

The rules come first, in the order of F.1, and are judged in one synchronous step: what a rule
settles never waits, whoever else is being asked meanwhile (L24). Only what no rule settles becomes
an ask. It waits in the scope of its run, as long as somebody is there; the first answer counts.

Kept, for each request that the clients hear of: one notice that it is asked, and one that it is
settled, whatever settles it (F4).
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from crush_trio.agent.asks.attendance import Attendance
from crush_trio.agent.asks.grants import Grants, covers, directory_of, listed
from crush_trio.agent.asks.pending import (
    Ask,
    AskKind,
    Ending,
    PendingAsks,
    Publish,
    Resolution,
    permission_notice,
)
from crush_trio.clock import Clock, IdSource
from crush_trio.events.facts import Fact
from crush_trio.runtime.run import Run
from crush_trio.store.base import Changes
from crush_trio.tools.base import ToolError, Wanted
from crush_trio.wire.asks import (
    REFUSAL_KEY,
    Grant,
    GrantScope,
    PermissionAction,
    PermissionMode,
    PermissionPolicy,
    PermissionRequest,
    Refusal,
)
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import AskId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import ToolCallPart

DENIED: Final = "User denied permission"
"""What the model is told when a person said no (F5)."""

FORBIDDEN: Final = "Permission denied: this run may neither do that nor ask anybody for it"
"""What it is told when the submission said so."""

UNATTENDED: Final = "Permission denied: nobody was there to ask for {seconds:g} seconds"
"""What it is told when nobody said anything."""

UNANSWERED: Final = "Permission denied: nobody answered within {seconds:g} seconds"
"""The same, of a run whose own client cannot answer."""

_SENTENCES: Final[Mapping[Refusal, str]] = {
    Refusal.DENIED: DENIED,
    Refusal.FORBIDDEN: FORBIDDEN,
    Refusal.UNATTENDED: UNATTENDED,
    Refusal.UNANSWERED: UNANSWERED,
}


@define(eq=False, kw_only=True)
class Permissions:
    """The permissions of one workspace.

    *allowed_tools* is asked each time, so that it follows the configuration. `skip` is read when a
    request is judged: setting it changes nothing for those who wait already (F7).
    """

    directory: Path
    store: Changes = field(repr=False)
    publish: Publish = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    attendance: Attendance = field(repr=False)
    allowed_tools: Callable[[], Collection[str]] = field(default=tuple, repr=False)
    skip: bool = False
    _asks: PendingAsks[PermissionRequest] = field(init=False, repr=False)
    _grants: Grants = field(factory=Grants, init=False, repr=False)
    _auto_approved: set[SessionId] = field(factory=set, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._asks = PendingAsks(
            AskKind.PERMISSION, self.store, self.clock, self.attendance, self._given_up
        )

    # ── For those who run tools ─────────────────────────────────────────────────────────────────

    def permit_for(
        self,
        *,
        session_id: SessionId,
        run_id: RunId,
        tool_call_id: ToolCallId,
        tool_name: str,
        policy: PermissionPolicy | None = None,
        interactive: bool = True,
    ) -> "CallPermit":
        """Return what asks in the name of one tool call; satisfies `tools.base.Permit`.

        A run whose client shows no person what it is asked is not *interactive*: others may answer
        for it, but are not waited for as long as they are there.
        """
        return CallPermit(
            self,
            session_id,
            run_id,
            tool_call_id,
            tool_name,
            PermissionPolicy() if policy is None else policy,
            interactive,
        )

    def permit_call(self, run: Run, call: ToolCallPart) -> "CallPermit":
        """Return the same for a call of *run*, as the run was submitted."""
        return self.permit_for(
            session_id=run.session_id,
            run_id=run.id,
            tool_call_id=call.id,
            tool_name=call.name,
            policy=run.submission.permissions,
            interactive=run.submission.interactive,
        )

    @contextmanager
    def granting(self, run_id: RunId) -> Iterator[None]:
        """Let what is granted for a run hold until the end of the block, and no longer."""
        try:
            yield
        finally:
            self._grants.forget_run(run_id)

    def auto_approve(self, session_id: SessionId) -> None:
        """Ask nobody about anything that is done in a session (F9)."""
        self._auto_approved.add(session_id)

    def forget_session(self, session_id: SessionId) -> None:
        """Drop what is remembered of a session that is gone."""
        self._auto_approved.discard(session_id)
        self._grants.forget_session(session_id)

    # ── For those who answer ────────────────────────────────────────────────────────────────────

    @property
    def pending(self) -> tuple[PermissionRequest, ...]:
        """What waits for an answer, oldest first."""
        return tuple(ask.request for ask in self._asks.waiting)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What holds beyond the request it was granted for, oldest first."""
        return self._grants.all

    def answer(
        self, ask_id: AskId, action: PermissionAction, scope: GrantScope | None = None
    ) -> bool:
        """Settle a request; False if it does not wait, or not any more (F2, F3).

        *scope* says how far an `allow` reaches, and wins over what the action says about that. A
        grant that reaches further settles whatever else waits that it covers: it would be granted
        now without being asked.
        """
        ask = self._asks.find(ask_id)
        if ask is None:
            return False
        if action is PermissionAction.DENY:
            self._settle(ask, Resolution.DENIED)
            return True
        if scope is None:
            session = action is PermissionAction.ALLOW_SESSION
            scope = GrantScope.SESSION if session else GrantScope.ONCE
        if scope is GrantScope.ONCE:
            self._settle(ask, Resolution.GRANTED)
        else:
            self._grant(_grant_of(ask, scope, self.clock.unix()))
        return True

    def revoke(self, grant_id: AskId) -> bool:
        """Let a grant hold no longer; False if there is none. What was done with it is done."""
        return self._grants.revoke(grant_id)

    # ── Judging: no `await` ─────────────────────────────────────────────────────────────────────

    def judge(self, call: "CallPermit", wanted: Wanted) -> Resolution | PermissionRequest:
        """Return what the rules say (F.1), or the request that a person has to be asked."""
        policy, tool_name, action = call.policy, call.tool_name, wanted.action
        if self.skip or policy.mode is PermissionMode.ALLOW:
            return Resolution.GRANTED
        if listed((*self.allowed_tools(), *policy.allow_list), tool_name, action):
            return Resolution.GRANTED
        if call.approved:
            self.publish(permission_notice(call.tool_call_id, Resolution.GRANTED))
            return Resolution.GRANTED
        request = PermissionRequest(
            id=AskId(self.ids.new()),
            session_id=call.session_id,
            tool_call_id=call.tool_call_id,
            tool_name=tool_name,
            description=wanted.description,
            action=action,
            params=wanted.params,
            path=directory_of(wanted.path, self.directory),
        )
        if call.session_id in self._auto_approved or self._grants.cover(request, call.run_id):
            return self._at_once(call, Resolution.GRANTED)
        if policy.mode is PermissionMode.DENY:
            return self._at_once(call, Resolution.DENIED)
        return request

    def _at_once(self, call: "CallPermit", resolution: Resolution) -> Resolution:
        self.publish(permission_notice(call.tool_call_id))
        self.publish(permission_notice(call.tool_call_id, resolution))
        return resolution

    # ── Asking ──────────────────────────────────────────────────────────────────────────────────

    async def ask(self, call: "CallPermit", request: PermissionRequest) -> Resolution:
        """Ask for what no rule settles, and wait for the answer."""
        ending = await self._asks.put(
            request, call.run_id, partial(self._show, call, request), interactive=call.interactive
        )
        return ending.resolution

    def _show(self, call: "CallPermit", request: PermissionRequest) -> Ending | None:
        """Ask the clients, unless a grant was given while the request was being stored."""
        if self._grants.cover(request, call.run_id):
            return Ending(self._at_once(call, Resolution.GRANTED))
        self.publish(permission_notice(call.tool_call_id))
        self.publish(
            Fact(
                payload_type=PayloadType.PERMISSION_REQUEST,
                change=EventType.CREATED,
                entity=request,
            )
        )
        return None

    def _grant(self, grant: Grant) -> None:
        """Remember a grant and settle what waits for it: first the request it was given for."""
        self._grants.remember(grant)
        for ask in sorted(self._asks.waiting, key=lambda ask: ask.id != grant.id):
            if covers(grant, ask.request, ask.run_id):
                self._settle(ask, Resolution.GRANTED)

    def _settle(self, ask: Ask[PermissionRequest], resolution: Resolution) -> None:
        self.publish(permission_notice(ask.request.tool_call_id, resolution))
        self._asks.settle(ask, Ending(resolution))

    def _given_up(self, request: PermissionRequest, resolution: Resolution) -> None:
        self.publish(permission_notice(request.tool_call_id, resolution))


def _grant_of(ask: Ask[PermissionRequest], scope: GrantScope, at: int) -> Grant:
    """Return the grant that an answer gives. All of it is from what we asked (L46)."""
    request = ask.request
    return Grant(
        id=request.id,
        scope=scope,
        session_id=request.session_id,
        run_id=ask.run_id,
        tool_name=request.tool_name,
        action=request.action,
        path=request.path,
        granted_at=at,
    )


@define(eq=False)
class CallPermit:
    """Asks for permission in the name of one tool call. Made by `Permissions.permit_for`."""

    _permissions: Permissions = field(repr=False)
    session_id: SessionId
    run_id: RunId
    tool_call_id: ToolCallId
    tool_name: str
    policy: PermissionPolicy
    interactive: bool
    approved: bool = field(default=False, init=False)
    """Whether a hook has approved this very call; there is no way for it to reach another (F8)."""

    def approve(self) -> None:
        """Ask nobody about what this call wants to do: a hook has said yes."""
        self.approved = True

    async def __call__(self, wanted: Wanted, /) -> None:
        """Return if *wanted* is allowed; raise a `ToolError` that stops the turn if it is not.

        The metadata of the error names the `Refusal`, so that programs need not read the sentence.
        """
        await trio.lowlevel.checkpoint()
        verdict = self._permissions.judge(self, wanted)
        refusal = Refusal.FORBIDDEN
        if isinstance(verdict, PermissionRequest):
            verdict = await self._permissions.ask(self, verdict)
            unanswered = Refusal.UNATTENDED if self.interactive else Refusal.UNANSWERED
            refusal = Refusal.DENIED if verdict is Resolution.DENIED else unanswered
        if verdict is not Resolution.GRANTED:
            text = _SENTENCES[refusal].format(seconds=self._permissions.attendance.patience)
            metadata = {**wanted.denied, REFUSAL_KEY: refusal.value}
            raise ToolError(text, stop_turn=True, metadata=metadata)
