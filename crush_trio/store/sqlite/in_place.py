"""Whether the files of an open store are still where they were opened.

A file that is removed while it is open can still be written, and what is written is gone when it is
closed. So in each transaction, before its writes, the writer looks whether the paths of the store
still lead to its files. `git clean -fdx`, `rm -rf`, a directory that was renamed and a file that was
replaced all show as another inode or none; the number of ours cannot be given to another file while
it is open.

In the ordinary case this is one system call. Removing, renaming or adding a file changes the time
of its directory; as long as that time stands still, the files are in place. A time that was first
seen a moment ago proves nothing yet, because clocks of file systems are coarse: until it has stood for
`SETTLED` seconds, every file is looked at.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import define, field

from crush_trio.store.errors import StoreLost

SETTLED: Final = 3.0
"""Seconds after which a change of a directory shows in its time, on any file system."""

_Identity = tuple[int, ...]


@define(eq=False)
class InPlace:
    """The files of a store that has been opened in *directory*. Used by one thread at a time.

    What was lost once stays lost: a file that comes back may be older than what was written meanwhile.
    """

    directory: Path
    lost: str = field(default="", init=False)
    """Which path does not lead to its file any more; empty while all of them do."""
    _files: Sequence[tuple[str, _Identity]] = field(factory=list, init=False, repr=False)
    _place: str = field(init=False, repr=False)
    _seen: _Identity = field(default=(), init=False, repr=False)
    """The directory and its time when the files were last looked at."""
    _since: float = field(default=0.0, init=False, repr=False)
    _settled: bool = field(default=False, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._place = str(self.directory)

    def remember(self, *files: Path) -> None:
        """Take *files*, which are open, for those of the store. Raises OSError."""
        self._files = [(str(path), _identity(str(path))) for path in files]

    def check(self) -> None:
        """Raise `StoreLost` if a file is no longer in its place; OSError if that cannot be seen."""
        if self.lost:
            raise StoreLost(self.lost)
        try:
            found = os.stat(self._place)  # noqa: PTH116 - a Path would cost as much as the call
            self._check(_identity_of(found, found.st_mtime_ns))
        except (FileNotFoundError, NotADirectoryError) as error:
            self._lose(str(error.filename))

    def _check(self, seen: _Identity) -> None:
        if seen != self._seen:
            self._seen, self._since, self._settled = seen, time.monotonic(), False
        if self._settled:
            return
        settled = time.monotonic() - self._since > SETTLED
        for path, identity in self._files:
            if _identity(path) != identity:
                self._lose(path)
        self._settled = settled

    def _lose(self, path: str) -> None:
        self.lost = path
        raise StoreLost(path)


def _identity(path: str) -> _Identity:
    return _identity_of(os.stat(path))  # noqa: PTH116 - as above


def _identity_of(found: os.stat_result, *more: int) -> _Identity:
    return (found.st_dev, found.st_ino, *more)
