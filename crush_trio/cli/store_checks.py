"""The findings of `crush-trio doctor --store`: what a server on this database would meet."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import trio

from crush_trio import __version__
from crush_trio.cli.report.findings import Finding, Level, failed
from crush_trio.cli.report.reporter import count
from crush_trio.client.client import TOKEN_VARIABLE, open_client
from crush_trio.errors import CrushError
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.settings import ADVERTISE_VARIABLE, ClusterSettings
from crush_trio.store.open import StoreSettings, check_url, inspect_database
from crush_trio.store.shared import DatabaseReport, NodeCard, NodeRow

REACH_SECONDS: Final = 5.0
"""Seconds in which a server has to answer at the address that it advertises."""

_NOT_SHARED: Final = (
    "this store belongs to one server alone",
    "for several servers give the URL of a database: --store postgresql://USER@HOST/DATABASE",
)


async def check_store(environ: Mapping[str, str], url: str) -> list[Finding]:
    """Return whether a server could use the database at *url*, and how its servers are."""
    await trio.lowlevel.checkpoint()
    settings = StoreSettings(url)
    try:
        check_url(settings)
        if not settings.shared:
            return [Finding(Level.WARN, "store", *_NOT_SHARED)]
        report = await inspect_database(settings)
    except CrushError as error:
        return [failed("store", error)]
    return [
        *describe_database(report),
        *describe_nodes(report.nodes),
        *own_address(report.nodes, environ),
        *await reach_nodes(report.nodes, environ),
    ]


# ── The database ────────────────────────────────────────────────────────────────────────────────


def describe_database(report: DatabaseReport) -> Iterator[Finding]:
    """Yield what is to be known of a database."""
    where = f"{report.label}, version {report.program}, as user {report.user}"
    yield Finding(Level.OK, "store", where)
    yield _encryption(report)
    yield _schema(report)
    yield _permissions(report)
    if report.encoding != "UTF8":
        text = f"the database has the encoding {report.encoding}"
        yield Finding(Level.FAIL, "encoding", text, "create it with ENCODING 'UTF8'")
    if report.standby or report.read_only:
        text = "this is a standby" if report.standby else "its transactions only read by default"
        advice = (
            "name all hosts and add target_session_attrs=read-write to the URL"
            if report.standby
            else "set default_transaction_read_only to off"
        )
        yield Finding(Level.FAIL, "writing", f"{text}, which takes no writes", advice)
    yield _durability(report)
    if report.pooled:
        mode = "shares connections between transactions" if report.shares else "is in between"
        yield Finding(Level.OK, "pooler", f"a pooler such as PgBouncer {mode}, which works")


def _encryption(report: DatabaseReport) -> Finding:
    if not report.encrypted:
        if report.local:
            return Finding(Level.OK, "TLS", "not encrypted; the connection stays on this machine")
        advice = (
            "add sslmode=verify-full to the URL, and sslrootcert with the authority's certificate"
        )
        return Finding(Level.WARN, "TLS", "the connection is not encrypted", advice)
    if report.verified:
        return Finding(Level.OK, "TLS", "encrypted; the certificate and the name are checked")
    advice = "use sslmode=verify-full, or another machine could pose as the database"
    return Finding(Level.WARN, "TLS", "encrypted, but whose server it is was not checked", advice)


def _schema(report: DatabaseReport) -> Finding:
    known, found = (
        f"this program knows schema {report.known}",
        f"the tables have schema {report.schema}",
    )
    if report.schema > report.known:
        advice = "install the version of the other servers here; this one does not start"
        return Finding(Level.FAIL, "schema", f"{found}, {known}", advice)
    if report.schema == report.known:
        return Finding(Level.OK, "schema", found)
    what = "there are no tables yet" if not report.schema else f"{found}, {known}"
    if not report.may_migrate:
        advice = f"make {report.user} the owner of the tables and GRANT CREATE ON SCHEMA to it"
        return Finding(Level.FAIL, "schema", f"{what}, and this user may not make them", advice)
    if not report.schema:
        return Finding(Level.OK, "schema", f"{what}; the first server makes them")
    advice = "stop the servers of the older version before one of this version starts"
    return Finding(Level.WARN, "schema", f"{what}; the next start changes the tables", advice)


def _permissions(report: DatabaseReport) -> Finding:
    if not report.lacking:
        return Finding(Level.OK, "permissions", "the user may read and write all tables")
    advice = f"GRANT SELECT, INSERT, UPDATE, DELETE on all tables of the schema to {report.user}"
    return Finding(Level.FAIL, "permissions", f"missing: {', '.join(report.lacking)}", advice)


def _durability(report: DatabaseReport) -> Finding:
    if not report.durable:
        text = "fsync or synchronous_commit is off: a crash of the database loses what was answered"
        return Finding(Level.WARN, "durability", text, "turn both on in postgresql.conf")
    if report.standbys:
        text = f"each commit waits for a standby ({report.standbys}); a failover loses nothing"
        return Finding(Level.OK, "durability", text)
    text = "commits are on the disk of the database; without a synchronous standby a failover may lose the last"
    return Finding(Level.OK, "durability", text)


# ── Its servers ─────────────────────────────────────────────────────────────────────────────────


def describe_nodes(rows: Sequence[NodeRow]) -> Iterator[Finding]:
    """Yield how many servers are alive, and what makes them differ."""
    alive = [row for row in rows if row.alive]
    sites = {row.card.site for row in alive}
    told = f"{count(len(alive), 'server')} alive"
    told += f" at {count(len(sites), 'site')}" if alive else ""
    yield Finding(Level.OK, "servers", told)
    versions = {row.card.version for row in alive}
    if versions - {__version__}:
        text = (
            f"they have the versions {', '.join(sorted(versions))}; this program is {__version__}"
        )
        yield Finding(
            Level.WARN, "versions", text, "finish the upgrade: the same version everywhere"
        )
    silent = [row.card.describe() for row in alive if not row.card.address]
    if silent and len(alive) > 1:
        advice = "start them with --advertise, so that the others can pass requests on"
        yield Finding(Level.WARN, "addresses", f"without one: {', '.join(silent)}", advice)


def own_address(rows: Sequence[NodeRow], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield whether the address that a server would advertise here is another one's."""
    given = environ.get(ADVERTISE_VARIABLE, "")
    if not given:
        return
    try:
        own = ClusterSettings.of(given).advertise
    except CrushError as error:
        yield failed(ADVERTISE_VARIABLE, error)
        return
    for row in rows:
        if row.alive and row.card.id == own:
            text = f"{own} is in use: {row.card.describe()}"
            if row.card.host == socket.gethostname():
                yield Finding(Level.OK, ADVERTISE_VARIABLE, text)
            else:
                advice = (
                    "give the server here an address of its own; it does not start with this one"
                )
                yield Finding(Level.FAIL, ADVERTISE_VARIABLE, text, advice)


async def reach_nodes(rows: Sequence[NodeRow], environ: Mapping[str, str]) -> list[Finding]:
    """Return which living servers do not answer at their addresses; no token is sent."""
    found: dict[str, Finding] = {}
    without_token = {name: value for name, value in environ.items() if name != TOKEN_VARIABLE}

    async def reach(card: NodeCard) -> None:  # noqa: ASYNC910 - asking is what waits
        reason = f"no answer in {REACH_SECONDS:g} s"
        with trio.move_on_after(REACH_SECONDS):
            try:
                async with open_client(card.address, environ=without_token) as client:
                    await client.health()
            except CrushError as error:
                reason = error.detail or str(error)
            else:
                found[card.id] = Finding(Level.OK, "reachable", card.address)
                return
        advice = "check what this server advertises, and the firewall between the machines"
        text = f"{card.describe()} is alive and cannot be reached from here: {reason}"
        found[card.id] = Finding(Level.FAIL, "reachable", text, advice)

    await trio.lowlevel.checkpoint()
    cards = [row.card for row in rows if row.alive and row.card.address]
    async with open_hidden_nursery() as nursery:
        for card in cards:
            nursery.start_soon(reach, card)
    return [found[card.id] for card in cards]
