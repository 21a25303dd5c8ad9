"""All stores behind one door, and short names for what tests put into them.

`openings.open()` opens a store; doing it again is the next start of the program on the same data.
"""

from contextlib import asynccontextmanager

from crush_trio.clock import CountingIds
from crush_trio.store.changes import MessageCreated, RunAccepted, SessionCreated
from crush_trio.store.memory.store import MemoryStore
from crush_trio.store.postgres.opening import open_postgres_store
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import (
    FinishPart,
    FinishReason,
    Message,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
)
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import Session
from tests.store.postgres.server import shared_database_url

S = SessionId("s")
M = MessageId("m")
STOP = FinishPart(reason=FinishReason.STOP, time=0)
END = FinishPart(reason=FinishReason.END_TURN, time=9)


class MemoryOpenings:
    """Starts on the same memory; each finds what the one before had applied."""

    def __init__(self, _directory):
        self._ids = CountingIds("boot")
        self._last = None

    @asynccontextmanager
    async def open(self):
        boot_id = self._ids.new()
        self._last = MemoryStore(boot_id) if self._last is None else self._last.reopened(boot_id)
        yield self._last


class SqliteOpenings:
    """Starts on the same directory."""

    def __init__(self, directory):
        self._directory = directory
        self._ids = CountingIds("boot")

    def open(self):
        return open_sqlite_store(self._directory, ids=self._ids)


class PostgresOpenings:
    """Starts on the same workspace of a database that all tests share."""

    def __init__(self, directory):
        self._directory = directory
        self._ids = CountingIds("boot")

    def open(self):
        return open_postgres_store(
            shared_database_url(), self._directory, site="test", ids=self._ids
        )


OPENINGS = {"memory": MemoryOpenings, "sqlite": SqliteOpenings, "postgres": PostgresOpenings}


def session(identity="s", *, parent="", title="", at=100):
    return SessionCreated(
        session=Session(
            id=SessionId(identity),
            parent_session_id=SessionId(parent),
            title=title,
            created_at=at,
            updated_at=at,
        )
    )


def message(
    identity="m", *parts, session="s", role=Role.ASSISTANT, at=100, run_id=None, if_there=False
):
    return MessageCreated(
        message=Message(
            id=MessageId(identity),
            role=role,
            session_id=SessionId(session),
            parts=parts,
            created_at=at,
            updated_at=at,
        ),
        run_id=None if run_id is None else RunId(run_id),
        if_there=if_there,
    )


def run(identity="r", *, run_id=None, session="s", seq=1, at=100, prompt="hello", attachments=()):
    return RunAccepted(
        run=RunView(
            id=RunId(identity),
            run_id=None if run_id is None else RunId(run_id),
            session_id=SessionId(session),
            state=RunState.ACCEPTED,
            seq=seq,
            accepted_at=at,
        ),
        prompt=prompt,
        attachments=attachments,
    )


def text(content=""):
    return TextPart(text=content)


def thought(content="", signature=""):
    return ReasoningPart(thinking=content, signature=signature)


def call(identity="c", **fields):
    return ToolCallPart(id=ToolCallId(identity), name="bash", **fields)


def ids(things):
    return [thing.id for thing in things]
