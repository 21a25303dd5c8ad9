"""The rows of workspaces themselves: finding or making one, and the start of the program in it."""

import psycopg
from attrs import frozen

from crush_trio.store.postgres.connection import Connection, connect
from crush_trio.store.postgres.faults import broken, translated
from crush_trio.store.postgres.migrations import version
from crush_trio.store.postgres.place import Place
from crush_trio.store.postgres.transaction import Finish, Transaction
from crush_trio.wire.ids import workspace_id_of

TABLES = (
    "boots", "sessions", "messages", "parts", "chunks", "runs", "recordings", "files", "read_files",
    "asks", "event_tail", "usage",
)  # fmt: skip
"""The tables with the rows of workspaces."""

_NUMBERED = ("boots", "sessions", "messages", "runs", "asks")


@frozen(kw_only=True)
class WorkspaceKey:
    """What a workspace is known by: its site, whose nodes see the same files, and its directory there."""

    site: str
    path: str

    @property
    def id(self) -> str:
        """The id of the workspace: the same on every node."""
        return workspace_id_of(self.site, self.path)


def register(connection: Connection, key: WorkspaceKey, at: int) -> int:
    """Return the number of a workspace; a new one gets a row, and a lease that has expired.

    A row that is there is only read: writing its id would wait for the writes of its owner, whose rows
    refer to it.
    """
    values = {"id": key.id, "site": key.site, "path": key.path, "at": at}
    found = connection.execute(
        b"SELECT number FROM workspaces JOIN leases ON workspace = number"
        b" WHERE site = %(site)s AND path = %(path)s AND id = %(id)s",
        values,
    ).fetchone()
    if found is not None:
        return int(found[0])
    with connection.transaction():
        connection.execute(  # it had another id before ids were computed
            b"UPDATE workspaces SET id = %(id)s"
            b" WHERE site = %(site)s AND path = %(path)s AND id <> %(id)s",
            values,
        )
        connection.execute(  # without a target, because id and place are unique: either may be there already
            b"INSERT INTO workspaces (id, site, path, created_at)"
            b" VALUES (%(id)s, %(site)s, %(path)s, %(at)s) ON CONFLICT DO NOTHING",
            values,
        )
        connection.execute(
            b"INSERT INTO leases (workspace) SELECT number FROM workspaces"
            b" WHERE site = %(site)s AND path = %(path)s ON CONFLICT (workspace) DO NOTHING",
            values,
        )
        row = connection.execute(
            b"SELECT number FROM workspaces WHERE site = %(site)s AND path = %(path)s", values
        ).fetchone()
    assert row is not None
    return int(row[0])


def is_registered(place: Place, key: WorkspaceKey) -> bool:
    """Whether there is such a workspace; called in a thread. Creates nothing."""
    connection = connect(place)
    try:
        with translated(place):
            if not version(connection):
                return False
            found = connection.execute(
                b"SELECT 1 FROM workspaces WHERE site = %s AND path = %s", (key.site, key.path)
            )
            return found.fetchone() is not None
    except psycopg.Error as exc:
        raise broken(exc, place) from exc
    finally:
        connection.close()


def highest(connection: Connection, workspace: int) -> int:
    """Return the highest number that a row of a workspace has; 0 if it has no rows."""
    newest = ", ".join(
        f"(SELECT max(n) FROM {table} WHERE workspace = %(w)s)" for table in _NUMBERED
    )
    row = connection.execute(f"SELECT greatest(0, {newest})".encode(), {"w": workspace}).fetchone()
    return 0 if row is None else int(row[0])


def add_boot(transaction: Transaction, holder: str, at: int) -> Finish[None]:
    """Store the row of this start of the program."""
    transaction.run(
        "INSERT INTO boots (workspace, n, id, started_at, holder)"
        " VALUES (%(w)s, %(n)s, %(id)s, %(at)s, %(holder)s)",
        n=transaction.next_n(),
        id=transaction.boot_id,
        at=at,
        holder=holder,
    )
    return lambda: None


def read_all(transaction: Transaction) -> None:
    """Read every row of a workspace, so that the server finds damaged ones."""
    for table in TABLES:
        transaction.run(
            f"SELECT sum(hashtext({table}::text)::bigint) FROM {table} WHERE workspace = %(w)s"
        ).fetchone()
