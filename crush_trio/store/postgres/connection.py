"""Connections: how they are opened, how their transactions begin, and how text is stored.

Everything works through PgBouncer in transaction mode, where each transaction may run on another
connection of the server: no prepared statements with names, no settings of a session, no locks of a
session. Time limits are set in each transaction, for that transaction.

PostgreSQL cannot hold the character NUL in text, which SQLite can and which a tool's output may
contain. It is stored as two other characters, `ESCAPE` and one more, and read back as what it was.
"""

import math
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from attrs import define, field
from psycopg import sql
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.string import StrDumperUnknown
from typing_extensions import override

from crush_trio.store.errors import StoreUnreachable, StoreUnsuitable
from crush_trio.store.postgres.faults import translated
from crush_trio.store.postgres.place import MALFORMED, Place

RV = TypeVar("RV")
Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]

WRITE_SECONDS: Final = 20
"""The time limit of a statement that writes."""

READ_SECONDS: Final = 30
"""The time limit of a statement that reads."""

LEASE_SECONDS: Final = 4
"""The time limit of a statement about a lease: there is time for another one before it expires."""

IDLE_SECONDS: Final = 5
"""Seconds after which the server ends a transaction whose client is silent. Until then its locks hold
up the next owner of a workspace."""

SILENCE_MARGIN: Final = 2
"""Seconds after its time limit at which a statement without an answer means that the connection is dead."""

_DEFAULTS: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "crush-trio",
}
"""Parameters of a connection, unless the URL has them: a dead network is noticed in seconds."""

_LIMITS: Final = (
    "; SET LOCAL statement_timeout = {seconds}000; SET LOCAL lock_timeout = {seconds}000"
    f"; SET LOCAL idle_in_transaction_session_timeout = {IDLE_SECONDS}000"
)
BEGIN_WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE" + _LIMITS.format(
    seconds=WRITE_SECONDS
)
WRITER_PREFIX: Final = "crush-trio "
"""What comes before the id of a writer in the `application_name` of its transactions."""

BEGIN_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" + _LIMITS.format(
    seconds=READ_SECONDS
)
BEGIN_SHORT: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE" + _LIMITS.format(
    seconds=LEASE_SECONDS
)


def begin_write(writer: str) -> bytes:
    """Return the statements that begin a transaction of the writer with this id.

    The database shows the id, so that another node can end a transaction that outlives a lease.
    """
    named = sql.Literal(f"{WRITER_PREFIX}{writer}").as_string()
    return f"{BEGIN_WRITE}; SET LOCAL application_name = {named}".encode()


ESCAPE: Final = "\x01"
_NUL, _ESCAPE = ESCAPE + "\x02", ESCAPE + "\x03"


class _TextDumper(StrDumperUnknown):
    """Writes text, with the characters that stand for NUL."""

    @override
    def dump(self, obj: str) -> Buffer | None:
        if "\0" in obj or ESCAPE in obj:
            obj = obj.replace(ESCAPE, _ESCAPE).replace("\0", _NUL)
        return super().dump(obj)


class _TextLoader(Loader):
    """Reads text as it was before it was written."""

    @override
    def load(self, data: Buffer) -> str:
        text = bytes(data).decode()
        if ESCAPE in text:
            text = text.replace(_NUL, "\0").replace(_ESCAPE, ESCAPE)
        return text


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is closed when the server says nothing for too long.

    The time limits of statements are kept by the server. A server that is frozen, or a proxy that
    takes bytes and passes none on, keeps none, and TCP does not notice either.
    """

    silence: float = math.inf
    """Seconds without a byte of the server, while an answer is waited for, until the connection is closed."""

    @override
    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        try:
            return super().wait(_limited(gen, self.silence), *args, **kwargs)
        except _SilentError:
            self.close()
            text = f"the server has not answered for {self.silence:g} seconds"
            raise psycopg.OperationalError(text) from None


class _SilentError(Exception):
    """The server has been silent for too long."""


def _limited(gen: PQGen[RV], silence: float) -> PQGen[RV]:
    """Do what *gen* does; raise `_SilentError` when nothing was ready for *silence* seconds."""
    try:
        wanted = next(gen)
        since = time.monotonic()
        while True:
            ready = yield wanted
            if ready:
                since = time.monotonic()
            elif time.monotonic() - since > silence:
                raise _SilentError
            wanted = gen.send(ready)
    except StopIteration as done:
        result: RV = done.value
        return result


def connect(place: Place, limit: float = READ_SECONDS) -> Connection:
    """Open a connection for statements that take at most *limit* seconds. Blocks; call it in a thread.

    Raises `StoreUnsuitable` for a URL that the driver cannot read, without repeating it.
    """
    try:
        given = conninfo_to_dict(place.url)
        parameters = make_conninfo("", **{**_DEFAULTS, **given, "client_encoding": "UTF8"})
    except psycopg.Error as exc:
        raise StoreUnsuitable(_malformed(place, exc)) from None
    with translated(place):
        connection = Connection.connect(parameters, autocommit=True, prepare_threshold=None)
        connection.silence = limit + SILENCE_MARGIN
        connection.adapters.register_dumper(str, _TextDumper)
        connection.adapters.register_loader("text", _TextLoader)
        return connection


def _malformed(place: Place, exc: psycopg.Error) -> str:
    """Say what the driver does not like about the URL, if that cannot be a piece of the password.

    A password that contains `?` seems to end there; what follows the `@` after it is then taken for
    parameters.
    """
    parameters = place.url.partition("?")[2]
    told = str(exc).strip()
    if "parameter" not in told or "@" in parameters or place.without_password(told) != told:
        return MALFORMED
    return f"its URL is malformed ({told}); correct what follows the question mark"


def suitable(connection: Connection, place: Place) -> None:
    """Raise `StoreUnsuitable` unless the database can hold every text."""
    with translated(place):
        row = connection.execute("SELECT current_setting('server_encoding')").fetchone()
    encoding = "" if row is None else row[0]
    if encoding != "UTF8":
        text = f"{place.label} has the encoding {encoding}; create it with ENCODING 'UTF8'"
        raise StoreUnsuitable(text)


FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 5.0


@define(eq=False)
class Reconnector:
    """Opens a connection again when it has failed, with growing pauses. Used by one thread at a time.

    During a pause every attempt is refused at once with what the last one said, so that a server that
    is down is not flooded and no caller waits for it. The first attempt after a connection broke is
    made at once.
    """

    _place: Place
    _connect: Callable[[Place], Connection] = connect
    _now: Callable[[], float] = time.monotonic
    _delay: float = field(default=0.0, init=False)
    _not_before: float = field(default=0.0, init=False)
    _last: str = field(default="", init=False)

    def forget(self) -> None:
        """Make the next attempt at once, because there is reason to believe that it succeeds."""
        self._delay = self._not_before = 0.0

    def connect(self) -> Connection:
        """Return a new connection, or raise a `StoreUnavailable`."""
        if self._now() < self._not_before:
            raise StoreUnreachable(self._last)
        try:
            connection = self._connect(self._place)
        except StoreUnreachable as exc:
            self._last = exc.detail
            self._delay = min(max(2 * self._delay, FIRST_DELAY), LONGEST_DELAY)
            self._not_before = self._now() + self._delay
            raise
        self._delay = 0.0
        return connection
