"""`Register`: the workspaces that a user's servers have open, a small file for each in the user's data directory.

The files outlive their server, so the next one knows the directory of an id that a client still has. A
workspace has one from its opening until it is closed because no client wants it any more.
"""

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from attrs import define, frozen

from crush_trio.backend.stored_terms import StoredTerms
from crush_trio.errors import DecodeError
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.codec import decode, encode
from crush_trio.wire.ids import WorkspaceId

if TYPE_CHECKING:
    from crush_trio.backend.settings import OpenWorkspace, WorkspacePlan
    from crush_trio.backend.workspace import HostedWorkspace

FORGET_SECONDS: Final = 2.0
"""Seconds that removing a file may take."""

log = logging.getLogger(__name__)


@frozen(kw_only=True)
class Known:
    """A workspace in the register."""

    path: str
    terms: StoredTerms


@define(eq=False)
class Register:
    """The register of a server. A failure to write is logged: no workspace depends on it."""

    _directory: Path

    async def find(self, workspace_id: WorkspaceId) -> Known | None:
        """Return the workspace with this id; None if it was closed, or never open."""
        return await trio.to_thread.run_sync(_read, self._file(workspace_id))

    async def note(self, plan: "WorkspacePlan") -> None:
        """Enter the workspace of *plan*; one that is only visited is in it already."""
        if plan.terms.visit:
            await trio.lowlevel.checkpoint()
            return
        known = Known(path=plan.key, terms=StoredTerms.of(plan.terms))
        await self._change(lambda: _write(self._file(plan.id), known))

    async def forget(self, workspace_id: WorkspaceId) -> None:
        """Remove a workspace, which no client wants any more."""
        await self._change(lambda: self._file(workspace_id).unlink(missing_ok=True))

    def _file(self, workspace_id: WorkspaceId) -> Path:
        return self._directory / f"{workspace_id}.json"

    async def _change(self, change: Callable[[], object]) -> None:  # noqa: ASYNC910 - it waits for a thread
        try:
            await trio.to_thread.run_sync(change)
        except OSError as error:
            log.warning("register.not_written", extra={"error": str(error)})

    def noted(
        self, open_workspace: "OpenWorkspace[HostedWorkspace]", *, ending: Callable[[], bool]
    ) -> "OpenWorkspace[HostedWorkspace]":
        """Return an opener whose workspaces are in the register while they are open.

        *ending* says, when a workspace closes, whether it does so because the server ends: then it stays
        in the register.
        """

        @asynccontextmanager
        async def opened(plan: "WorkspacePlan") -> AsyncIterator["HostedWorkspace"]:
            async with open_workspace(plan) as workspace, open_hidden_nursery() as nursery:
                nursery.start_soon(self.note, plan)
                try:
                    yield workspace
                finally:
                    if not ending() and not plan.terms.visit:
                        with trio.move_on_after(FORGET_SECONDS, shield=True):
                            await self.forget(plan.id)

        return opened


def _read(path: Path) -> Known | None:
    try:
        return decode(path.read_bytes(), Known)
    except (OSError, ValueError, DecodeError):  # there is none, or a person has edited it
        return None


def _write(path: Path, known: Known) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(encode(known))
    draft.replace(path)
