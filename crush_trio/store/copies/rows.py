"""Copies the rows of a workspace from one store into another, and compares them one by one.

Each kind of store has a module beside this one with its `Rows`: what is read from it and written into it.
Values are those of SQLite: a boolean is 0 or 1. Rows are streamed, so only a few are in memory at a time.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from itertools import zip_longest
from typing import Final, Protocol, TypeAlias

from attrs import define, frozen

from crush_trio.errors import CrushError
from crush_trio.store.copies.tables import Table, workspace_tables

Row: TypeAlias = tuple[object, ...]

NOTE_EVERY: Final = 500
"""Rows after which the progress is told, and a cancel is noticed."""


class CopyDiffers(CrushError):
    """A row of a copy is not the row that was read; the detail names it. The copy was dropped."""

    code = "copy_differs"
    message = "the copy is not what was read and was dropped; report this"


class RowRefused(CrushError):
    """The other database cannot hold a row; the detail has its table and the reason."""

    code = "row_refused"
    message = "the other store cannot hold a row, and nothing was copied; change or delete it first"


class WorkspaceInTheWay(CrushError):
    """The store that is copied into has data of the workspace already; the detail says where."""

    code = "workspace_in_the_way"
    message = (
        "there is data of this workspace already, and a copy replaces nothing; move it away, or choose"
        " another directory, database or site (CRUSH_TRIO_SITE)"
    )


class NothingToCopy(CrushError):
    """The store that is copied from has no such workspace; the detail names it."""

    code = "nothing_to_copy"
    message = "there is no stored data of this workspace; check its directory, the store URL and CRUSH_TRIO_SITE"


class Rows(Protocol):
    """The rows of one workspace in an open transaction."""

    @property
    def label(self) -> str:
        """What errors call it."""
        ...

    def read(self, table: Table) -> Generator[Row, None, None]:
        """Yield the rows of a table in the order of its key."""
        ...

    def write(self, table: Table, rows: Iterable[Row]) -> None:
        """Add rows to a table. Raises `RowRefused`."""
        ...


class End(Protocol):
    """A place from which a workspace is copied, or into which. Its blocks run in one thread."""

    @property
    def label(self) -> str:
        """What errors call it."""
        ...

    def reading(self) -> AbstractContextManager[Rows]:
        """Return the rows at one moment, and keep others from the workspace meanwhile if need be.

        Raises `NothingToCopy`, or `StoreLocked` while a server has the workspace.
        """
        ...

    def writing(self) -> AbstractContextManager[Rows]:
        """Return a workspace without rows, which is kept if the block succeeds and dropped if not.

        Raises `WorkspaceInTheWay`, or `StoreLocked` while a server has the workspace.
        """
        ...

    def check_free(self) -> None:
        """Raise what `writing` would raise; change nothing."""
        ...


@frozen(kw_only=True)
class CopiedRows:
    """How many rows a copy has."""

    rows: int
    sessions: int
    messages: int


Note = Callable[[int], None]
"""Told the number of rows that were handled so far. May raise, which drops the copy."""


def copy_workspace(source: End, target: End, note: Note) -> CopiedRows:
    """Copy a workspace and compare the two row by row, in one transaction of each store. Blocks.

    What is copied from is not changed. If anything is raised, nothing is left of the copy.
    """
    progress = _Progress(note)
    with source.reading() as found, target.writing() as copy:
        tables = workspace_tables()
        for table in tables:
            with closing(found.read(table)) as rows:
                copy.write(table, progress.through(rows))
        return _counted({table.name: _compare(table, found, copy, progress) for table in tables})


def count_workspace(source: End, target: End, note: Note) -> CopiedRows:
    """Return what `copy_workspace` would copy; raise what would keep it from beginning. Blocks."""
    progress = _Progress(note)
    with source.reading() as found:
        target.check_free()
        counts = {}
        for table in workspace_tables():
            with closing(found.read(table)) as rows:
                counts[table.name] = sum(1 for _ in progress.through(rows))
        return _counted(counts)


@define
class _Progress:
    note: Note
    done: int = 0

    def through(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            yield row
            self.done += 1
            if not self.done % NOTE_EVERY:
                self.note(self.done)


def _compare(table: Table, source: Rows, target: Rows, progress: _Progress) -> int:
    """Compare the rows of a table and return how many there are; raises `CopyDiffers`."""
    rows = 0
    with closing(source.read(table)) as ours, closing(target.read(table)) as theirs:
        for wanted, found in zip_longest(progress.through(ours), theirs):
            if wanted != found or _types(wanted) != _types(found):
                raise CopyDiffers(f"row {rows + 1} of {table.name} in {target.label}")
            rows += 1
    return rows


def _types(row: Row | None) -> list[type]:
    return [type(value) for value in row or ()]


def _counted(counts: Mapping[str, int]) -> CopiedRows:
    return CopiedRows(
        rows=sum(counts.values()), sessions=counts["sessions"], messages=counts["messages"]
    )
