"""Every route there is: what it takes, what it answers, how it may fail, and whether it is done.

One table, which the OpenAPI document, the docs page, `docs/wire-coverage.md` and the fuzzer are made
from. Nothing in it decides what a route does; tests compare it with what is really served, so a
route that is missing here, or only here, is a failure.

Run as a module it prints `docs/wire-coverage.md`.
"""

from collections.abc import Mapping
from typing import Final

from crush_trio.server.routing import (
    EVENTS,
    PART_OF_MESSAGES,
    RECEIPT,
    STORE_ERRORS,
    WORKSPACE,
    Query,
    Route,
    under,
)
from crush_trio.wire import requests as sent
from crush_trio.wire.config import CatalogProvider, Config, SelectedModel, TokenImport
from crush_trio.wire.events import Envelope
from crush_trio.wire.fields import JsonObject, Timestamp
from crush_trio.wire.integrations import (
    AuthUrl,
    LspClientInfo,
    McpClientInfo,
    McpPrompt,
    McpResource,
    PendingAuth,
    SkillContent,
    SkillInfo,
)
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import ReceiptView, Repeated
from crush_trio.wire.views import (
    AgentInfo,
    Diagnostics,
    File,
    NeedsInit,
    PromptText,
    Resolved,
    Session,
    ShellResult,
    Version,
    WorkspaceView,
)

_CLIENT: Final = Query("client_id", "the client's UUID", required=True)
_NO_CLIENT: Final = ("client_id_malformed", "client_id_missing")
_OPENING: Final = (
    *("config_invalid", "migration_failed", "store_corrupt", "store_locked", "store_too_new"),
)
_RELOADING: Final = ("config_invalid", "workspace_closing")
_WRITING: Final = (*_RELOADING, "config_locked", "config_not_written")
_ADMISSION: Final = (
    *("channel_mismatch", "client_retired", "server_shutting_down", "too_many_workspaces"),
)
_ACCEPTANCE: Final = (
    *("agent_not_initialized", "workspace_closing", "acceptance_not_stored"),
    *("no_room_for_prompt", "run_id_stored"),
)
_PROMPT: Final = (
    *("attachment_too_large", "prompt_empty", "prompt_too_long", "queue_full"),
    *("session_missing", "run_id_taken", "session_busy"),
)
_NO_SESSION: Final = ("session_not_found",)
_TITLE: Final = ("title_too_long",)
_RENAMING: Final = (*_NO_SESSION, *_TITLE)

_NO_LOGIN: Final = "never has one: logging in to MCP servers is not built"
_NO_DOCKER: Final = "never changes anything: the gateway is configured like any server"


