"""One tree of errors: a stable `code` for programs, a sentence for people.

The message strings of errors that cross HTTP are part of the wire contract, so they live here and
not at the place that raises. Which HTTP status goes with a code is the server's business alone.
Every leaf has a code of its own; a test keeps the codes unique and the leaves documented.
"""

from typing import ClassVar


class CrushError(Exception):
    """Something this project reports on purpose, with a code a program can match on."""

    code: ClassVar[str] = "internal_error"
    message: ClassVar[str] = "internal server error"
    title: ClassVar[str] = ""
    """The heading under which it is shown in a conversation; most never are."""

    def __init__(self, detail: str = "") -> None:
        self.detail = detail
        super().__init__(f"{self.message}: {detail}" if detail else self.message)


# ── What a caller got wrong ─────────────────────────────────────────────────────────────────────


class BadRequest(CrushError):
    """The request itself is wrong; sending it again unchanged gives the same answer."""


class DecodeError(BadRequest):
    """Bytes that are not the JSON value they should be; the detail names the path."""

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
    """The path of a workspace is not a directory that the server can use; the detail says why."""

    code = "path_invalid"
    message = "path is not a usable directory"


class UnknownCommand(BadRequest):
    """The control route knows `shutdown` and `shutdown_if_idle` only."""

    code = "unknown_command"
    message = "unknown command"


class RequestTooSlow(BadRequest):
    """A request began to arrive and was not complete in time, or had to make room for others."""

    code = "request_too_slow"
    message = "the request did not arrive in time; send it without a pause"


class PermissionActionInvalid(BadRequest):
    """An answer must be `allow`, `allow_session` or `deny`."""

    code = "permission_action_invalid"
    message = "invalid permission action"


class AgentNotInitialized(BadRequest):
    """The workspace has no agent yet; initialise it first."""

    code = "agent_not_initialized"
    message = "agent coordinator not initialized"


class NameMissing(BadRequest):
    """The route needs the name of an MCP server."""

    code = "name_missing"
    message = "name is required"


class ProviderKeyInvalid(BadRequest):
    """A provider key of unknown kind, or with the wrong shape for its kind."""

    code = "provider_key_invalid"
    message = "invalid provider key"


class PromptEmpty(BadRequest):
    """Neither text nor a text attachment: there is nothing to run."""

    code = "prompt_empty"
    message = "prompt is empty"


class SessionMissing(BadRequest):
    """A submission must say which session it belongs to."""

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


# ── What is not there ───────────────────────────────────────────────────────────────────────────


class NotFound(CrushError):
    """The thing named in the request does not exist, or no longer."""


class WorkspaceNotFound(NotFound):
    """No such workspace; a client takes this as the cue to create it again."""

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


# ── What cannot be done now ─────────────────────────────────────────────────────────────────────


class Conflict(CrushError):
    """The request is fine, the state of the thing it names is not."""


class ClientNotAttached(Conflict):
    """Only a client with an open stream can select a session."""

    code = "client_not_attached"
    message = "client not attached"


class WorkspaceClosing(Conflict):
    """Shutdown has begun; no new runs are admitted."""

    code = "workspace_closing"
    message = "workspace closing"


class ServerNotIdle(Conflict):
    """A conditional shutdown met live workspaces or creates in progress."""

    code = "server_not_idle"
    message = "server is hosting live workspaces"


class ServerStays(Conflict):
    """A client wants to replace a server that somebody started on purpose, idle or not."""

    code = "server_stays"
    message = "server stays until it is told to shut down"


class ClientRetired(Conflict):
    """This client said goodbye; a create that was still on the wire must not bring it back."""

    code = "client_retired"
    message = "client has been retired"


class SessionBusy(Conflict):
    """The session has a run and the caller asked not to wait behind it."""

    code = "session_busy"
    message = "session is currently processing another request"


class TooManyCommands(Conflict):
    """The workspace runs as many commands as it may; one has to end first."""

    code = "too_many_commands"
    message = "too many commands are running"


class RunNotQueued(Conflict):
    """Only a run that waits can be edited or moved; this one has begun, or has ended."""

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


class QueueFull(CrushError):
    """As many prompts wait in the session as may; the detail says how many that is."""

    code = "queue_full"
    message = "too many prompts wait in this session; let some of them run, or cancel them"


class TooManyWorkspaces(CrushError):
    """As many workspaces are open as may be; the detail says how many that is."""

    code = "too_many_workspaces"
    message = "the server has too many workspaces; leave some of them, or try again in a moment"


class Unavailable(CrushError):
    """Not now; the same request may succeed later or elsewhere."""


class ServerShuttingDown(Unavailable):
    """The decision to exit has been made; retry against a replacement."""

    code = "server_shutting_down"
    message = "server is shutting down"


class TooManyConnections(Unavailable):
    """Every connection that the server may have is busy; none of them can give way."""

    code = "too_many_connections"
    message = "the server has too many connections; close some, or try again in a moment"


class NotAccepted(Unavailable):
    """A prompt could not be made durable, so it was not accepted and will not run."""


class AcceptanceNotStored(NotAccepted):
    """The store failed, or did not answer in time."""

    code = "acceptance_not_stored"
    message = "prompt could not be stored and was not accepted"


class RunIdStored(NotAccepted):
    """The store has a run of this id that the workspace does not remember, and it cannot be read."""

    code = "run_id_stored"
    message = "a run of this id was accepted before and cannot be read now; send the prompt again"


class NoRoomForPrompt(NotAccepted):
    """The disk is full."""

    code = "no_room_for_prompt"
    message = "the disk is full: the prompt could not be stored and was not accepted"


# ── What went wrong inside ──────────────────────────────────────────────────────────────────────


class AnswerTooLong(CrushError):
    """A model has said more in one message than the limit `answer`. What fits is kept."""

    code = "answer_too_long"
    message = "the answer is too long (answer_too_long); ask for less at once, or raise the limit"
    title = "Answer too long"


class LimitInvalid(CrushError):
    """A limit that was set has a name that there is not, or a value that it cannot have."""

    code = "limit_invalid"
    message = "a limit is not valid"


class SummaryFailed(CrushError):
    """A session could not be summarised; the detail says why. Its history is as it was."""

    code = "summary_failed"
    message = "the session could not be summarised"


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
