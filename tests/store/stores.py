"""All stores behind one door, and short names for what tests put into them.

`openings.open()` opens a store; doing it again is the next start of the program on the same data.
"""

from contextlib import asynccontextmanager

from crush_trio.clock import CountingIds, SystemClock
from crush_trio.store.changes import MessageCreated, RunAccepted, SessionCreated
from crush_trio.store.memory.nodes import MemoryDatabase, MemoryNodes
from crush_trio.store.memory.store import MemoryStore
from crush_trio.store.postgres.nodes import open_postgres_nodes
from crush_trio.store.postgres.opening import open_postgres_store
from crush_trio.store.shared import NodeCard
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
from tests.store.postgres.server import connect, new_database, shared_database_url

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


class SharedMemoryOpenings:
    """Starts of a node on the same workspace of a database in memory, each under a lease of its own."""

    def __init__(self, directory):
        self._path = str(directory)
        self._ids, self._starts = CountingIds("boot"), CountingIds("start")
        self._database = MemoryDatabase()

    @asynccontextmanager
    async def open(self):
        node = MemoryNodes(card("a", boot=self._starts.new()), 15.0, self._database, self._ids)
        lease = await node.claim((await node.register(self._path, 100)).number)
        async with node.open(lease) as store:
            yield store
        await node.release(lease, wanted=False)


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


OPENINGS = {
    "memory": MemoryOpenings,
    "shared memory": SharedMemoryOpenings,
    "sqlite": SqliteOpenings,
    "postgres": PostgresOpenings,
}


# ── What nodes share ────────────────────────────────────────────────────────────────────────────


def card(name, *, boot=None, site="here"):
    """Return the card of a start of a node."""
    return NodeCard(
        id=name,
        boot=boot or f"{name}-1",
        address=f"tcp://{name}:1",
        site=site,
        host=f"host of {name}",
        pid=7,
        version="1.2.3",
        started_at=86_400,
    )


class MemoryClusters:
    """Nodes on one database in memory, whose clock stands still."""

    def __init__(self):
        self._now = 1000.0
        self._database = MemoryDatabase(lambda: self._now)

    @asynccontextmanager
    async def node(self, card, ttl):
        yield MemoryNodes(card, ttl, self._database, CountingIds(card.boot))

    def pass_time(self, seconds):
        """Have so many seconds pass for the database."""
        self._now += seconds


class PostgresClusters:
    """Nodes on one PostgreSQL database."""

    def __init__(self):
        self._url = new_database()

    def node(self, card, ttl):
        return open_postgres_nodes(
            self._url, card, ttl=ttl, clock=SystemClock(), ids=CountingIds(card.boot)
        )

    def pass_time(self, seconds):
        """Move everything that expires by so many seconds into the past."""
        with connect(self._url) as connection:
            for table in ("nodes", "leases"):
                connection.execute(
                    f"UPDATE {table} SET expires_at = expires_at - make_interval(secs => %s)",
                    (seconds,),
                )


CLUSTERS = {"memory": MemoryClusters, "postgres": PostgresClusters}


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
