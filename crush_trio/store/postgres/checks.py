"""What `crush-trio doctor --store` and `crush-trio cluster --store` read. Nothing is changed or created.

Run in a thread: connections of psycopg block.
"""

import re
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from crush_trio.store.errors import StoreUnsuitable
from crush_trio.store.migrations import Migration
from crush_trio.store.postgres.connection import Connection, connect
from crush_trio.store.postgres.faults import broken, translated
from crush_trio.store.postgres.migrations import known_migrations, version
from crush_trio.store.postgres.nodes import HELD, NODES, read_node, read_standing
from crush_trio.store.postgres.place import Place
from crush_trio.store.shared import DatabaseReport, NodeRow, Standing

LOOKS: Final = 8
"""How often a connection asks which process of the server it has."""

CLUSTER_SCHEMA: Final = 3
"""The schema from which on there is a table of nodes with all its columns."""

_TABLE: Final = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)

_SETTINGS: Final = b"""
    SELECT current_setting('server_version'), current_setting('server_encoding'),
        pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on',
        current_setting('fsync') = 'on', current_setting('synchronous_commit'),
        current_setting('synchronous_standby_names'),
        has_schema_privilege(current_schema(), 'CREATE'), current_user::text
"""

_LACKING: Final = b"""
    SELECT privilege || ' ON ' || c.relname
    FROM pg_class AS c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relname = ANY(%(tables)s)
        AND c.relkind = 'r' AND NOT has_table_privilege(c.oid, privilege)
    ORDER BY 1
"""

_FOREIGN: Final = b"""
    SELECT count(*) FROM pg_class AS c
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relname = ANY(%(tables)s)
        AND NOT pg_has_role(c.relowner, 'USAGE')
"""


def read_cluster(url: str) -> tuple[list[NodeRow], list[Standing]]:
    """Return the nodes of the database and the workspaces that are run; none if there are no tables yet."""
    place = Place.of(url)
    connection = connect(place)
    try:
        with translated(place):
            found = version(connection)
            if not found:
                return [], []
            if found < CLUSTER_SCHEMA:
                raise StoreUnsuitable(
                    f"{place.label} has tables of an older version; start a server of this version on it"
                )
            nodes = connection.execute(NODES).fetchall()
            held = connection.execute(HELD).fetchall()
        return [read_node(row) for row in nodes], [read_standing(row) for row in held]
    except psycopg.Error as exc:
        raise broken(exc, place) from exc
    finally:
        connection.close()


def inspect_database(url: str) -> DatabaseReport:
    """Connect as a server would and return what a server would meet."""
    place = Place.of(url)
    connection = connect(place)
    try:
        with translated(place):
            return _report(place, connection)
    except psycopg.Error as exc:
        raise broken(exc, place) from exc
    finally:
        connection.close()


def _report(place: Place, connection: Connection) -> DatabaseReport:
    row = connection.execute(_SETTINGS).fetchone()
    assert row is not None, "a row of settings"
    program, encoding, standby, read_only, fsync, commit, standbys, may_create, user = row
    migrations, schema = known_migrations(), version(connection)
    tables = {"tables": ["schema_versions", *_tables(migrations)]}
    lacking = connection.execute(_LACKING, tables).fetchall() if schema else []
    foreign = connection.execute(_FOREIGN, tables).fetchone()
    pooled, shares = _pooling(place, connection)
    nodes = []
    if CLUSTER_SCHEMA <= schema <= migrations[-1].number:
        nodes = [read_node(found) for found in connection.execute(NODES).fetchall()]
    info = connection.info
    mode = conninfo_to_dict(place.url).get("sslmode") or info.get_parameters().get("sslmode")
    return DatabaseReport(
        label=place.label,
        program=program,
        user=user,
        encrypted=bool(connection.pgconn.ssl_in_use),
        verified=mode == "verify-full",
        local=info.host.startswith("/") or info.hostaddr in {"127.0.0.1", "::1"},
        encoding=encoding,
        schema=schema,
        known=migrations[-1].number,
        lacking=tuple(found[0] for found in lacking),
        may_migrate=may_create and (foreign is None or not foreign[0]),
        standby=standby,
        read_only=read_only,
        durable=fsync and commit != "off",
        standbys=standbys if commit not in {"off", "local"} else "",
        pooled=pooled,
        shares=shares,
        nodes=tuple(nodes),
    )


def _tables(migrations: tuple[Migration, ...]) -> list[str]:
    """Return the names of our tables."""
    return [name for migration in migrations for name in _TABLE.findall(migration.sql)]


def _pooling(place: Place, connection: Connection) -> tuple[bool, bool]:
    """Return whether something stands between us and the server, and whether it shares connections.

    A pooler answers with a process id of its own when a client connects. In transaction mode one
    connection of ours has several processes of the server, or two of ours have the same.
    """
    seen = {_process(connection) for _ in range(LOOKS)}
    if seen == {connection.info.backend_pid}:
        return False, False
    second = connect(place)
    try:
        return True, len(seen) > 1 or _process(second) in seen
    finally:
        second.close()


def _process(connection: Connection) -> int:
    row = connection.execute(b"SELECT pg_backend_pid()").fetchone()
    assert row is not None, "a process id"
    return int(row[0])
