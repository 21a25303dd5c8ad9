# The names of `__init__.py`, for type checkers and editors.

from crush_trio.integrations.base import (
    AgentSkill,
    Integrations,
    LanguageServers,
    McpServers,
    NoLanguageServers,
    NoMcpServers,
    NoSkills,
    ServerInstructions,
    Skills,
    Surroundings,
)
from crush_trio.wire.integrations import McpClientInfo, McpState

__all__ = [
    "AgentSkill",
    "Integrations",
    "LanguageServers",
    "McpClientInfo",
    "McpServers",
    "McpState",
    "NoLanguageServers",
    "NoMcpServers",
    "NoSkills",
    "ServerInstructions",
    "Skills",
    "Surroundings",
]
