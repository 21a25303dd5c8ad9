"""Routes about the agent: prompts in, summaries, shell commands, and its state out (wire.md §3.7)."""

from functools import partial
from typing import Final

import trio

from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.errors import (
    DecodeError,
    RunIdStored,
    RunIdTaken,
    RunNotFound,
    ServerShuttingDown,
    SessionBusy,
    SummaryFailed,
)
from crush_trio.runtime.outcome import Submission
from crush_trio.server.audit_notes import CANCELLED, QUEUE_CLEARED, SENT, SHELL, SUMMARY
from crush_trio.server.http.peer import peer_of
from crush_trio.server.routes.runs import check_unasked, stopped
from crush_trio.server.routing import (
    RECEIPT,
    STORE_ERRORS,
    WORKSPACE,
    Call,
    Query,
    Route,
    under,
)
from crush_trio.server.tokens import Right
from crush_trio.store.errors import StoreUnavailable
from crush_trio.wire.answers import ReceiptView, Repeated, ShellResult
from crush_trio.wire.asks import PermissionPolicy
from crush_trio.wire.config import AgentInfo, SelectedModel
from crush_trio.wire.requests import AgentInitRequest, AgentMessage, CancelQueue, ShellRequest
from crush_trio.wire.runs import RunKind, RunState, RunView, WhenBusy, WhenUnclaimed
from crush_trio.wire.views import Session

_RELOADING: Final = ("config_invalid", "workspace_closing")
_ACCEPTANCE: Final = (
    *("workspace_closing", "acceptance_not_stored", "no_room_for_prompt", "run_id_stored"),
    "server_shutting_down",
)
_PROMPT: Final = (
    *("attachment_too_large", "prompt_empty", "prompt_too_long", "queue_full"),
    *("session_missing", "run_id_taken", "session_busy", "not_configured"),
)


# ── Prompts ─────────────────────────────────────────────────────────────────────────────────────


async def accept_prompt(call: Call) -> Repeated | None:
    """Accept a prompt and return once that is durable; a `Repeated` if it was accepted before.

    The run belongs to the workspace: a client that disconnects from here on changes nothing.
    """
    workspace, body = call.workspace, call.body
    submission = _submission(body, workspace, _process(call))
    check_unasked(call, submission.permissions)
    name = submission.run_id
    known = name is not None and workspace.runs.knows(name)
    try:
        released = partial(call.server.backend.reconsider, workspace.id)
        accepted = workspace.send(submission, released)
        await accepted.journaled()
    except (SessionBusy, RunIdStored, ServerShuttingDown):
        earlier = await _earlier(workspace, submission)
        if earlier is None:
            raise
        return _repeated(earlier)
    return _repeated(accepted.view) if known else None


def _submission(body: AgentMessage, workspace: HostedWorkspace, process: int | None) -> Submission:
    return Submission(
        session_id=body.session_id,
        prompt=body.prompt,
        attachments=body.attachments,
        run_id=body.run_id or None,
        when_busy=body.when_busy or WhenBusy.ENQUEUE,
        when_unclaimed=body.when_unclaimed or WhenUnclaimed.CANCEL,
        permissions=body.permissions or PermissionPolicy(),
        interactive=_is_interactive(body, workspace, process),
        model=body.model,
        record=body.record,
    )


def _process(call: Call) -> int | None:
    """Return the process of the client, which the kernel knows on a Unix socket."""
    peer = peer_of(call.scope)
    return None if peer is None else peer.pid


def _is_interactive(body: AgentMessage, workspace: HostedWorkspace, process: int | None) -> bool:
    """Whether a person sits at the client that sent *body*; the client may say so itself.

    The Go program's `run` command names its runs and sends an `agent/init` that is not interactive directly
    before. Its terminal client does neither, and stays interactive when such a command has come (F17). These
    requests carry no client id. On a Unix socket the process of the client tells them apart; over TCP, an
    `agent/init` of another client in between counts for both.
    """
    if body.interactive is not None:
        return body.interactive
    return not body.run_id or workspace.is_interactive(process)


async def _earlier(workspace: HostedWorkspace, submission: Submission) -> RunView | None:
    """Return the stored run that the caller's id names, if there is one; it must be the same run.

    The workspace remembers only its last runs. The store knows the earlier ones, and those before a
    restart, and refuses a second one with the same id.
    """
    await trio.lowlevel.checkpoint()
    if submission.run_id is None or workspace.runs.knows(submission.run_id):
        return None
    try:
        stored = await workspace.store.run(submission.run_id)
    except (RunNotFound, StoreUnavailable):
        return None
    if stored.view.run_id != submission.run_id:  # our own id of some other run
        return None
    if (stored.view.session_id, stored.prompt) != (submission.session_id, submission.prompt):
        raise RunIdTaken(submission.run_id)
    return stored.view


def _repeated(run: RunView) -> Repeated:
    return Repeated(id=run.id, run_id=run.run_id or run.id)


# ── The agent ───────────────────────────────────────────────────────────────────────────────────


def info(call: Call) -> AgentInfo:
    """Return whether the agent is ready, and which model answers."""
    return call.workspace.agent_info()


def init(call: Call) -> None:
    """Note whether the client shows asks to a person. The agent itself is ready since the create."""
    call.workspace.init_agent(interactive=call.body.interactive, process=_process(call))


async def update(call: Call) -> None:
    """Read the configuration again; active runs go on as they began."""
    await call.workspace.config.reload()


def default_small_model(call: Call) -> SelectedModel:
    """Return the model that a provider offers for side work."""
    provider_id = call.query.get("provider_id", "")
    return call.workspace.config.current.default_small_model(provider_id)


