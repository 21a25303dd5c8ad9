"""Routes about sessions, their messages and files (wire.md §3.3, §3.4)."""

from contextlib import suppress

from quart import Blueprint, Response, request

from crush_trio.errors import SessionNotFound
from crush_trio.server import reads
from crush_trio.server.answers import answer, nothing, read_body, respond
from crush_trio.server.bodies import check_amounts
from crush_trio.server.server import Site
from crush_trio.store.changes import FileRead
from crush_trio.wire.fields import ZERO_TIME, timestamp
from crush_trio.wire.ids import SessionId, WorkspaceId
from crush_trio.wire.requests import FileReadRequest
from crush_trio.wire.views import Session

_BASE = "/v1/workspaces/<wid>"


def routes() -> Blueprint:
    """Return the routes of this group."""
    group = Blueprint("sessions", __name__)
    _sessions(group)
    _messages(group)
    _files(group)
    return group


def _sessions(group: Blueprint) -> None:
    @group.get(f"{_BASE}/sessions")
    async def listed(site: Site, wid: str) -> Response:
        return respond(await reads.sessions(site, request.args, wid))

    @group.post(f"{_BASE}/sessions")
    async def create(site: Site, wid: str) -> Response:
        opened = site.opened(wid)
        body = await read_body(Session)
        return answer(_seen(site, wid, await opened.create_session(body.title)))

    @group.get(f"{_BASE}/sessions/<sid>")
    async def get(site: Site, wid: str, sid: str) -> Response:
        return respond(await reads.session(site, request.args, wid, sid))

    @group.put(f"{_BASE}/sessions/<sid>")
    async def put(site: Site, wid: str, sid: str) -> Response:
        opened = site.opened(wid)
        body = await read_body(Session)
        check_amounts(body)
        return answer(_seen(site, wid, await opened.edit_session(body)))

    @group.delete(f"{_BASE}/sessions/<sid>")
    async def delete(site: Site, wid: str, sid: str) -> Response:
        await site.opened(wid).delete_session(SessionId(sid))
        return nothing()


def _seen(site: Site, wid: str, session: Session) -> Session:
    """Return a session with what is known about it now: whether it is busy, and who looks at it."""
    clients = site.backend.attached_clients(WorkspaceId(wid), session.id)
    return site.opened(wid).seen(session, clients)


def _messages(group: Blueprint) -> None:
    @group.get(f"{_BASE}/sessions/<sid>/history")
    async def history(site: Site, wid: str, sid: str) -> Response:
        return respond(await reads.history(site, request.args, wid, sid))

    @group.get(f"{_BASE}/sessions/<sid>/messages")
    async def messages(site: Site, wid: str, sid: str) -> Response:
        return respond(await reads.messages(site, request.args, wid, sid))

    @group.get(f"{_BASE}/sessions/<sid>/messages/user")
    async def user_messages(site: Site, wid: str, sid: str) -> Response:
        return respond(await reads.user_messages(site, request.args, wid, sid))

    @group.get(f"{_BASE}/messages/user")
    async def all_user_messages(site: Site, wid: str) -> Response:
        return respond(await reads.user_messages(site, request.args, wid))


def _files(group: Blueprint) -> None:
    @group.get(f"{_BASE}/sessions/<sid>/filetracker/files")
    async def read_paths(site: Site, wid: str, sid: str) -> Response:
        return answer(await site.opened(wid).store.read_paths(SessionId(sid)))

    @group.post(f"{_BASE}/filetracker/read")
    async def mark_read(site: Site, wid: str) -> Response:
        opened = site.opened(wid)
        body = await read_body(FileReadRequest)
        path = str(opened.directory / body.path)
        read = FileRead(session_id=body.session_id, path=path, at=opened.clock.unix())
        with suppress(SessionNotFound):  # there is nobody to tell it to
            await opened.store.commit(read)
        return nothing()

    @group.get(f"{_BASE}/filetracker/lastread")
    async def last_read(site: Site, wid: str) -> Response:
        opened = site.opened(wid)
        path = str(opened.directory / request.args.get("path", ""))
        session_id = SessionId(request.args.get("session_id", ""))
        at = await opened.store.last_read(session_id, path)
        return answer(ZERO_TIME if at is None else timestamp(at))
