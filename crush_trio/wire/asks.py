"""Asks: permissions and questions that wait for a person, and the notifications about them."""

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
    """For which later requests a permission counts, too. Only used by the native routes."""

    ONCE = "once"
    RUN = "run"
    SESSION = "session"
    PROJECT = "project"
    """Every session of the workspace."""
    ALWAYS = "always"
    """Written as rules into the user's configuration; see `PermissionRule`."""


class PermissionMode(StrEnum):
    """What happens to a request that no rule decides."""

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
    """No client was attached that can answer, for as long as a request waits."""
    UNANSWERED = "unanswered"
    """Refused at once: no attached client can answer, the client of the run included."""
    RULE = "rule"
    """A rule of the user's configuration denies it."""
    ALWAYS_ASKED = "always_asked"
    """Refused at once: it is asked under every policy, and this run can ask no person."""


REFUSAL_KEY: Final = "permission_refused"
"""The key in the metadata of a tool result that says that the call was refused permission."""


def is_refused(metadata: str) -> bool:
    """Whether the *metadata* of a tool result says that its call was refused permission."""
    return refusal_of(metadata) is not None


def refusal_of(metadata: str) -> str | None:
    """Return why a call was refused permission, a `Refusal` or one of later versions; None if it was not."""
    if REFUSAL_KEY not in metadata:
        return None
    try:
        found = orjson.loads(metadata)
    except orjson.JSONDecodeError:
        return None
    reason = found.get(REFUSAL_KEY) if isinstance(found, dict) else None
    return reason if isinstance(reason, str) else None


TRUST_TOOL: Final = "trust"
"""The tool name, and the action, of the request that asks whether to trust a project."""


class QuestionType(StrEnum):
    """The form of answer that a question expects."""

    YES_NO = "yes_no"
    SINGLE_CHOICE = "single_choice"
    MULTI_CHOICE = "multi_choice"
    FREE_TEXT = "free_text"


@frozen(kw_only=True)
class PermissionRequest:
    """A tool asks for permission to do something.

    `params` are the tool's, an object or None; `path` is the directory that the action touches.
    Peers send the request back with their answer, not always with the same params. `covers` is what an
    answer for the run, the session or the project would cover, for people to read; nothing more if empty.
    """

    id: AskId
    session_id: SessionId
    tool_call_id: ToolCallId
    tool_name: str
    description: str = ""
    action: str = ""
    params: ObjectOrNothing = None
    path: str = ""
    covers: OmitEmpty[tuple[str, ...]] = ()


@frozen(kw_only=True)
class PermissionNotification:
    """The state of a permission request: asked (neither flag), granted or denied.

    A request whose run was stopped is `withdrawn`: it was not answered and needs no answer any
    more. It is `denied` as well, which makes peers close their dialog. `reason` is why a person denied it,
    if that person said so.
    """

    tool_call_id: ToolCallId
    granted: bool = False
    denied: bool = False
    withdrawn: OmitEmpty[bool] = False
    reason: OmitEmpty[str] = ""


@frozen(kw_only=True)
class PermissionPolicy:
    """The permission policy of a submission. An extension of the crush wire.

    `allow_list` has the tools, `tool` or `tool:action`, that its run may use without asking; `mode`
    is for requests that neither the list nor any other rule decides.
    """

    mode: PermissionMode = PermissionMode.ASK
    allow_list: OmitEmpty[tuple[str, ...]] = ()


@frozen(kw_only=True)
class Grant:
    """A permission for later requests, too: this action of this tool, as far as `covers` says.

    `id` is the id of the request that was answered. `session_id` and `run_id` are those of that
    request; `scope` says which of the two a later request must share. `covers` has patterns for
    people to read: of a shell command, those that each command in it must match.
    """

    id: AskId
    scope: GrantScope
    session_id: SessionId
    run_id: RunId
    tool_name: str
    action: str = ""
    path: str = ""
    granted_at: int = 0
    covers: OmitEmpty[tuple[str, ...]] = ()


class RuleDecision(StrEnum):
    """What a permission rule does with the requests that it matches."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


@frozen(kw_only=True)
class PermissionRule:
    """A lasting decision about requests of a tool, in the user's configuration.

    `pattern` says which requests of the tool: a command, a path or a host; empty for all. With a
    `directory`, the rule holds only in workspaces at or below it.
    """

    decision: RuleDecision
    tool: str
    pattern: OmitEmpty[str] = ""
    directory: OmitEmpty[str] = ""


@frozen(kw_only=True)
class RuleView:
    """A permission rule as clients see it, with the file that it is written in.

    `id` is made from the rule itself. `removable` is False for rules in files that this program does
    not write.
    """

    id: str
    decision: RuleDecision
    tool: str
    pattern: OmitEmpty[str] = ""
    directory: OmitEmpty[str] = ""
    file: OmitEmpty[str] = ""
    removable: bool = False


@frozen(kw_only=True)
class Choice:
    """One of the answers that a question offers."""

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
    """A batch of questions was answered or withdrawn; clients may close their dialog."""

    batch_id: AskId


@frozen(kw_only=True)
class QuestionResponse:
    """The answer to one question, whose id is `request_id` on the wire.

    `yes` and `fill_in_text` are None if the question did not ask for them; `notes` are remarks by
    choice id.
    """

    request_id: QuestionId
    selected_ids: OmitEmpty[tuple[str, ...]] = ()
    fill_in_text: OmitEmpty[str | None] = None
    yes: OmitEmpty[bool | None] = None
    notes: OmitEmpty[Mapping[str, str]] = field(factory=dict)
