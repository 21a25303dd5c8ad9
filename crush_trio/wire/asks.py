"""Asks: permissions and questions that wait for a person, and the notices about them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import orjson
from attrs import field, frozen

from crush_trio.wire.fields import ObjectOrNothing, OmitEmpty
from crush_trio.wire.ids import AskId, QuestionId, RunId, SessionId, ToolCallId


class PermissionAction(StrEnum):
    """What a person may answer to a permission request."""

    ALLOW = "allow"
    ALLOW_SESSION = "allow_session"
    DENY = "deny"


class GrantScope(StrEnum):
    """How far a permission reaches beyond the request it answers. Only the native routes say it."""

    ONCE = "once"
    RUN = "run"
    SESSION = "session"
    PROJECT = "project"
    """Every session of the workspace."""


class PermissionMode(StrEnum):
    """What becomes of a request that no rule settles."""

    ASK = "ask"
    DENY = "deny"
    ALLOW = "allow"


class Refusal(StrEnum):
    """Why a tool call was refused permission; the value of `REFUSAL_KEY` in its result's metadata."""

    DENIED = "denied"
    """A client denied the request."""
    FORBIDDEN = "forbidden"
    """The policy of the submission denies what no rule allows."""
    UNATTENDED = "unattended"
    """No client was attached to answer, for as long as a request waits."""
    UNANSWERED = "unanswered"
    """No client answered in that time, and the client of the run itself cannot."""


REFUSAL_KEY: Final = "permission_refused"
"""The key in the metadata of a tool result that says that the call was refused permission."""


def is_refused(metadata: str) -> bool:
    """Whether the *metadata* of a tool result says that its call was refused permission."""
    if REFUSAL_KEY not in metadata:
        return False
    try:
        found = orjson.loads(metadata)
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and isinstance(found.get(REFUSAL_KEY), str)


class QuestionType(StrEnum):
    """The form of answer a question wants."""

    YES_NO = "yes_no"
    SINGLE_CHOICE = "single_choice"
    MULTI_CHOICE = "multi_choice"
    FREE_TEXT = "free_text"


@frozen(kw_only=True)
class PermissionRequest:
    """A tool wants to do something a person may want to prevent.

    `params` are the tool's, an object or None; `path` is the directory the action touches. Peers
    that answer send the request back, not always with the params they were given.
    """

    id: AskId
    session_id: SessionId
    tool_call_id: ToolCallId
    tool_name: str
    description: str = ""
    action: str = ""
    params: ObjectOrNothing = None
    path: str = ""


@frozen(kw_only=True)
class PermissionNotification:
    """Where a permission request stands: asked (neither flag), granted or denied.

    A request whose run was stopped is `withdrawn`: nobody said no, and nobody needs to answer any
    more. It is `denied` as well, which is what makes peers close their dialog.
    """

    tool_call_id: ToolCallId
    granted: bool = False
    denied: bool = False
    withdrawn: OmitEmpty[bool] = False


@frozen(kw_only=True)
class PermissionPolicy:
    """What a submission says about permissions. Ours alone.

    `allow_list` has tools, `tool` or `tool:action`, that its run may use without being asked about;
    `mode` is for what neither the list nor any other rule settles.
    """

    mode: PermissionMode = PermissionMode.ASK
    allow_list: OmitEmpty[tuple[str, ...]] = ()


@frozen(kw_only=True)
class Grant:
    """What a person has allowed for later requests too: this action of this tool in this directory.

    It has the id of the request that was answered. `session_id` and `run_id` say where that came
    from; `scope` says which of the two a later request must share.
    """

    id: AskId
    scope: GrantScope
    session_id: SessionId
    run_id: RunId
    tool_name: str
    action: str = ""
    path: str = ""
    granted_at: int = 0


@frozen(kw_only=True)
class Choice:
    """One of the answers a question offers."""

    id: str
    label: str
    description: OmitEmpty[str] = ""


@frozen(kw_only=True)
class Question:
    """One question of a batch."""

    id: QuestionId
    type: QuestionType
    label: OmitEmpty[str] = ""
    question: str
    description: OmitEmpty[str] = ""
    choices: OmitEmpty[tuple[Choice, ...]] = ()


@frozen(kw_only=True)
class QuestionRequest:
    """A batch of questions, answered together."""

    id: AskId
    session_id: SessionId
    tool_call_id: ToolCallId
    questions: tuple[Question, ...]
    confirm_title: OmitEmpty[str] = ""
    confirm_description: OmitEmpty[str] = ""


@frozen(kw_only=True)
class QuestionNotification:
    """A batch is settled; whoever shows it may put it away."""

    batch_id: AskId


@frozen(kw_only=True)
class QuestionResponse:
    """The answer to one question, whose id the wire calls `request_id`.

    `yes` and `fill_in_text` are None where the question did not ask for them; `notes` are remarks
    by choice id.
    """

    request_id: QuestionId
    selected_ids: OmitEmpty[tuple[str, ...]] = ()
    fill_in_text: OmitEmpty[str | None] = None
    yes: OmitEmpty[bool | None] = None
    notes: OmitEmpty[Mapping[str, str]] = field(factory=dict)
