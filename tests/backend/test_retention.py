"""Retention: which sessions a workspace that is open deletes, when, and which it never does."""

import logging

import trio
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from crush_trio.backend.retention import FIRST_PAUSE, PERIOD, prune_store, prune_workspace
from crush_trio.config.files import RetentionConfig
from crush_trio.store.changes import SessionCreated
from crush_trio.store.errors import StoreFailed
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause, Say
from crush_trio.wire.ids import SessionId
from crush_trio.wire.views import DAY, Session

A = client_id(1)
OLD = 1_000


def aged(name, at):
    return SessionCreated(
        session=Session(id=SessionId(name), title=name, created_at=at, updated_at=at)
    )


def keep(hosted, days):
    """Have the configuration of *hosted* keep sessions for so many days."""
    hosted.config = Keeping(hosted.config, days)


class Keeping:
    """A configuration that also says how long sessions are kept."""

    def __init__(self, config, days):
        self._config, self._days = config, days

    @property
    def current(self):
        return evolve(self._config.current, retention=RetentionConfig(sessions=self._days))


async def hosted_in(server):
    await server.create(A)
    [hosted] = server.backend.workspaces()
    return hosted


def left(sessions):
    return {session.id for session in sessions}


async def test_by_default_everything_is_kept():
    async with open_test_server() as server:
        hosted = await hosted_in(server)
        await hosted.store.commit(aged("old", OLD))
        assert await prune_workspace(hosted) == 0
        assert left(await hosted.store.sessions()) == {"old"}


async def test_what_was_not_used_for_longer_goes_and_readers_are_told(caplog):
    caplog.set_level(logging.INFO)
    async with open_test_server() as server:
        hosted = await hosted_in(server)
        now = hosted.clock.unix()
        await hosted.store.commit(aged("old", now - 8 * DAY), aged("new", now - 6 * DAY))
        keep(hosted, 7)
        place = await server.create(A)
        with await place.watch(A) as events:
            assert await prune_workspace(hosted) == 1
            told = await events.until(lambda event: event["type"] == "session")
        assert (told["payload"]["type"], told["payload"]["payload"]["id"]) == ("deleted", "old")
        assert left(await hosted.store.sessions()) == {"new"}
    [line] = [each for each in caplog.records if each.msg == "retention.applied"]
    assert (line.sessions, line.days) == (1, 7)


async def test_a_session_with_a_run_is_never_deleted_however_old_it_is():
    gate = Gate()
    async with open_test_server(WrittenTurns({"long": [Pause(gate), Say("done")]})) as server:
        hosted = await hosted_in(server)
        place = await server.create(A)
        keep(hosted, 1)
        session = await place.create_session()
        await place.submit(session, "long", "r1")
        await wait_all_tasks_blocked()
        stored = await hosted.store.session(session)
        far = hosted.clock.unix() + 100 * DAY
        assert not await hosted.prune_session(stored, far)
        assert left(await hosted.store.sessions()) == {session}
        gate.open()
        await wait_all_tasks_blocked()
        assert await hosted.prune_session(stored, far)
        assert await hosted.store.sessions() == []


async def test_a_workspace_prunes_itself_soon_and_then_every_hour():
    async with open_test_server() as server:
        hosted = await hosted_in(server)
        place = await server.create(A)
        with await place.watch(A):
            keep(hosted, 7)
            await hosted.store.commit(aged("first", OLD))
            await trio.sleep(FIRST_PAUSE + 1)
            assert await hosted.store.sessions() == []
            await hosted.store.commit(aged("second", OLD))
            await trio.sleep(PERIOD / 2)
            assert left(await hosted.store.sessions()) == {"second"}
            await trio.sleep(PERIOD / 2 + 1)
            assert await hosted.store.sessions() == []


async def test_a_store_that_fails_is_asked_again_an_hour_later(caplog, monkeypatch):
    async with open_test_server() as server:
        hosted = await hosted_in(server)
        place = await server.create(A)
        with await place.watch(A):
            keep(hosted, 7)
            await hosted.store.commit(aged("old", OLD))

            async def fail():
                await trio.lowlevel.checkpoint()
                raise StoreFailed("broken")

            with monkeypatch.context() as patch:
                patch.setattr(hosted.store, "sessions", fail)
                await trio.sleep(FIRST_PAUSE + 1)
            assert [each.msg for each in caplog.records] == ["retention.failed"]
            await trio.sleep(PERIOD + 1)
            assert await hosted.store.sessions() == []


async def test_a_directory_that_no_server_has_open_is_pruned_in_the_same_way():
    store = MemoryStore()
    await store.commit(aged("old", OLD), aged("new", OLD + 10))
    assert left(await prune_store(store, OLD + 5)) == {"old"}
    assert left(await store.sessions()) == {"new"}
