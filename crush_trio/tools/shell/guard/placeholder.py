"""Placeholders: empty directories that reserve a name while a sandboxed command runs; and names that it made.

A sandbox keeps a command from making `.git/hooks` by mounting something read-only there, and a mount
needs something to mount on. So the guard makes an empty directory where there is nothing, and removes
it when the command has ended.

Commands that run at the same time share a placeholder: each has a shared lock on it, and only the one
that can turn its lock into an exclusive one removes it. (Removing it earlier would detach the mounts of
the others: the kernel allows that from outside their mount namespace.) The kernel releases the lock of
a guard that was killed; the next command then finds the directory, knows it by its mode and removes it.
If another program has put something into it by then, it stays. A server that opens a workspace does the
same (`remove_left`).

Some names cannot be reserved, because programs would fail at a directory there: git at `.git/commondir`, a
shell at `~/.bashrc`. `look_for_made` finds out which of them a command has made.

Part of the guard program: the package docstring says what it may import.
"""

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MODE = 0o1755
"""The mode of a placeholder. No other program gives the sticky bit to a directory in a project."""

TRIES = 100
"""How often to try again if another guard removes the placeholder at the same moment."""


REMOVED = "commondir"
"""The name that is removed if a command made it.

Git writes this file only into the directory of a new linked work tree. In any other git directory it makes
git take its configuration and hooks from a place that the command chose.
"""


def is_placeholder(path: "str | os.PathLike[str]") -> bool:
    """Whether *path* is a placeholder, of this or of another command of our user."""
    try:
        state = os.lstat(path)
        marked = stat.S_ISDIR(state.st_mode) and stat.S_IMODE(state.st_mode) == MODE
        ours = marked and state.st_uid == os.geteuid()
        return ours and not os.listdir(path)  # noqa: PTH208  # no time for pathlib
    except OSError:
        return False


def remove_left(paths: "Iterable[str | os.PathLike[str]]") -> None:
    """Remove the placeholders among *paths* that no command uses: their guard and watcher were killed."""
    for path in paths:
        if is_placeholder(path):
            try:
                left = Placeholders([os.fspath(path)])
            except OSError:
                continue  # another process has changed it meanwhile
            left.remove()
            left.close()


def look_for_made(paths: "Sequence[str]") -> list[int]:
    """Return the indexes of the *paths* that exist now; a `REMOVED` among them is removed."""
    made = [number for number, path in enumerate(paths) if os.path.lexists(path)]
    for number in made:
        folder, name = os.path.split(paths[number])
        if name == REMOVED and os.path.realpath(folder) == folder:  # not through a link
            try:
                os.unlink(paths[number])  # noqa: PTH108  # no time for pathlib
            except OSError:
                continue  # a directory, at which git fails; the report names it all the same
    return made


class Placeholders:
    """The placeholders of one command, each open and locked.

    The guard and its watcher share the locks, because one of them is forked from the other.
    """

    def __init__(self, paths: "Iterable[str]") -> None:
        """Make the placeholders; raise `OSError` if one cannot be made."""
        self._held: list[tuple[str, int, bool]] = []
        try:
            for path in paths:
                self._held.append((path, *_hold(path)))
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove those that no other command uses. Can be called more than once."""
        if not self._held:
            return
        import fcntl

        for path, descriptor, made in self._held:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Some file systems do not keep the mode: what was made here is removed anyway.
                if _is_at(path, descriptor) and (made or is_placeholder(path)):
                    os.rmdir(path)  # noqa: PTH106  # no time for pathlib
            except OSError:
                pass  # another command uses it, or another program has filled it
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # or a command that starts now would wait

    def close(self) -> None:
        """Close them; for a process that goes on. A guard ends instead."""
        for _, descriptor, _ in self._held:
            os.close(descriptor)
        self._held.clear()


def _hold(path: str) -> tuple[int, bool]:
    """Make a placeholder or join another command's.

    Returns a descriptor with a shared lock, and whether the placeholder was made here.
    """
    import fcntl

    for _ in range(TRIES):
        made = False
        mask = os.umask(0o777 & ~MODE)
        try:
            os.mkdir(path, MODE)  # noqa: PTH102  # no time for pathlib
            made = True
        except FileExistsError:
            if not is_placeholder(path) and os.path.lexists(path):
                raise
        finally:
            os.umask(mask)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_at(path, descriptor):
            return descriptor, made
        os.close(descriptor)
    raise OSError(errno.EBUSY, "the sandbox could not reserve a protected name")


def _is_at(path: str, descriptor: int) -> bool:
    """Whether *path* is still the directory that is open."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False
