"""Opening workspaces with code that is imported when the server already answers.

The agent of a workspace, with its tools, its models and its store, is two fifths of the modules of this
program. Nobody needs them before the first workspace, and whoever starts a server waits for its first
answer. So they are imported in a thread: ahead of time, once the first requests have had their turn,
or for the first workspace, if that comes earlier. That it happens once, whoever is first, is Python's
own promise about modules; so there is nothing here to be set, to be locked or to be waited for.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic

import trio
from attrs import frozen

from crush_trio.backend.hosting import OpenWorkspace, W, WorkspacePlan

HEAD_START: Final = 0.1
"""Seconds for those who waited for the server: what they ask and the import share one interpreter."""


@frozen
class LateOpener(Generic[W]):
    """Opens workspaces with an opener that is made when it is needed.

    *make* imports what it needs and makes the opener, in a thread. It is called for each workspace:
    with everything imported, it costs nothing.
    """

    make: Callable[[], OpenWorkspace[W]]

    @asynccontextmanager
    async def open(self, plan: WorkspacePlan) -> AsyncIterator[W]:
        """Open the workspace of *plan*; if it is the first, this may have to wait for the import."""
        opener = await trio.to_thread.run_sync(self.make)
        async with opener(plan) as opened:
            yield opened

    async def import_ahead(self) -> None:
        """Import what the first workspace will need, before there is one. Run it beside the server.

        Cancelling waits for the import, which cannot be stopped halfway and takes a moment.
        """
        await trio.sleep(HEAD_START)
        await trio.to_thread.run_sync(self.make)
