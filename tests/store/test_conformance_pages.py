"""Long lists in pages, in every store: the same bytes as the codec's, and never much of them at once."""

import sqlite3
from contextlib import closing

import orjson
import pytest
import trio
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.errors import MessageNotFound
from crush_trio.store.changes import (
    MessageCreated,
    MessageDeleted,
    MessageFinished,
    SessionEdited,
    TextAppended,
)
from crush_trio.store.errors import StoreCorrupt, StoreTooNew
from crush_trio.store.pages import (
    IDLE_SESSION,
    PAGE_ITEMS,
    PAGE_SIZE,
    FileVersions,
    Hole,
    SessionList,
    SessionMessages,
    UserMessages,
    fill_holes,
)
from crush_trio.store.sqlite.database import DATABASE_NAME
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.codec import encode
from crush_trio.wire.ids import FileId, MessageId, SessionId
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.views import Todo, TodoStatus
from tests.store.stores import END, STOP, M, S, message, session, text
from tests.store.test_conformance_messages import ONE_OF_EACH

pytestmark = pytest.mark.real_clock

ALL = SessionMessages(session_id=S)


async def read(pages, fill=lambda hole: hole.default):
    """Return all pages of a list, filled."""
    found = []
    while pages.more:
        found.append(fill_holes(await pages.read(), fill))
    return found


async def values(pages):
    """Return the items of a list, parsed."""
    return [item for page in await read(pages) for item in orjson.loads(b"[" + page + b"]")]


async def fill(store, *messages):
    for start in range(0, len(messages), 100):
        await store.commit(*messages[start : start + 100])


def said(number, *parts, **more):
    role = Role.ASSISTANT if number % 2 else Role.USER
    return message(f"m{number}", *(parts or (text(f"text {number}"), STOP)), role=role, **more)


# ── Messages ────────────────────────────────────────────────────────────────────────────────────


async def test_a_page_has_the_bytes_of_the_codec(openings):
    whole = Message(
        id=M,
        role=Role.ASSISTANT,
        session_id=S,
        parts=ONE_OF_EACH,
        model='m"1',
        provider="p\n1",
        created_at=100,
        updated_at=101,
        is_summary_message=True,
    )
    async with openings.open() as store:
        await store.commit(session("s"), MessageCreated(message=whole), said(1, STOP))
        [page] = await read(store.pages(ALL))
        assert b"[" + page + b"]" == encode(await store.messages(S))


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, PAGE_ITEMS, PAGE_ITEMS + 65, 1000])
async def test_every_message_is_in_one_page_in_its_order(openings, count):
    async with openings.open() as store:
        await fill(store, session("s"), session("other"), *(said(n) for n in range(count)))
        await fill(store, message("x", text("elsewhere"), STOP, session="other"))
        pages = store.pages(ALL)
        found = await values(pages)
        assert [each["id"] for each in found] == [f"m{n}" for n in range(count)]
        assert not pages.more


async def test_a_session_that_is_not_there_has_no_messages(openings):
    async with openings.open() as store:
        assert await read(store.pages(ALL)) == [b""]


@pytest.mark.parametrize("limit", [None, 1, 3, 100, 10_000])
@pytest.mark.parametrize("before", [None, 0, 1, 150, 199])
async def test_the_newest_before_a_message_come_in_their_order(openings, limit, before):
    name = None if before is None else MessageId(f"m{before}")
    async with openings.open() as store:
        await fill(store, session("s"), *(said(n) for n in range(200)))
        found = await values(store.pages(SessionMessages(session_id=S, limit=limit, before=name)))
        wanted = [f"m{n}" for n in range(200)][:before][-(limit or 200) :]
        assert [each["id"] for each in found] == wanted


@pytest.mark.parametrize("name", ["none", "elsewhere"])
async def test_a_list_cannot_end_before_a_message_that_is_not_of_the_session(openings, name):
    async with openings.open() as store:
        await store.commit(session("s"), session("t"), message("elsewhere", STOP, session="t"))
        with pytest.raises(MessageNotFound):
            await store.pages(SessionMessages(session_id=S, before=MessageId(name))).read()


async def test_a_message_without_an_end_is_a_hole_with_what_is_stored_of_it(openings):
    async with openings.open() as store:
        await store.commit(session("s"), said(0), message("m", text("so ")), said(2))
        await store.commit(TextAppended(message_id=M, index=0, text="far", at=101))
        page = await store.pages(ALL).read()
        [hole] = [piece for piece in page if isinstance(piece, Hole)]
        assert hole == Hole(M, encode((await store.message(M)).message))
        assert b"[" + fill_holes(page, lambda hole: hole.default) + b"]" == encode(
            await store.messages(S)
        )
        parsed = orjson.loads(b"[" + fill_holes(page, lambda _hole: b'"filled"') + b"]")
        assert parsed[1] == "filled"
        await store.commit(MessageFinished(message_id=M, at=102))
        assert not [piece for piece in await store.pages(ALL).read() if isinstance(piece, Hole)]


async def test_what_is_said_while_a_list_is_read_is_not_in_it(openings):
    async with openings.open() as store:
        await fill(store, session("s"), *(said(n) for n in range(700)))
        pages = store.pages(ALL)
        await pages.read()
        await store.commit(said(700))
        found = await values(pages)
        assert found[-1]["id"] == "m699"


async def test_what_is_deleted_while_a_list_is_read_disturbs_nothing(openings):
    async with openings.open() as store:
        await fill(store, session("s"), *(said(n) for n in range(700)))
        pages = store.pages(ALL)
        first = orjson.loads(b"[" + fill_holes(await pages.read(), lambda _: b"") + b"]")
        at = len(first)
        await store.commit(MessageDeleted(id=MessageId(f"m{at}")))
        found = await values(pages)
        rest = [each["id"] for each in found if each["id"] != f"m{at}"]
        assert rest == [f"m{n}" for n in range(at + 1, 700)]


