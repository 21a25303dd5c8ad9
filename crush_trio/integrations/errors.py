"""What can go wrong with what a workspace has from outside, as clients are told."""

from crush_trio.errors import CrushError


class McpFailed(CrushError):
    """An MCP server did not do what it was asked; the detail says which one, and why."""

    code = "mcp_failed"
    message = "MCP server failed"
