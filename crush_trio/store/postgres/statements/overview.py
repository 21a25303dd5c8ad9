"""Statements over many sessions: the overview of a roster, and the search for text."""

import time
from collections.abc import Collection
from typing import Final

import orjson

from crush_trio.store.columns import Row, read_word
from crush_trio.store.overview import FoundText, SessionOverview, newest, snippet_of, titled
from crush_trio.store.postgres.statements.sessions import COLUMNS, read_sessions, session_of
from crush_trio.store.postgres.transaction import Transaction
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import Role
from crush_trio.wire.runs import RunState
from crush_trio.wire.views import ModelName

_OWN_COLUMNS: Final = ", ".join(f"sessions.{name}" for name in COLUMNS.split(", "))

_OVERVIEW: Final = f"""
    SELECT {_OWN_COLUMNS}, last_run.state, last_answer.provider, last_answer.model
    FROM sessions
    LEFT JOIN LATERAL (
        SELECT state FROM runs
        WHERE runs.workspace = %(w)s AND runs.session_id = sessions.id AND state <> 'folded'
        ORDER BY accepted_at DESC, seq DESC, n DESC LIMIT 1
    ) AS last_run ON true
    LEFT JOIN LATERAL (
        SELECT provider, model FROM messages
        WHERE messages.workspace = %(w)s AND messages.session_id = sessions.id
        AND role = 'assistant' AND model <> ''
        ORDER BY seq DESC LIMIT 1
    ) AS last_answer ON true
    WHERE sessions.workspace = %(w)s AND parent_session_id IS NULL
"""
_CHOSEN: Final = " AND sessions.id = ANY(%(ids)s)"
_ORDER: Final = " ORDER BY updated_at DESC, n DESC"

_TEXTS: Final = """
    SELECT sessions.id, sessions.title, messages.id, messages.role, messages.created_at, parts.data
    FROM messages
    JOIN sessions ON sessions.workspace = messages.workspace AND sessions.id = session_id
    JOIN parts ON parts.workspace = messages.workspace AND parts.message_id = messages.id
    WHERE messages.workspace = %(w)s AND sessions.parent_session_id IS NULL
    AND messages.role IN ('user', 'assistant') AND parts.type = 'text'
    ORDER BY messages.n DESC, parts.idx
"""


def read_overview(
    transaction: Transaction, session_ids: Collection[SessionId] | None
) -> list[SessionOverview]:
    """Return the sessions without a parent, or those of *session_ids*, with their last run and model."""
    if session_ids is None:
        rows = transaction.run(_OVERVIEW + _ORDER)
    else:
        rows = transaction.run(_OVERVIEW + _CHOSEN + _ORDER, ids=list(session_ids))
    return [_overview(row) for row in rows]


def _overview(row: Row) -> SessionOverview:
    *columns, state, provider, model = row
    return SessionOverview(
        session=session_of(columns),
        last_run=None if state is None else read_word(state, RunState, "the state of a run"),
        model=None if model is None else ModelName(provider=provider, model=model),
    )


def search(transaction: Transaction, text: str, limit: int, seconds: float) -> list[FoundText]:
    """Return the newest titles and messages that contain *text*; of messages, those read in *seconds*."""
    titles = ((each, snippet_of(each.title, text)) for each in read_sessions(transaction))
    found = [titled(session, snippet) for session, snippet in titles if snippet is not None]
    return newest([*found, *_messages(transaction, text, limit, seconds)], limit)


def _messages(transaction: Transaction, text: str, limit: int, seconds: float) -> list[FoundText]:
    found: dict[str, FoundText] = {}
    deadline = time.monotonic() + seconds
    for session_id, title, message_id, role, at, data in transaction.stream(_TEXTS):
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
