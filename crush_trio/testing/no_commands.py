"""What starts commands where there are none: under virtual time, processes have no time to run."""

import errno
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from subprocess import DEVNULL

from crush_trio.clock import Clock
from crush_trio.tools.jobs import Running
from crush_trio.tools.output import BoundedOutput
from crush_trio.tools.processes import GRACE, Command, Ended


def no_commands(
    command: Command,
    /,
    *,
    clock: Clock,
    stdin: int = DEVNULL,
    stdout: BoundedOutput,
    stderr: BoundedOutput | int,
    grace: float = GRACE,
    on_ended: Callable[[Ended], None] = lambda _: None,
) -> AbstractAsyncContextManager[Running]:
    """Start nothing, and say so. Give it to `workspace_opener` in place of the real thing."""
    raise OSError(errno.ENOSYS, "a server under test starts no commands", command.argv[0])
