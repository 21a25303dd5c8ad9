"""What the Go program's client expects of a server, on the wire: create, readiness, environment, models, keys."""

import json
import os
import shlex
import sys
from contextlib import asynccontextmanager
from http import HTTPStatus

import orjson
import pytest
import trio

from crush_trio.backend.settings import BackendSettings
from crush_trio.config.known_providers import known_providers
from crush_trio.integrations.base import Integrations
from crush_trio.integrations.mcp.servers import open_mcp_servers
from crush_trio.net.address import TcpAddress, UnixAddress
from crush_trio.providers.catalog import catalog_providers
from crush_trio.server.routes import ROUTES
from crush_trio.server.run import run_server
from crush_trio.server.settings import GuardSettings, ServerSettings
from crush_trio.server.status import STATUS
from crush_trio.testing.server.server import client_id, open_test_server
from tests.integrations.mcp_fakes import Desks
from tests.server.brought import open_server_with
from tests.server.test_run import Running

A = client_id(1)

# ── Creating ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("E20", "E.6")
def test_on_create_503_means_that_the_server_goes_away_and_nothing_else():
    [create] = [each for each in ROUTES if (each.method, each.path) == ("POST", "/v1/workspaces")]
    statuses = {code: create.error_status(code) for code in STATUS}
    assert [code for code, status in statuses.items() if status == 503] == ["server_shutting_down"]
    assert {statuses[code] for code in ("config_invalid", "store_locked", "disk_full")} == {500}
    assert (statuses["path_invalid"], statuses["too_many_workspaces"]) == (400, 429)


@pytest.mark.item("A1.2", "G13")
async def test_after_create_the_agent_is_ready_for_prompts_and_summaries():
    async with open_test_server() as server:
        place = await server.create(A, init=False)
        info = (await place.request("GET", "/agent")).json()
        assert info["is_ready"] is True
        assert info["model_cfg"]["model"] == info["model"]["id"] != ""
        session = await place.create_session("first")
        with await place.watch(A) as events:
            assert (await place.submit(session, "hello", "r1")).status == 202
            await events.until(lambda event: event["type"] == "run_complete")
        summary = await place.request("POST", f"/agent/sessions/{session}/summarize")
        assert (summary.status, summary.body) == (200, b"")


async def test_a_create_that_comes_too_late_is_one_line_in_the_log(caplog):
    async with open_test_server() as server:
        server.backend.close()
        body = {"path": "/w", "client_id": A}
        assert (await server.request("POST", "/v1/workspaces", body)).status == 503
        [line] = [each for each in caplog.records if each.msg == "request.failed"]
        assert (line.levelname, line.exc_info) == ("WARNING", None)
        assert line.error == "server is shutting down"


@asynccontextmanager
async def serving(folder, **more):
    """Serve on a Unix socket and on TCP, as `serve --idle-timeout` does; yield both."""
    stop = trio.Event()
    environment = {"HOME": str(folder / "home"), "PATH": os.environ["PATH"]}
    settings = ServerSettings(
        backend=BackendSettings(idle_linger=600), environment=environment, audit=None, **more
    )

    async def run(task_status):
        places = [UnixAddress(folder / "s.sock"), TcpAddress("127.0.0.1", 0)]
        await run_server(places, settings=settings, shutdown=stop.wait, task_status=task_status)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            unix, tcp = await nursery.start(run)
            yield Running(unix, stop, stop), Running(tcp, stop, stop)
            stop.set()


async def create(server, path, **more):
    body = orjson.dumps({"path": str(path), "client_id": A, **more})
    return await server.ask("POST", "/workspaces", body)


