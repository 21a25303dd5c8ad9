"""Routes over all sessions of a server: the roster, the one stream of a page, and the search."""

from functools import partial
from typing import Final

import trio

from crush_trio.errors import DecodeError
from crush_trio.events.frames import Form
from crush_trio.server.bodies import check_id
from crush_trio.server.roster.feeds import NoWorkspace
from crush_trio.server.roster.rows import readable_rows, roster_workspace
from crush_trio.server.roster.table import HERE, RosterTable
from crush_trio.server.routes.workspaces import STREAM_HEADERS, begin, follow
from crush_trio.server.routing import (
    EVENTS,
    EXTENSIONS,
    STORE_ERRORS,
    Call,
    Query,
    Reply,
    Route,
    elsewhere,
    under,
)
from crush_trio.server.sse import stream
from crush_trio.store.errors import StoreUnavailable
from crush_trio.wire.events import Envelope
from crush_trio.wire.ids import SessionId
from crush_trio.wire.views import Roster, SearchHit

SEARCH_LEAST: Final = 2
"""The fewest characters that are searched."""

SEARCH_MOST: Final = 200
SEARCH_USUAL: Final = 50
_SEARCH_LENGTH: Final = 500


async def roster(call: Call) -> Roster:
    """Return all sessions of all hosted workspaces, on all nodes."""
    fixed, table = await _fixed(call), RosterTable()
    for number, theirs in enumerate(await elsewhere(call, Roster)):
        table.put_all(str(number + 1), theirs.workspaces, theirs.sessions)
    hosted = call.server.workspaces()
    rows = [row for workspace in hosted for row in await readable_rows(workspace)]
    table.put_all(HERE, tuple(map(roster_workspace, hosted)), rows)
    return table.roster(fixed)


async def _fixed(call: Call) -> Roster:
    """Return what the roster tells beside workspaces and sessions."""
    server = call.server
    hosted = {str(workspace.directory) for workspace in server.workspaces()}
    return Roster(
        directory=server.directory,
        version=server.version.version,
        right=call.caller.right.value,
        recent=await server.recent.read(without=hosted),
    )


async def page_events(call: Call) -> Reply:
    """Open the stream of a page: the roster, and a workspace or one of its sessions if it names one."""
    place, session = (_id(call, name) for name in ("workspace", "session"))
    if session is not None and place is None:
        raise DecodeError("session needs the workspace that it is in")
    workspace = None if place is None else call.server.workspace(place)
    if workspace is not None:
        _ = call.client_id
    if call.head_only:
        return Reply(headers=STREAM_HEADERS[:1])  # noqa: ASYNC910 - the answer is sent next
    here_only = call.caller.forwarded and workspace is None  # another node that follows this one
    reading = call.server.roster.reading(await _fixed(call), here_only=here_only)
    reader = call.cleanup.enter_context(reading)
    await reader.loaded()
    if workspace is not None:
        session_id = None if session is None else SessionId(session)
        return await follow(call, workspace, Form.NATIVE, session_id, reader)
    feed = NoWorkspace(call.server.drain)
    call.cleanup.enter_context(call.server.streams.attached(feed))
    return begin(call, partial(stream, feed, boot="", first=reader.whole(), beside=reader))


def _id(call: Call, name: str) -> str | None:
    text = call.query.get(name)
    if not text:
        return None
    check_id(text, name)
    return text


async def search(call: Call) -> list[SearchHit]:
    """Return the titles and messages of all hosted workspaces that contain a text, the newest first."""
    text = call.query.get("q", "").strip()
    if not SEARCH_LEAST <= len(text) <= _SEARCH_LENGTH:
        raise DecodeError(f"q needs {SEARCH_LEAST} to {_SEARCH_LENGTH} characters to search for")
    limit = call.number("limit", SEARCH_MOST) or SEARCH_USUAL
    found = [hit for hits in await elsewhere(call, tuple[SearchHit, ...]) for hit in hits]
    for workspace in call.server.workspaces():
        try:
            hits = await workspace.store.search(text, limit)
        except StoreUnavailable:
            continue
        found += (
            SearchHit(
                workspace_id=workspace.id,
                session_id=hit.session_id,
                title=hit.title,
                message_id=hit.message_id,
                role=hit.role,
                snippet=hit.snippet,
                at=hit.at,
            )
            for hit in hits
        )
    await trio.lowlevel.checkpoint()
    return sorted(found, key=lambda hit: hit.at, reverse=True)[:limit]


ROUTES: Final = under(
    "/v1",
    Route(
        "GET",
        "/roster",
        "List all sessions of all hosted workspaces, and what each of them does or needs.",
        roster,
        name="get_roster",
        answer=Roster,
        direct=True,
    ),
    Route(
        "GET",
        "/events",
        "Stream what a page shows: the roster, and a workspace or one session of it.",
        page_events,
        name="stream_page_events",
        names_workspace="workspace",
        answer=Envelope,
        query=(
            Query("workspace", "the workspace to attach to; without one only the roster comes"),
            Query("session", "the session whose transcript comes, with those of its subagents"),
            Query("client_id", "the client, a UUID; needed with a workspace"),
            Query("interactive", "`1` if a person can answer asks here", shape=bool),
            Query("after", "the id to resume after, for those that cannot set Last-Event-ID"),
        ),
        errors=(
            *("client_id_malformed", "client_id_missing", "right_missing", "id_invalid"),
            *("bad_request", "http_version_unsupported", "workspace_not_found", *STORE_ERRORS),
        ),
        media=EVENTS,
        direct=True,
    ),
    Route(
        "GET",
        "/search",
        "Search the titles and messages of all hosted workspaces, the newest first.",
        search,
        name="search_sessions",
        answer=tuple[SearchHit, ...],
        query=(
            Query("q", "the text, in any case of letters; at least two characters"),
            Query(
                "limit",
                "how many at most",
                shape=int,
                least=1,
                most=SEARCH_MOST,
                usual=SEARCH_USUAL,
            ),
        ),
        errors=("bad_request",),
    ),
    group=EXTENSIONS,
)
