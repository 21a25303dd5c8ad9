"""Workspaces put together: store, log, transcript and runs."""

from crush_trio.backend.assemble import DurableWorkspace, open_durable_workspace

__all__ = ["DurableWorkspace", "open_durable_workspace"]
