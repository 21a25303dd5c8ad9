"""Integrations of a workspace: language servers, MCP servers, skills and hooks."""
