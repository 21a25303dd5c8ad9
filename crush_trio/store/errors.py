"""Store errors, the same for every database.

Each message says what happened, what a user can do about it, and which file it is about. Each store
translates its own errors into these, so that callers and the table of HTTP statuses see the same
codes for every store.
"""

from crush_trio.errors import CrushError, Unavailable


class StoreUnavailable(Unavailable):
    """The store cannot work now. Nothing was written."""


class DiskFull(StoreUnavailable):
    """No room is left for the write. The store recovers by itself once there is room again."""

    code = "disk_full"
    message = "the disk is full; free some space and try again"


class DiskFailed(StoreUnavailable):
    """The operating system refused to open, read or write a file of the store."""

    code = "disk_failed"
    message = "the disk reported an error; check the device and the file, then try again"


class StoreReadOnly(StoreUnavailable):
    """The file, its directory or its file system does not allow writing."""

    code = "store_read_only"
    message = "the store cannot be written; make the data directory writable for this user"


class StoreCorrupt(StoreUnavailable):
    """The file is not a database, or its content contradicts itself."""

    code = "store_corrupt"
    message = "the store is damaged; stop the server and put a backup in place of the file"


class StoreLost(StoreUnavailable):
    """A file of the open store was removed, moved or replaced; the detail is its path.

    Reading still works. Nothing more is written: it would be lost when the file is closed.
    """

    code = "data_directory_lost"
    message = (
        "the data directory was removed, moved or replaced while it was in use, and nothing more is"
        " stored; leave the workspace with every client and open it again, which begins with what"
        " the directory holds then, an empty store if it holds none"
    )


class StoreFileForeign(StoreUnavailable):
    """A file of the store is a link, a pipe or another user's; the detail names it.

    A checkout can contain such a file, to make the server write somewhere else.
    """

    code = "store_file_foreign"
    message = (
        "a file of the data directory is not one that this program made, and it was not opened; move"
        " it away, or choose another data directory"
    )


class StoreBusy(StoreUnavailable):
    """Another program kept the database file locked for longer than we wait."""

    code = "store_busy"
    message = "another program keeps the database locked; close it and try again"


class StoreSlow(StoreUnavailable):
    """The store did not answer in time, and the write was taken back."""

    code = "store_slow"
    message = "the store did not answer in time; check the disk and what else uses the database"


class StoreLocked(StoreUnavailable):
    """Another server owns the data directory; the detail names it."""

    code = "store_locked"
    message = "the data directory is in use; stop its owner or choose another directory"


class StoreUnreachable(StoreUnavailable):
    """The database server does not answer, or refuses the connection; the detail says what it says."""

    code = "store_unreachable"
    message = "the database cannot be reached; check its server and the address in the store URL"


class StoreUnsuitable(StoreUnavailable):
    """The database cannot be used as it is; the detail says what is missing and what to do."""

    code = "store_unsuitable"
    message = "the database of the store URL cannot be used"


class LeaseLost(StoreUnavailable):
    """This process may not write a workspace any more; the detail says why.

    Either another server has taken the workspace over, or the lease could not be renewed in time.
    """

    code = "lease_lost"
    message = (
        "this server does not hold the lease of the workspace, and nothing more is stored; connect"
        " again to the server that holds it"
    )


class StoreTooNew(StoreUnavailable):
    """A newer version of this program wrote the file; reading it with this one could harm it."""

    code = "store_too_new"
    message = "the store was written by a newer version; use that version to open it"


class MigrationFailed(StoreUnavailable):
    """The file could not be migrated to this program's schema. It is unchanged."""

    code = "migration_failed"
    message = (
        "the store could not be upgraded and was left unchanged; keep the file and report this"
    )


class RecordNotStored(CrushError):
    """The record of a turn has something that no store can hold; the detail is the store's error.

    Unlike the errors above it does not pass: the same write would fail again.
    """

    code = "record_not_stored"
    message = (
        "the end of the answer could not be stored (record_not_stored); send the prompt again, and"
        " report it with the server's log if it happens again"
    )
    title = "Answer not stored"


class StoreFailed(StoreUnavailable):
    """The store has stopped and must be opened again.

    There is one exception to the rule that nothing was written: if closing gives up on a disk that
    hangs in the middle of a commit, that commit is reported as failed and may still be written.
    """

    code = "store_failed"
    message = "the store has stopped; restart the server"
