"""Workspaces put together: store, log, transcript and runs; and many of them in one process."""

from crush_trio.backend.assemble import DurableWorkspace, open_durable_workspace
from crush_trio.backend.backend import Backend, open_backend
from crush_trio.backend.claims import Claim, Claims, Graces, client_id_of
from crush_trio.backend.settings import (
    BackendSettings,
    Hosted,
    OpenWorkspace,
    Resolve,
    Terms,
    WorkspaceKey,
    WorkspacePlan,
    resolve_key,
)

__all__ = [
    "Backend",
    "BackendSettings",
    "Claim",
    "Claims",
    "DurableWorkspace",
    "Graces",
    "Hosted",
    "OpenWorkspace",
    "Resolve",
    "Terms",
    "WorkspaceKey",
    "WorkspacePlan",
    "client_id_of",
    "open_backend",
    "open_durable_workspace",
    "resolve_key",
]
