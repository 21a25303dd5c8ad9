"""What a workspace has from outside: language servers, MCP servers and skills."""