LOOK = """
import json, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
head = f"GET {sys.argv[2]} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n"
sock.sendall(head.encode())
data = b"".join(iter(lambda: sock.recv(65536), b""))
print("env" in json.loads(data.partition(b"\\r\\n\\r\\n")[2]))
"""


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.item("E21")
async def test_a_failed_create_and_a_client_of_another_version_leave_the_server_in_place(tmp_path):
    broken, corrupt = tmp_path / "broken", tmp_path / "corrupt"
    (corrupt / ".crush").mkdir(parents=True)
    (corrupt / ".crush" / "crush-trio.db").write_bytes(b"no database" * 1000)
    broken.mkdir()
    (broken / "crush.json").write_text('{"options": []}')
    async with serving(tmp_path) as (unix, _):
        status, told = await create(unix, broken)
        assert (status, told["code"]) == (500, "config_invalid")
        status, told = await create(unix, corrupt)
        assert (status, told["code"]) == (500, "store_corrupt")
        assert (await create(unix, tmp_path / "none"))[0] == HTTPStatus.BAD_REQUEST
        control = orjson.dumps({"command": "shutdown_if_idle"})
        status, told = await unix.ask("POST", "/control", control)
        assert (status, told["code"]) == (409, "server_stays")
        assert await unix.ask("GET", "/health") == (200, None)


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.item("E2")
async def test_only_the_owner_of_a_private_socket_gets_the_environment_back(tmp_path):
    project, sock = tmp_path / "project", tmp_path / "s.sock"
    project.mkdir()
    env = [f"PATH={os.environ['PATH']}", f"HOME={tmp_path}", "OPENAI_API_KEY=sk-0123456789abcdef"]
    async with serving(tmp_path) as (unix, tcp):
        status, view = await create(unix, project, env=[*env, "CRUSH_TRIO_TOKEN=t", "no variable"])
        assert (status, view["env"]) == (200, env)
        here = f"/workspaces/{view['id']}"
        assert (await unix.ask("GET", here))[1]["env"] == env
        assert all("env" not in each for each in (await unix.ask("GET", "/workspaces"))[1])
        assert "env" not in (await tcp.ask("GET", here))[1]
        assert "env" not in (await create(tcp, project))[1]

        words = [sys.executable, "-c", LOOK, str(sock), f"/v1{here}"]
        body = orjson.dumps({"command": shlex.join(words)})
        ran = (await unix.ask("POST", f"{here}/agent/sessions/s/shell", body))[1]
        assert ran == {"output": "False\n", "exit_code": 0}, (
            "a command of the agent is not the user"
        )
        assert (await unix.ask("GET", here))[1]["env"] == env

        sock.chmod(0o660)
        assert "env" not in (await unix.ask("GET", here))[1]


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.item("E2")
async def test_who_sends_a_token_may_come_through_a_proxy_and_gets_no_environment(tmp_path):
    guard, token = GuardSettings(token="t" * 32, open_to_owner=True), b"Bearer " + b"t" * 32
    async with serving(tmp_path, guard=guard) as (unix, _):
        view = (await create(unix, tmp_path, env=["A=b"]))[1]
        assert view["env"] == ["A=b"]
        here = f"/workspaces/{view['id']}"
        status, view = await unix.ask("GET", here, headers=[(b"authorization", token)])
        assert (status, "env" in view) == (200, False)


# ── Models, keys and integrations ───────────────────────────────────────────────────────────────


@asynccontextmanager
async def open_place(home, config=None, **brought):
    """Open a workspace of a user with these files; it is in memory otherwise."""
    if config is not None:
        write_config(home, config)
    async with open_server_with(open_config=None, home=home, **brought) as server:
        yield await server.create(A, "/abs/cwd", init=False)


def write_config(home, config):
    file = home / ".config" / "crush" / "crush.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(config))


async def post(place, target, **body):
    return await place.request("POST", target, body)


KNOWN = known_providers(catalog_providers())
KEYED = [name for name, each in KNOWN.items() if each.base_url.startswith("http")]


@pytest.mark.real_clock
@pytest.mark.item("I.2")
async def test_the_model_dialog_lists_its_catalogue_and_a_key_works_for_every_known_provider(
    tmp_path,
):
    async with open_place(tmp_path) as place:
        config = (await place.request("GET", "/config")).json()
        assert "disable_default_providers" not in config["options"]
        assert not {"mcp", "lsp"} & config.keys()
        for name in KEYED:
            sent = {"scope": 0, "provider_id": name, "kind": "string", "api_key": "k"}
            assert (await post(place, "/config/provider-key", **sent)).status == 200, name
        config = (await place.request("GET", "/config")).json()
        assert config["providers"].keys() == set(KEYED)
        for name in ("anthropic", "together"):  # with listed models, and without
            model = {"provider": name, "model": "newer-than-ours", "max_tokens": 77}
            sent = {"scope": 0, "model_type": "large", "model": model}
            assert (await post(place, "/config/model", **sent)).status == 200
            info = (await place.request("GET", "/agent")).json()
            assert info["model_cfg"] == model
        sent = {"scope": 0, "provider_id": "copilot", "kind": "string", "api_key": "k"}
        refused = await post(place, "/config/provider-key", **sent)
        assert (refused.status, refused.json()["code"]) == (400, "provider_key_invalid")
        assert "describe it in crush.json" in refused.json()["message"]


