"""`Permissions`: decides whether a tool may do what it wants, by rules or by asking a person.

The rules come first, in the order of F.1, and are checked synchronously: a request that a rule settles
never waits, whatever else is being asked (L24). Only a request that no rule settles becomes an ask. It
waits in the cancel scope of its run while a client is connected; the first answer counts.

Invariant: for each request that clients hear of, there is one notice that it is asked and one that it is
settled, however it is settled (F4).

A `Grant` is an answer that also holds for later requests. What it covers comes from the request that was
answered, never from the answer (L46). Grants last as long as their workspace is open (F7).
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from crush_trio.agent.asks.pending import (
    Ask,
    AskKind,
    Attendance,
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
from crush_trio.tools.base import LEAVE_SANDBOX, ToolError, Wanted
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
"""The tool error if a person denied permission (F5)."""

FORBIDDEN: Final = "Permission denied: the permission policy of this run does not allow it"
"""The tool error if the policy of the submission denies everything that would be asked."""

UNATTENDED: Final = "Permission denied: no client was connected for {seconds:g} seconds"
"""The tool error if an ask was given up because no client was connected."""

UNANSWERED: Final = "Permission denied: no answer within {seconds:g} seconds"
"""The tool error if an ask of a run was given up whose own client cannot answer."""


# ── Grants: rules without I/O, except one check of a path ───────────────────────────────────────


def in_allow_list(entries: Collection[str], tool_name: str, action: str) -> bool:
    """Whether an allow-list contains the tool, or this action of it."""
    return tool_name in entries or f"{tool_name}:{action}" in entries


def directory_of(path: Path, working_directory: Path) -> str:
    """Return the directory for which permission of an action on *path* is asked (F1).

    That is the parent of an existing file, and any other path itself. The check needs no thread:
    the tool has just resolved the path, so its entry is in the kernel's cache.
    """
    absolute = working_directory / path
    try:
        is_file = absolute.is_file()
    except OSError:  # a parent directory may not be read
        is_file = False
    return str(absolute.parent if is_file else absolute)


def covers(grant: Grant, request: PermissionRequest, run_id: RunId) -> bool:
    """Whether *grant* settles a request of a run."""
    same = (grant.tool_name, grant.action, grant.path) == (
        request.tool_name,
        request.action,
        request.path,
    )
    match grant.scope:
        case GrantScope.ONCE:
            return False
        case GrantScope.RUN:
            return same and grant.run_id == run_id
        case GrantScope.SESSION:
            return same and grant.session_id == request.session_id
        case GrantScope.PROJECT:
            return same


@define(eq=False)
class Grants:
    """The grants of one workspace."""

    _by_id: dict[AskId, Grant] = field(factory=dict, init=False)

    @property
    def all(self) -> tuple[Grant, ...]:
        """All grants, oldest first."""
        return tuple(self._by_id.values())

    def cover(self, request: PermissionRequest, run_id: RunId) -> bool:
        """Whether any grant settles a request of a run."""
        return any(covers(grant, request, run_id) for grant in self._by_id.values())

    def remember(self, grant: Grant) -> None:
        """Add *grant*."""
        self._by_id[grant.id] = grant

    def revoke(self, grant_id: AskId) -> bool:
        """Remove a grant; False if the id is unknown."""
        return self._by_id.pop(grant_id, None) is not None

    def forget_run(self, run_id: RunId) -> None:
        """Remove the grants of a run that has ended."""
        self._keep(lambda grant: grant.scope is not GrantScope.RUN or grant.run_id != run_id)

    def forget_session(self, session_id: SessionId) -> None:
        """Remove the grants of a deleted session."""
        self._keep(
            lambda grant: grant.scope is not GrantScope.SESSION or grant.session_id != session_id
        )

    def _keep(self, wanted: Callable[[Grant], bool]) -> None:
        self._by_id = {grant.id: grant for grant in self.all if wanted(grant)}


_SENTENCES: Final[Mapping[Refusal, str]] = {
    Refusal.DENIED: DENIED,
    Refusal.FORBIDDEN: FORBIDDEN,
    Refusal.UNATTENDED: UNATTENDED,
    Refusal.UNANSWERED: UNANSWERED,
}


@define(eq=False, kw_only=True)
class Permissions:
    """The permissions of one workspace.

    *allowed_tools* is called for each request, so it follows the configuration. `skip` is read when a
    request is judged: setting it does not affect requests that wait already (F7).
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

    # ── For tool calls ──────────────────────────────────────────────────────────────────────────

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
        """Return the permit of one tool call; satisfies `tools.base.Permit`.

        If not *interactive*, the run's client shows asks to no person: other clients may answer, but
        the wait is limited even while they are connected.
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
        """Return the permit of a call of *run*, with the policy of its submission."""
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
        """Remove the grants of a run when the block is left."""
        try:
            yield
        finally:
            self._grants.forget_run(run_id)

    def auto_approve(self, session_id: SessionId) -> None:
        """Grant everything in a session without asking (F9)."""
        self._auto_approved.add(session_id)

    def forget_session(self, session_id: SessionId) -> None:
        """Remove the grants and the auto-approval of a deleted session."""
        self._auto_approved.discard(session_id)
        self._grants.forget_session(session_id)

    # ── For clients ─────────────────────────────────────────────────────────────────────────────

    @property
    def pending(self) -> tuple[PermissionRequest, ...]:
        """The requests that wait for an answer, oldest first."""
        return tuple(ask.request for ask in self._asks.waiting)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The current grants, oldest first."""
        return self._grants.all

    def answer(
        self, ask_id: AskId, action: PermissionAction, scope: GrantScope | None = None
    ) -> bool:
        """Settle a request; False if it does not wait or no longer waits (F2, F3).

        *scope* is the scope of an `allow`, and overrides the scope that the action implies. A grant
        also settles the other waiting requests that it covers, because new ones like them would be
        granted without asking.
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
        if scope is GrantScope.ONCE or ask.request.action == LEAVE_SANDBOX:
            self._settle(ask, Resolution.GRANTED)
        else:
            self._grant(_grant_of(ask, scope, self.clock.unix()))
        return True

    def revoke(self, grant_id: AskId) -> bool:
        """Remove a grant; False if there is none. Actions that it permitted are not undone."""
        return self._grants.revoke(grant_id)

    # ── Rules: synchronous ──────────────────────────────────────────────────────────────────────

    def judge(self, call: "CallPermit", wanted: Wanted) -> Resolution | PermissionRequest:
        """Return the decision of the rules (F.1), or the request that must be asked."""
        policy, tool_name, action = call.policy, call.tool_name, wanted.action
        if self.skip or wanted.allowed:
            return Resolution.GRANTED
        if policy.mode is PermissionMode.ALLOW and not wanted.always:
            return Resolution.GRANTED
        allowed = (*self.allowed_tools(), *policy.allow_list)
        if not wanted.always and in_allow_list(allowed, tool_name, action):
            return Resolution.GRANTED
        if call.approved and not wanted.always:
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
        if not wanted.always and (
            call.session_id in self._auto_approved or self._grants.cover(request, call.run_id)
        ):
            return self._at_once(call, Resolution.GRANTED)
        if policy.mode is PermissionMode.DENY:
            return self._at_once(call, Resolution.DENIED)
        return request

    def _at_once(self, call: "CallPermit", resolution: Resolution) -> Resolution:
        self.publish(permission_notice(call.tool_call_id))
        self.publish(permission_notice(call.tool_call_id, resolution))
        return resolution

    # ── Asking ──────────────────────────────────────────────────────────────────────────────────

    async def ask(
        self, call: "CallPermit", request: PermissionRequest, *, always: bool = False
    ) -> Resolution:
        """Ask a request that no rule settles, and wait for the answer."""
        show = partial(self._show, call, request, always)
        ending = await self._asks.put(request, call.run_id, show, interactive=call.interactive)
        return ending.resolution

    def _show(self, call: "CallPermit", request: PermissionRequest, always: bool) -> Ending | None:
        """Publish the request, unless a grant was given while it was being stored."""
        if not always and self._grants.cover(request, call.run_id):
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
        """Add a grant and settle the requests it covers, first the one it was given for."""
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
    """Return the grant of an answer; all its values come from the stored request (L46)."""
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
    """The permit of one tool call. Made by `Permissions.permit_for`."""

    _permissions: Permissions = field(repr=False)
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
        """Return if *wanted* is allowed; raise a `ToolError` that stops the turn if it is not.

        The metadata of the error names the `Refusal`, so that programs need not read the sentence.
        """
        await trio.lowlevel.checkpoint()
        verdict = self._permissions.judge(self, wanted)
        refusal = Refusal.FORBIDDEN
        if isinstance(verdict, PermissionRequest):
            verdict = await self._permissions.ask(self, verdict, always=wanted.always)
            unanswered = Refusal.UNATTENDED if self.interactive else Refusal.UNANSWERED
            refusal = Refusal.DENIED if verdict is Resolution.DENIED else unanswered
        if verdict is not Resolution.GRANTED:
            text = _SENTENCES[refusal].format(seconds=self._permissions.attendance.patience)
            metadata = {**wanted.denied, REFUSAL_KEY: refusal.value}
            raise ToolError(text, stop_turn=True, metadata=metadata)
