"""What requests leave in the audit: which rows are recorded, and what each record says.

A row of the route table names an `Audited`. `run_audited` calls the handler of such a row and records the
request once, whatever becomes of it: also if it fails, or its client disconnects while it is handled.
Records say how long a prompt is and which key of the configuration was changed, never the text or the
value.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from crush_trio.audit.record import Action, AuditRecord
from crush_trio.errors import CrushError, WorkspaceNotFound
from crush_trio.log_context import Hide
from crush_trio.server.guard import peer_uid
from crush_trio.server.tokens import Right, RightMissing
from crush_trio.wire.answers import Resolved
from crush_trio.wire.config import WorkspaceView
from crush_trio.wire.requests import Scope

if TYPE_CHECKING:
    from crush_trio.server.routing import Call

CLIENT_HEADER: Final = b"x-crush-client-id"
"""The header by which a client names itself in requests whose body and query do not."""

Fields = Mapping[str, Any]
"""Fields of an `AuditRecord`."""


@frozen
class Audited:
    """How the requests of a row are recorded."""

    action: Action
    describe: Callable[["Call"], Fields] = lambda _call: {}
    """Returns fields of the record, before the handler is called."""
    first: bool = False
    """Whether the record is written before the handler is called: it runs what the client says."""


async def run_audited(call: "Call", audit: Audited) -> object:
    """Call the handler of a row and record the request; return the handler's answer.

    If the handler does not wait, describing, handling and recording are one step.
    """
    fields: dict[str, Any] = {"action": audit.action, **_place(call), **audit.describe(call)}
    log, waits = call.server.audit, call.route.waits
    if audit.first:
        log.note(_record(call, fields, "begun"), hide_for(call))
        await log.flush()
        return await _handled(call)
    result, answer = "disconnected", None
    try:
        answer = await _handled(call) if waits else call.route.handler(call)
        result = "ok"
        if isinstance(answer, Resolved) and not answer.resolved:
            result = "not_pending"
        elif isinstance(answer, WorkspaceView):
            fields |= {"workspace_id": answer.id, "directory": answer.path}
        return answer  # noqa: ASYNC910 - the caller has had a checkpoint
    except RightMissing:
        result = ""  # recorded as a refusal, by `respond`
        raise
    except Exception as error:
        result = error.code if isinstance(error, CrushError) else CrushError.code
        raise
    finally:
        if result:
            log.note(_record(call, fields, result), hide_for(call))


async def _handled(call: "Call") -> object:
    given = call.route.handler(call)
    return await given if call.route.waits else given  # noqa: ASYNC910 - the caller had a checkpoint


def hide_for(call: "Call") -> Hide | None:
    """Return what removes the secrets of the workspace that the path names; None if it is not open."""
    if "wid" in call.values:
        with suppress(WorkspaceNotFound):
            return call.workspace.config.current.secrets.redact
    return None


def refusal(scope: Mapping[str, Any], error: CrushError, token: str = "") -> AuditRecord:
    """Return the record of a request that was refused with *error*."""
    method = scope.get("method", "websocket")
    return AuditRecord(
        action=Action.REFUSED,
        result=error.code,
        token=token,
        what=f"{method} {scope['path']}",
        **_peer(scope),
    )


def _record(call: "Call", fields: Fields, result: str) -> AuditRecord:
    return AuditRecord(
        result=result,
        client_id=_client_id(call),
        token=call.caller.token,
        **_caller_place(call),
        **fields,
    )


def _caller_place(call: "Call") -> Fields:
    if call.caller.forwarded:
        return {"uid": None, "address": call.caller.address}
    return _peer(call.scope)


def _peer(scope: Mapping[str, Any]) -> Fields:
    client = scope.get("client")
    address = f"{client[0]}:{client[1]}" if client and client[1] is not None else ""
    return {"uid": peer_uid(scope), "address": address}


def _client_id(call: "Call") -> str:
    """Return what the client calls itself: in the body, the path, the query or the header."""
    named = getattr(call.body, "client_id", "") if call.values.get("wid") is None else ""
    query = call.query.get("client_id")
    return str(named or call.values.get("client_id") or query or call.header(CLIENT_HEADER) or "")


def _place(call: "Call") -> Fields:
    """Return the workspace, session and run that the path names."""
    found = {"session_id": call.values.get("sid", ""), "run_id": call.values.get("rid", "")}
    if "wid" in call.values:
        found["workspace_id"] = call.values["wid"]
        with suppress(WorkspaceNotFound):
            found["directory"] = str(call.workspace.directory)
    return found


# ── Rows ────────────────────────────────────────────────────────────────────────────────────────


def _prompt(call: "Call") -> Fields:
    body = call.body
    mode = "" if body.permissions is None else f", permissions {body.permissions.mode}"
    files = f", {len(body.attachments)} attachments" if body.attachments else ""
    what = f"a prompt of {len(body.prompt)} characters{files}{mode}"
    return {"session_id": body.session_id, "run_id": body.run_id or "", "what": what}


def _answer_to_permission(call: "Call") -> Fields:
    """Describe an answer by the request that is pending; what a client sends back may be anything."""
    body = call.body
    fields: dict[str, Any] = {"ask_id": body.permission.id, "what": body.action}
    if not body.action.startswith("allow"):
        fields["action"] = Action.DENIED
    for pending in call.workspace.asks.permissions.pending:
        if pending.id == body.permission.id:
            scope = "" if body.scope is None else f" for {body.scope}"
            shown = (pending.params or {}).get("command") or pending.path or pending.description
            fields["session_id"], fields["tool"] = pending.session_id, pending.tool_name
            why = f" (reason: {body.reason})" if body.reason else ""
            fields["what"] = f"{body.action}{scope}: {pending.action} {shown}{why}"
    return fields


def _created(call: "Call") -> Fields:
    """Describe what a client decides about a workspace; who only joins one decides nothing."""
    body = call.body
    what = "joined"
    if call.caller.right.covers(Right.ADMIN):
        what = ("yolo, " if body.yolo else "") + f"{len(body.env)} variables"
    return {"directory": body.path, "what": what}


def _scoped(call: "Call", what: str) -> Fields:
    """Describe a change of the configuration by its file and key."""
    return {"what": f"{Scope(call.body.scope).name.lower()}: {what}"}


SENT: Final = Audited(Action.SENT, _prompt)
SUMMARY: Final = Audited(Action.SENT, lambda _call: {"what": "a summary"})
CANCELLED: Final = Audited(Action.CANCELLED)
QUEUE_CLEARED: Final = Audited(Action.CANCELLED, lambda _call: {"what": "the queued prompts"})
QUEUE_CHANGED: Final = Audited(
    Action.QUEUE_CHANGED,
    lambda call: {"what": "runs now, the active run is cancelled"} if call.body.interrupt else {},
)
SHELL: Final = Audited(Action.SHELL, lambda call: {"what": call.body.command}, first=True)
PERMISSION: Final = Audited(Action.ALLOWED, _answer_to_permission)
SKIP: Final = Audited(Action.SKIP_SET, lambda call: {"what": "on" if call.body.skip else "off"})
ANSWERED: Final = Audited(Action.ANSWERED, lambda call: {"ask_id": call.body.batch_request_id})
DECLINED: Final = Audited(
    Action.ANSWERED, lambda call: {"ask_id": call.body.batch_request_id, "what": "declined"}
)
REVOKED: Final = Audited(Action.GRANT_REVOKED, lambda call: {"ask_id": call.values["gid"]})
RULE_ADDED: Final = Audited(
    Action.CONFIG_CHANGED,
    lambda call: {"what": f"added a rule: {call.body.decision} {call.body.tool}"},
)
RULE_REMOVED: Final = Audited(
    Action.CONFIG_CHANGED, lambda call: {"what": f"removed the rule {call.values['rid']}"}
)
KEY_SET: Final = Audited(Action.CONFIG_CHANGED, lambda call: _scoped(call, f"set {call.body.key}"))
KEY_REMOVED: Final = Audited(
    Action.CONFIG_CHANGED, lambda call: _scoped(call, f"removed {call.body.key}")
)
MODEL_SET: Final = Audited(
    Action.CONFIG_CHANGED,
    lambda call: _scoped(
        call, f"{call.body.model_type} model {call.body.model.provider}/{call.body.model.model}"
    ),
)
COMPACT_SET: Final = Audited(Action.CONFIG_CHANGED, lambda call: _scoped(call, "compact mode"))
PROVIDER_KEY_SET: Final = Audited(
    Action.CONFIG_CHANGED, lambda call: _scoped(call, f"key of provider {call.body.provider_id}")
)
DOCKER_ADDED: Final = Audited(Action.CONFIG_CHANGED, lambda _call: {"what": "set mcp.docker"})
DOCKER_REMOVED: Final = Audited(Action.CONFIG_CHANGED, lambda _call: {"what": "removed mcp.docker"})
PROJECT_MARKED: Final = Audited(
    Action.CONFIG_CHANGED, lambda _call: {"what": "the project is set up"}
)
CREATED: Final = Audited(Action.WORKSPACE_CREATED, _created)
DELETED: Final = Audited(Action.WORKSPACE_DELETED)
RETIRED: Final = Audited(Action.CLIENT_RETIRED)
SESSION_CHANGED: Final = Audited(Action.SESSION_CHANGED)
SESSION_DELETED: Final = Audited(Action.SESSION_DELETED)
CONTROL: Final = Audited(Action.SHUTDOWN, lambda call: {"what": call.body.command})
LOGGED_IN: Final = Audited(
    Action.LOGGED_IN, lambda call: {"what": "with a code" if call.body.code else "with a token"}
)
LOGGED_OUT: Final = Audited(Action.LOGGED_OUT)
