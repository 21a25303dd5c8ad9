"""Reads processes from /proc; `ProcessId` is an id that may be signalled.

Part of the guard program: the package docstring says what it may import.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_THERE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""Errors of /proc for a process that has ended, or that the system hides from other users.

Other errors are raised: failing to read must not look like an absent process.
"""

CHILDREN_LISTED = os.path.exists("/proc/thread-self/children")  # noqa: PTH110  # no time for pathlib
"""Whether the kernel lists the children of a process; nearly all do."""


class ProcessId(int):
    """The id of a process, or of a process group, to which a signal may be sent.

    kill(2) takes 0 for the sender's own group and -1 for every process it may signal; 1 is init. None
    of them can be a `ProcessId`, and all functions that send signals require one.
    """

    def __new__(cls, number: int) -> "ProcessId":
        """Return *number* as an id; raise `ValueError` if it is not allowed."""
        if number <= 1:
            raise ValueError(f"{number} is not the id of a process that may be signalled")
        return super().__new__(cls, number)


class Process:
    """The state of a process. `lives` is False for a zombie."""

    __slots__ = ("group", "lives", "parent", "pid", "session")

    def __init__(self, pid: ProcessId, stat: bytes) -> None:
        self.pid = pid
        # The program's name is in parentheses, and may itself contain parentheses.
        state, parent, group, session = stat.rpartition(b")")[2].split()[:4]
        self.lives = state not in {b"Z", b"X"}
        self.parent, self.group, self.session = int(parent), int(group), int(session)


def read_process(pid: ProcessId) -> Process | None:
    """Return the process with this id, None if it does not exist or is hidden."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  # no time for pathlib
            return Process(pid, file.read())
    except NOT_THERE:
        return None


def process_ids() -> set[ProcessId]:
    """Return the ids of all processes but init."""
    names = os.listdir("/proc")  # noqa: PTH208  # no time for pathlib
    return {ProcessId(int(name)) for name in names if name.isdecimal() and name != "1"}


def children(pid: int) -> list[ProcessId]:
    """Return the children of a process, zombies included.

    The kernel's own list is far cheaper than a search of all processes. It is complete for the
    calling process, whose children stay in it until they are reaped.
    """
    if not CHILDREN_LISTED:
        everything = map(read_process, process_ids())
        return [each.pid for each in everything if each is not None and each.parent == pid]
    found: list[ProcessId] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # no time for pathlib
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found.extend(ProcessId(int(name)) for name in file.read().split())
    except NOT_THERE:
        pass  # it ended while we looked
    return found


def below(root: int) -> "Iterator[Process]":
    """Yield every process below *root*, parents first.

    A process counts only if its parent, at the moment it is read, is *root* or was yielded before. So
    an id that meanwhile belongs to an unrelated process is skipped.
    """
    seen = {root}
    pending = children(root)
    for pid in pending:
        process = read_process(pid)
        if process is not None and process.parent in seen and pid not in seen:
            seen.add(pid)
            yield process
            pending.extend(children(pid))
