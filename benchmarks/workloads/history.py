"""Sessions with a past, put straight into the store before the server opens it.

Ten thousand messages cannot be said one run at a time within a minute. They are written as the server
would have stored them, in the data directory where it will look for them.
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
"""The data directory of a workspace that is told nothing else."""

_AT: Final = 1_767_225_600
_TEXT: Final = "What was said before, in a sentence or two, neither short nor long. "
_BATCH: Final = 500


async def seed(workspace: Path, count: int) -> str:
    """Store a session with *count* messages, questions and answers by turns; return its id."""
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