@pytest.mark.real_clock
@pytest.mark.item("I.2")
async def test_a_model_that_cannot_be_used_is_refused_with_what_it_lacks(tmp_path):
    entry = {"base_url": "http://x", "models": [{"id": "m"}]}
    broken = {**entry, "limits": [1]}
    async with open_place(tmp_path, {"providers": {"mine": entry, "bad": broken}}) as place:
        for provider, model, lack in (
            ("openai", "gpt", "it has no key; give it one, or set the variable $OPENAI_API_KEY"),
            ("nowhere", "m", "there is no provider of this name; describe it in crush.json"),
            ("mine", "other", "it has no model 'other'; choose one of: m"),
            (
                "bad",
                "m",
                "expected an object, got a list; until that is mended the provider is not",
            ),
        ):
            chosen = {"provider": provider, "model": model}
            sent = {"scope": 0, "model_type": "large", "model": chosen}
            refused = await post(place, "/config/model", **sent)
            assert (refused.status, refused.json()["code"]) == (400, "config_invalid")
            assert lack in refused.json()["message"]
        chosen = {"provider": "mine", "model": "m"}
        sent = {"scope": 0, "model_type": "large", "model": chosen}
        assert (await post(place, "/config/model", **sent)).status == 200


@pytest.mark.real_clock
@pytest.mark.item("I.2")
async def test_a_token_that_was_not_renewed_elsewhere_is_told(tmp_path):
    def config(token):
        entry = {"base_url": "http://x", "models": [{"id": "m"}], "oauth": {"access_token": token}}
        return {"providers": {"p": entry}}

    async with open_place(tmp_path, config("old")) as place:
        told = await post(place, "/config/refresh-oauth", scope=0, provider_id="p")
        assert (told.status, told.json()["code"]) == (501, "not_built")
        assert "configure an api_key" in told.json()["message"]
        write_config(tmp_path, config("new"))
        told = await post(place, "/config/refresh-oauth", scope=0, provider_id="p")
        assert (told.status, told.body) == (200, b"")


@pytest.mark.real_clock
@pytest.mark.item("I.4")
async def test_dockers_gateway_can_be_switched_on_and_off(tmp_path):
    @asynccontextmanager
    async def open_integrations(surroundings):
        async with open_mcp_servers(surroundings, Desks()) as mcp:
            yield Integrations(mcp=mcp)

    programs = tmp_path / "bin"
    programs.mkdir()
    brought = {"environment": {"PATH": str(programs)}, "open_integrations": open_integrations}
    async with open_place(tmp_path, **brought) as place:
        told = await place.request("POST", "/mcp/docker/enable")
        assert (told.status, told.json()["code"]) == (502, "mcp_failed")
        assert "install Docker" in told.json()["message"]
        (programs / "docker").touch(0o755)
        with await place.watch(A) as events:
            assert (await place.request("POST", "/mcp/docker/enable")).status == 200
            await events.until(lambda event: event["type"] == "config_changed")
        config = (await place.request("GET", "/config")).json()
        assert config["mcp"]["docker"] == {"type": "stdio", "command": "docker"}
        assert "docker" in (await place.request("GET", "/mcp/states")).json()
        assert (await place.request("POST", "/mcp/docker/disable")).status == 200
        assert "mcp" not in (await place.request("GET", "/config")).json()
        write_config(tmp_path, {"mcp": {"docker": {"type": "stdio", "command": "docker"}}})
        assert (await place.request("POST", "/agent/update")).status == 200
        told = await place.request("POST", "/mcp/docker/disable")
        assert (told.status, "remove it there" in told.json()["message"]) == (502, True)
