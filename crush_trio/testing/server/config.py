"""A configuration that no file has a say in, for servers under test.

Reading files takes threads, and threads do not know virtual time. A `FixedConfig` is what a
directory without any configuration has: the offline demo model and every option at its default. It
takes note of what it is asked to change and tells so, but stays what it is.

What starts commands where there are none: under virtual time, processes have no time to run.
"""

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from subprocess import DEVNULL

import trio
from attrs import define, evolve, field

from crush_trio.clock import Clock
from crush_trio.config.edits import remove_value, set_provider_key, set_value
from crush_trio.config.load import Draft, finish
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.config.sources import DATA_NAME, DataDir, Layers, Places, Project
from crush_trio.config.template import refuse_command
from crush_trio.tools.shell.jobs import RunningCommand
from crush_trio.tools.shell.output import BoundedOutput
from crush_trio.tools.shell.process import GRACE, Command, CommandEnd
from crush_trio.wire.config import Config, SelectedModel
from crush_trio.wire.fields import Json
from crush_trio.wire.requests import ModelType, Scope


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
    """Start nothing, and say so. Give it to `workspace_opener` in place of the real thing."""
    raise OSError(errno.ENOSYS, "a server under test starts no commands", command.argv[0])


@define(eq=False)
class FixedConfig:
    """Satisfies `Configuration`."""

    current: LoadedConfig
    asked: list[tuple[object, ...]] = field(factory=list, init=False)
    """Every change that somebody asked for."""
    _newer: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    async def set(self, scope: Scope, key: str, value: Json) -> bool:
        """Check the key, and take note."""
        set_value(scope, key, value)
        return await self._note("set", scope, key, value)

    async def remove(self, scope: Scope, key: str) -> bool:
        """Check the key, and take note."""
        remove_value(scope, key)
        return await self._note("remove", scope, key)

    async def set_model(self, scope: Scope, model_type: ModelType, model: SelectedModel) -> bool:
        """Take note."""
        return await self._note("set_model", scope, model_type, model)

    async def set_compact_mode(self, scope: Scope, enabled: bool) -> bool:
        """Take note."""
        return await self._note("set_compact_mode", scope, enabled)

    async def set_provider_key(
        self, scope: Scope, provider_id: str, kind: str, api_key: Json
    ) -> bool:
        """Check the key, and take note of whose it is."""
        set_provider_key(scope, provider_id, kind, api_key)
        return await self._note("set_provider_key", scope, provider_id, kind)

    async def reload(self) -> LoadedConfig:
        """Return what there is."""
        await trio.lowlevel.checkpoint()
        return self.current

    async def newer_than(self, revision: int) -> LoadedConfig:
        """Wait until somebody has asked for a change."""
        await trio.lowlevel.checkpoint()
        while self.current.revision <= revision:
            await self._newer.park()
        return self.current

    async def needs_init(self) -> bool:
        """Say that the project is known."""
        await trio.lowlevel.checkpoint()
        return False

    async def mark_initialized(self) -> None:
        """Do nothing: it is known already."""
        await trio.lowlevel.checkpoint()

    async def _note(self, *what: object) -> bool:
        await trio.lowlevel.checkpoint()
        self.asked.append(what)
        self.current = evolve(self.current, revision=self.current.revision + 1)
        self._newer.unpark_all()
        return True


@asynccontextmanager
async def open_fixed_config(places: Places) -> AsyncIterator[FixedConfig]:
    """Return the configuration of a directory in which nothing is configured. Reads no file."""
    data_dir = places.directory / (places.data_dir or DATA_NAME)
    draft = Draft(
        places=places,
        project=Project(directories=(places.directory,)),
        layers=Layers(()),
        tree={},
        config=Config(),
        data_dir=DataDir(path=data_dir),
        notices=(),
    )
    yield FixedConfig(await finish(draft, catalogue=(), run_command=refuse_command, revision=1))
