"""`McpServerPlan`: the configuration of one MCP server, with its time limits and its secrets."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from attrs import field, frozen

from crush_trio.config.redaction import searchable_secrets
from crush_trio.config.snapshot import Resolved
from crush_trio.integrations.mcp.session import McpTarget
from crush_trio.wire.config import McpServerConfig

TIMEOUT: Final = 10
"""Default seconds to connect, and to answer requests other than tool calls."""

DOWNLOAD_TIMEOUT: Final = 60
"""Default seconds to start for a command that may have to download its program first."""

DOWNLOADERS: Final = frozenset(
    {"bunx", "docker", "npm", "npx", "pipx", "pnpm", "pnpx", "podman", "uv", "uvx", "yarn"}
)
"""Commands that download the program they run."""


@frozen(kw_only=True)
class McpServerPlan:
    """The configuration of a server at one revision.

    If two plans are equal, a server that was started for one need not be restarted for the other.
    """

    name: str
    entry: McpServerConfig
    refused: str = ""
    """Why it must not be started; empty if it may."""
    env: Mapping[str, str] = field(factory=dict, repr=False)
    """The variables that the configuration sets."""
    resolve: Callable[[], Awaitable[Resolved[McpServerConfig]]] = field(eq=False, repr=False)
    target: Callable[[McpServerConfig], McpTarget] = field(eq=False, repr=False)

    @property
    def idle(self) -> bool:
        """Whether the server is not to be started."""
        return self.entry.disabled or bool(self.refused)

    @property
    def seconds(self) -> int:
        """The time limit for an answer."""
        return self.entry.timeout if self.entry.timeout > 0 else TIMEOUT

    @property
    def start_seconds(self) -> int:
        """The time limit to start and initialise; longer for a command that downloads its program."""
        if self.entry.timeout <= 0 and Path(self.entry.command).name in DOWNLOADERS:
            return DOWNLOAD_TIMEOUT
        return self.seconds

    def allows(self, tool: str) -> bool:
        """Whether a tool is enabled: in `enabled_tools` if that is set, and not in `disabled_tools`."""
        wanted, unwanted = self.entry.enabled_tools, self.entry.disabled_tools
        return (not wanted or tool in wanted) and tool not in unwanted


def secrets_of(entry: McpServerConfig, resolved: McpServerConfig) -> frozenset[str]:
    """Return the secret values of a server's configuration, which its errors may contain."""
    address = "" if resolved.url == entry.url else resolved.url
    token = "" if resolved.oauth_token is None else resolved.oauth_token.access_token
    named = (*resolved.headers.values(), *resolved.env.values())
    return searchable_secrets((*named, address, token, resolved.oauth_client_secret))
