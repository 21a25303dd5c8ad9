"""The hint to import sessions of the Go program, where its database stands beside ours.

The Go program keeps its sessions in `crush.db`; we keep ours in another file of the same directory. Without
a hint, its users would find an empty list.
"""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import trio
from attrs import frozen

from crush_trio.cli.report.reporter import count
from crush_trio.cli.server_link import ServerLink
from crush_trio.client.workspace import RemoteWorkspace

GO_NAME: Final = "crush.db"


@frozen
class ImportHint:
    """What was not imported, and the command that imports it."""

    what: str
    command: str

    @property
    def line(self) -> str:
        """Both as one line."""
        return f"{self.what}; to do that: {self.command}"


async def import_hint(
    data_dir: Path, directory: str, known: Iterable[str] = ()
) -> ImportHint | None:
    """Return the hint for a data directory in which the sessions *known* are; None if none is needed.

    The import is into *directory*. Only a `crush.db` with other sessions is worth a hint. One that cannot be
    read is not: the import itself says what is wrong with it.
    """
    number = await missing_sessions(data_dir, known)
    if not number:
        return None
    file = data_dir / GO_NAME
    command = shlex.join(["crush-trio", "import", str(file), "--cwd", directory])
    return ImportHint(f"{count(number, 'session')} of Crush in {file} not imported", command)


async def missing_sessions(data_dir: Path, known: Iterable[str] = ()) -> int:
    """Return how many sessions the `crush.db` of a data directory has that are not *known*."""
    file = data_dir / GO_NAME
    if not await trio.Path(file).is_file():
        return 0
    from crush_trio.store.go_import import count_sessions  # most directories have no such file

    return await trio.to_thread.run_sync(count_sessions, file, frozenset(known))


async def workspace_hint(link: ServerLink, workspace: RemoteWorkspace) -> ImportHint | None:
    """Return the hint for an open workspace; None if its disk is that of another machine."""
    await trio.lowlevel.checkpoint()
    view = workspace.created
    if not link.local or not await missing_sessions(Path(view.data_dir)):
        return None
    known = await workspace.sessions.list()
    return await import_hint(Path(view.data_dir), view.path, (session.id for session in known))
