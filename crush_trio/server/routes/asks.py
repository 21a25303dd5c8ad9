"""Routes about permissions and questions (wire.md §3.6), and our own beside them (docs/http.md)."""

from typing import Final

import trio

from crush_trio.config.rules.book import RuleBook
from crush_trio.errors import DecodeError, PermissionActionInvalid
from crush_trio.server.audit_notes import (
    ANSWERED,
    DECLINED,
    PERMISSION,
    REVOKED,
    RULE_ADDED,
    RULE_REMOVED,
    SKIP,
)
from crush_trio.server.routes.config import WRITING
from crush_trio.server.routing import EXTENSIONS, WORKSPACE, Call, Route, under
from crush_trio.server.tokens import Right
from crush_trio.wire.answers import Resolved
from crush_trio.wire.asks import (
    Grant,
    GrantScope,
    PermissionAction,
    PermissionRequest,
    PermissionRule,
    QuestionRequest,
    RuleView,
)
from crush_trio.wire.ids import AskId
from crush_trio.wire.requests import (
    AnswerRequest,
    GrantRequest,
    PermissionSkip,
    RefusalRequest,
)

MAX_REASON: Final = 2000
"""The characters that the reason of a denial may have."""

# ── Permissions ─────────────────────────────────────────────────────────────────────────────────


def skipping(call: Call) -> PermissionSkip:
    """Return whether permissions are granted without asking."""
    return PermissionSkip(skip=call.workspace.asks.permissions.skip)


def skip(call: Call) -> None:
    """Decide whether permissions are granted without asking."""
    call.workspace.asks.permissions.skip = call.body.skip


async def grant(call: Call) -> Resolved:
    """Answer a permission request; for always, write the rules once this was the answer that counts."""
    body: GrantRequest = call.body
    if body.action not in set(PermissionAction):
        raise PermissionActionInvalid(body.action)
    action = PermissionAction(body.action)
    reason = _reason(body, action)
    permissions, ask_id = call.workspace.asks.permissions, body.permission.id
    always = body.scope is GrantScope.ALWAYS and action is not PermissionAction.DENY
    if always:
        call.caller.check(Right.ADMIN)  # it changes the configuration
    rules = permissions.rules_for(ask_id) if always else ()
    resolved = permissions.answer(ask_id, action, body.scope, reason)
    await trio.lowlevel.checkpoint()
    if resolved and rules:
        await call.workspace.config.add_rules(rules)
    return _resolved(resolved)


def _reason(body: GrantRequest, action: PermissionAction) -> str:
    """Return why a request is denied; raise `DecodeError` for one that is too long, or for an `allow`."""
    reason = body.reason.strip()
    if reason and action is not PermissionAction.DENY:
        raise DecodeError("reason is only for deny")
    if len(reason) > MAX_REASON:
        raise DecodeError(f"reason has {len(reason):,} characters, the limit is {MAX_REASON:,}")
    return reason


def pending_permissions(call: Call) -> tuple[PermissionRequest, ...]:
    """Return the pending permission requests."""
    return call.workspace.asks.permissions.pending


def grants(call: Call) -> tuple[Grant, ...]:
    """Return what is allowed without asking."""
    return tuple(call.workspace.asks.permissions.grants)


def revoke(call: Call) -> Resolved:
    """Revoke a grant."""
    return _resolved(call.workspace.asks.permissions.revoke(AskId(call.values["gid"])))


# ── Rules ───────────────────────────────────────────────────────────────────────────────────────


def rules(call: Call) -> tuple[RuleView, ...]:
    """Return the permission rules of the user's files."""
    return RuleBook(call.workspace.config).rules


async def add_rule(call: Call) -> RuleView:
    """Add a rule to the user's file; return it."""
    return await RuleBook(call.workspace.config).add(call.body)


async def remove_rule(call: Call) -> Resolved:
    """Remove a rule from the user's file."""
    return _resolved(await RuleBook(call.workspace.config).remove(call.values["rid"]))


