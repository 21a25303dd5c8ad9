"""A configuration without files, and a command starter that refuses, for servers under test.

Reading files takes threads, and threads do not follow virtual time. So a server under test has the
configuration of a directory without any file: the offline demo model, and every option at its default.
It records the changes that clients ask for, and its values stay as they are, except for permission rules.

Commands are refused because processes do not follow virtual time either.
"""

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from subprocess import DEVNULL

from attrs import define, field
from typing_extensions import override

from crush_trio.clock import Clock
from crush_trio.config.fixed import FixedConfig, load_fixed
from crush_trio.config.sources import Places
from crush_trio.tools.shell.jobs import RunningCommand
from crush_trio.tools.shell.output import BoundedOutput
from crush_trio.tools.shell.process import GRACE, Command, CommandEnd


def no_commands(
    command: Command,
    /,
    *,
    clock: Clock,
    stdin: int = DEVNULL,
    stdout: BoundedOutput,
    stderr: BoundedOutput | int,
    grace: float = GRACE,
    on_ended: Callable[[CommandEnd], None] = lambda _: None,
) -> AbstractAsyncContextManager[RunningCommand]:
    """Start nothing, and say so. For `WorkspaceSettings(opens=…)`."""
    raise OSError(errno.ENOSYS, "a server under test starts no commands", command.argv[0])


@define(eq=False)
class RecordingConfig(FixedConfig):
    """A `Configuration` whose values never change, and which records the changes that are requested."""

    asked: list[tuple[object, ...]] = field(factory=list, init=False)
    """Every change that was requested."""

    @override
    def noted(self, what: tuple[object, ...]) -> None:
        """Record a change."""
        self.asked.append(what)


@asynccontextmanager
async def open_fixed_config(places: Places) -> AsyncIterator[RecordingConfig]:
    """Open the configuration of a directory without configuration files; reads no file.

    It is that of the offline demo model, with every option at its default.
    """
    yield RecordingConfig(await load_fixed(places))
