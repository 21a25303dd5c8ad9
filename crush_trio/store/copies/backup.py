"""Backups of the store in a data directory: a checked copy in one file, also while a server uses the store.

The work is done in a thread. Cancelling waits for it, so that no half copy is left.
"""

import os
from importlib.metadata import version
from pathlib import Path

import trio
from attrs import frozen

from crush_trio.clock import SystemClock


@frozen(kw_only=True)
class CopyReport:
    """What a copy holds; *schema* is the version of its tables."""

    schema: int
    sessions: int
    messages: int
    bytes: int


async def back_up(data_dir: Path, target: Path) -> CopyReport:
    """Copy the store of *data_dir* to the new file *target*, and check the copy; the source stays as it is.

    Raises `FileExistsError` if *target* exists, and a `StoreUnavailable` for what is wrong with the files.
    """
    from crush_trio.store.sqlite.copies import copy_database
    from crush_trio.store.sqlite.database import DATABASE_NAME

    return await trio.to_thread.run_sync(copy_database, data_dir / DATABASE_NAME, target)


async def restore(copy: Path, data_dir: Path) -> tuple[CopyReport, Path | None]:
    """Put a *copy* in the place of the store of *data_dir*; return what it holds, and where the former one is.

    Raises `StoreLocked` while a server has the directory open, and a `StoreUnavailable` for a copy that is
    damaged or of a newer version; nothing is changed then.
    """
    from crush_trio.store.sqlite.copies import restore_database
    from crush_trio.store.sqlite.directory import Owner

    owner = Owner(pid=os.getpid(), version=version("crush-trio"), started=SystemClock().unix())
    return await trio.to_thread.run_sync(restore_database, copy, data_dir, owner)