# ── Questions ───────────────────────────────────────────────────────────────────────────────────


def pending_questions(call: Call) -> tuple[QuestionRequest, ...]:
    """Return the pending questions."""
    return call.workspace.asks.questions.pending


def answer_questions(call: Call) -> Resolved:
    """Answer a batch of questions."""
    questions, body = call.workspace.asks.questions, call.body
    return _resolved(questions.answer(body.batch_request_id, body.responses))


def cancel_questions(call: Call) -> Resolved:
    """Refuse to answer a batch of questions."""
    return _resolved(call.workspace.asks.questions.cancel(call.body.batch_request_id))


def _resolved(resolved: bool) -> Resolved:
    """Say whether a call settled anything; that it did not is no error (F2, F13)."""
    return Resolved(resolved=resolved)


ROUTES: Final = (
    *under(
        f"{WORKSPACE}/permissions",
        Route(
            "GET",
            "/skip",
            "Say whether permissions are granted without asking.",
            skipping,
            name="get_permission_skip",
            answer=PermissionSkip,
        ),
        Route(
            "POST",
            "/skip",
            "Decide whether permissions are granted without asking.",
            skip,
            name="set_permission_skip",
            body=PermissionSkip,
            audit=SKIP,
        ),
        Route(
            "POST",
            "/grant",
            "Answer a permission request; the first answer counts.",
            grant,
            name="answer_permission",
            body=GrantRequest,
            answer=Resolved,
            errors=("permission_action_invalid", "rule_not_possible", *WRITING),
            right=Right.ANSWER,
            audit=PERMISSION,
            direct=True,
        ),
        group="Permissions",
    ),
    *under(
        f"{WORKSPACE}/questions",
        Route(
            "POST",
            "/answer",
            "Answer a batch of questions.",
            answer_questions,
            name="answer_questions",
            body=AnswerRequest,
            answer=Resolved,
            right=Right.ANSWER,
            audit=ANSWERED,
            direct=True,
        ),
        Route(
            "POST",
            "/cancel",
            "Refuse to answer a batch of questions.",
            cancel_questions,
            name="cancel_questions",
            body=RefusalRequest,
            answer=Resolved,
            right=Right.ANSWER,
            audit=DECLINED,
        ),
        group="Questions",
    ),
    *under(
        WORKSPACE,
        Route(
            "GET",
            "/permissions",
            "List the pending permission requests.",
            pending_permissions,
            name="list_permission_requests",
            answer=tuple[PermissionRequest, ...],
            direct=True,
        ),
        Route(
            "GET",
            "/permissions/grants",
            "List what is allowed without asking.",
            grants,
            name="list_grants",
            answer=tuple[Grant, ...],
        ),
        Route(
            "DELETE",
            "/permissions/grants/{gid}",
            "Revoke a grant.",
            revoke,
            name="revoke_grant",
            answer=Resolved,
            right=Right.ANSWER,
            audit=REVOKED,
        ),
        Route(
            "GET",
            "/permissions/rules",
            "List the permission rules of the user's configuration.",
            rules,
            name="list_permission_rules",
            answer=tuple[RuleView, ...],
        ),
        Route(
            "POST",
            "/permissions/rules",
            "Add a permission rule to the user's configuration.",
            add_rule,
            name="add_permission_rule",
            body=PermissionRule,
            answer=RuleView,
            errors=WRITING,
            audit=RULE_ADDED,
        ),
        Route(
            "DELETE",
            "/permissions/rules/{rid}",
            "Remove a permission rule from the user's configuration.",
            remove_rule,
            name="remove_permission_rule",
            answer=Resolved,
            errors=("rule_elsewhere", *WRITING),
            audit=RULE_REMOVED,
        ),
        Route(
            "GET",
            "/questions",
            "List the pending questions.",
            pending_questions,
            name="list_questions",
            answer=tuple[QuestionRequest, ...],
            direct=True,
        ),
        group=EXTENSIONS,
    ),
)
