"""What a workspace has from outside if nobody brings anything else along."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from crush_trio.integrations.base import Integrations, Surroundings
from crush_trio.integrations.lsp.servers import open_language_servers
from crush_trio.integrations.mcp.servers import open_mcp_servers
from crush_trio.integrations.skills import open_skills


@asynccontextmanager
async def open_usual_integrations(surroundings: Surroundings) -> AsyncIterator[Integrations]:
    """Open the integrations that the configuration of a workspace and its disk speak of."""
    async with (
        open_skills(surroundings) as skills,
        open_mcp_servers(surroundings) as mcp,
        open_language_servers(surroundings) as lsp,
    ):
        yield Integrations(lsp=lsp, mcp=mcp, skills=skills)
