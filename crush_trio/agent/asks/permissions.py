"""`Permissions`: decides whether a tool may do what it wants, by rules or by asking a person.

The rules come first, in the order of F.1, and are checked synchronously: a request that a rule settles
never waits, whatever else is being asked (L24). Only a request that no rule settles becomes an ask. It
waits in the cancel scope of its run while a client is connected; the first answer counts.

Invariant: for each request that clients hear of, there is one notice that it is asked and one that it is
settled, however it is settled (F4).

A `Grant` is an answer that also holds for later requests. What it covers comes from the request that was
answered, never from the answer (L46); see `coverage`. Grants last as long as their workspace is open (F7).
An answer for always is written as rules into the user's configuration instead.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from attrs import define, evolve, field

from crush_trio.agent.asks.attendance import Attendance
from crush_trio.agent.asks.coverage import (
    Coverage,
    Grants,
    Subject,
    decide,
    in_allow_list,
    rules_for,
    subject_of,
)
from crush_trio.agent.asks.path_policy import PathPolicy, directory_of, without_links
from crush_trio.agent.asks.pending import (
    Ask,
    AskKind,
    Ending,
    PendingAsks,
    Publish,
    Resolution,
    permission_notice,
)
from crush_trio.agent.asks.permit import CallPermit, Granted
from crush_trio.clock import Clock, IdSource
from crush_trio.config.rules.patterns import BASH
from crush_trio.config.rules.rules import LoadedRule
from crush_trio.events.facts import Fact
from crush_trio.runtime.run import Run
from crush_trio.store.base import Changes
from crush_trio.tools.base import Wanted
from crush_trio.wire.asks import (
    Grant,
    GrantScope,
    PermissionAction,
    PermissionMode,
    PermissionPolicy,
    PermissionRequest,
    PermissionRule,
    Refusal,
    RuleDecision,
)
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import NO_ASK, NO_SESSION, AskId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import ToolCallPart


@define(eq=False, kw_only=True)
class Permissions:
    """The permissions of one workspace.

    *allowed_tools*, *rules* and *private* are called for each request, so they follow the
    configuration. `skip` is read when a request is judged: setting it does not affect requests that
    wait already (F7).
    """

    directory: Path
    store: Changes = field(repr=False)
    publish: Publish = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    attendance: Attendance = field(repr=False)
    allowed_tools: Callable[[], Collection[str]] = field(default=tuple, repr=False)
    rules: Callable[[], Sequence[LoadedRule]] = field(default=tuple, repr=False)
    private: Callable[[], tuple[Path, ...]] = field(default=tuple, repr=False)
    skip: bool = False
    _asks: PendingAsks[PermissionRequest] = field(init=False, repr=False)
    _grants: Grants = field(factory=Grants, init=False, repr=False)
    _auto_approved: set[SessionId] = field(factory=set, init=False, repr=False)
    _workspace: Path = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._asks = PendingAsks(
            AskKind.PERMISSION, self.store, self.clock, self.attendance, self._given_up
        )
        self._workspace = without_links(self.directory)

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
    ) -> CallPermit:
        """Return the permit of one tool call; satisfies `tools.base.Permit`.

        If not *interactive*, the run's client shows asks to no person: only a person at another client
        can answer, and without one the request is refused at once.
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

    def permit_call(self, run: Run, call: ToolCallPart) -> CallPermit:
        """Return the permit of a call of *run*, with the policy of its submission."""
        return self.permit_for(
            session_id=run.session_id,
            run_id=run.id,
            tool_call_id=call.id,
            tool_name=call.name,
            policy=run.submission.permissions,
            interactive=run.submission.interactive,
        )

    def restricts(self, command: str, directory: Path) -> bool:
        """Whether a rule asks about a command or denies it: it needs permission, also if it only reads."""
        rules = self.rules()
        if not rules:
            return False
        request = PermissionRequest(
            id=NO_ASK,
            session_id=NO_SESSION,
            tool_call_id=ToolCallId(""),
            tool_name=BASH,
            params={"command": command},
            path=str(directory),
        )
        paths = self._path_policy()
        ruled = decide(rules, subject_of(request, paths), paths)
        return ruled in {RuleDecision.ASK, RuleDecision.DENY}

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

    def approves(self, session_id: SessionId) -> bool:
        """Whether everything in a session is granted."""
        return session_id in self._auto_approved

    def answer(
        self,
        ask_id: AskId,
        action: PermissionAction,
        scope: GrantScope | None = None,
        reason: str = "",
    ) -> bool:
        """Settle a request; False if it does not wait or no longer waits (F2, F3).

        *scope* is the scope of an `allow`, and overrides the scope that the action implies. A grant
        also settles the other waiting requests that it covers, because new ones like them would be
        granted without asking. For `GrantScope.ALWAYS` the caller writes the rules of `rules_for`; here
        it counts once. *reason* is why it is denied: the model is told, and the turn goes on with that.
        """
        ask = self._asks.find(ask_id)
        if ask is None:
            return False
        if action is PermissionAction.DENY:
            self._settle(ask, Resolution.DENIED, action, reason)
            return True
        if scope is None:
            session = action is PermissionAction.ALLOW_SESSION
            scope = GrantScope.SESSION if session else GrantScope.ONCE
        paths = self._path_policy()
        subject = subject_of(ask.request, paths)
        if scope in {GrantScope.ONCE, GrantScope.ALWAYS} or subject.always_asks:
            self._settle(ask, Resolution.GRANTED, scope)
        else:
            self._grant(ask, scope, Coverage.of(subject, paths), paths)
        return True

    def fail(self, ask_id: AskId, error: Exception) -> bool:
        """Fail the run of a request with *error*, because its answer failed; False if it does not wait."""
        return self._asks.fail(ask_id, error)

    def revoke(self, grant_id: AskId) -> bool:
        """Remove a grant; False if there is none. Actions that it permitted are not undone."""
        return self._grants.revoke(grant_id)

    def rules_for(self, ask_id: AskId) -> tuple[PermissionRule, ...]:
        """Return the rules that allow a waiting request for always; none if it does not wait.

        Raises `RuleNotPossible`.
        """
        ask = self._asks.find(ask_id)
        if ask is None:
            return ()
        paths = self._path_policy()
        return rules_for(subject_of(ask.request, paths), paths)

    def apply_rules(self) -> None:
        """Settle the waiting requests that the rules decide, after the rules have changed."""
        paths, rules = self._path_policy(), self.rules()
        for ask in self._asks.waiting:
            match decide(rules, subject_of(ask.request, paths), paths):
                case RuleDecision.ALLOW:
                    self._settle(ask, Resolution.GRANTED)
                case RuleDecision.DENY:
                    self._settle(ask, Resolution.DENIED)

    # ── Rules: synchronous ──────────────────────────────────────────────────────────────────────

    def judge(self, call: CallPermit, wanted: Wanted) -> Granted | Refusal | PermissionRequest:
        """Return the decision of the rules (F.1), or the request that must be asked."""
        policy, tool_name, action = call.policy, call.tool_name, wanted.action
        request = PermissionRequest(
            id=NO_ASK,
            session_id=call.session_id,
            tool_call_id=call.tool_call_id,
            tool_name=tool_name,
            description=wanted.description,
            action=action,
            params=wanted.params,
            path=directory_of(wanted.path, self.directory),
        )
        paths = self._path_policy()
        subject = subject_of(request, paths)
        ruled = decide(self.rules(), subject, paths)
        if ruled is RuleDecision.DENY:
            return self._refused(call, Refusal.RULE)
        always = wanted.always or subject.always_asks
        if self.skip or (policy.mode is PermissionMode.ALLOW and not always):
            return Resolution.GRANTED
        asks = always or ruled is RuleDecision.ASK
        if wanted.allowed and not asks:
            return Resolution.GRANTED
        listed = in_allow_list((*self.allowed_tools(), *policy.allow_list), tool_name, action)
        if listed and not asks:
            return Resolution.GRANTED
        if call.approved and not wanted.always:
            self.publish(permission_notice(call.tool_call_id, Resolution.GRANTED))
            return Resolution.GRANTED
        if not asks and (
            ruled is RuleDecision.ALLOW or self._is_granted(subject, call.run_id, paths)
        ):
            self._at_once(call, Resolution.GRANTED)
            return Resolution.GRANTED
        if policy.mode is PermissionMode.DENY:
            return self._refused(call, Refusal.ALWAYS_ASKED if asks else Refusal.FORBIDDEN)
        if self.attendance.refuses(interactive=call.interactive):
            return self._refused(call, Refusal.ALWAYS_ASKED if asks else Refusal.UNANSWERED)
        covers = () if always else Coverage.of(subject, paths).texts
        return evolve(request, id=AskId(self.ids.new()), covers=covers)

    def _is_granted(self, subject: Subject, run_id: RunId, paths: PathPolicy) -> bool:
        """Whether the session is approved, or a grant covers a request."""
        approved = subject.request.session_id in self._auto_approved
        return approved or self._grants.cover(subject, run_id, paths)

    def _path_policy(self) -> PathPolicy:
        return PathPolicy(workspace=self._workspace, private=self.private())

    def _refused(self, call: CallPermit, refusal: Refusal) -> Refusal:
        self._at_once(call, Resolution.DENIED)
        return refusal

    def _at_once(self, call: CallPermit, resolution: Resolution) -> Resolution:
        self.publish(permission_notice(call.tool_call_id))
        self.publish(permission_notice(call.tool_call_id, resolution))
        return resolution

    # ── Asking ──────────────────────────────────────────────────────────────────────────────────

    async def ask(
        self, call: CallPermit, request: PermissionRequest, *, always: bool = False
    ) -> Ending:
        """Ask a request that no rule settles, and wait for the answer."""
        show = partial(self._show, call, request, always)
        return await self._asks.put(request, call.run_id, show, interactive=call.interactive)

    def _show(self, call: CallPermit, request: PermissionRequest, always: bool) -> Ending | None:
        """Publish the request, unless a grant or a rule came while it was being stored."""
        paths = self._path_policy()
        subject = subject_of(request, paths)
        ruled = decide(self.rules(), subject, paths)
        if ruled is RuleDecision.DENY:
            return Ending(self._at_once(call, Resolution.DENIED))
        granted = ruled is RuleDecision.ALLOW or (
            ruled is None and self._grants.cover(subject, call.run_id, paths)
        )
        if granted and not always:
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

    def _grant(
        self, given: Ask[PermissionRequest], scope: GrantScope, covers: Coverage, paths: PathPolicy
    ) -> None:
        """Add a grant, settle the request that it was given for, and then those that it covers."""
        self._grants.remember(_grant_of(given, scope, self.clock.unix(), covers), covers)
        self._settle(given, Resolution.GRANTED, scope)
        rules = self.rules()
        for ask in self._asks.waiting:
            subject = subject_of(ask.request, paths)
            if self._grants.cover(subject, ask.run_id, paths) and (
                decide(rules, subject, paths) is not RuleDecision.ASK
            ):
                self._settle(ask, Resolution.GRANTED)

    def _settle(
        self,
        ask: Ask[PermissionRequest],
        resolution: Resolution,
        given: str = "",
        reason: str = "",
    ) -> None:
        self.publish(permission_notice(ask.request.tool_call_id, resolution, reason))
        self._asks.settle(ask, Ending(resolution, given=given, reason=reason))

    def _given_up(self, request: PermissionRequest, resolution: Resolution) -> None:
        self.publish(permission_notice(request.tool_call_id, resolution))


def _grant_of(ask: Ask[PermissionRequest], scope: GrantScope, at: int, coverage: Coverage) -> Grant:
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
        covers=coverage.texts,
    )
