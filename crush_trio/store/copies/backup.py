"""Backups of a workspace, restoring them, and copying workspaces from one store into another.

The work is done in a thread. Cancelling stops it at the next rows, and nothing is left of the copy.
"""

import os
from functools import partial
from importlib.metadata import version
from pathlib import Path

import trio
from attrs import frozen

from crush_trio.clock import SystemClock
from crush_trio.store.copies.rows import (
    CopiedRows,
    End,
    Note,
    copy_workspace,
    count_workspace,
)
from crush_trio.store.open import StoreSettings, StoreUnknown, check_driver


@frozen(kw_only=True)
class CopyReport:
    """What a copy holds; *schema* is the version of its tables."""

    schema: int
    sessions: int
    messages: int
    bytes: int


@frozen(kw_only=True)
class StoredPlace:
    """Where the data of a workspace is: a store, and the directory of the workspace or its data directory."""

    settings: StoreSettings
    directory: Path
    data_dir: Path


async def back_up(place: StoredPlace, target: Path) -> CopyReport:
    """Copy a workspace to the new SQLite file *target*, and check the copy; the source stays as it is.

    Also while a server uses it: the copy is of one moment. Raises `FileExistsError` if *target* exists, and
    a `StoreUnavailable` for what is wrong with either store.
    """
    from crush_trio.store.sqlite.copies import check_database, copy_database
    from crush_trio.store.sqlite.database import DATABASE_NAME

    _refuse_memory(place.settings)
    if not place.settings.shared:
        found = place.data_dir / DATABASE_NAME
        return await trio.to_thread.run_sync(copy_database, found, target)
    from crush_trio.store.copies.sqlite import BackupFile

    await run_copy(end_of(place, live=True), BackupFile(target))
    return await trio.to_thread.run_sync(check_database, target)


async def restore(copy: Path, place: StoredPlace) -> tuple[CopyReport, Path | None]:
    """Put a *copy* in the place of the data of a workspace; return what it holds, and where the former data is.

    Raises `StoreLocked` while a server has the workspace, and a `StoreUnavailable` for a copy that is
    damaged or of a newer version; nothing is changed then. In a shared store the workspace must be empty:
    `WorkspaceInTheWay`.
    """
    from crush_trio.store.sqlite.copies import check_database, restore_database
    from crush_trio.store.sqlite.directory import Owner

    _refuse_memory(place.settings)
    if not place.settings.shared:
        owner = Owner(pid=os.getpid(), version=version("crush-trio"), started=SystemClock().unix())
        return await trio.to_thread.run_sync(restore_database, copy, place.data_dir, owner)
    from crush_trio.store.copies.sqlite import BackupFile

    report = await trio.to_thread.run_sync(check_database, copy)
    await run_copy(BackupFile(copy), end_of(place))
    return report, None


def end_of(place: StoredPlace, *, live: bool = False) -> End:
    """Return a workspace to copy from or into; a *live* one of a shared store may be in use."""
    _refuse_memory(place.settings)
    if not place.settings.shared:
        from crush_trio.store.copies.sqlite import DataDirectory

        return DataDirectory(place.data_dir)
    check_driver(place.settings)
    from crush_trio.store.copies.postgres import workspace_end

    directory = os.path.realpath(place.directory)
    return workspace_end(place.settings.url, place.settings.named_site, directory, live=live)


async def run_copy(
    source: End, target: End, *, note: Note | None = None, dry_run: bool = False
) -> CopiedRows:
    """Copy a workspace and compare the copy row by row; with *dry_run* only count what would be copied."""
    work = count_workspace if dry_run else copy_workspace
    return await trio.to_thread.run_sync(partial(work, source, target, partial(_note, note)))


async def stored_workspaces(settings: StoreSettings) -> list[str]:
    """Return the directories of the workspaces in a shared store that have data, of one site."""
    check_driver(settings)
    from crush_trio.store.copies import postgres

    return await trio.to_thread.run_sync(
        postgres.stored_workspaces, settings.url, settings.named_site
    )


def _note(note: Note | None, rows: int) -> None:
    trio.from_thread.check_cancelled()
    if note is not None:
        note(rows)


def _refuse_memory(settings: StoreSettings) -> None:
    if settings.scheme == "memory":
        raise StoreUnknown("what is in memory is of one server, and cannot be copied")