# ── A session's runs ────────────────────────────────────────────────────────────────────────────


async def session(call: Call) -> Session:
    """Return whether a session is busy."""
    workspace = call.records
    stored = await workspace.store.session(call.session_id)
    return workspace.seen(Session(id=stored.id, title=stored.title), 0)


async def cancel_session(call: Call) -> ReceiptView | None:
    """Cancel the runs of a session."""
    queue = call.query.get("queue", CancelQueue.CANCEL)
    if queue not in set(CancelQueue):
        raise DecodeError("queue is neither keep nor cancel")
    cancel, keep = call.workspace.runs.cancel, queue == CancelQueue.KEEP
    return await stopped(
        call,
        partial(cancel, call.session_id, keep_queue=keep),
        lambda run: run.session_id == call.session_id,
    )


def count_queued(call: Call) -> int:
    """Return how many prompts are queued."""
    return len(call.workspace.runs.queue(call.session_id))


def list_queued(call: Call) -> list[str]:
    """Return the queued prompts."""
    return [run.submission.prompt for run in call.workspace.runs.queue(call.session_id)]


def clear_queue(call: Call) -> None:
    """Cancel the queued prompts."""
    call.workspace.runs.clear_queue(call.session_id)


async def summarize(call: Call) -> None:
    """Accept a summary as a run of its own kind, and answer when it has ended."""
    workspace, session_id = call.workspace, call.session_id
    await workspace.store.session(session_id)
    if workspace.runs.session_busy(session_id):
        raise SessionBusy
    accepted = workspace.send(Submission(session_id=session_id, kind=RunKind.SUMMARIZE))
    outcome = await accepted.wait()
    if outcome.state is RunState.ERRORED:
        raise SummaryFailed(outcome.error)


async def shell(call: Call) -> ShellResult:
    """Run a command; it is ended if the client disconnects."""
    body: ShellRequest = call.body
    if "\0" in body.command:
        raise DecodeError("command: a null character cannot be part of a command")
    ran = await call.workspace.run_shell(call.session_id, body.command, body.term_width)
    return ShellResult(output=ran.output, exit_code=ran.exit_code)


ROUTES: Final = (
    *under(
        f"{WORKSPACE}/agent",
        Route(
            "GET",
            "",
            "Show whether the agent is ready, and which model answers.",
            info,
            name="get_agent",
            answer=AgentInfo,
            direct=True,
        ),
        Route(
            "POST",
            "",
            "Submit a prompt. The run is stored before this answers, and does not need the client.",
            accept_prompt,
            name="submit_prompt",
            body=AgentMessage,
            answer=Repeated,
            empty_status=202,
            errors=(*_PROMPT, *_ACCEPTANCE, *STORE_ERRORS, "right_missing", "workspace_not_found"),
            needs_workspace=False,
            right=Right.ANSWER,
            audit=SENT,
            direct=True,
        ),
        Route(
            "POST",
            "/init",
            "Say whether the client shows asks to a person; the agent is ready without it.",
            init,
            name="init_agent",
            body=AgentInitRequest,
            right=Right.ANSWER,
        ),
        Route(
            "POST",
            "/update",
            "Read the configuration again; active runs go on as they began.",
            update,
            name="update_agent",
            errors=_RELOADING,
        ),
        Route(
            "GET",
            "/default-small-model",
            "Choose a model for side work.",
            default_small_model,
            name="get_default_small_model",
            answer=SelectedModel,
            query=(Query("provider_id", "the provider whose model to choose"),),
        ),
        group="Agent",
    ),
    *under(
        f"{WORKSPACE}/agent/sessions/{{sid}}",
        Route(
            "GET",
            "",
            "Show whether the session is busy.",
            session,
            name="get_session_state",
            stored=True,
            answer=Session,
            errors=("session_not_found", *STORE_ERRORS),
            direct=True,
        ),
        Route(
            "POST",
            "/cancel",
            "Cancel every run of the session, active or queued.",
            cancel_session,
            name="cancel_session",
            stops=True,
            answer=ReceiptView,
            query=(
                RECEIPT,
                Query(
                    "queue",
                    "what happens to the queued prompts",
                    shape=CancelQueue,
                    usual=CancelQueue.CANCEL,
                ),
            ),
            errors=("bad_request",),
            right=Right.ANSWER,
            audit=CANCELLED,
            direct=True,
        ),
        Route(
            "GET",
            "/prompts/queued",
            "Count the queued prompts.",
            count_queued,
            name="count_queued_prompts",
            answer=int,
            direct=True,
        ),
        Route(
            "GET",
            "/prompts/list",
            "List the queued prompts.",
            list_queued,
            name="list_queued_prompts",
            answer=tuple[str, ...],
        ),
        Route(
            "POST",
            "/prompts/clear",
            "Cancel the queued prompts.",
            clear_queue,
            name="clear_queue",
            right=Right.ANSWER,
            audit=QUEUE_CLEARED,
        ),
        Route(
            "POST",
            "/summarize",
            "Summarise the session; answers when that is done.",
            summarize,
            name="summarize_session",
            errors=(
                *("session_busy", "session_not_found", "summary_failed"),
                *(*STORE_ERRORS, *_ACCEPTANCE),
            ),
            right=Right.ANSWER,
            audit=SUMMARY,
        ),
        Route(
            "POST",
            "/shell",
            "Run a command; a command that fails is no error of the request.",
            shell,
            name="run_shell_command",
            body=ShellRequest,
            answer=ShellResult,
            errors=("too_many_commands", *STORE_ERRORS),
            audit=SHELL,
        ),
        group="Runs of a session",
    ),
)
