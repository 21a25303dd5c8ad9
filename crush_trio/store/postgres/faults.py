"""Translation of PostgreSQL's errors to store errors.

This is the only module that reads SQLSTATE codes. A fault of the server, the network or the disk
becomes a `StoreUnavailable`. An error of the statement itself (a constraint, a misspelt column) is a
bug and is not translated.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from crush_trio.store.errors import (
    DiskFailed,
    DiskFull,
    StoreBusy,
    StoreCorrupt,
    StoreSlow,
    StoreUnavailable,
    StoreUnreachable,
    StoreUnsuitable,
)
from crush_trio.store.postgres.place import Place

_STATES: Final[dict[str, type[StoreUnavailable]]] = {
    "53100": DiskFull,
    "58030": DiskFailed,  # io_error
    "25006": StoreUnsuitable,  # read_only_sql_transaction: a standby
    "3F000": StoreUnsuitable,  # invalid_schema_name: there is none to create tables in
    "42501": StoreUnsuitable,  # insufficient_privilege
    "54000": StoreUnsuitable,  # program_limit_exceeded: a path that is too long for an index
    "57014": StoreSlow,  # query_canceled: the time limit of a statement
    "55P03": StoreBusy,  # lock_not_available
    "25P03": StoreSlow,  # idle_in_transaction_session_timeout
    "25P04": StoreSlow,  # transaction_timeout
    "40P01": StoreBusy,  # deadlock_detected
    "40001": StoreBusy,  # serialization_failure
}

_CLASSES: Final[dict[str, type[StoreUnavailable]]] = {
    "08": StoreUnreachable,  # connection exceptions
    "28": StoreUnreachable,  # the user or the password is refused
    "3D": StoreUnreachable,  # there is no such database
    "53": StoreUnreachable,  # insufficient resources, such as connections
    "57": StoreUnreachable,  # the server shuts down, starts, or was told to end the connection
    "58": StoreUnreachable,  # errors outside of the server
    "XX": StoreCorrupt,  # internal errors, such as a damaged page
}

_ADVICE: Final[dict[str, str]] = {
    "25006": "name the primary in the store URL, or all hosts with target_session_attrs=read-write; if it is"
    " the primary, its user may only read",
    "3F000": "create the schema that the search_path of its user names, or set another one with ALTER ROLE",
    "54000": "use a shorter path: 2,600 bytes always fit",
    "42501": "make its user the owner of the database (ALTER DATABASE NAME OWNER TO USER) and of its tables,"
    " or grant the rights that are missing",
}
"""What to do about a `StoreUnsuitable`, whose message cannot say it."""


def translate(exc: Exception, place: Place) -> Exception:
    """Return the store error for *exc*; *exc* itself if it is not such a fault.

    Each call makes a new error. The server's message is part of it, without the password.
    """
    if not isinstance(exc, psycopg.Error):
        return exc
    kind = _kind_of(exc)
    if kind is None:
        return exc
    text = " ".join(str(exc).split())
    advice = f"; {_ADVICE[exc.sqlstate]}" if exc.sqlstate in _ADVICE else ""
    fault = kind(f"{place.label} ({place.without_password(text)}){advice}")
    # The driver's own error could hold the password in its message, so it is not chained then.
    fault.__cause__ = exc if place.without_password(text) == text else None
    return fault


def _kind_of(exc: psycopg.Error) -> type[StoreUnavailable] | None:
    state = exc.sqlstate
    if state is not None:
        return _STATES.get(state) or _CLASSES.get(state[:2])
    # Without a code it is of libpq: the connection failed, or is closed.
    of_connection = isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError)
    return StoreUnreachable if of_connection else None


def broken(exc: psycopg.Error, place: Place) -> StoreUnavailable:
    """Return the store error for *exc* after which the connection was closed, whatever it says."""
    fault = translate(exc, place)
    if isinstance(fault, StoreUnavailable):
        return fault
    text = place.without_password(" ".join(str(exc).split()))
    return StoreUnreachable(f"{place.label} ({text})")


def ends_connection(exc: psycopg.Error) -> bool:
    """Whether the server closes the connection after this error, so that a commit may be in doubt."""
    return exc.sqlstate is None or exc.sqlstate.startswith(("57P", "08"))


@contextmanager
def translated(place: Place) -> Iterator[None]:
    """Raise faults of PostgreSQL as store errors about *place*."""
    try:
        yield
    except psycopg.Error as exc:
        if (fault := translate(exc, place)) is exc:
            raise
        raise fault from fault.__cause__
