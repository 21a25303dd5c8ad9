"""Workspace, agent, server and client in memory; stores and journals that fail on demand; scripted turns."""
