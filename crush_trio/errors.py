"""The errors: each class has a stable `code` for programs and a `message` for people.

The messages of errors that cross HTTP are part of the wire contract, so they are defined here and
not where they are raised. The HTTP status of a code is defined in the server only. Every class
without subclasses has a code of its own; a test keeps the codes unique and the classes documented.
"""

from typing import ClassVar

from typing_extensions import override


class CrushError(Exception):
    """The base of all errors of this project, with a code that a program can match on."""

    code: ClassVar[str] = "internal_error"
    message: ClassVar[str] = "internal server error"
    title: ClassVar[str] = ""
    """The heading under which it is shown in a conversation; empty for the default."""

    def __init__(self, detail: str = "") -> None:
        self.detail = detail
        super().__init__(f"{self.message}: {detail}" if detail else self.message)

    @override
    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy without calling `__init__`, which would add the message once more."""
        return _restored, (type(self), self.args, self.__dict__.copy())


def _restored(
    kind: type[CrushError], args: tuple[object, ...], state: dict[str, object]
) -> CrushError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


# ── Bad requests ────────────────────────────────────────────────────────────────────────────────


class BadRequest(CrushError):
    """The request itself is wrong; sending it again unchanged gives the same answer."""


class DecodeError(BadRequest):
    """Bytes that are not the expected JSON value; the detail names the path."""

    code = "bad_request"
    message = "failed to decode request"


class ClientIdMissing(BadRequest):
    """A route that acts for a client was called without its id."""

    code = "client_id_missing"
    message = "client_id is required"


class ClientIdMalformed(BadRequest):
    """The client id in the query is not a UUID."""

    code = "client_id_malformed"
    message = "client_id is not a valid UUID"


class ClientIdInvalid(BadRequest):
    """The client id in a body or a path is missing or not a UUID."""

    code = "client_id_invalid"
    message = "invalid client_id"


class PathMissing(BadRequest):
    """A workspace cannot be created without a directory."""

    code = "path_missing"
    message = "path is required"


class PathInvalid(BadRequest):
    """The path of a workspace is not a usable directory; the detail says why."""

    code = "path_invalid"
    message = "path is not a usable directory"


class UnknownCommand(BadRequest):
    """The commands of the control route are `shutdown` and `shutdown_if_idle`."""

    code = "unknown_command"
    message = "unknown command"


class RequestTooSlow(BadRequest):
    """A request did not arrive completely in time, or was dropped to make room for others."""

    code = "request_too_slow"
    message = "the request did not arrive in time; send it without a pause"


class PermissionActionInvalid(BadRequest):
    """An answer must be `allow`, `allow_session` or `deny`."""

    code = "permission_action_invalid"
    message = "invalid permission action"


class RuleNotPossible(BadRequest):
    """No lasting rule can be made from a permission request; the detail says why."""

    code = "rule_not_possible"
    message = "no rule can be made from this request; allow it once or for the session"


class NameMissing(BadRequest):
    """The route needs the name of an MCP server."""

    code = "name_missing"
    message = "name is required"


class ProviderKeyInvalid(BadRequest):
    """A provider key of unknown kind, or one that does not fit its kind."""

    code = "provider_key_invalid"
    message = "invalid provider key"


class PromptEmpty(BadRequest):
    """The prompt has neither text nor a text attachment."""

    code = "prompt_empty"
    message = "prompt is empty"


class SessionMissing(BadRequest):
    """A submission without a session id."""

    code = "session_missing"
    message = "session id is missing"


class PromptTooLong(BadRequest):
    """The text of a prompt has more bytes than the limit `prompt`; the detail has both numbers."""

    code = "prompt_too_long"
    message = "the prompt is too long; shorten it, or put the text into a file and name that"


class TitleTooLong(BadRequest):
    """A title has more characters than the limit `title`; the detail has both numbers."""

    code = "title_too_long"
    message = "the title is too long; choose a shorter one"


# ── Not found ───────────────────────────────────────────────────────────────────────────────────


class NotFound(CrushError):
    """What the request names does not exist, or no longer exists."""


class WorkspaceNotFound(NotFound):
    """No such workspace; a client then creates it again."""

    code = "workspace_not_found"
    message = "workspace not found"


class SessionNotFound(NotFound):
    """No such session in this workspace."""

    code = "session_not_found"
    message = "session not found"


class MessageNotFound(NotFound):
    """No such message in this workspace."""

    code = "message_not_found"
    message = "message not found"


class RunNotFound(NotFound):
    """No run of this id is live or remembered."""

    code = "run_not_found"
    message = "run not found"


class LspNotFound(NotFound):
    """No language server of this name."""

    code = "lsp_not_found"
    message = "LSP client not found"


class SkillNotFound(NotFound):
    """No skill of this id."""

    code = "skill_not_found"
    message = "skill not found"


# ── Conflicts, limits and unavailability ────────────────────────────────────────────────────────


class Conflict(CrushError):
    """The request is valid, but not in the present state of what it names."""


class ClientNotAttached(Conflict):
    """Only a client with an open stream can select a session."""

    code = "client_not_attached"
    message = "client not attached"


class WorkspaceClosing(Conflict):
    """Shutdown has begun; no new runs are admitted."""

    code = "workspace_closing"
    message = "workspace closing"


class ServerNotIdle(Conflict):
    """A conditional shutdown found live workspaces or creates in progress."""

    code = "server_not_idle"
    message = "server is hosting live workspaces"


class ServerStays(Conflict):
    """A client wants to replace a server that a user started explicitly."""

    code = "server_stays"
    message = "server stays until it is told to shut down"


class ClientRetired(Conflict):
    """This client has left; a create that was still on the wire must not bring it back."""

    code = "client_retired"
    message = "client has been retired"


class SessionBusy(Conflict):
    """The session has a run, and the caller asked not to wait."""

    code = "session_busy"
    message = "session is currently processing another request"


class TooManyCommands(Conflict):
    """The workspace runs the most commands that it may; one has to end first."""

    code = "too_many_commands"
    message = "too many commands are running"


class RunNotQueued(Conflict):
    """Only a waiting run can be edited or moved; this one has begun or ended."""

    code = "run_not_queued"
    message = "run is not waiting in the queue"


class RunIdTaken(Conflict):
    """The run id was used before for another prompt; one id names one run."""

    code = "run_id_taken"
    message = "run id already names another run"


class ChannelMismatch(Conflict):
    """A workspace exists with another list of channels."""

    code = "channel_mismatch"
    message = "channel opt-in mismatch"


class RuleElsewhere(Conflict):
    """The rule is in a file that this program does not write; the detail names the file."""

    code = "rule_elsewhere"
    message = "the rule is in a file that is not changed from here; remove it there"


class QueueFull(CrushError):
    """The queue of the session is full; the detail has the limit."""

    code = "queue_full"
    message = "too many prompts wait in this session; let some of them run, or cancel them"


class TooManyWorkspaces(CrushError):
    """The server has the most workspaces that it may; the detail has the limit."""

    code = "too_many_workspaces"
    message = "the server has too many workspaces; leave some of them, or try again in a moment"


class Unavailable(CrushError):
    """The same request may succeed later or elsewhere."""


class ServerShuttingDown(Unavailable):
    """The server will exit; retry against its replacement."""

    code = "server_shutting_down"
    message = "server is shutting down"


class TooManyConnections(Unavailable):
    """All connections that the server may have are busy, and none can be closed."""

    code = "too_many_connections"
    message = "the server has too many connections; close some, or try again in a moment"


class NotAccepted(Unavailable):
    """A prompt could not be made durable, so it was not accepted and will not run."""


class AcceptanceNotStored(NotAccepted):
    """The store failed, or did not answer in time."""

    code = "acceptance_not_stored"
    message = "prompt could not be stored and was not accepted"


class RunIdStored(NotAccepted):
    """The store has a run with this id that the workspace does not remember and cannot read."""

    code = "run_id_stored"
    message = "a run of this id was accepted before and cannot be read now; send the prompt again"


class NoRoomForPrompt(NotAccepted):
    """The disk is full."""

    code = "no_room_for_prompt"
    message = "the disk is full: the prompt could not be stored and was not accepted"


# ── Internal errors ─────────────────────────────────────────────────────────────────────────────


class AnswerTooLong(CrushError):
    """A model's message is longer than the limit `answer`. What fits is kept."""

    code = "answer_too_long"
    message = "the answer is too long (answer_too_long); ask for less at once, or raise the limit"
    title = "Answer too long"


class LimitInvalid(CrushError):
    """A limit has an unknown name or an invalid value."""

    code = "limit_invalid"
    message = "a limit is not valid"


class SummaryFailed(CrushError):
    """A session could not be summarised; the detail says why. Its history is unchanged."""

    code = "summary_failed"
    message = "the session could not be summarised"


class NotBuilt(CrushError):
    """Crush can do this and we cannot; the detail says what to do instead."""

    code = "not_built"
    message = "not built"


class RunReentered(CrushError):
    """An accepted run was entered a second time: a bug in the code that runs it."""

    code = "run_reentered"
    message = "accepted run entered twice"


class CancelSwallowed(CrushError):
    """A turn caught its own cancellation and went on: a bug in the turn."""

    code = "cancel_swallowed"
    message = "the turn swallowed its cancellation"


class LogClosed(CrushError):
    """The event log has ended and its reader has read everything."""

    code = "log_closed"
    message = "event log closed"
