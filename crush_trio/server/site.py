"""What the routes share: the backend, how streams end, and who we are."""

import platform
from typing import Final

from attrs import define, field

from crush_trio import __version__
from crush_trio.backend.backend import Backend
from crush_trio.backend.opened import OpenedWorkspace
from crush_trio.server.sse import HEARTBEAT, Drain
from crush_trio.wire.ids import WorkspaceId
from crush_trio.wire.views import Version

_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@define(eq=False)
class Site:
    """One served backend."""

    backend: Backend[OpenedWorkspace]
    drain: Drain = field(factory=Drain)
    heartbeat: float = HEARTBEAT

    def opened(self, workspace_id: str) -> OpenedWorkspace:
        """Return a hosted workspace, or raise `WorkspaceNotFound`."""
        return self.backend.workspace(WorkspaceId(workspace_id)).opened

    @property
    def version(self) -> Version:
        """What is serving."""
        machine = platform.machine()
        return Version(
            version=__version__,
            commit="",
            build_id=f"crush_trio-{__version__}",
            go_version="",
            platform=f"{platform.system().lower()}/{_MACHINES.get(machine, machine)}",
        )
