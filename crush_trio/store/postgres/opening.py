"""Opening the store of a workspace: its row, the claim of its lease, and the task that renews it."""

import time
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
from crush_trio.store.postgres import workspaces
from crush_trio.store.postgres.database import PostgresDatabase, shared_database
from crush_trio.store.postgres.lease import TTL, HeldBy, Lease, claim, release, renew
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
    """Open the store of the workspace with the data directory *directory*, for this process alone.

    The workspace is known by its *site*, by default the name of this host, and the directory. If
    another process has it, this waits until that one renews its lease or the lease expires, at most
    *ttl* seconds: then it raises `StoreLocked` with the name of the owner, or takes over.

    Leaving the block writes all posted changes and releases the lease.
    """
    place = Place.of(url)
    boot_id = ids.new()
    async with shared_database(place, make_id=RandomIds().new, clock=clock) as database:
        key = workspaces.WorkspaceKey(site=site or this_site(), path=str(directory))
        number = await database.keeper.call(
            partial(workspaces.register, key=key, identity=RandomIds().new(), at=clock.unix())
        )
        lease = await _claim(database, number, key, ttl)
        try:
            store = await _begin(database, number, lease, boot_id, clock)
            async with open_hidden_nursery() as nursery:
                nursery.start_soon(keep_lease, database, lease, store.health, name="lease")
                try:
                    yield store
                finally:
                    with trio.move_on_after(CLOSE_SECONDS, shield=True):
                        await store.flush()
                    nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(CLOSE_SECONDS, shield=True), suppress(StoreUnavailable):
                await database.keeper.call(lambda c: release(c, lease))


async def _begin(
    database: PostgresDatabase, number: int, lease: Lease, boot_id: str, clock: Clock
) -> PostgresStore:
    """Return the store, after its first write: the row of this start of the program."""
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
        found = await database.keeper.call(
            lambda c: claim(c, number, database.node_id, database.holder, ttl=ttl)
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
        await trio.sleep(lease.pause(time.monotonic()))
        if lease.taken:  # a write has found out
            return
        sent = time.monotonic()
        try:
            ours = await database.keeper.call(lambda c: renew(c, lease))
        except StoreUnavailable as exc:
            health.failed("lease", exc)
            continue
        if ours:
            lease.renewed(sent)
        else:
            lease.lost()
        refusal = lease.refusal(time.monotonic())
        if refusal is None:
            health.succeeded("lease")
        else:
            health.failed("lease", refusal)


async def has_workspace(url: str, directory: Path, site: str = "") -> bool:
    """Whether a store was ever opened for *directory*. Creates nothing."""
    place = Place.of(url)
    key = workspaces.WorkspaceKey(site=site or this_site(), path=str(directory))
    return await trio.to_thread.run_sync(workspaces.is_registered, place, key)
