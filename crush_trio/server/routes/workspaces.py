"""Routes about workspaces, and their event streams (wire.md §3.2, §4)."""

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Final

import trio
from attrs import asdict

from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.events.frames import Form
from crush_trio.events.pieces import assemble
from crush_trio.providers.catalog import catalog_providers
from crush_trio.server.audit_notes import CREATED, DELETED
from crush_trio.server.bodies import parse_client_id
from crush_trio.server.guard import is_own_process, is_owner
from crush_trio.server.http.outgoing import SendNow, begin_stream
from crush_trio.server.roster.changes import NOTHING_BESIDE
from crush_trio.server.roster.desk import RosterReader
from crush_trio.server.roster.feeds import SessionFeed
from crush_trio.server.routing import (
    CLIENT,
    EVENTS,
    STORE_ERRORS,
    Call,
    Query,
    Reply,
    Route,
    under,
)
from crush_trio.server.server import Server
from crush_trio.server.sse import position_from, stream
from crush_trio.server.status import status_of_create
from crush_trio.server.tokens import Right, RightMissing
from crush_trio.wire.answers import ErrorBody
from crush_trio.wire.config import CatalogProvider, Config, WorkspaceView
from crush_trio.wire.events import Envelope
from crush_trio.wire.ids import SessionId, WorkspaceId
from crush_trio.wire.requests import CurrentSessionRequest, WorkspaceRequest

_NO_CLIENT: Final = ("client_id_malformed", "client_id_missing", "right_missing")
_ADMISSION: Final = (
    *("channel_mismatch", "client_retired", "server_shutting_down", "too_many_workspaces"),
)
_OPENING: Final = (
    *("config_invalid", "migration_failed", "store_corrupt", "store_file_foreign", "store_locked"),
    "store_too_new",
)

STREAM_HEADERS: Final = (
    (b"content-type", EVENTS.encode()),
    (b"cache-control", b"no-cache"),
)


def listed(call: Call) -> list[WorkspaceView]:
    """Return the hosted workspaces."""
    return [_view(call.server, hosted) for hosted in call.server.backend.workspaces()]


async def create(call: Call) -> WorkspaceView | Reply:
    """Host a directory for a client, here or where it is hosted already."""
    body: WorkspaceRequest = call.body
    if body.path:
        call.own_client(parse_client_id(body.client_id))
    if call.server.cluster is None:
        workspace = await _open(call, body)
    else:
        hosted = await call.server.cluster.created(call, body, partial(_open, call, body))
        if isinstance(hosted, Reply):
            return hosted
        workspace = hosted
    await call.server.recent.note(str(workspace.directory), workspace.clock.unix())
    return _view(call.server, workspace, with_env=await _may_see_env(call))


async def _open(call: Call, body: WorkspaceRequest) -> HostedWorkspace:
    """Open a workspace in this process, or join it."""
    if not call.caller.right.covers(Right.ADMIN):
        body = await _joining(call.server, body)
    return await call.server.backend.create(body)


async def _joining(server: Server, body: WorkspaceRequest) -> WorkspaceRequest:
    """Return a request that joins a workspace and decides nothing about it; raises `RightMissing`."""
    path = await trio.to_thread.run_sync(os.path.realpath, body.path)
    if path not in {str(hosted.directory) for hosted in server.backend.workspaces()}:
        raise RightMissing("this one joins directories that are open, and opens no others")
    return WorkspaceRequest(path=path, client_id=body.client_id, channels=body.channels)


async def show(call: Call) -> WorkspaceView:
    """Return a workspace."""
    with_env = await _may_see_env(call)
    workspace = call.server.backend.workspace(WorkspaceId(call.values["wid"]))
    return _view(call.server, workspace, with_env=with_env)


async def _may_see_env(call: Call) -> bool:
    """Whether the answer has the environment of the workspace's creator.

    The Go program's client creates its workspace anew from it after a restart of the server. A request with
    a token may have come through a proxy of the same user, so its sender is not known to be the user.
    """
    return await is_owner(call.scope) and not call.caller.token


