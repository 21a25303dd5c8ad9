"""Hooks, MCP servers and language servers run in the sandbox if their configuration says so."""

from types import SimpleNamespace

import pytest
import trio
from attrs import evolve

from crush_trio.clock import SystemClock
from crush_trio.config.files import SandboxConfig, SandboxMode
from crush_trio.config.live import open_live_config
from crush_trio.integrations.base import Surroundings
from crush_trio.integrations.hooks import ConfiguredHooks
from crush_trio.integrations.lsp.known_servers import ServerSpec
from crush_trio.integrations.lsp.servers import WorkspaceLanguageServers
from crush_trio.integrations.lsp.session import ServerUnavailable
from crush_trio.integrations.mcp.session import McpTarget
from crush_trio.integrations.mcp.stdio import open_stdio
from crush_trio.tools.sandbox.confinement import NotConfined, SandboxKind
from crush_trio.tools.sandbox.machine import MachineSandbox
from crush_trio.tools.sandbox.settings import CommandSandbox
from crush_trio.wire.config import HookConfig, LspServerConfig, McpServerConfig
from crush_trio.wire.ids import WorkspaceId
from tests.config.homes import Home
from tests.integrations.hook_programs import call

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]
REQUIRED = SandboxConfig(mode=SandboxMode.REQUIRE)
BUBBLEWRAP = pytest.mark.needs("bwrap")


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    (home.home / ".ssh").mkdir(parents=True)
    (home.home / ".ssh" / "id").write_text("secret")
    home.environment |= {"PATH": "/usr/bin:/bin", "HOME": str(home.home)}
    return home


class Opened:
    """A configuration with a sandbox, for as long as the block lasts."""

    def __init__(self, home, kind, sandbox):
        self._home, self._kind, self._sandbox = home, kind, sandbox
        self._live = open_live_config(home.places())

    async def __aenter__(self):
        live = await self._live.__aenter__()
        if self._sandbox is not None:
            live = SimpleNamespace(current=evolve(live.current, sandbox=self._sandbox))
        return CommandSandbox(live=live, machine=MachineSandbox(self._kind))

    async def __aexit__(self, *how):
        await self._live.__aexit__(*how)


def opened(home, kind=SandboxKind.BUBBLEWRAP, sandbox=None):
    return Opened(home, kind, sandbox)


@BUBBLEWRAP
@pytest.mark.parametrize("sandboxed", [True, False])
async def test_a_hook_reads_private_files_only_outside_the_sandbox(home, sandboxed):
    script = f"cat {home.home}/.ssh/id > seen"
    async with opened(home) as sandbox:
        hooks = ConfiguredHooks(
            live=sandbox.live, directory=home.project, clock=SystemClock(), sandbox=sandbox
        )
        await hooks.ask((HookConfig(command=script, sandbox=sandboxed),), call(command="ls"))
    assert (home.project / "seen").read_text() == ("" if sandboxed else "secret")


@BUBBLEWRAP
@pytest.mark.parametrize("sandboxed", [True, False])
async def test_an_mcp_server_reads_private_files_only_outside_the_sandbox(home, sandboxed):
    script = f"cat {home.home}/.ssh/id > seen"
    async with opened(home) as sandbox:
        config = McpServerConfig(command="/bin/sh", args=("-c", script), sandbox=sandboxed)
        target = McpTarget(
            name="m",
            config=config,
            directory=home.project,
            environment=home.environment,
            clock=SystemClock(),
            sandbox=sandbox,
        )
        with trio.fail_after(20):
            async with open_stdio(target) as (reader, _):
                assert [message async for message in reader] == []
    assert (home.project / "seen").read_text() == ("" if sandboxed else "secret")


def language_servers(home, sandbox):
    surroundings = Surroundings(
        workspace_id=WorkspaceId("w"),
        directory=home.project,
        live=sandbox.live,
        publish=lambda fact: None,
        clock=SystemClock(),
        sandbox=sandbox,
    )
    return WorkspaceLanguageServers(surroundings, SimpleNamespace(start_soon=lambda *_: None))


async def test_a_language_server_is_confined_if_its_configuration_says_so(home):
    entry = LspServerConfig(command="sh", filetypes=("py",))
    async with opened(home) as sandbox:
        servers = language_servers(home, sandbox)
        for sandboxed in (True, False):
            spec = ServerSpec(name="l", config=evolve(entry, sandbox=sandboxed), automatic=True)
            command, _ = await servers.prepare(spec)
            assert (command.held_by is SandboxKind.BUBBLEWRAP) is sandboxed


async def test_a_required_sandbox_that_is_missing_keeps_them_from_starting(home, caplog):
    async with opened(home, SandboxKind.NONE, REQUIRED) as sandbox:
        hooks = ConfiguredHooks(
            live=sandbox.live, directory=home.project, clock=SystemClock(), sandbox=sandbox
        )
        await hooks.ask((HookConfig(command="touch ran", sandbox=True),), call(command="ls"))
        target = McpTarget(
            name="m",
            config=McpServerConfig(command="true", sandbox=True),
            directory=home.project,
            clock=SystemClock(),
            sandbox=sandbox,
        )
        with pytest.raises(NotConfined, match="install bubblewrap"):
            async with open_stdio(target):
                pass
        spec = ServerSpec(
            name="l", config=LspServerConfig(command="sh", sandbox=True), automatic=True
        )
        with pytest.raises(ServerUnavailable, match="install bubblewrap"):
            await language_servers(home, sandbox).prepare(spec)
    assert not (home.project / "ran").exists()
    assert "hook.not_run" in [record.message for record in caplog.records]
