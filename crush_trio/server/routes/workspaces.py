"""Routes about workspaces, and their event streams (wire.md §3.2, §4)."""

from functools import partial

import trio
from attrs import asdict
from quart import Blueprint, Response, request

from crush_trio.backend.settings import Hosted
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.events.frames import Form
from crush_trio.providers.catalog import catalog_providers
from crush_trio.server.answers import answer, cleanup, nothing, read_body
from crush_trio.server.bodies import parse_client_id, query_client_id
from crush_trio.server.http.outgoing import begin_stream
from crush_trio.server.server import Site
from crush_trio.server.sse import position_from, stream
from crush_trio.wire.ids import WorkspaceId
from crush_trio.wire.requests import CurrentSessionRequest, WorkspaceRequest
from crush_trio.wire.views import ErrorBody, WorkspaceView


def routes() -> Blueprint:
    """Return the routes of this group."""
    group = Blueprint("workspaces", __name__)

    @group.get("/v1/workspaces")
    def listed(site: Site) -> Response:
        return answer([_view(site, hosted) for hosted in site.backend.workspaces()])

    @group.post("/v1/workspaces")
    async def create(site: Site) -> Response:
        body = await read_body(WorkspaceRequest)
        if body.path:
            parse_client_id(body.client_id)
        return answer(_view(site, await site.backend.create(body)))

    @group.get("/v1/workspaces/<wid>")
    def get(site: Site, wid: str) -> Response:
        return answer(_view(site, site.backend.workspace(WorkspaceId(wid))))

    @group.delete("/v1/workspaces/<wid>")
    def release(site: Site, wid: str) -> Response:
        site.backend.release(WorkspaceId(wid), query_client_id(request.args.get("client_id")))
        return nothing()

    @group.post("/v1/workspaces/<wid>/current-session")
    async def select(site: Site, wid: str) -> Response:
        client = query_client_id(request.args.get("client_id"))
        body = await read_body(CurrentSessionRequest)
        site.backend.set_current_session(WorkspaceId(wid), client, body.session_id)
        return nothing()

    @group.get("/v1/workspaces/<wid>/config")
    def config(site: Site, wid: str) -> Response:
        return answer(site.opened(wid).shown_config())

    @group.get("/v1/workspaces/<wid>/providers")
    def providers(site: Site, wid: str) -> Response:
        """Answer with the catalogue; which of its providers can be used is in the configuration."""
        site.opened(wid)
        return answer(catalog_providers())

    @group.get("/v1/workspaces/<wid>/events")
    async def events(site: Site, wid: str) -> Response:
        return await _events(site, wid)

    return group


async def _events(site: Site, wid: str) -> Response:
    """Open a stream: find the workspace, take a place in its log, count the stream, answer (G8).

    The stream is counted out when the request is over, also if its body was never asked for. A
    reader that names no place is told what waits for an answer, in the step in which it gets one;
    one that resumes hears of it from the log.
    """
    await trio.lowlevel.checkpoint()
    client = query_client_id(request.args.get("client_id"))
    opened = site.opened(wid)
    form = _form(request.args.get("form"))
    place = position_from(request.headers.get("Last-Event-ID"), request.args.get("after"))
    log, asks = opened.events, partial(site.asks.frames, opened, form)
    reader = await opened.new_reader(form, place)
    first = asks() if place is None else b""
    if request.method == "HEAD":
        return Response(b"", content_type="text/event-stream")
    cleanup(request.scope).enter_context(site.backend.attach(WorkspaceId(wid), client))
    cleanup(request.scope).enter_context(site.streams.attached(reader))
    cleanup(request.scope).enter_context(opened.asks.permissions.attendance.present())
    frames = stream(
        reader,
        boot=log.boot,
        drain=site.drain,
        first=first,
        missed=reader.missed,
        asks=asks,
        heartbeat=site.heartbeat,
        send_now=begin_stream(request.scope),
        turns=site.streams.turns,
    )
    response = Response(frames, content_type="text/event-stream")
    response.headers["Cache-Control"] = "no-cache"
    response.timeout = None
    return response


def _form(name: str | None) -> Form:
    """Return the form a reader asked for; clients of the Go program do not ask."""
    try:
        return Form(name or "crush")
    except ValueError:
        return Form.CRUSH


def _view(site: Site, hosted: Hosted[HostedWorkspace]) -> WorkspaceView:
    """Return a workspace as clients see it; their environment is nobody else's business."""
    warning = hosted.opened.store.warning
    return WorkspaceView(
        id=hosted.id,
        path=str(hosted.opened.directory),
        yolo=hosted.terms.yolo,
        debug=hosted.terms.debug,
        data_dir=str(hosted.opened.data_dir),
        version=site.version.version,
        config=hosted.opened.shown_config(),
        channels=hosted.terms.channels,
        skills=hosted.opened.integrations.skills.states(),
        degraded=hosted.opened.degraded or "",
        warnings=() if warning is None else (ErrorBody(**asdict(warning)),),
    )
