"""What clients ask for again and again: plain functions behind the routes that only read.

They are given the site, the query and the ids of the path, and return a reply. Two callers turn that
into an answer: `server.direct`, for requests that have arrived whole, and the routes of the
framework, for all others.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

import trio

from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.errors import DecodeError, MessageNotFound
from crush_trio.server.answers import Reply, reply
from crush_trio.server.bodies import check_id
from crush_trio.server.listings import JsonPages
from crush_trio.server.server import Site
from crush_trio.store.pages import (
    SESSION_REST,
    FileVersions,
    Hole,
    PagedList,
    SessionList,
    SessionMessages,
    UserMessages,
)
from crush_trio.wire.codec import encode
from crush_trio.wire.ids import MessageId, SessionId, WorkspaceId

Query = Mapping[str, str]
"""The query of a request; of a name that is there twice, the first value."""

MESSAGES_AT_MOST: Final = 1_000_000
"""The highest number of messages that can be asked for by number."""


async def health(site: Site, query: Query) -> Reply:
    """Say that the server answers."""
    await trio.lowlevel.checkpoint()
    return Reply(b"")


async def agent(site: Site, query: Query, wid: str) -> Reply:
    """Return whether the agent can be asked, and what would answer."""
    await trio.lowlevel.checkpoint()
    return reply(site.opened(wid).agent_info())


async def session(site: Site, query: Query, wid: str, sid: str) -> Reply:
    """Return a session."""
    stored = await site.opened(wid).store.session(SessionId(sid))
    clients = site.backend.attached_clients(WorkspaceId(wid), stored.id)
    return reply(site.opened(wid).seen(stored, clients))


async def agent_session(site: Site, query: Query, wid: str, sid: str) -> Reply:
    """Return whether a session is busy."""
    opened = site.opened(wid)
    stored = await opened.store.session(SessionId(sid))
    return reply(opened.seen(type(stored)(id=stored.id, title=stored.title), 0))


async def sessions(site: Site, query: Query, wid: str) -> Reply:
    """Return the sessions, each with what is known about it now."""
    opened = site.opened(wid)
    clients = site.backend.attached_by_session(WorkspaceId(wid))

    def present(hole: Hole) -> bytes:
        busy = opened.runs.session_busy(SessionId(hole.id))
        return SESSION_REST % (b"true" if busy else b"false", clients[SessionId(hole.id)])

    return await _paged(JsonPages(opened.store.pages(SessionList()), present))


async def messages(site: Site, query: Query, wid: str, sid: str) -> Reply:
    """Return the messages of a session: all, or the newest `limit` of those `before` one."""
    opened = site.opened(wid)
    wanted = SessionMessages(
        session_id=SessionId(sid),
        limit=None if "limit" not in query else number(query, "limit", MESSAGES_AT_MOST),
        before=_message_id(query, "before"),
    )
    try:
        return await _messages(opened, wanted)
    except MessageNotFound as error:
        raise DecodeError(f"before: this session has no message {wanted.before}") from error


async def _messages(opened: HostedWorkspace, wanted: SessionMessages) -> Reply:
    pages = opened.store.pages(wanted)
    return await _paged(JsonPages(pages, partial(_growing, opened)))


def _growing(opened: HostedWorkspace, hole: Hole) -> bytes:
    """Return a message without an end: as it is now if it is still being written (D12).

    What is not stored yet is shown, too: waiting until it is would let each reader cause a commit.
    """
    for message in opened.transcript.open_messages():
        if message.open and message.id == hole.id:
            return encode(message.message())
    return hole.default


async def user_messages(site: Site, query: Query, wid: str, sid: str | None = None) -> Reply:
    """Return what people said in a session, or in all, the newest first."""
    session_id = None if sid is None else SessionId(sid)
    return await _list(site, wid, UserMessages(session_id=session_id))


async def history(site: Site, query: Query, wid: str, sid: str) -> Reply:
    """Return every version of every file of a session."""
    return await _list(site, wid, FileVersions(session_id=SessionId(sid)))


async def _list(site: Site, wid: str, wanted: PagedList) -> Reply:
    return await _paged(JsonPages(site.opened(wid).store.pages(wanted)))


async def _paged(pages: JsonPages) -> Reply:
    """Return an array with its first page read: what is wrong with it shows before it is answered."""
    first = await pages.read()
    return Reply(first, rest=pages if pages.more else None)


# ── Queries ─────────────────────────────────────────────────────────────────────────────────────


def number(query: Query, name: str, most: int) -> int:
    """Return a number of the query between 1 and *most*."""
    text = query[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise DecodeError(f"{name} is not a number from 1 to {most}")
    return int(text)


def _message_id(query: Query, name: str) -> MessageId | None:
    text = query.get(name)
    if text is None:
        return None
    if not text:
        raise DecodeError(f"{name} is empty; leave it out, or give the id of a message")
    check_id(text, name)
    return MessageId(text)
