"""What only the in-memory store promises: no threads, one checkpoint, crashes at will."""

import inspect
from functools import partial

import pytest
import trio

from crush_trio.store.base import Store
from crush_trio.store.changes import BootClosed, SessionEdited, TextAppended
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.explore.checkpoints import checkpoints_of
from crush_trio.wire.ids import FileId, RunId, SessionId
from tests.store.stores import M, S, ids, message, run, session, text

CALLS = {
    "commit": (session("t"), session("u")),
    "session": (S,),
    "sessions": (),
    "totals": (S,),
    "usage": (0,),
    "message": (M,),
    "messages": (S,),
    "conversation": (S,),
    "user_messages": (),
    "unfinished_messages": (S,),
    "run_messages": ((RunId("r"),),),
    "run": (RunId("r"),),
    "runs": (),
    "orphans": (),
    "stored_runs": ((RunId("r"),),),
    "recording": (RunId("r"),),
    "add_file": (FileId("f"), S, "/a", "x", 1),
    "files": (S,),
    "latest_file": (S, "/a"),
    "read_paths": (S,),
    "last_read": (S, "/a"),
    "pending_asks": (),
    "tail_after": ("boot", 0),
    "endings_after": ("boot", 0),
    "check": (),
    "measure": (),
}
KEYWORDS = {"endings_after": {"upto": 1}}
DERIVED = {"overview", "search"}
"""Reads that the memory store makes of several of the calls above."""


def test_the_calls_below_are_those_of_the_seam():
    seam = {
        name
        for protocol in Store.__mro__
        for name, what in vars(protocol).items()
        if inspect.iscoroutinefunction(what)
    }
    assert seam == CALLS.keys() | DERIVED


@pytest.mark.parametrize("name", CALLS)
async def test_every_async_method_has_exactly_one_checkpoint(name):
    store = MemoryStore()
    await store.commit(session("s"), message("m", text()), run("r"))
    call = partial(getattr(store, name), *CALLS[name], **KEYWORDS.get(name, {}))
    assert await checkpoints_of(call) == 1


async def test_changes_take_effect_before_the_wait():
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.commit, session("s", title="a"))
        nursery.start_soon(store.commit, session("s", title="b"))
        store.post(session("s", title="c"))
    assert (await store.session(S)).title == "c"


async def test_a_store_that_is_killed_is_reopened_with_what_it_had_applied():
    store = MemoryStore("one")
    await store.commit(session("s"), message("m", text("a")), run("r"))
    again = store.reopened("two")
    store.post(session("t"), TextAppended(message_id=M, index=0, text="b", at=100))
    assert again.boot_id == "two"
    assert ids(await again.sessions()) == ["s"]
    assert (await again.message(M)).message.parts == (text("a"),)
    assert [orphan.run_id for orphan in await again.orphans()] == ["r"]
    again.post(SessionEdited(id=S, at=100, title="after"))
    await again.add_file(FileId("f"), S, "/a", "x", 100)
    assert (await store.session(S)).title == ""
    assert await store.files(S) == []


async def test_two_starts_after_the_same_end_know_nothing_of_each_other():
    store = MemoryStore("one")
    await store.commit(BootClosed(at=100))
    for name in ("two", "three"):
        assert await store.reopened(name).tail_after("one", 0) == []


async def test_any_moment_can_be_reopened_any_number_of_times():
    store = MemoryStore("one")
    moments = []
    for n in range(3):
        await store.commit(session(f"s{n}", at=n))
        moments.append(store.reopened(f"two-{n}"))
    for n, moment in enumerate(moments, 1):
        assert len(await moment.sessions()) == n
        assert await moment.tail_after("one", 0) is None
        await moment.commit(session("x"))
    assert SessionId("x") not in ids(await store.sessions())
