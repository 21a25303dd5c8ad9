"""MCP servers: commands or URLs that offer tools, prompts and resources to a workspace."""
