"""A server in a nursery: what makes it end, and that its end is bounded whatever a run does."""

import gc
from contextlib import asynccontextmanager
from functools import partial

import orjson
import pytest
import trio
from attrs import define

from crush_trio.agent.asks.attendance import DEFAULT_PATIENCE
from crush_trio.backend import open as opening
from crush_trio.backend.open import open_hosted_workspace
from crush_trio.backend.settings import BackendSettings, WorkspaceSettings
from crush_trio.runtime import Completion
from crush_trio.server import UnixAddress
from crush_trio.server.hosting import host as hosting
from crush_trio.server.hosting.host import LateOpener, default_workspaces, settle_in
from crush_trio.server.run import run_server
from crush_trio.server.settings import GuardSettings, ServerSettings
from crush_trio.tools.recent_logs import RecentLogs
from tests.server.raw_client import open_client

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

CLIENT = "11111111-1111-4111-8111-111111111111"
SOON = 5.0


@define(eq=False)
class Running:
    address: UnixAddress
    stop: trio.Event
    stopped: trio.Event

    async def ask(self, method, path, body=b"", headers=()):
        """Send one request on a connection of its own; return the status and the JSON."""
        async with open_client(self.address) as client:
            await client.request(f"/v1{path}", method=method, body=body, headers=headers)
            head, data = await client.answer()
            return head.status_code, orjson.loads(data) if data else None


@asynccontextmanager
async def running(folder, **options):
    """Run a server for the length of the block, and no longer."""
    stop, stopped = trio.Event(), trio.Event()

    async def until_stopped(task_status):
        where = [UnixAddress(folder / "s.sock")]
        await run_server(where, shutdown=stop.wait, task_status=task_status, **options)
        stopped.set()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            [address] = await nursery.start(until_stopped)
            yield Running(address, stop, stopped)
            nursery.cancel_scope.cancel()


async def ended(server):
    with trio.fail_after(SOON):
        await server.stopped.wait()


# ── Directories ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("E1")
async def test_a_path_that_is_no_usable_directory_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "file").touch()
    before = set(tmp_path.iterdir()) | {tmp_path / "s.sock"}
    async with running(tmp_path) as server:
        for name in ("missing", "file", "file/below"):
            body = orjson.dumps({"path": str(tmp_path / name), "client_id": CLIENT})
            status, told = await server.ask("POST", "/workspaces", body)
            assert (status, told["code"]) == (400, "path_invalid")
            assert str(tmp_path / name) in told["message"]
        assert set(tmp_path.iterdir()) == before
        assert await server.ask("GET", "/workspaces") == (200, [])


async def test_a_missing_directory_is_made_for_a_client_that_says_so(tmp_path):
    wanted = tmp_path / "new" / "project"
    body = orjson.dumps({"path": str(wanted), "client_id": CLIENT, "create": True})
    async with running(tmp_path) as server:
        status, view = await server.ask("POST", "/workspaces", body)
        assert (status, view["path"]) == (200, str(wanted))
        assert wanted.is_dir()


async def test_a_refused_create_does_not_decide_about_one_that_came_along_and_says_more(tmp_path):
    """Both want the same directory, and the second one is willing to have it made."""
    wanted, statuses = tmp_path / "new", []

    async def create(client, **more):
        body = {"path": str(wanted), "client_id": client, **more}
        statuses.append((await server.ask("POST", "/workspaces", orjson.dumps(body)))[0])

    async with running(tmp_path) as server, trio.open_nursery() as nursery:
        nursery.start_soon(create, CLIENT)
        nursery.start_soon(partial(create, CLIENT.replace("1", "2"), create=True))
    assert 200 in statuses


# ── What makes it end ───────────────────────────────────────────────────────────────────────────


async def test_it_ends_when_its_caller_says_so(tmp_path):
    async with running(tmp_path) as server:
        assert not server.stopped.is_set()
        server.stop.set()
        await ended(server)


async def test_it_ends_when_a_client_asks_for_it(tmp_path):
    async with running(tmp_path) as server:
        body = orjson.dumps({"command": "shutdown"})
        assert await server.ask("POST", "/control", body) == (200, None)
        await ended(server)


async def test_it_ends_when_it_was_idle_for_long_enough(tmp_path):
    settings = ServerSettings(backend=BackendSettings(idle_linger=0.05))
    async with running(tmp_path, settings=settings) as server:
        workspace = await create(server, tmp_path)
        assert not server.stopped.is_set()
        await server.ask("DELETE", f"{workspace}?client_id={CLIENT}")
        await ended(server)


