"""`Transaction`: what the statements of one work get: its workspace, inside the group's transaction.

The works of a group are sent in a pipeline: no statement waits for the result of the one before, which
would cost a round trip each. So whether a statement met its row is known only at the end. If one did
not, the group is rolled back and its works are run again one by one, where every statement is looked
at before the next and the right error is raised.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Generic, TypeVar

from attrs import define, field, frozen

from crush_trio.store.base import COMMIT_BOUNDS, Timings
from crush_trio.store.lease import Lease
from crush_trio.store.postgres.connection import Connection, Cursor

T = TypeVar("T")

_ROWS_AT_A_TIME = 100


@define(eq=False, kw_only=True)
class OpenWorkspace:
    """A workspace that this process writes: its number, this start of the program, its lease.

    `numbers` are those of the rows, from the highest that there is on.
    """

    number: int
    boot_id: str
    lease: Lease
    numbers: "count[int]" = field(factory=count)
    pending: int = 0
    """How many of its works are not answered yet."""
    commits: Timings = field(factory=lambda: Timings(COMMIT_BOUNDS))
    """The times of its commits. One that has works of several workspaces counts for the first of them,
    so that the sum over all is that of the database."""


@define(eq=False)
class Transaction:
    """A transaction, seen by the statements of one workspace.

    In every statement `%(w)s` is the workspace's number.
    """

    _connection: Connection
    workspace: int
    boot_id: str = ""
    _numbers: "count[int]" = field(factory=count)
    _pipelined: bool = False
    _required: list[Cursor] = field(factory=list)

    def run(self, sql: str, /, **values: object) -> Cursor:
        """Run a statement. To fetch from its cursor waits for all statements before it."""
        return self._connection.execute(sql.encode(), {"w": self.workspace, **values})

    def require(self, missing: Callable[[], None], sql: str, /, **values: object) -> None:
        """Run a statement that has to meet a row; *missing* is called if it met none, and may raise."""
        cursor = self.run(sql, **values)
        if self._pipelined:
            self._required.append(cursor)
        elif not cursor.rowcount:
            missing()

    def one(self, sql: str, /, **values: object) -> tuple[Any, ...] | None:
        """Run a statement and return its first row, if there is one."""
        return self.run(sql, **values).fetchone()

    def exists(self, table: str, identity: str) -> bool:
        """Whether a table has a row with this id."""
        found = self.one(
            f"SELECT 1 FROM {table} WHERE workspace = %(w)s AND id = %(id)s", id=identity
        )
        return found is not None

    def stream(self, sql: str, /, **values: object) -> Iterator[tuple[Any, ...]]:
        """Run a query and yield its rows, of which only some are in memory at a time."""
        with self._connection.cursor("rows") as cursor:
            cursor.itersize = _ROWS_AT_A_TIME
            cursor.execute(sql.encode(), {"w": self.workspace, **values})
            yield from cursor

    def next_n(self) -> int:
        """Return the number of a new row."""
        return next(self._numbers)

    @property
    def doubtful(self) -> bool:
        """Whether a statement of the pipeline met no row; known once the pipeline has ended."""
        return any(not cursor.rowcount for cursor in self._required)


Finish = Callable[[], T]
"""Returns the result of a work, once all its statements were run."""


@frozen
class WriteWork(Generic[T]):
    """Work for the writer: it runs statements, and returns what makes its result of them."""

    workspace: OpenWorkspace
    statements: Callable[[Transaction], Finish[T]]

    def __call__(self, group: "Group") -> Finish[T]:
        """Run the statements in the transaction of *group*."""
        return self.statements(group.transaction(self.workspace))


@define(eq=False)
class Group:
    """The transaction of a group of works."""

    connection: Connection
    pipelined: bool
    _transactions: list[Transaction] = field(factory=list, init=False)

    def transaction(self, workspace: OpenWorkspace) -> Transaction:
        """Return the transaction for a work of *workspace*."""
        made = Transaction(
            self.connection,
            workspace.number,
            workspace.boot_id,
            workspace.numbers,
            self.pipelined,
        )
        self._transactions.append(made)
        return made

    @property
    def doubtful(self) -> bool:
        """Whether a work has to be run again on its own, to find out what is wrong with it."""
        return any(made.doubtful for made in self._transactions)


ReadWork = Callable[[Transaction], T]
"""Reads of one workspace, at one moment."""
