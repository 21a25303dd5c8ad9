"""`RosterDesk`: where streams read the roster. Nothing is followed while there is no reader.

The first reader starts a `Following` of the workspaces of this server, the last one to leave ends it. On a node
of a cluster, readers that are clients also see the workspaces of the other nodes: the first of them starts a
`Widened` roster. Another node that reads gets those of this server only, so no row goes round in circles.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import trio
from attrs import define, field

from crush_trio.backend.backend import Backend
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.server.roster.following import LOAD_LIMIT, Following
from crush_trio.server.roster.table import HERE, RosterTable
from crush_trio.wire.views import Roster


class Elsewhere(Protocol):
    """The rosters of other nodes."""

    async def follow(self, table: RosterTable, known: trio.Event) -> None:
        """Keep the rows of the other nodes in *table* until cancelled; set *known* once they are there."""
        ...


@define(eq=False)
class Widened:
    """The roster of this server and of the other nodes, until `scope` is cancelled."""

    readers: int = field(default=0, init=False)
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    table: RosterTable = field(factory=RosterTable, init=False)
    known: trio.Event = field(factory=trio.Event, init=False, repr=False)

    async def run(self, elsewhere: Elsewhere) -> None:
        """Follow the other nodes."""
        with self.scope:
            await elsewhere.follow(self.table, self.known)


@define(eq=False)
class RosterDesk:
    """Where streams read the roster of a server."""

    _backend: Backend[HostedWorkspace]
    elsewhere: Elsewhere | None = field(default=None, init=False, repr=False)
    """The rosters of other nodes, for a node of a cluster."""
    _following: Following | None = field(default=None, init=False, repr=False)
    _widened: Widened | None = field(default=None, init=False, repr=False)

    @property
    def followed(self) -> bool:
        """Whether anybody reads."""
        return self._following is not None

    @contextmanager
    def reading(self, roster: Roster, *, here_only: bool = False) -> Iterator["RosterReader"]:
        """Follow the roster during the block; *roster* has what does not change.

        *here_only* leaves out the workspaces of other nodes.
        """
        with self._follow_here() as following:
            if here_only or self.elsewhere is None:
                yield RosterReader(following.table, following.loaded, roster)
                return
            with self._follow_elsewhere(following, self.elsewhere) as widened:

                async def loaded() -> None:
                    await following.loaded()
                    with trio.move_on_after(LOAD_LIMIT):
                        await widened.known.wait()

                yield RosterReader(widened.table, loaded, roster)

    @contextmanager
    def _follow_here(self) -> Iterator[Following]:
        following = self._following
        if following is None:
            following = self._following = Following(self._backend)
            following.start()
        following.readers += 1
        try:
            yield following
        finally:
            following.readers -= 1
            if not following.readers:
                self._following = None
                following.scope.cancel()

    @contextmanager
    def _follow_elsewhere(self, following: Following, elsewhere: Elsewhere) -> Iterator[Widened]:
        widened = self._widened
        if widened is None:
            widened = self._widened = Widened()
            widened.table.put_all(HERE, following.table.workspaces(), following.table.rows())
            following.tables.append(widened.table)
            if not self._backend.shutting_down:
                self._backend.start_soon(partial(widened.run, elsewhere), name="roster of others")
        widened.readers += 1
        try:
            yield widened
        finally:
            widened.readers -= 1
            if not widened.readers:
                self._widened = None
                following.tables.remove(widened.table)
                widened.scope.cancel()


@define(eq=False)
class RosterReader:
    """One reader of the roster; what a stream sends beside the events of a workspace."""

    _table: RosterTable
    _loaded: Callable[[], Awaitable[None]] = field(repr=False)
    _fixed: Roster
    _seen: int = field(default=0, init=False)

    async def loaded(self) -> None:
        """Wait until there is a roster to read."""
        await self._loaded()

    @property
    def news(self) -> bool:
        """Whether the roster has changed since it was read."""
        return self._table.changes.version > self._seen

    def whole(self) -> bytes:
        """Return the event with the whole roster."""
        self._seen = self._table.changes.version
        return self._table.whole(self._fixed)

    def take(self) -> bytes:
        """Return the changes since the roster was read last."""
        changes = self._table.changes
        found, self._seen = changes.since(self._seen), changes.version
        return self.whole() if found is None else found

    @contextmanager
    def wakes(self, scope: trio.CancelScope) -> Iterator[None]:
        """Have a change of the roster cancel *scope* during the block."""
        with self._table.changes.wakes(scope):
            yield
