"""A command that the agent runs cannot use the server it runs under, except to read.

The command is a real one, granted by a person. It tries everything that changes something, over the Unix
socket and over TCP, in the ways in which a process can hide where it comes from; and in each kind of sandbox:
bubblewrap gives it a PID namespace of its own, in which its processes have other ids.
"""

import json
import os
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path, PurePosixPath

import orjson
import pytest
import trio
import trio.testing

from crush_trio.backend.settings import WorkspaceSettings
from crush_trio.client import open_client
from crush_trio.net.address import TcpAddress, UnixAddress
from crush_trio.server.run import run_server
from crush_trio.server.settings import ServerSettings
from crush_trio.testing import open_model_server
from crush_trio.testing.model.script import CallTool, Say
from crush_trio.tools.sandbox.confinement import SandboxKind
from crush_trio.tools.sandbox.landlock import MIN_VERSION
from crush_trio.tools.sandbox.machine import MachineSandbox
from crush_trio.tools.shell.guard.restriction import landlock_version
from crush_trio.wire.asks import PermissionMode, PermissionPolicy
from crush_trio.wire.messages import ToolResultPart

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

ATTACK = Path(__file__).with_name("own_process_attack.py")
REFUSED = [403, "own_process"]
SKIP = "/permissions/skip"
ALLOW = PermissionPolicy(mode=PermissionMode.ALLOW)


@asynccontextmanager
async def open_both(tmp_path, choose, kind):
    """Serve on a Unix socket and on TCP, with a scripted model; yield a workspace of an ordinary client.

    Commands run in a sandbox of *kind*.
    """
    directory, home = tmp_path / "project", tmp_path / "home"
    directory.mkdir()
    home.mkdir()
    async with open_model_server(choose) as model, trio.open_nursery() as nursery:
        environment = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "OPENAI_API_KEY": "sk-test-0123456789abcdef",
            "OPENAI_BASE_URL": f"{model.base_url}/v1",
        }
        stop = trio.Event()
        places = [UnixAddress(PurePosixPath(tmp_path, "s")), TcpAddress("127.0.0.1", 0)]
        settings = ServerSettings.from_environment(environment)
        workspaces = WorkspaceSettings(
            environment=environment, home=home, sandbox=MachineSandbox(kind)
        )
        serve = partial(run_server, places, settings=settings, workspaces=workspaces)
        unix, tcp = await nursery.start(partial(serve, shutdown=stop.wait))
        with trio.fail_after(30):
            async with (
                open_client(tcp) as client,
                client.open_workspace(directory, interactive=True) as workspace,
            ):
                yield unix, tcp, workspace, directory
        stop.set()


def changes(workspace, session, directory):
    """Return a request for each thing that a command must not do: the first one is easy to check."""
    path, prompt = f"/v1/workspaces/{workspace.id}", {"session_id": session, "prompt": "more"}
    return [
        ["POST", path + SKIP, {"skip": True}],
        ["POST", f"{path}/agent", {**prompt, "permissions": {"mode": "allow"}}],
        ["POST", f"{path}/agent/sessions/{session}/shell", {"command": "touch owned"}],
        ["POST", f"{path}/permissions/grant", {"permission": {"id": "x"}, "action": "allow"}],
        ["POST", f"{path}/config/set", {"scope": 0, "key": "options.debug", "value": True}],
        ["POST", "/v1/workspaces", {"path": str(directory), "env": ["PATH=/evil"]}],
        ["POST", "/v1/control", {"command": "shutdown"}],
        ["DELETE", f"{path}/sessions/{session}", None],
    ]


def scripted(command):
    """Return a model that has *command* run once."""

    def choose(request):
        if "Write a title" in str(request.body):
            return [Say("A title")]
        if any(message["role"] == "tool" for message in request.body["messages"]):
            return [Say("Done.")]
        return [CallTool("bash", {"command": command, "description": "attack"})]

    return choose


async def herd_of_another_program(plan, address, request):
    """Send *request* on many connections from a process that is no command of the server."""
    program = [sys.executable, str(ATTACK), "herd", json.dumps([address, plan, request])]
    done = await trio.run_process(program, capture_stdout=True)
    return json.loads(done.stdout)


async def held_by(workspace, session):
    """Return the sandbox that the command of a session was in, as its record says."""
    messages = await workspace.sessions.messages(session)
    [result] = [
        part for each in messages for part in each.parts if isinstance(part, ToolResultPart)
    ]
    return json.loads(result.metadata)["sandbox"]


@pytest.mark.long
@pytest.mark.item("L48")
@pytest.mark.parametrize(
    ("kind", "herd"),
    [
        (SandboxKind.NONE, 200),
        pytest.param(SandboxKind.BUBBLEWRAP, 20, marks=pytest.mark.needs("bwrap")),
        pytest.param(
            SandboxKind.LANDLOCK,
            20,
            marks=pytest.mark.skipif(landlock_version() < MIN_VERSION, reason="no Landlock"),
        ),
    ],
)
async def test_a_command_can_read_from_its_server_and_change_nothing(tmp_path, kind, herd):
    results, go = tmp_path / "results", tmp_path / "go"
    os.mkfifo(results)
    os.mkfifo(go)
    command = f"{sys.executable} {ATTACK} {tmp_path}/plan.json {results} {go}"
    async with open_both(tmp_path, scripted(command), kind) as (unix, tcp, workspace, directory):
        session = await workspace.sessions.create(title="s")
        requests = changes(workspace, session.id, directory)
        plan = {
            "path": str(unix.path),
            "port": tcp.port,
            "requests": requests,
            "reads": [["GET", f"/v1/workspaces/{workspace.id}/agent", None]],
            "herd": herd,
        }
        (tmp_path / "plan.json").write_bytes(orjson.dumps(plan))
        run = await workspace.submit("go", session=session.id, permissions=ALLOW)
        # If the attack ends the server, the command never writes: the reader must not wait for it.
        text = await trio.to_thread.run_sync(results.read_text, abandon_on_cancel=True)
        found = json.loads(text)
        assert isinstance(found, dict), found
        for way in ("unix", "tcp"):
            assert found[way]["plain"] == [REFUSED] * len(requests)
            assert found[way]["reads"] == [[200, ""]]
            assert found[way]["handed_over"] == REFUSED
            assert found[way]["as_daemon"] == REFUSED
            assert found[way]["hidden"] == REFUSED
            assert found[way]["herd"] == [REFUSED] * herd
        for address in (plan["path"], plan["port"]):  # everybody else as ever
            request = ["POST", f"/v1/workspaces/{workspace.id}{SKIP}", {"skip": False}]
            answers = await herd_of_another_program(plan, address, request)
            assert answers == [[200, ""]] * herd
        async with open_client(unix) as other, other.open_workspace(directory) as same:
            await same.permissions.skip(False)
        await trio.Path(go).write_text("go")
        assert (await run.wait()).state == "completed"
        await trio.testing.wait_all_tasks_blocked(0.1)  # for what was sent without waiting
        assert not await workspace.permissions.skipping()
        assert not (directory / "owned").exists()
        assert await held_by(workspace, session.id) == kind.value
