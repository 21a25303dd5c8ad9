"""A workspace keeps its id over restarts, and is opened again by the first request that names it."""

import shutil
from contextlib import asynccontextmanager

import orjson
import pytest
import trio

from crush_trio.server import UnixAddress, open_server
from crush_trio.server.settings import ServerSettings
from tests.server.raw_client import open_client

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

CLIENT = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"


@pytest.fixture
def project(tmp_path):
    directory = tmp_path / "project"
    directory.mkdir()
    return directory


@asynccontextmanager
async def serving(tmp_path):
    """Run a server whose user's home is *tmp_path*; yield what sends one request to it."""
    settings = ServerSettings.from_environment({"HOME": str(tmp_path)})
    address = UnixAddress(tmp_path / "s.sock")

    async def ask(method, path, body=None):
        async with open_client(address) as client:
            data = b"" if body is None else orjson.dumps(body)
            await client.request(f"/v1/workspaces{path}", method=method, body=data)
            head, data = await client.answer()
            return head.status_code, orjson.loads(data) if data else None

    with trio.fail_after(30):
        async with open_server(address, settings=settings):
            yield ask


async def until_none_is_open(ask):
    while (await ask("GET", ""))[1]:  # noqa: ASYNC110 - what closes has no event for clients
        await trio.sleep(0.01)


async def created(ask, project, client=CLIENT, **more):
    status, view = await ask("POST", "", {"path": str(project), "client_id": client, **more})
    assert status == 200, view
    return view["id"]


async def test_an_id_of_before_a_restart_still_finds_its_workspace(tmp_path, project):
    async with serving(tmp_path) as ask:
        place = await created(ask, project)
        _, session = await ask("POST", f"/{place}/sessions", {"title": "kept"})
    for _ in range(2):  # the first request opens it, so the next restart finds it as well
        async with serving(tmp_path) as ask:
            status, listed = await ask("GET", f"/{place}/sessions")
            assert (status, [each["id"] for each in listed]) == (200, [session["id"]])


async def test_requests_that_come_together_after_a_restart_share_one_opening(tmp_path, project):
    async with serving(tmp_path) as ask:
        place = await created(ask, project)
    async with serving(tmp_path) as ask:
        statuses = []

        async def list_sessions():
            statuses.append((await ask("GET", f"/{place}/sessions"))[0])

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(list_sessions)
        assert statuses == [200] * 20
        _, listed = await ask("GET", "")
        assert [each["id"] for each in listed] == [place]


async def test_a_workspace_that_no_client_wanted_any_more_stays_closed(tmp_path, project):
    async with serving(tmp_path) as ask:
        place = await created(ask, project)
        assert (await ask("DELETE", f"/{place}?client_id={CLIENT}"))[0] == 200
        await until_none_is_open(ask)
    async with serving(tmp_path) as ask:
        assert (await ask("GET", f"/{place}/sessions"))[0] == 404
        assert await created(ask, project) == place


async def test_a_workspace_with_an_environment_is_opened_for_reading_and_stopping_only(
    tmp_path, project
):
    async with serving(tmp_path) as ask:
        place = await created(ask, project, env=["KEY=secret-word"])
        _, session = await ask("POST", f"/{place}/sessions", {"title": "kept"})
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("workspaces/*"))
    assert kept
    assert b"secret-word" not in kept
    async with serving(tmp_path) as ask:
        prompt = {"session_id": session["id"], "prompt": "hello"}
        status, told = await ask("POST", f"/{place}/agent", prompt)
        assert (status, told["code"]) == (404, "workspace_not_found")
        assert (await ask("GET", f"/{place}/sessions"))[0] == 200
        cancel = f"/{place}/agent/sessions/{session['id']}/cancel"
        assert (await ask("POST", cancel))[0] == 200
        await until_none_is_open(ask)  # it was opened for each of these requests alone
        assert await created(ask, project, client=OTHER, env=["KEY=secret-word"]) == place
        assert (await ask("POST", f"/{place}/agent", prompt))[0] == 202
        _, view = await ask("GET", f"/{place}")
        assert view["env"] == ["KEY=secret-word"]


async def test_a_create_that_comes_during_a_visit_gets_the_workspace_as_it_asks(tmp_path, project):
    async with serving(tmp_path) as ask:
        place = await created(ask, project, env=["KEY=word"])
    for _ in range(10):
        async with serving(tmp_path) as ask, trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask, "GET", f"/{place}/sessions")
            await created(ask, project, env=["KEY=word"])
            _, view = await ask("GET", f"/{place}")
            assert view["env"] == ["KEY=word"]


async def test_an_id_is_unknown_when_its_directory_is_gone_or_its_file_is_damaged(
    tmp_path, project
):
    async with serving(tmp_path) as ask:
        place = await created(ask, project)
    [known] = tmp_path.rglob(f"workspaces/{place}.json")
    content = known.read_bytes()
    for damaged in (b"", b"{", b"[]", b'{"path": 3}', b"\xff\xfe"):
        known.write_bytes(damaged)
        async with serving(tmp_path) as ask:
            assert (await ask("GET", f"/{place}/sessions"))[0] == 404
    known.write_bytes(content)
    shutil.rmtree(project)
    async with serving(tmp_path) as ask:
        assert (await ask("GET", f"/{place}/sessions"))[0] == 404


async def test_a_register_that_cannot_be_written_does_not_keep_a_workspace_closed(
    tmp_path, project
):
    data = tmp_path / ".local" / "share" / "crush"
    data.mkdir(parents=True)
    (data / "workspaces").write_text("a file where the directory would be")
    async with serving(tmp_path) as ask:
        place = await created(ask, project)
        assert (await ask("GET", f"/{place}/sessions"))[0] == 200
