"""Sessions with a long history, written directly into the store before the server opens it.

Ten thousand messages cannot be made by runs within a minute. They are written as the server would
have stored them, into the data directory of its workspace.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from crush_trio.store.changes import Change, MessageCreated, SessionCreated
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart
from crush_trio.wire.views import Session

HISTORIES: Final = (1_000, 10_000)
DATA: Final = ".crush"
"""The default data directory of a workspace."""

_AT: Final = 1_767_225_600
_TEXT: Final = "What was said before, in a sentence or two, neither short nor long. "
_BATCH: Final = 500


async def seed(workspace: Path, count: int) -> str:
    """Store a session with *count* messages, alternating questions and answers; return its id."""
    session = SessionId(f"history-{count}")
    changes = [*_changes(session, count)]
    async with open_sqlite_store(workspace / DATA) as store:
        for start in range(0, len(changes), _BATCH):
            await store.commit(*changes[start : start + _BATCH])
    return session


def _changes(session: SessionId, count: int) -> Iterator[Change]:
    yield SessionCreated(
        session=Session(id=session, title="History", created_at=_AT, updated_at=_AT)
    )
    for number in range(count):
        answer = bool(number % 2)
        reason = FinishReason.END_TURN if answer else FinishReason.STOP
        yield MessageCreated(
            message=Message(
                id=MessageId(f"{session}-{number}"),
                role=Role.ASSISTANT if answer else Role.USER,
                session_id=session,
                parts=(TextPart(text=_TEXT), FinishPart(reason=reason, time=_AT)),
                created_at=_AT,
                updated_at=_AT,
            )
        )
