"""Statements over many sessions: the overview of a roster, and the search for text."""

import sqlite3
import time
from collections.abc import Collection
from typing import Final

import orjson

from crush_trio.store.columns import json_column, read_word
from crush_trio.store.overview import FoundText, SessionOverview, newest, snippet_of, titled
from crush_trio.store.sqlite.statements.sessions import COLUMNS, read_sessions, session_of
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import Role
from crush_trio.wire.runs import RunState
from crush_trio.wire.views import ModelName

_OVERVIEW: Final = f"""
    SELECT {COLUMNS}, (
        SELECT state FROM runs WHERE runs.session_id = sessions.id AND state <> 'folded'
        ORDER BY accepted_at DESC, seq DESC LIMIT 1
    ), (
        SELECT json_array(provider, model) FROM messages
        WHERE messages.session_id = sessions.id AND role = 'assistant' AND model <> ''
        ORDER BY seq DESC LIMIT 1
    )
    FROM sessions WHERE parent_session_id IS NULL
"""
_CHOSEN: Final = " AND id IN (SELECT value FROM json_each(?))"
_ORDER: Final = " ORDER BY updated_at DESC, n DESC"

_TEXTS: Final = """
    SELECT sessions.id, sessions.title, messages.id, messages.role, messages.created_at, parts.data
    FROM messages
    JOIN sessions ON sessions.id = messages.session_id
    JOIN parts ON parts.message_id = messages.id
    WHERE sessions.parent_session_id IS NULL AND messages.role IN ('user', 'assistant')
        AND parts.type = 'text'
    ORDER BY messages.n DESC
"""


def read_overview(
    connection: sqlite3.Connection, session_ids: Collection[SessionId] | None
) -> list[SessionOverview]:
    """Return the sessions without a parent, or those of *session_ids*, with their last run and model."""
    if session_ids is None:
        rows = connection.execute(_OVERVIEW + _ORDER)
    else:
        rows = connection.execute(_OVERVIEW + _CHOSEN + _ORDER, (json_column(list(session_ids)),))
    return [_overview(row) for row in rows]


def _overview(row: tuple[object, ...]) -> SessionOverview:
    *columns, state, model = row
    names = [] if model is None else orjson.loads(str(model))
    return SessionOverview(
        session=session_of(tuple(columns)),
        last_run=None if state is None else read_word(str(state), RunState, "the state of a run"),
        model=ModelName(provider=names[0], model=names[1]) if names else None,
    )


def search(
    connection: sqlite3.Connection, text: str, limit: int, seconds: float
) -> list[FoundText]:
    """Return the newest titles and messages that contain *text*; of messages, those read in *seconds*."""
    titles = ((each, snippet_of(each.title, text)) for each in read_sessions(connection))
    found = [titled(session, snippet) for session, snippet in titles if snippet is not None]
    return newest([*found, *_messages(connection, text, limit, seconds)], limit)


def _messages(
    connection: sqlite3.Connection, text: str, limit: int, seconds: float
) -> list[FoundText]:
    found: dict[str, FoundText] = {}
    deadline = time.monotonic() + seconds
    for session_id, title, message_id, role, at, data in connection.execute(_TEXTS):
        snippet = snippet_of(orjson.loads(data).get("text", ""), text)
        if snippet is not None and message_id not in found:
            found[message_id] = FoundText(
                session_id=session_id,
                title=title,
                message_id=message_id,
                role=Role(role),
                snippet=snippet,
                at=at,
            )
        if len(found) == limit or time.monotonic() > deadline:
            break
    return list(found.values())
