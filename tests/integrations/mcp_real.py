"""A workspace whose MCP servers are real: commands, or addresses."""

import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from crush_trio.clock import SystemClock
from crush_trio.config.live import open_live_config
from crush_trio.integrations.base import Surroundings
from crush_trio.integrations.mcp.servers import open_mcp_servers
from crush_trio.wire.ids import WorkspaceId
from tests.integrations.mcp_fakes import Configured, Told

DESK = Path(__file__).with_name("mcp_desk.py")


def desk(**more):
    """Return the configuration of the small server as a command."""
    return {"type": "stdio", "command": sys.executable, "args": [str(DESK)], **more}


def script(text, **more):
    """Return the configuration of a server that is a line of shell; its dollars are the shell's."""
    text = text.replace("$", "\\$")
    return {"type": "stdio", "command": "/bin/sh", "args": ["-c", text], **more}


@asynccontextmanager
async def open_real(home):
    """Open the MCP servers that the files of *home* speak of."""
    home.environment |= {"PATH": os.environ["PATH"], "HOME": str(home.home)}
    told = Told()
    async with open_live_config(home.places()) as live:
        surroundings = Surroundings(
            workspace_id=WorkspaceId("w"),
            directory=home.project,
            live=live,
            publish=told.publish,
            clock=SystemClock(),
        )
        with trio.fail_after(60):
            async with open_mcp_servers(surroundings) as servers:
                yield Configured(live, None, told, servers)


async def use(place, tool, arguments=None, name="desk"):
    """Call a tool of a server, and return its answer."""
    server = place.servers.server(name)
    return await server.use(lambda session: session.call(tool, arguments or {}))
