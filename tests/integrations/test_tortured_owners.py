"""Commands of servers, hooks and configurations that kill their guards: their owners leave nothing."""

import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
import trio

from crush_trio.clock import SystemClock
from crush_trio.config.template import CommandFailed
from crush_trio.integrations.hooks import ConfiguredHooks
from crush_trio.integrations.lsp.connection import program_opener
from crush_trio.integrations.mcp.session import McpTarget
from crush_trio.integrations.mcp.stdio import open_stdio
from crush_trio.tools.shell.environment import config_commands
from crush_trio.tools.shell.process import Command
from crush_trio.wire.config import McpServerConfig
from tests.integrations.hook_programs import call, configured
from tests.tools import torture
from tests.tools.process_probe import Probe, Reaped

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

ENVIRONMENT = {"PATH": os.environ["PATH"]}
TORTURES = ["respawns_and_ends", "survives_its_guard", "kills_its_watcher", "kills_both"]


@pytest.fixture
def probe(tmp_path):
    probe = Probe(tmp_path)
    yield probe
    probe.kill_all()


@pytest.fixture(params=TORTURES)
def argv(request, probe):
    return (sys.executable, "-I", "-S", torture.__file__, request.param, probe.token)


async def test_an_mcp_server_leaves_nothing(probe, argv):
    config = McpServerConfig(command=argv[0], args=argv[1:])
    target = McpTarget(
        name="one",
        config=config,
        directory=Path("/"),
        environment=ENVIRONMENT,
        clock=SystemClock(),
    )
    with trio.fail_after(15):
        async with open_stdio(target) as (reader, _):
            with pytest.raises(anyio.EndOfStream):
                await reader.receive()
    assert probe.left() == []


async def test_a_language_server_leaves_nothing(probe, argv):
    command = Command(argv=argv, working_dir=Path("/"), env=ENVIRONMENT)
    with trio.fail_after(15):
        async with program_opener(SystemClock())(command) as program:
            async for _ in program.transport:
                pass
    assert probe.left() == []


async def test_a_hook_leaves_nothing(probe, argv, tmp_path):
    live = configured(shlex.join(("exec", *argv)), environment=ENVIRONMENT)
    hooks = ConfiguredHooks(live=live, directory=tmp_path, clock=SystemClock())
    reaped = Reaped()
    asked = call(reaped=reaped)
    with trio.fail_after(15):
        await hooks.ask(hooks.matching(asked.name), asked)
    assert (reaped.left, probe.left()) == ([], [])


async def test_a_value_of_a_configuration_leaves_nothing(probe, argv, tmp_path):
    with trio.fail_after(15), suppress(CommandFailed):
        script = shlex.join(("exec", *argv))
        await config_commands(SystemClock())(script, ENVIRONMENT, tmp_path)
    assert probe.left() == []
