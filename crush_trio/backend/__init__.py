"""Workspaces that clients share: the backend, its claims, and one opened directory."""
