"""A data directory that is removed under a live server, as clients meet it."""

import shutil
from contextlib import asynccontextmanager

import pytest
import trio

from crush_trio.backend.settings import BackendSettings, WorkspaceSettings
from crush_trio.client import ApiError, open_client
from crush_trio.errors import AcceptanceNotStored
from crush_trio.runtime import Completion
from crush_trio.server.settings import ServerSettings
from crush_trio.testing.server.server import WrittenTurns
from tests.server.test_run import running

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

GONE = "was removed, moved or replaced"


@pytest.fixture
def project(tmp_path):
    found = tmp_path / "project"
    found.mkdir()
    return found


@asynccontextmanager
async def open_served(folder, turns):
    """Serve workspaces that close as soon as their last client leaves."""
    workspaces = WorkspaceSettings(make_turn=turns)
    settings = ServerSettings(backend=BackendSettings(detach_grace=0))
    async with running(folder, workspaces=workspaces, settings=settings) as server:
        yield server


@asynccontextmanager
async def joined(server, project, **more):
    """Be one more client of the workspace for the length of the block."""
    async with (
        open_client(server.address) as client,
        client.open_workspace(project, **more) as workspace,
    ):
        yield workspace


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_prompt_is_refused_once_the_data_directory_is_gone(
    tmp_path, project, caplog, elsewhere
):
    data = tmp_path / "data" if elsewhere else project / ".crush"
    more = {"data_dir": str(data)} if elsewhere else {}
    async with open_served(tmp_path, WrittenTurns()) as server:
        async with joined(server, project, **more) as workspace:
            assert workspace.created.data_dir == str(data)
            assert (workspace.created.degraded, workspace.created.warnings) == ("", ())
            session = (await workspace.sessions.create("kept")).id
            await (await workspace.submit("hi", session=session)).wait()

            shutil.rmtree(data)
            for _ in range(3):
                with pytest.raises(AcceptanceNotStored, match=GONE):
                    await workspace.submit("hi", session=session)
            with pytest.raises(ApiError, match=GONE) as refused:
                await workspace.sessions.create("new")
            assert (refused.value.code, refused.value.status) == ("data_directory_lost", 503)

            # What is there can still be read, and nothing is made anew.
            assert (await workspace.sessions.get(session)).title == "kept"
            assert len(await workspace.sessions.messages(session)) == 2
            assert "open it again" in (await workspace.show()).degraded
            assert caplog.messages.count("store.degraded") == 1
            assert not data.exists()
            async with joined(server, project) as late:  # one who joins meets it as it is
                assert late.created.degraded
                assert not late.created.warnings

        async with joined(server, project, **more) as workspace:
            [warning] = workspace.created.warnings
            assert warning.code == "data_directory_lost"
            assert str(data) in warning.message
            assert not workspace.created.degraded
            assert await workspace.sessions.list() == ()
            session = (await workspace.sessions.create("new")).id
            assert (await (await workspace.submit("hi", session=session)).wait()).text == "done"
    assert "workspace.failed" not in caplog.messages


async def test_a_server_whose_run_cannot_store_its_ending_stops_in_time(tmp_path, project):
    go = trio.Event()

    async def turn(_run):
        await go.wait()
        return Completion(text="done")

    async with open_served(tmp_path, lambda _transcript: turn) as server:
        async with joined(server, project) as workspace:
            session = (await workspace.sessions.create("kept")).id
            await workspace.submit("hi", session=session)
            shutil.rmtree(project / ".crush")
            go.set()
        server.stop.set()
        with trio.fail_after(20):
            await server.stopped.wait()
    assert not (project / ".crush").exists()
