"""Integrations of a workspace: language servers (`lsp/`), MCP servers (`mcp/`), skills and hooks.

The names here are for programs that bring integrations of their own; see `WorkspaceSettings`.
"""

from typing import Final

from crush_trio._exports import Homes, lazy, names_of

_HOMES: Final[Homes] = {
    "crush_trio.integrations.base": (
        "AgentSkill",
        "Integrations",
        "LanguageServers",
        "McpServers",
        "NoLanguageServers",
        "NoMcpServers",
        "NoSkills",
        "ServerInstructions",
        "Skills",
        "Surroundings",
    ),
    "crush_trio.wire.integrations": (
        "McpClientInfo",
        "McpState",
    ),
}

__all__ = names_of(_HOMES)
__getattr__, __dir__ = lazy(__name__, _HOMES)