async def test_a_token_is_asked_for_by_the_settings(tmp_path):
    settings = ServerSettings(guard=GuardSettings(token="a-token-of-enough-characters"))
    async with running(tmp_path, settings=settings) as server:
        assert (await server.ask("GET", "/version"))[0] == 401
        proof = ("Authorization", "Bearer a-token-of-enough-characters")
        assert (await server.ask("GET", "/version", headers=[proof]))[0] == 200


# ── What it takes from its environment ──────────────────────────────────────────────────────────


def test_commands_do_not_see_the_token_of_the_server(tmp_path):
    token, file = "a-token-of-enough-characters", tmp_path / "token"
    file.write_text(token)
    file.chmod(0o600)
    for given in ({"CRUSH_TRIO_TOKEN": token}, {"CRUSH_TRIO_TOKEN_FILE": str(file)}):
        settings = ServerSettings.from_environment({"PATH": "/bin", **given})
        assert settings.guard.token is not None
        assert settings.environment == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("5", 5.0), ("0", 0.0), ("", DEFAULT_PATIENCE), ("soon", DEFAULT_PATIENCE)],
)
def test_how_long_an_ask_waits_for_somebody_can_be_set(value, seconds):
    assert ServerSettings.from_environment({"CRUSH_TRIO_PATIENCE": value}).patience == seconds
    assert ServerSettings.from_environment({}).patience == DEFAULT_PATIENCE


async def test_the_workspaces_of_a_server_have_its_patience(tmp_path, monkeypatch):
    given = []

    def open_workspace(plan, settings):
        given.append(settings.patience)
        return open_hosted_workspace(plan, settings)

    monkeypatch.setattr(opening, "open_hosted_workspace", open_workspace)
    async with running(tmp_path, settings=ServerSettings(patience=7)) as server:
        await create(server, tmp_path)
        assert set(given) == {7}


async def test_what_workspaces_need_is_there_before_the_first_of_them(tmp_path, monkeypatch):
    made = trio.Event()
    monkeypatch.setattr(hosting, "import_store", lambda _: trio.from_thread.run_sync(made.set))
    async with running(tmp_path):
        with trio.fail_after(SOON):
            await made.wait()


# ── How it ends ─────────────────────────────────────────────────────────────────────────────────


async def create(server, folder):
    body = orjson.dumps({"path": str(folder), "client_id": CLIENT})
    _, workspace = await server.ask("POST", "/workspaces", body)
    return f"/workspaces/{workspace['id']}"


async def submit(server, workspace):
    _, session = await server.ask("POST", f"{workspace}/sessions", b"{}")
    await server.ask("POST", f"{workspace}/agent/init")
    body = orjson.dumps({"session_id": session["id"], "prompt": "hello"})
    assert await server.ask("POST", f"{workspace}/agent", body) == (202, None)


async def read_to_the_end(server, workspace, pieces, task_status):
    async with open_client(server.address) as client:
        await client.request(f"/v1{workspace}/events?client_id={CLIENT}&form=native")
        await client.next_event()
        task_status.started()
        async for piece in client.body():
            pieces.append(piece)


async def test_a_run_that_is_slow_to_end_does_not_cost_its_readers_the_last_event(tmp_path):
    begun = trio.Event()

    async def stubborn(_run):
        begun.set()
        with trio.CancelScope(shield=True):
            await trio.sleep(1.5)
        return Completion()

    workspaces = WorkspaceSettings(make_turn=lambda _transcript: stubborn)
    async with (
        running(tmp_path, workspaces=workspaces, grace=0.6) as server,
        trio.open_nursery() as nursery,
    ):
        workspace = await create(server, tmp_path)
        pieces = []
        await nursery.start(partial(read_to_the_end, server, workspace, pieces))
        await submit(server, workspace)
        await begun.wait()
        server.stop.set()
        await ended(server)
        said = b"".join(pieces)
        assert said.endswith(b'event: end\ndata: {"reason":"server_shutting_down"}\n\n')
        assert b'"state":"active"' in said


# ── Settling in ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("whole_process", [True, False])
async def test_what_stays_is_put_out_of_the_collectors_sight_in_a_process_of_its_own(whole_process):
    made = []
    gc.unfreeze()  # what the suite froze
    try:
        await settle_in(LateOpener(lambda: made.append(gc.get_freeze_count())), whole_process)
        assert (gc.get_freeze_count() > 0) is whole_process
    finally:
        gc.freeze()
    assert made == [0], "first everything is imported"


def test_links_in_notifications_lead_to_the_public_url():
    guard = GuardSettings(token="t" * 32).behind("https://agents.example.com")
    settings = ServerSettings(guard=guard)
    assert default_workspaces(settings, RecentLogs()).page == "https://agents.example.com"
    assert default_workspaces(ServerSettings(), RecentLogs()).page == ""