CATALOGUE: Final[Mapping[str, tuple[Route, ...]]] = {
    "System": under(
        "/v1",
        Route("GET", "/health", "Say that the server answers."),
        Route("GET", "/version", "Say what is serving.", Version),
        Route("GET", "/config", "Nothing: the server has no configuration to show.", JsonObject),
        Route(
            "POST",
            "/control",
            "Ask the server to end, which it does if it hosts nothing.",
            body=sent.ControlRequest,
            errors=("unknown_command", "server_not_idle", "server_stays"),
        ),
        Route(
            "DELETE",
            "/clients/{client_id}",
            "Say goodbye: drop every claim of the client, and refuse its later creates.",
            errors=("client_id_invalid",),
        ),
    ),
    "Workspaces": under(
        "/v1/workspaces",
        Route("GET", "", "List the hosted workspaces.", tuple[WorkspaceView, ...]),
        Route(
            "POST",
            "",
            "Host a directory for a client; the same directory is the same workspace.",
            WorkspaceView,
            sent.WorkspaceRequest,
            errors=(
                *("client_id_invalid", "path_missing", "path_invalid"),
                *(*_ADMISSION, *STORE_ERRORS, *_OPENING),
            ),
        ),
        Route("GET", "/{wid}", "Show a workspace.", WorkspaceView),
        Route(
            "DELETE",
            "/{wid}",
            "Give up a client's claim; its open streams still hold it.",
            query=(_CLIENT,),
            errors=_NO_CLIENT,
            checks_workspace=False,
        ),
        Route(
            "POST",
            "/{wid}/current-session",
            "Say which session an attached client looks at.",
            body=sent.CurrentSessionRequest,
            query=(_CLIENT,),
            errors=(*_NO_CLIENT, "client_not_attached"),
        ),
        Route(
            "GET",
            "/{wid}/config",
            "Show the configuration, without secrets.",
            Config,
        ),
        Route(
            "GET",
            "/{wid}/providers",
            "List the providers of the catalogue.",
            tuple[CatalogProvider, ...],
        ),
        Route(
            "GET",
            "/{wid}/events",
            "Attach: stream what happens in the workspace, until either side ends it.",
            Envelope,
            query=(
                _CLIENT,
                Query("form", "`crush`, bare frames; `native`, with ids, deltas and heartbeats"),
                Query("after", "the id to resume after, for those that cannot set Last-Event-ID"),
            ),
            errors=(*_NO_CLIENT, "http_version_unsupported", *STORE_ERRORS),
            media=EVENTS,
        ),
    ),
    "Sessions": under(
        f"{WORKSPACE}/sessions",
        Route("GET", "", "List the sessions, the last used first.", tuple[Session, ...]),
        Route("POST", "", "Create one; only the title is used.", Session, Session, errors=_TITLE),
        Route("GET", "/{sid}", "Show a session.", Session, errors=_NO_SESSION),
        Route("PUT", "/{sid}", "Save the one in the body.", Session, Session, errors=_RENAMING),
        Route("DELETE", "/{sid}", "Stop a session's runs and delete it.", errors=_NO_SESSION),
        Route("GET", "/{sid}/history", "List the file versions it made.", tuple[File, ...]),
        Route(
            "GET",
            "/{sid}/messages",
            *("List messages, oldest first.", tuple[Message, ...]),
            query=PART_OF_MESSAGES,
            errors=("bad_request",),
        ),
        Route("GET", "/{sid}/messages/user", "List what people said.", tuple[Message, ...]),
        errors=STORE_ERRORS,
    ),
    "Messages and files": under(
        WORKSPACE,
        Route("GET", "/messages/user", "List what people said anywhere.", tuple[Message, ...]),
        Route("GET", "/sessions/{sid}/filetracker/files", "List what was read.", tuple[str, ...]),
        Route("POST", "/filetracker/read", "Note that it was read.", body=sent.FileReadRequest),
        Route(
            "GET",
            "/filetracker/lastread",
            "Say when a session read a file last; the zero time for never.",
            Timestamp,
            query=(Query("session_id", "the session"), Query("path", "the file")),
        ),
        errors=STORE_ERRORS,
    ),
    "Agent": under(
        f"{WORKSPACE}/agent",
        Route("GET", "", "Say whether the agent can be asked, and what answers.", AgentInfo),
        Route(
            "POST",
            "",
            "Submit a prompt. The run is stored before this answers, and does not need the client.",
            Repeated,
            sent.AgentMessage,
            status=202,
            answer_optional=True,
            errors=(*_PROMPT, *_ACCEPTANCE, *STORE_ERRORS),
        ),
        Route(
            "POST",
            "/init",
            "Make the agent ready.",
            body=sent.AgentInitRequest,
            body_optional=True,
        ),
        Route(
            "POST",
            "/update",
            "Read the configuration again; what runs goes on as it began.",
            errors=_RELOADING,
        ),
        Route(
            "GET",
            "/default-small-model",
            "Choose a model for side work.",
            SelectedModel,
            query=(Query("provider_id", "whose model it should be"),),
        ),
    ),
    "Runs of a session": under(
        f"{WORKSPACE}/agent/sessions/{{sid}}",
        Route(
            "GET",
            "",
            "Say whether it is busy.",
            Session,
            errors=("session_not_found", *STORE_ERRORS),
        ),
        Route(
            "POST",
            "/cancel",
            "Cancel every run, whether it is active or waits.",
            ReceiptView,
            query=(RECEIPT, Query("queue", "`keep` to leave alone the prompts that wait")),
            errors=("bad_request",),
            answer_optional=True,
        ),
        Route("GET", "/prompts/queued", "Count the prompts that wait.", int),
        Route("GET", "/prompts/list", "List the prompts that wait.", tuple[str, ...]),
        Route("POST", "/prompts/clear", "Cancel the prompts that wait."),
        Route(
            "POST",
            "/summarize",
            "Summarise the session; answers when that is done.",
            errors=(
                *("session_busy", "session_not_found", "summary_failed"),
                *(*STORE_ERRORS, *_ACCEPTANCE),
            ),
        ),
        Route(
            "POST",
            "/shell",
            "Run a command; one that fails is an answer too.",
            ShellResult,
            sent.ShellRequest,
            errors=("too_many_commands", *STORE_ERRORS),
        ),
    ),
    "Permissions": under(
        f"{WORKSPACE}/permissions",
        Route("GET", "/skip", "Say whether nobody is asked.", sent.PermissionSkip),
        Route("POST", "/skip", "Decide whether anybody is asked.", body=sent.PermissionSkip),
        Route(
            "POST",
            "/grant",
            "Answer a permission request; the first answer counts.",
            Resolved,
            sent.GrantRequest,
            errors=("permission_action_invalid",),
        ),
    ),
    "Questions": under(
        f"{WORKSPACE}/questions",
        Route("POST", "/answer", "Answer what is asked.", Resolved, sent.AnswerRequest),
        Route("POST", "/cancel", "Refuse to.", Resolved, sent.RefusalRequest, body_optional=True),
    ),
    "Configuration": under(
        f"{WORKSPACE}/config",
        Route("POST", "/set", "Set the value at a key.", body=sent.ConfigSetRequest),
        Route("POST", "/remove", "Remove a key.", body=sent.ConfigRemoveRequest),
        Route("POST", "/model", "Select a model.", body=sent.ConfigModelRequest),
        Route("POST", "/compact", "Switch the compact view.", body=sent.ConfigCompactRequest),
        Route(
            "POST",
            "/provider-key",
            "Store a key.",
            body=sent.ProviderKeyRequest,
            errors=("provider_key_invalid",),
        ),
        Route(
            "POST",
            "/refresh-oauth",
            "Take over a token that was renewed.",
            body=sent.RefreshOAuthRequest,
            errors=("not_configured",),
            state="reads the token again; renews none by itself",
        ),
        Route(
            "POST",
            "/import-copilot",
            "Take over another program's token.",
            TokenImport,
            state="never finds one: other programs' files are not read",
        ),
        errors=_WRITING,
    ),
    "Project": under(
        f"{WORKSPACE}/project",
        Route("GET", "/needs-init", "Say whether it was never set up.", NeedsInit),
        Route("POST", "/init", "Note that it is set up."),
        Route("GET", "/init-prompt", "Give the prompt that sets it up.", PromptText),
    ),
    "Language servers": under(
        f"{WORKSPACE}/lsps",
        Route("GET", "", "Show the language servers by name.", Mapping[str, LspClientInfo]),
        Route(
            "GET",
            "/{name}/diagnostics",
            "Show a language server's diagnostics by document.",
            Diagnostics,
            errors=("lsp_not_found",),
        ),
        Route("POST", "/start", "Start what understands a file.", body=sent.LspStartRequest),
        Route("POST", "/stop", "Stop every language server."),
    ),
    "Skills": under(
        f"{WORKSPACE}/skills",
        Route("GET", "", "List the skills.", tuple[SkillInfo, ...]),
        Route(
            "POST",
            "/read",
            "Read a skill.",
            SkillContent,
            sent.SkillReadRequest,
            errors=("skill_not_found",),
        ),
    ),
    "MCP servers": under(
        f"{WORKSPACE}/mcp",
        Route(
            "GET",
            "/states",
            "Show the servers by name.",
            Mapping[str, McpClientInfo],
            checks_workspace=False,
        ),
        Route(
            "GET",
            "/pending-auth",
            "List who waits for a login.",
            tuple[PendingAuth, ...],
            state=_NO_LOGIN,
        ),
        Route(
            "GET",
            "/auth-url",
            "Say where to log in.",
            AuthUrl,
            query=(Query("name", "the server", required=True),),
            errors=("name_missing",),
            checks_workspace=False,
            state=_NO_LOGIN,
        ),
        Route(
            "POST",
            "/auth",
            "Log in; answers after.",
            JsonObject,
            sent.McpServerRequest,
            state="never logs in: says what to configure instead",
        ),
        Route("GET", "/prompts", "List the prompts on offer.", tuple[McpPrompt, ...]),
        Route("POST", "/get-prompt", "Fill in a prompt.", PromptText, sent.McpPromptRequest),
        Route(
            "POST",
            "/read-resource",
            "Read a resource.",
            tuple[McpResource, ...],
            sent.McpResourceRequest,
        ),
        *(
            Route(
                "POST",
                f"/refresh-{what}",
                f"Ask a server for its {what} again.",
                body=sent.McpServerRequest,
                checks_workspace=what == "tools",
            )
            for what in ("tools", "prompts", "resources")
        ),
        Route("POST", "/docker/enable", "Add Docker's gateway.", state=_NO_DOCKER),
        Route("POST", "/docker/disable", "Remove Docker's gateway.", state=_NO_DOCKER),
    ),
}
"""The routes of the wire, by subject."""

ROUTES: Final = tuple(route for group in CATALOGUE.values() for route in group)
"""The same, one after the other."""
