"""The Go program's database: read without a trace, imported as a whole, imported once."""

import json
import sqlite3
from contextlib import closing

import pytest

from crush_trio.store.base import Totals
from crush_trio.store.changes import MessageDeleted, SessionEdited
from crush_trio.store.errors import DiskFailed
from crush_trio.store.go_import import (
    GoDatabase,
    ImportReport,
    NotCrushDatabase,
    import_go_database,
)
from crush_trio.wire.ids import FileId, MessageId, SessionId, ToolCallId
from crush_trio.wire.messages import (
    BinaryPart,
    FinishPart,
    FinishReason,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.views import Session, Todo, TodoStatus
from tests.store.stores import STOP, S, ids

pytestmark = pytest.mark.real_clock

SCHEMA = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, parent_session_id TEXT, title TEXT NOT NULL,
    message_count INTEGER NOT NULL DEFAULT 0 CHECK (message_count >= 0),
    prompt_tokens INTEGER NOT NULL DEFAULT 0 CHECK (prompt_tokens >= 0),
    completion_tokens INTEGER NOT NULL DEFAULT 0 CHECK (completion_tokens >= 0),
    cost REAL NOT NULL DEFAULT 0.0 CHECK (cost >= 0.0),
    updated_at INTEGER NOT NULL, created_at INTEGER NOT NULL,
    summary_message_id TEXT, todos TEXT
);
CREATE TABLE messages (
    id TEXT PRIMARY KEY, session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    role TEXT NOT NULL, parts TEXT NOT NULL DEFAULT '[]', model TEXT,
    created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, finished_at INTEGER,
    provider TEXT, is_summary_message INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE files (
    id TEXT PRIMARY KEY, session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    path TEXT NOT NULL, content TEXT NOT NULL, version INTEGER NOT NULL,
    created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, UNIQUE (path, session_id, version)
);
CREATE TABLE read_files (
    session_id TEXT NOT NULL CHECK (session_id != '') REFERENCES sessions (id) ON DELETE CASCADE,
    path TEXT NOT NULL CHECK (path != ''), read_at INTEGER NOT NULL, PRIMARY KEY (path, session_id)
);
CREATE TRIGGER counted AFTER INSERT ON messages BEGIN
    UPDATE sessions SET message_count = message_count + 1 WHERE id = NEW.session_id;
END;
"""

ANSWER = [
    {
        "type": "reasoning",
        "data": {
            "thinking": "hm",
            "signature": "sig",
            "thought_signature": "kept for a provider",
            "tool_id": "t",
            "responses_data": {"a": [1]},
            "started_at": 11,
            "finished_at": 12,
        },
    },
    {"type": "text", "data": {"text": "Done."}},
    {
        "type": "tool_call",
        "data": {
            "id": "c",
            "name": "bash",
            "input": "{}",
            "provider_executed": False,
            "finished": True,
        },
    },
    {"type": "hologram", "data": {"depth": 3}},
    {"type": "finish", "data": {"reason": "canceled", "time": 13, "message": "why"}},
]


@pytest.fixture
def path(tmp_path):
    directory = tmp_path / "project" / ".crush"
    directory.mkdir(parents=True)
    return directory / "crush.db"


@pytest.fixture
def root(path):
    return path.parent.parent


@pytest.fixture
def go(path):
    """The Go program, with its database open."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(SCHEMA)
        yield connection


def insert(connection, table, **columns):
    names, marks = ", ".join(columns), ", ".join("?" for _ in columns)
    statement = f"INSERT INTO {table} ({names}) VALUES ({marks})"
    connection.execute(statement, tuple(columns.values()))


def add_session(connection, identity="s", **columns):
    insert(
        connection,
        "sessions",
        **{"id": identity, "title": "A title", "created_at": 10, "updated_at": 20} | columns,
    )


def add_message(connection, identity, parts, *, role="assistant", session="s", at=10, **columns):
    insert(
        connection,
        "messages",
        id=identity,
        session_id=session,
        role=role,
        parts=parts if isinstance(parts, str) else json.dumps(parts),
        created_at=at,
        updated_at=at + 1,
        **columns,
    )


def add_file(connection, identity, version, *, session="s", path="/a", content="x"):
    connection.execute(
        "INSERT INTO files VALUES (?, ?, ?, ?, ?, 15, 16)",
        (identity, session, path, content, version),
    )


def said(text):
    return [{"type": "text", "data": {"text": text}}]


async def import_all(openings, path, root):
    """Import into a store, and return the report and what the store then says."""
    async with openings.open() as store:
        report = await import_go_database(path, store, root=root)
        messages = {each.id: await store.messages(each.id) for each in await store.sessions()}
        return report, messages


async def test_a_session_comes_over_with_everything_we_have_a_place_for(openings, go, path, root):
    add_session(
        go,
        prompt_tokens=100,
        completion_tokens=50,
        cost=0.25,
        summary_message_id="a",
        todos='[{"content":"look","status":"in_progress","active_form":"Looking"}]',
    )
    file = {"Path": "a.png", "MIMEType": "image/png", "Data": "AAEC"}
    user = [
        *said("hello"),
        {"type": "binary", "data": file},
        {"type": "finish", "data": {"reason": "stop", "time": 0}},
    ]
    add_message(go, "u", user, role="user")
    add_message(go, "a", ANSWER, model="m1", provider="p1", is_summary_message=1, finished_at=13)
    result = {
        "tool_call_id": "c",
        "name": "bash",
        "content": "ok",
        "metadata": "{}",
        "is_error": True,
    }
    add_message(go, "t", [{"type": "tool_result", "data": result}], role="tool")
    async with openings.open() as store:
        report = await import_go_database(path, store, root=root)
        assert report == ImportReport(
            sessions=1, messages=3, left_out={"part of type 'hologram'": 1}
        )
        assert await store.session(S) == Session(
            id=S,
            title="A title",
            message_count=3,
            prompt_tokens=100,
            completion_tokens=50,
            cost=0.25,
            summary_message_id=MessageId("a"),
            todos=(Todo(content="look", status=TodoStatus.IN_PROGRESS, active_form="Looking"),),
            created_at=10,
            updated_at=20,
        )
        assert await store.totals(S) == Totals()
        user, answer, tool = await store.messages(S)
        assert user.parts == (
            TextPart(text="hello"),
            BinaryPart(path="a.png", mime_type="image/png", data=b"\x00\x01\x02"),
            STOP,
        )
        assert answer.parts == (
            ReasoningPart(thinking="hm", signature="sig", started_at=11, finished_at=12),
            TextPart(text="Done."),
            ToolCallPart(id=ToolCallId("c"), name="bash", input="{}", finished=True),
            FinishPart(reason=FinishReason.CANCELLED, time=13, message="why"),
        )
        assert (answer.role, answer.model, answer.provider) == (Role.ASSISTANT, "m1", "p1")
        assert (answer.created_at, answer.updated_at, answer.is_summary_message) == (10, 11, True)
        assert tool.parts == (
            ToolResultPart(
                tool_call_id=ToolCallId("c"),
                name="bash",
                content="ok",
                metadata="{}",
                is_error=True,
            ),
            STOP,
        )
        assert await store.unfinished_messages(S) == []


@pytest.mark.item("J8")
async def test_messages_of_one_second_come_as_they_were_inserted(openings, go, path, root):
    add_session(go)
    for name, at in (("c", 10), ("a", 12), ("d", 11), ("b", 10)):
        add_message(go, name, [], at=at)
    _, messages = await import_all(openings, path, root)
    assert ids(messages["s"]) == ["c", "b", "d", "a"]


async def test_an_answer_that_was_never_finished_is_finished(openings, go, path, root):
    add_session(go)
    add_message(go, "a", said("so far"), at=10)
    add_message(go, "u", said("hello"), role="user")
    _, messages = await import_all(openings, path, root)
    answer, user = messages["s"]
    assert answer.parts == (
        TextPart(text="so far"),
        FinishPart(reason=FinishReason.ERROR, time=11, message="interrupted"),
    )
    assert user.parts == (TextPart(text="hello"), STOP)


async def test_sub_agents_stay_below_their_parents(openings, go, path, root):
    add_session(go, "s$$c", parent_session_id="s")
    add_session(go, "s")
    async with openings.open() as store:
        await import_go_database(path, store, root=root)
        assert ids(await store.sessions()) == ["s"]
        assert (await store.session(SessionId("s$$c"))).parent_session_id == "s"


async def test_what_cannot_be_read_is_left_out_and_counted(openings, go, path, root):
    add_session(go, todos="[1]")
    add_message(go, "a", "not json")
    add_message(go, "b", [{"type": "text", "data": {"text": 5}}, *said("fine"), 7])
    add_message(go, "c", [{"type": "hologram"}, {"type": "hologram"}, {"data": {}}])
    add_message(go, "d", [], role="judge")
    report, messages = await import_all(openings, path, root)
    assert ids(messages["s"]) == ["a", "b", "c"]
    assert messages["s"][1].parts[0] == TextPart(text="fine")
    assert report.messages == 3
    assert report.left_out == {
        "unreadable list of todos": 1,
        "unreadable list of parts": 1,
        "unreadable part of type 'text'": 1,
        "part of type None": 2,
        "part of type 'hologram'": 2,
        "message of role 'judge'": 1,
    }


@pytest.mark.item("J5", "J6")
async def test_files_keep_their_versions_and_get_absolute_paths(openings, go, path, root):
    add_session(go, "s")
    add_session(go, "t")
    add_file(go, "3", 2, session="s", content="third")
    add_file(go, "2", 1, session="t", content="second")
    add_file(go, "1", 0, session="s", content="first")
    add_file(go, "4", 0, session="t", path="src/../b")
    add_file(go, "5", 0, session="gone")
    insert(go, "read_files", session_id="s", path="src/c", read_at=30)
    insert(go, "read_files", session_id="s", path="/d", read_at=31)
    async with openings.open() as store:
        report = await import_go_database(path, store, root=root)
        assert report.files == 4
        assert [(file.id, file.version) for file in await store.files(S)] == [("1", 0), ("3", 2)]
        mine = await store.latest_file(SessionId("t"), f"{root}/b")
        assert (mine.id, mine.created_at) == ("4", 15)
        assert await store.read_paths(S) == sorted(["/d", f"{root}/src/c"])
        assert await store.last_read(S, f"{root}/src/c") == 30


async def test_a_second_import_changes_nothing(openings, go, path, root):
    add_session(go, "s", cost=1.0)
    add_message(go, "m", said("a"))
    add_message(go, "n", said("b"))
    add_file(go, "f", 0)
    async with openings.open() as store:
        await import_go_database(path, store, root=root)
        await store.commit(
            SessionEdited(id=S, at=99, title="renamed", cost=2.0),
            MessageDeleted(id=MessageId("m")),
        )
        before = await store.session(S), await store.messages(S), await store.files(S)
        report = await import_go_database(path, store, root=root)
        assert (report.sessions, report.known, report.messages) == (0, 1, 0)
        assert (report.files, report.behind) == (0, 1), "nothing is told that was not done"
        after = await store.session(S), await store.messages(S), await store.files(S)
        assert after == before


async def test_an_import_that_was_interrupted_goes_on_where_it_stopped(openings, go, path, root):
    add_session(go, "s")
    add_session(go, "t")
    add_file(go, "f", 0)
    add_file(go, "g", 1)
    async with openings.open() as store:
        with closing(GoDatabase.open(path, root)) as database:
            await store.commit(*database.changes(S))
            file = database.file(FileId("f"))
        await store.add_file(file.id, file.session_id, file.path, file.content, file.created_at)
        report = await import_go_database(path, store, root=root)
        assert (report.sessions, report.known) == (1, 1)
        assert [(file.id, file.version) for file in await store.files(S)] == [("f", 0), ("g", 1)]


async def test_a_database_from_before_some_columns_and_tables_can_be_imported(
    openings, go, path, root
):
    go.execute("DROP TABLE read_files")
    go.execute("ALTER TABLE sessions DROP COLUMN todos")
    go.execute("ALTER TABLE sessions DROP COLUMN summary_message_id")
    go.execute("ALTER TABLE messages DROP COLUMN provider")
    go.execute("ALTER TABLE messages DROP COLUMN is_summary_message")
    add_session(go)
    add_message(go, "m", said("a"))
    report, messages = await import_all(openings, path, root)
    assert report == ImportReport(sessions=1, messages=1)
    assert messages["s"][0].provider == ""


async def test_text_that_is_not_unicode_is_imported_as_well_as_it_can_be(openings, go, path, root):
    add_session(go)
    go.execute("UPDATE sessions SET title = CAST(X'636166E9' AS TEXT)")
    async with openings.open() as store:
        await import_go_database(path, store, root=root)
        assert (await store.session(S)).title == "caf\ufffd"


# ── The file itself ─────────────────────────────────────────────────────────────────────────────


def snapshot(directory):
    return {file.name: file.read_bytes() for file in directory.iterdir()}


async def test_a_database_that_is_not_in_use_is_read_without_a_trace(openings, go, path, root):
    add_session(go)
    go.close()
    before = snapshot(path.parent)
    assert list(before) == ["crush.db"]
    report, _ = await import_all(openings, path, root)
    assert report.sessions == 1
    assert snapshot(path.parent) == before


async def test_a_database_that_is_in_use_is_read_with_its_log(openings, go, path, root):
    go.execute("PRAGMA wal_checkpoint")
    add_session(go)  # in the log only
    before = snapshot(path.parent)
    assert before["crush.db-wal"]
    report, _ = await import_all(openings, path, root)
    assert report.sessions == 1
    after = snapshot(path.parent)
    for name in ("crush.db", "crush.db-wal"):
        assert after[name] == before[name]
    assert after.keys() == before.keys()
    add_session(go, "t")  # and its owner can go on


@pytest.mark.parametrize(
    ("content", "error"),
    [(None, DiskFailed), (b"not a database" * 100, NotCrushDatabase), (b"", NotCrushDatabase)],
)
def test_a_file_that_cannot_be_imported_is_refused(path, root, content, error):
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=str(path)):
        GoDatabase.open(path, root)
    assert len(snapshot(path.parent)) == (content is not None)
