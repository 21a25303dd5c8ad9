"""Versions of files and marks of what was read, in every store."""

import pytest

from crush_trio.errors import SessionNotFound
from crush_trio.store.changes import FileRead, SessionDeleted
from crush_trio.wire.ids import FileId, SessionId
from crush_trio.wire.views import File
from tests.store.stores import S, session

pytestmark = pytest.mark.real_clock

T = SessionId("t")


def read(path, at=100, session="s"):
    return FileRead(session_id=SessionId(session), path=path, at=at)


async def add(store, identity, path="/a", content="x", session="s", at=100):
    return await store.add_file(FileId(identity), SessionId(session), path, content, at)


async def test_a_version_is_returned_and_read_back_as_it_was_stored(openings):
    async with openings.open() as store:
        await store.commit(session("s"))
        added = await add(store, "f", "/a/é", 'con\x00tent "q"\n', at=7)
        assert added == File(
            id=FileId("f"),
            session_id=S,
            path="/a/é",
            content='con\x00tent "q"\n',
            version=0,
            created_at=7,
            updated_at=7,
        )
        assert await store.files(S) == [added]
    async with openings.open() as store:
        assert await store.files(S) == [added]


@pytest.mark.item("J5")
async def test_versions_of_a_path_count_up_over_all_sessions(openings):
    async with openings.open() as store:
        await store.commit(session("s"), session("t"))
        versions = [
            (await add(store, "1", "/a", session="s")).version,
            (await add(store, "2", "/a", session="t")).version,
            (await add(store, "3", "/b", session="t")).version,
            (await add(store, "4", "/a", session="s")).version,
        ]
        assert versions == [0, 1, 0, 2]
        assert [(file.path, file.version) for file in await store.files(S)] == [
            ("/a", 0),
            ("/a", 2),
        ]
        assert [(file.path, file.version) for file in await store.files(T)] == [
            ("/a", 1),
            ("/b", 0),
        ]


async def test_adding_the_same_file_again_returns_what_is_there(openings):
    async with openings.open() as store:
        await store.commit(session("s"))
        first = await add(store, "f", content="first")
        assert await add(store, "f", content="second") == first
        assert await store.files(S) == [first]


async def test_the_latest_version_is_that_of_the_session(openings):
    async with openings.open() as store:
        await store.commit(session("s"), session("t"))
        await add(store, "1", "/a", "old")
        await add(store, "2", "/a", "new")
        await add(store, "3", "/a", "other", session="t")
        await add(store, "4", "/b", "b")
        assert (await store.latest_file(S, "/a")).content == "new"
        assert (await store.latest_file(T, "/a")).content == "other"
        assert await store.latest_file(T, "/b") is None


async def test_a_file_of_an_unknown_session_is_refused(openings):
    async with openings.open() as store:
        with pytest.raises(SessionNotFound, match="s"):
            await add(store, "f")
        with pytest.raises(SessionNotFound, match="s"):
            await store.commit(read("/a"))


async def test_a_session_remembers_when_it_last_read_a_file(openings):
    async with openings.open() as store:
        await store.commit(session("s"), session("t"))
        await store.commit(read("/b", 10), read("/a", 20), read("/a", 5, session="t"))
        assert await store.read_paths(S) == ["/a", "/b"]
        assert await store.last_read(S, "/a") == 20
        assert await store.last_read(T, "/a") == 5
        assert await store.last_read(T, "/b") is None
        await store.commit(read("/b", 30), read("/a", 15))
        assert await store.last_read(S, "/b") == 30
        assert await store.last_read(S, "/a") == 20


@pytest.mark.item("J6")
@pytest.mark.parametrize("path", ["", "a", "./a", "../a", "~/a"])
async def test_a_relative_path_is_refused(openings, path):
    async with openings.open() as store:
        await store.commit(session("s"))
        with pytest.raises(ValueError, match="absolute"):
            await add(store, "f", path)
        with pytest.raises(ValueError, match="absolute"):
            await store.commit(read(path))
        assert await store.files(S) == []
        assert await store.read_paths(S) == []


async def test_a_file_name_that_is_not_unicode_is_kept_as_well_as_it_can_be(openings):
    """The operating system may have any bytes in a name; Python shows them as half characters."""
    async with openings.open() as store:
        await store.commit(session("s"), read("/caf\udce9", 3))
        await add(store, "f", "/caf\udce9", "\udce9")
        assert await store.read_paths(S) == ["/caf\ufffd"]
        assert await store.last_read(S, "/caf\udce9") == 3
        assert (await store.latest_file(S, "/caf\udce9")).content == "\ufffd"


async def test_files_and_marks_go_with_their_session(openings):
    async with openings.open() as store:
        await store.commit(session("s"), session("t"), read("/a"), read("/a", session="t"))
        await add(store, "1")
        await add(store, "2", session="t")
        await store.commit(SessionDeleted(id=S))
        assert (await store.files(S), await store.read_paths(S)) == ([], [])
        assert len(await store.files(T)) == len(await store.read_paths(T)) == 1
        await store.commit(session("s"))
        assert (await add(store, "3")).version == 2
