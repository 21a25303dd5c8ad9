"""Audit records: what was done, by whom, where and with which result; one JSON object per line."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from attrs import frozen

from crush_trio.config.sources import account_home
from crush_trio.wire.fields import ZERO_TIME, OmitEmpty, Timestamp

STATE_VARIABLE: Final = "XDG_STATE_HOME"
FILE_NAME: Final = "audit.jsonl"

NO_PLACE: Final = "there is no home directory to keep the audit in; set HOME or XDG_STATE_HOME"
"""Why nothing is recorded if `audit_path` returns None."""

TEXT_MOST: Final = 200
"""The most characters of a text in a record."""


class Action(StrEnum):
    """What was done, or tried."""

    SENT = "sent"
    """A prompt or a summary was submitted."""
    CANCELLED = "cancelled"
    """Runs or queued prompts were cancelled."""
    QUEUE_CHANGED = "queue_changed"
    ALLOWED = "allowed"
    """A permission request was allowed."""
    DENIED = "denied"
    ANSWERED = "answered"
    """Questions of a model were answered or declined."""
    GRANT_REVOKED = "grant_revoked"
    SKIP_SET = "skip_set"
    """Asking for permissions was switched off or on."""
    SHELL = "shell"
    """A client ran a command."""
    CONFIG_CHANGED = "config_changed"
    WORKSPACE_CREATED = "workspace_created"
    """A client opened or joined a workspace."""
    WORKSPACE_DELETED = "workspace_deleted"
    """A client gave up its claim; the workspace closes with the last one."""
    CLIENT_RETIRED = "client_retired"
    SESSION_CHANGED = "session_changed"
    SESSION_DELETED = "session_deleted"
    SHUTDOWN = "shutdown"
    TOKEN_ADDED = "token_added"
    TOKEN_REVOKED = "token_revoked"
    LOGGED_IN = "logged_in"
    """A browser logged in, or tried to."""
    LOGGED_OUT = "logged_out"
    REFUSED = "refused"
    """A request was refused before any route saw it, or its token lacks a right."""
    RECORDS_LOST = "records_lost"
    """Records could not be written; `what` has their number."""


@frozen(kw_only=True)
class AuditRecord:
    """One line of the audit. Text of prompts and secret values are never in it.

    `seq` grows by one per record, over all files and all servers of the user. Fields that do not
    apply are empty and not written.
    """

    seq: int = 0
    time: Timestamp = ZERO_TIME
    action: Action
    result: str = "ok"
    """`ok`, `begun`, the code of an error, `not_pending`, or `disconnected`."""
    client_id: OmitEmpty[str] = ""
    """The client's own word; the server cannot verify it."""
    token: OmitEmpty[str] = ""
    """The name of the token that the request carried."""
    uid: OmitEmpty[int | None] = None
    """The user at the other end of a Unix socket, as the kernel says."""
    address: OmitEmpty[str] = ""
    """The other end of a TCP connection; behind a proxy, that of the proxy."""
    workspace_id: OmitEmpty[str] = ""
    directory: OmitEmpty[str] = ""
    session_id: OmitEmpty[str] = ""
    run_id: OmitEmpty[str] = ""
    ask_id: OmitEmpty[str] = ""
    tool: OmitEmpty[str] = ""
    what: OmitEmpty[str] = ""


def audit_path(environ: Mapping[str, str]) -> Path | None:
    """Return the audit file of the user whose environment is *environ*; None if there is no place for it.

    Without a home directory in *environ*, as in many services, it is in that of the account. A user id
    without an account, as in containers, has neither. A relative directory is ignored, as the XDG
    specification demands.
    """
    state, home = Path(environ.get(STATE_VARIABLE, "")), Path(environ.get("HOME", ""))
    if not state.is_absolute():
        found = home if home.is_absolute() else account_home()
        if found is None:
            return None
        state = found / ".local" / "state"
    return state / "crush" / FILE_NAME