def release(call: Call) -> None:
    """Give up a client's claim."""
    call.server.backend.release(WorkspaceId(call.values["wid"]), call.client_id)


def select(call: Call) -> None:
    """Note which session an attached client looks at."""
    workspace_id, session_id = WorkspaceId(call.values["wid"]), call.body.session_id
    answers = call.caller.right.covers(Right.ANSWER)
    call.server.backend.set_current_session(
        workspace_id, call.client_id, session_id, answers=answers
    )


def shown_config(call: Call) -> Config:
    """Return the configuration, without secrets."""
    return call.workspace.shown_config()


def providers(_call: Call) -> tuple[CatalogProvider, ...]:
    """Return the catalogue; which of its providers can be used is in the configuration."""
    return catalog_providers()


async def events(call: Call) -> Reply:
    """Open a stream: find the workspace, take a place in its log, count the stream, answer (G8).

    The stream is counted out when the request is over, also if its body was never asked for. A reader
    that names no place is told which asks are pending, in the same step in which it gets its place;
    a reader that resumes learns of them from the log.
    """
    form = _form(call.query.get("form"))
    return await follow(call, call.workspace, form)


async def follow(
    call: Call,
    workspace: HostedWorkspace,
    form: Form,
    session_id: SessionId | None = None,
    roster: RosterReader | None = None,
) -> Reply:
    """Return the stream of a workspace, for `events` and for pages.

    With a *session_id*, the transcripts of other sessions are left out. With a *roster*, the whole
    roster comes first and its changes in between.

    A command of the agent may read, but its stream holds no workspace open and stands for no person:
    otherwise a run could go on by itself after its user has left.
    """
    server = call.server
    own = call.caller.own_process or await is_own_process(call.scope)
    interactive = form is Form.NATIVE and call.flag("interactive")
    place = position_from(call.header(b"last-event-id"), call.query.get("after"))
    asks = partial(server.asks.frames, workspace, form)
    whole = await workspace.new_reader(form, place)
    reader = whole if session_id is None else SessionFeed(whole, session_id, workspace.family)
    first = asks() if place is None else b""
    if call.head_only:
        return Reply(headers=STREAM_HEADERS[:1])
    client_id, answers = call.client_id, call.caller.right.covers(Right.ANSWER) and not own
    if not own:
        attended = answers and interactive
        hold = server.backend.attach(workspace.id, client_id, attended=attended)
        call.cleanup.enter_context(hold)
    call.cleanup.enter_context(server.streams.attached(reader))
    if answers:
        call.cleanup.enter_context(workspace.asks.permissions.attendance.present())
    return begin(
        call,
        partial(
            stream,
            reader,
            boot=workspace.events.boot,
            first=first if roster is None else assemble((roster.whole(), first)),
            missed=reader.missed,
            asks=asks,
            beside=NOTHING_BESIDE if roster is None else roster,
        ),
    )


def begin(call: Call, make: Callable[..., AsyncGenerator[bytes, None]]) -> Reply:
    """Hand the connection over to the stream that *make* returns; nothing else can be the answer now."""
    server, valid, send_now = call.server, call.caller.valid, begin_stream(call.scope)
    frames = make(
        drain=server.drain,
        heartbeat=server.heartbeat,
        send_now=send_now if valid is None else partial(_send_while, valid, send_now),
        turns=server.streams.turns,
    )
    pieces = frames if valid is None else _while_valid(valid, frames)
    return Reply(headers=STREAM_HEADERS, pieces=pieces)


def _send_while(valid: Callable[[], bool], send_now: SendNow, data: bytes) -> int:
    """Send nothing directly once the token is not valid; what is left then reaches `_while_valid`."""
    return send_now(data) if valid() else 0


