"""`WatchedDatabase`: the shared store of a simulation, which notes what is written and by whom.

What it notes does not depend on the code under test: each write is held against the epoch that was claimed last,
and each ending of a run is noted when it is stored.
"""

from collections.abc import Callable

import trio
from attrs import define, field
from typing_extensions import override

from benchmarks.chaos.promises import Claim, Rows, RunRow, Text
from benchmarks.simulation.trace import Trace
from crush_trio.store.lease import Lease
from crush_trio.store.memory.nodes import MemoryDatabase, WorkspaceRow
from crush_trio.store.memory.store import Kept
from crush_trio.store.memory.tables import Tables
from crush_trio.store.shared import NodeCard, Standing
from crush_trio.wire.ids import RunId
from crush_trio.wire.messages import Role, TextPart

Found = Callable[[str], None]
"""Told of a broken promise."""


class WatchedKept(Kept):
    """The tables of a workspace; their replacement is looked at."""

    def __init__(self, ended: Callable[[str, str], None], found: Found) -> None:
        self._ended, self._found = ended, found
        self._now = Tables()

    @property  # type: ignore[explicit-override]
    def tables(self) -> Tables:
        """The tables as they are now."""
        return self._now

    @tables.setter
    def tables(self, new: Tables) -> None:
        for key, row in new.runs.items():
            view = row.stored.view
            old = self._now.runs.get(key)
            before = old.stored.view.state if old is not None else None
            if before is view.state:
                continue
            if before is not None and before.terminal:
                self._found(f"run {view.run_id} was {before} and is {view.state}")
            if view.state.terminal:
                self._ended(view.run_id or view.id, view.state)
        self._now = new


@define(eq=False)
class WatchedRow(WorkspaceRow):
    """A workspace whose writes are looked at."""

    database: "WatchedDatabase" = field(kw_only=True, repr=False)

    @override
    def check(self, lease: Lease) -> None:
        """Check the lease of a write, and whether that check was right."""
        if self.database.fenced:
            super().check(lease)
        self.database.writes += 1
        if (lease.node, lease.epoch) != (self.node, self.epoch):
            self.database.found(
                f"{lease.node} wrote under epoch {lease.epoch}, and {self.node} has {self.epoch}"
            )


@define(eq=False)
class WatchedDatabase(MemoryDatabase):
    """What the nodes share."""

    trace: Trace = field(kw_only=True)
    fenced: bool = field(default=True, kw_only=True)
    """False is a bug."""
    guarded: bool = field(default=True, kw_only=True)
    """False is a bug: a lease is claimed that has not expired."""
    claimed: Callable[[str], None] = field(default=lambda _: None, init=False)
    """Called with the start that has claimed a workspace."""
    broken: list[str] = field(factory=list, init=False)
    writes: int = field(default=0, init=False)
    endings: dict[str, list[tuple[float, str]]] = field(factory=dict, init=False)
    """When each run ended, and how, by the caller's run id."""
    claims: dict[int, list[Claim]] = field(factory=dict, init=False)

    def found(self, what: str) -> None:
        """Note a broken promise."""
        self.trace.note("BROKEN", what)
        self.broken.append(what)

    @override
    def register(self, site: str, path: str) -> Standing:
        """Return the row of a workspace, which is watched."""
        if not any((row.site, row.path) == (site, path) for row in self.workspaces.values()):
            number = len(self.workspaces) + 1
            kept = WatchedKept(self._ended, self.found)
            self.workspaces[number] = WatchedRow(number, site, path, kept=kept, database=self)
        return super().register(site, path)

    @override
    def claim(self, number: int, card: NodeCard, ttl: float) -> int | Standing:
        """Claim a lease, and note it."""
        if not self.guarded:
            self.workspaces[number].expires = 0.0
        before = self.workspaces[number].epoch
        claimed = super().claim(number, card, ttl)
        if isinstance(claimed, int):
            self.trace.note("store", f"{card.boot} claims workspace {number}, epoch {claimed}")
            self.claims.setdefault(number, []).append(Claim(card.boot, trio.current_time()))
            if claimed != before + 1:
                self.found(f"epoch {claimed} was claimed after {before}")
            self.claimed(card.boot)
        return claimed

    def owner(self, number: int) -> str:
        """Return the start that has claimed a workspace last."""
        return self.workspaces[number].node

    def _ended(self, tag: str, state: str) -> None:
        self.trace.note("store", f"{tag} has ended: {state}")
        ends = self.endings.setdefault(tag, [])
        ends.append((trio.current_time(), state))
        if len(ends) > 1:
            self.found(f"{tag} has ended {len(ends)} times: {ends}")

    def rows(self, path: str) -> Rows:
        """Return what is stored of the workspace of a directory."""
        rows = Rows()
        [row] = [each for each in self.workspaces.values() if each.path == path]
        tables, names = row.kept.tables, {}
        for stored in tables.runs.values():
            view = stored.stored.view
            tag = str(view.run_id or "")
            names[view.id] = tag
            rows.runs.setdefault(tag, []).append(
                RunRow(
                    tag=tag,
                    id=view.id,
                    state=view.state,
                    text=view.text,
                    message_id=view.message_id,
                    session=view.session_id,
                    error=view.error,
                )
            )
        for message in tables.messages.values():
            if message.head.role is Role.ASSISTANT:
                parts = message.stored().message.parts
                rows.texts[message.head.id] = Text(
                    message_id=message.head.id,
                    tag=names.get(message.run_id or RunId(""), ""),
                    text="".join(part.text for part in parts if isinstance(part, TextPart)),
                    finished=message.finished,
                )
        rows.claims = self.claims.get(row.number, [])
        return rows
