"""`SharedStore`: a store that several nodes use, with the tables that tell them who runs which workspace.

A node is one start of a server process. It enters the table of nodes, and holds leases of workspaces
(`store.lease`). Each method that talks to the store is one short transaction. The store's own clock decides
what has expired; no node compares its clock with another's.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from attrs import frozen

from crush_trio.errors import CrushError
from crush_trio.store.base import Store
from crush_trio.store.lease import Lease
from crush_trio.wire.ids import WorkspaceId


class NodeTaken(CrushError):
    """Another process uses the id of this node; the detail says where it runs."""

    code = "node_taken"
    message = (
        "another node with this address is alive; give each node an address of its own with --advertise,"
        " or stop the other one"
    )


@frozen(kw_only=True)
class NodeCard:
    """What a node tells the others about itself. Nothing in it is secret."""

    id: str
    """The same after every restart: its address, or its host and process if it has none."""
    boot: str
    """The id of this start of the node; leases name it."""
    address: str
    """Where other nodes reach it; empty for a node that they cannot forward to."""
    site: str
    """The machines that see the same files."""
    host: str
    pid: int
    version: str
    started_at: int

    def describe(self) -> str:
        """Return one line about the node, for people."""
        return f"{self.id} (process {self.pid} on {self.host}, version {self.version})"


@frozen(kw_only=True)
class NodeRow:
    """A node as the table has it."""

    card: NodeCard
    seconds: float
    """Until the row expires if the node does not renew it; not positive for one that is gone."""
    seen_seconds: float = 0.0
    """Since the node has written its row."""
    draining: bool = False
    """Whether it is about to end, and takes no new work."""

    @property
    def alive(self) -> bool:
        """Whether the node has renewed its row in time."""
        return self.seconds > 0


@frozen(kw_only=True)
class Owner:
    """Who holds a lease."""

    boot: str
    node: NodeCard | None
    """None for a process that is no node, such as a command."""
    description: str

    @property
    def address(self) -> str:
        """Where the owner is reached; empty if it cannot be."""
        return "" if self.node is None else self.node.address


@frozen(kw_only=True)
class Standing:
    """A workspace of a shared store: what is known of it, and who runs it."""

    number: int
    id: WorkspaceId
    site: str
    path: str
    terms: str
    """What its first client asked for, as `Tenure.note_terms` has stored it; empty for one never opened."""
    wanted: bool
    """Whether it was open when its last owner ended."""
    epoch: int
    owner: Owner | None
    """None if no lease holds."""
    seconds: float
    """Until the lease expires if it is not renewed."""


@frozen(kw_only=True)
class Beat:
    """The result of a renewal."""

    own: frozenset[int]
    """The workspaces whose leases are still the node's."""
    watched: Mapping[int, Standing]


@frozen(kw_only=True)
class DatabaseReport:
    """What a server would meet in a database; see `store.open.inspect_database`. Nothing in it is secret."""

    label: str
    program: str
    """The version of the database program."""
    user: str
    encrypted: bool
    verified: bool
    """Whether the certificate of the database and its name are checked."""
    local: bool
    """Whether the connection stays on this machine."""
    encoding: str
    schema: int
    """0 if there are no tables."""
    known: int
    """The schema of this program."""
    lacking: tuple[str, ...]
    """Privileges that the user lacks."""
    may_migrate: bool
    standby: bool
    read_only: bool
    durable: bool
    """Whether a commit is on the disk of the database before it is answered."""
    standbys: str
    """The synchronous standbys that a commit waits for."""
    pooled: bool
    """Whether a pooler is in between."""
    shares: bool
    """Whether that gives one connection of the server to several of its clients by turns."""
    nodes: tuple[NodeRow, ...]


class SharedStore(Protocol):
    """What the nodes of a cluster share. Methods raise `StoreUnavailable`."""

    card: NodeCard
    ttl: float
    """Seconds for which leases and rows of nodes hold."""

    async def enter(self) -> NodeRow | None:
        """Enter the table of nodes; return the row of another start with this id that has not expired."""
        ...

    async def drain(self) -> None:
        """Let the others know that this node is about to end."""
        ...

    async def leave(self) -> None:
        """Have the row of this node expire at once."""
        ...

    async def beat(self, leases: Sequence[Lease], watched: Collection[int]) -> Beat | None:
        """Renew the row of this node and *leases*; also return how the *watched* workspaces stand.

        None if the row of this node is another start's now: nothing was renewed. The caller tells the
        leases: `Lease.renewed` with a time before this call, or `Lease.lost`.
        """
        ...

    async def nodes(self) -> list[NodeRow]:
        """Return the nodes, also those that are gone for not too long, by their ids."""
        ...

    async def standings(self) -> list[Standing]:
        """Return the workspaces that a node runs."""
        ...

    async def find(self, workspace_id: WorkspaceId) -> Standing | None:
        """Return how a workspace stands; None if there never was one."""
        ...

    async def register(self, path: str, at: int) -> Standing:
        """Return how the workspace of a directory of this node's site stands, making its row."""
        ...

    async def claim(self, number: int) -> Lease | Standing:
        """Claim the lease of a workspace if it has expired; otherwise return who holds it."""
        ...

    async def note(self, lease: Lease, terms: str) -> None:
        """Store what the workspace of *lease* was opened with, and that it is wanted."""
        ...

    async def release(self, lease: Lease, *, wanted: bool) -> None:
        """Let *lease* expire at once; the epoch stays. Does nothing for one that is lost."""
        ...

    def open(self, lease: Lease) -> AbstractAsyncContextManager[Store]:
        """Open the store of the workspace of *lease*; leaving writes everything that was posted."""
        ...

    def reads(self, number: int) -> Store:
        """Return a store of a workspace that reads only: without a lease every write is refused."""
        ...
