"""Opening the store of a workspace: under a lease that a node holds, or for this process alone.

A process alone has no node around it, such as a command: it claims the lease and renews it by itself.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import trio

from crush_trio.clock import Clock, IdSource, RandomIds, SystemClock
from crush_trio.nursery import open_hidden_nursery
from crush_trio.store.errors import StoreLocked, StoreUnavailable
from crush_trio.store.health import Health
from crush_trio.store.lease import TTL, Lease
from crush_trio.store.postgres import workspaces
from crush_trio.store.postgres.database import PostgresDatabase, shared_database
from crush_trio.store.postgres.lease import HeldBy, claim, release, renew
from crush_trio.store.postgres.place import Place, this_site
from crush_trio.store.postgres.store import PostgresStore
from crush_trio.store.postgres.transaction import OpenWorkspace

CLOSE_SECONDS: Final = 10.0
"""Seconds that closing waits until what was posted is stored, and for the release of the lease."""

CLAIM_LOOKS: Final = 15
"""How often a lease is looked at while it could expire."""

CLAIM_MARGIN: Final = 0.01
"""Seconds after the end of a lease at which it is claimed."""

_CLOCK: Final = SystemClock()
_IDS: Final = RandomIds()


@asynccontextmanager
async def open_postgres_store(
    url: str,
    directory: Path,
    *,
    site: str = "",
    ttl: float = TTL,
    clock: Clock = _CLOCK,
    ids: IdSource = _IDS,
) -> AsyncIterator[PostgresStore]:
    """Open the store of the workspace of *directory*, for this process alone.

    The workspace is known by its *site*, by default the name of this host, and the directory. If
    another process has it, this waits until that one renews its lease or the lease expires, at most
    *ttl* seconds: then it raises `StoreLocked` with the name of the owner, or takes over.

    Leaving the block writes all posted changes and releases the lease.
    """
    place = Place.of(url)
    async with shared_database(place, make_id=RandomIds().new, clock=clock) as database:
        key = await _key(site, directory)
        number = await database.keeper.call(partial(workspaces.register, key=key, at=clock.unix()))
        lease = await _claim(database, number, key, ttl)
        try:
            async with open_hidden_nursery() as nursery:
                async with open_leased_store(database, lease, clock=clock, ids=ids) as store:
                    nursery.start_soon(keep_lease, database, lease, store.health, name="lease")
                    yield store
                nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(CLOSE_SECONDS, shield=True), suppress(StoreUnavailable):
                await database.keeper.call(lambda c: release(c, lease))


@asynccontextmanager
async def open_leased_store(
    database: PostgresDatabase, lease: Lease, *, clock: Clock = _CLOCK, ids: IdSource = _IDS
) -> AsyncIterator[PostgresStore]:
    """Open the store of the workspace of *lease*, which the caller renews and releases.

    Leaving the block writes all posted changes.
    """
    store = await _begin(database, lease, ids.new(), clock)
    try:
        yield store
    finally:
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await store.flush()


async def _begin(
    database: PostgresDatabase, lease: Lease, boot_id: str, clock: Clock
) -> PostgresStore:
    """Return the store, after its first write: the row of this start of the program."""
    number = lease.workspace
    highest = await database.keeper.call(lambda c: workspaces.highest(c, number))
    workspace = OpenWorkspace(
        number=number, boot_id=boot_id, lease=lease, numbers=count(highest + 1)
    )
    store = PostgresStore(database, workspace)
    await store.begin(database.holder.row(), clock.unix())
    return store


async def _claim(
    database: PostgresDatabase, number: int, key: workspaces.WorkspaceKey, ttl: float
) -> Lease:
    """Claim the lease of a workspace; raise `StoreLocked` once it is certain that its owner lives."""
    seen: str | None = None
    while True:
        sent = trio.current_time()
        found = await database.keeper.call(
            partial(
                claim,
                workspace=number,
                node=database.node_id,
                holder=database.holder,
                sent=sent,
                ttl=ttl,
            )
        )
        if isinstance(found, Lease):
            return found
        if seen not in {None, found.expires} or _of_this_process(found, database):
            raise StoreLocked(f"{key.path} of site {key.site} belongs to {found.describe()}")
        seen = found.expires
        await trio.sleep(min(found.seconds + CLAIM_MARGIN, ttl / CLAIM_LOOKS))


def _of_this_process(found: HeldBy, database: PostgresDatabase) -> bool:
    """Whether a lease is held by another store of this process, which certainly lives."""
    return found.holder == database.holder.row()


async def keep_lease(database: PostgresDatabase, lease: Lease, health: Health) -> None:
    """Renew *lease* until another server has taken it. The body of a task of its owner."""
    while True:
        await trio.sleep(lease.pause(trio.current_time()))
        if lease.taken:  # a write has found out
            return
        sent = trio.current_time()
        try:
            ours = await database.keeper.call(lambda c: renew(c, lease))
        except StoreUnavailable as exc:
            health.failed("lease", exc)
            continue
        if ours:
            lease.renewed(sent)
        else:
            lease.lost()
        refusal = lease.refusal(trio.current_time())
        if refusal is None:
            health.succeeded("lease")
        else:
            health.failed("lease", refusal)


async def _key(site: str, directory: Path) -> workspaces.WorkspaceKey:
    """Return what the workspace of *directory* is known by, whichever links lead there."""
    path = await trio.to_thread.run_sync(os.path.realpath, directory, abandon_on_cancel=True)
    return workspaces.WorkspaceKey(site=site or this_site(), path=str(path))


async def has_workspace(url: str, directory: Path, site: str = "") -> bool:
    """Whether a store was ever opened for the workspace of *directory*. Creates nothing."""
    place = Place.of(url)
    key = await _key(site, directory)
    return await trio.to_thread.run_sync(workspaces.is_registered, place, key)