# ASYNC900: as for `stream`: the framework wants an async generator, and this one holds no scope.
async def _while_valid(  # noqa: ASYNC900
    valid: Callable[[], bool], frames: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """End a stream before the first piece, at the latest a heartbeat, after its token was revoked."""
    async with aclosing(frames):
        async for piece in frames:
            if not valid():
                return  # noqa: ASYNC911 - a piece was waited for
            yield piece  # noqa: ASYNC119 - the framework closes it, and *frames* needs no clean-up


def _form(name: str | None) -> Form:
    """Return the form a reader asked for; clients of the Go program do not ask."""
    try:
        return Form(name or "crush")
    except ValueError:
        return Form.CRUSH


def _view(server: Server, workspace: HostedWorkspace, *, with_env: bool = False) -> WorkspaceView:
    """Return a workspace as clients see it; the environment that its creator sent only if it is wanted."""
    terms = workspace.plan.terms
    env = terms.environment if with_env else {}
    warning = workspace.store.warning
    return WorkspaceView(
        id=workspace.id,
        path=str(workspace.directory),
        yolo=terms.yolo,
        debug=terms.debug,
        data_dir=str(workspace.data_dir),
        version=server.version.version,
        config=workspace.shown_config(),
        env=tuple(f"{name}={text}" for name, text in env.items()),
        channels=terms.channels,
        skills=workspace.integrations.skills.states(),
        degraded=workspace.degraded or "",
        warnings=() if warning is None else (ErrorBody(**asdict(warning)),),
    )


ROUTES: Final = under(
    "/v1/workspaces",
    Route(
        "GET",
        "",
        "List the hosted workspaces.",
        listed,
        name="list_workspaces",
        answer=tuple[WorkspaceView, ...],
    ),
    Route(
        "POST",
        "",
        "Host a directory for a client; the same directory is the same workspace.",
        create,
        name="create_workspace",
        body=WorkspaceRequest,
        answer=WorkspaceView,
        errors=(
            *("client_id_invalid", "path_missing", "path_invalid"),
            *(*_ADMISSION, *STORE_ERRORS, *_OPENING, "right_missing"),
        ),
        error_status=status_of_create,
        right=Right.WATCH,
        audit=CREATED,
    ),
    Route(
        "GET",
        "/{wid}",
        "Show a workspace.",
        show,
        name="get_workspace",
        answer=WorkspaceView,
        direct=True,
    ),
    Route(
        "DELETE",
        "/{wid}",
        "Give up a client's claim; its open streams still hold it.",
        release,
        name="release_workspace",
        query=(CLIENT,),
        errors=_NO_CLIENT,
        needs_workspace=False,
        right=Right.WATCH,
        audit=DELETED,
    ),
    Route(
        "POST",
        "/{wid}/current-session",
        "Note which session an attached client looks at.",
        select,
        name="set_current_session",
        body=CurrentSessionRequest,
        query=(CLIENT,),
        errors=(*_NO_CLIENT, "client_not_attached", "workspace_not_found"),
        needs_workspace=False,
        right=Right.WATCH,
    ),
    Route(
        "GET",
        "/{wid}/config",
        "Show the configuration, without secrets.",
        shown_config,
        name="get_config",
        answer=Config,
    ),
    Route(
        "GET",
        "/{wid}/providers",
        "List the providers of the catalogue.",
        providers,
        name="list_providers",
        answer=tuple[CatalogProvider, ...],
    ),
    Route(
        "GET",
        "/{wid}/events",
        "Attach: stream what happens in the workspace, until either side ends it.",
        events,
        name="stream_events",
        answer=Envelope,
        query=(
            CLIENT,
            Query(
                "form",
                "`crush`, bare frames; `native`, with ids, deltas and heartbeats",
                shape=Form,
                usual=Form.CRUSH,
            ),
            Query("after", "the id to resume after, for those that cannot set Last-Event-ID"),
            Query(
                "interactive",
                "`1` if a person can answer asks here; only in the native form",
                shape=bool,
            ),
        ),
        errors=(
            *(*_NO_CLIENT, "bad_request", "http_version_unsupported"),
            *("workspace_not_found", *STORE_ERRORS),
        ),
        media=EVENTS,
        needs_workspace=False,
        direct=True,
    ),
    group="Workspaces",
)