@pytest.mark.item("G15")
async def test_what_people_said_comes_the_newest_first(openings):
    async with openings.open() as store:
        await store.commit(session("s"), session("t"))
        for n in range(600):
            one = message(f"m{n}", STOP, role=Role.USER, session="st"[n % 2], at=100 + n // 4)
            await store.commit(one, said(10_000 + 2 * n + 1, STOP))
        for wanted in (UserMessages(), UserMessages(session_id=S)):
            pages = await read(store.pages(wanted))
            assert len(pages) > 1
            everything = b"[" + b",".join(pages) + b"]"
            assert everything == encode(await store.user_messages(wanted.session_id))


# ── Files and sessions ──────────────────────────────────────────────────────────────────────────


async def test_the_versions_of_files_come_by_path_and_version(openings):
    async with openings.open() as store:
        await store.commit(session("s"), session("t"))
        for n in range(150):
            path = f"/p/{n % 7}"
            await store.add_file(FileId(f"f{n}"), S, path, f'content "{n}"\n\0 é', 100 + n)
            await store.add_file(FileId(f"g{n}"), SessionId("t"), path, "elsewhere", 100 + n)
        pages = await read(store.pages(FileVersions(session_id=S)))
        assert b"[" + b",".join(pages) + b"]" == encode(await store.files(S))


async def test_the_sessions_come_the_most_recently_updated_first_with_a_hole_for_the_present(
    openings,
):
    async with openings.open() as store:
        await fill(store, *(session(f"s{n}", title=f"t{n}", at=100 + n // 3) for n in range(400)))
        await store.commit(session("child", parent="s1"))
        pages = store.pages(SessionList())
        found = b",".join(await read(pages))
        assert orjson.loads(b"[" + found + b"]") == orjson.loads(encode(await store.sessions()))
        page = await store.pages(SessionList()).read()
        holes = [piece for piece in page if isinstance(piece, Hole)]
        assert holes[0] == Hole("s399", IDLE_SESSION)


@pytest.mark.heavy
@given(cost=st.floats(0, 1e12), title=st.text(max_size=20), todo=st.text(max_size=20))
@settings(max_examples=60, deadline=None)
def test_a_session_in_a_list_says_what_it_says_alone(cost, title, todo, tmp_path_factory):
    async def main():
        async with open_sqlite_store(tmp_path_factory.mktemp("store")) as store:
            todos = (Todo(content=todo, status=TodoStatus.COMPLETED),) if todo else ()
            edited = SessionEdited(
                id=S,
                at=5,
                title=title,
                cost=cost,
                todos=todos,
                prompt_tokens=2**60,
                summary_message_id=M,
            )
            await store.commit(session("s"), edited)
            [page] = await read(store.pages(SessionList()))
            assert orjson.loads(page) == orjson.loads(encode(await store.session(S)))

    trio.run(main)


@pytest.mark.heavy
@given(st.lists(st.text(max_size=20), min_size=4, max_size=4))
@settings(max_examples=60, deadline=None)
def test_text_is_written_as_the_codec_writes_it(tmp_path_factory, words):
    model, provider, content, path = words

    async def main():
        async with open_sqlite_store(tmp_path_factory.mktemp("store")) as store:
            told = evolve(said(1, text(content), END).message, model=model, provider=provider)
            await store.commit(session("s"), MessageCreated(message=told))
            await store.add_file(FileId("f"), S, f"/{path}", content, 1)
            assert await read(store.pages(ALL)) == [encode((await store.messages(S))[0])]
            assert await read(store.pages(FileVersions(session_id=S))) == [
                encode((await store.files(S))[0])
            ]

    trio.run(main)


# ── SQLite alone: bounds and damage ─────────────────────────────────────────────────────────────


@pytest.mark.heavy
async def test_a_page_is_bounded_by_its_bytes_and_holds_one_item_at_least(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        large = "x" * PAGE_SIZE
        sizes = [10, PAGE_SIZE // 3, 4 * PAGE_SIZE, 10, PAGE_SIZE // 2, PAGE_SIZE // 2, 10] * 10
        told = [said(n, text(large[:1] * size), STOP) for n, size in enumerate(sizes)]
        await fill(store, session("s"), *told)
        pages = await read(store.pages(ALL))
        assert b"[" + b",".join(pages) + b"]" == encode(await store.messages(S))
        longest = max(len(encode(each.message)) for each in told)
        assert max(map(len, pages)) < PAGE_SIZE + longest + 1000


async def test_what_is_no_content_is_not_read_to_find_the_end_of_a_page(tmp_path):
    """Items that are larger than a page are offered one by one after a while."""
    async with open_sqlite_store(tmp_path) as store:
        await fill(store, session("s"), *(said(n, text("x" * PAGE_SIZE), STOP) for n in range(8)))
        pages = store.pages(ALL)
        await pages.read()
        assert pages._next.items == 2
        assert len(await values(pages)) == 7


def damage(directory, statement):
    with closing(sqlite3.connect(directory / DATABASE_NAME)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("UPDATE parts SET data = '{\"text\":' WHERE message_id = 'm1'", StoreCorrupt),
        ("UPDATE parts SET type = 'hologram' WHERE message_id = 'm1' AND idx = 0", StoreTooNew),
        ("UPDATE messages SET role = 'oracle' WHERE id = 'm1'", StoreTooNew),
    ],
)
async def test_a_message_that_cannot_be_read_is_not_passed_on(tmp_path, statement, error):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"), said(0), said(1), said(2))
        damage(tmp_path, statement)
        with pytest.raises(error):
            await store.pages(ALL).read()
