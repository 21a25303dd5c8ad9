"""Workspace, agent, server and client in memory."""
