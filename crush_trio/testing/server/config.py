"""A configuration without files, and a command starter that refuses, for servers under test.

Reading files takes threads, and threads do not follow virtual time. A `FixedConfig` is the
configuration of a directory without any file: the offline demo model and every option at its
default. It records changes and publishes a new revision, but its values do not change, except for
permission rules.

Commands are refused because processes do not follow virtual time either.
"""

import errno
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from subprocess import DEVNULL

import trio
from attrs import define, evolve, field

from crush_trio.clock import Clock
from crush_trio.config.edits import remove_value, set_provider_key, set_value
from crush_trio.config.load import Draft, finish_draft
from crush_trio.config.rules.rules import load_rules, rule_id
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.config.sources import DATA_NAME, DataDir, Layers, Places, Project
from crush_trio.config.template import refuse_command
from crush_trio.config.trust.answers import TrustAnswer
from crush_trio.config.trust.wishes import Wishes
from crush_trio.tools.shell.jobs import RunningCommand
from crush_trio.tools.shell.output import BoundedOutput
from crush_trio.tools.shell.process import GRACE, Command, CommandEnd
from crush_trio.wire.asks import PermissionRule
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
    """Start nothing, and say so. For `WorkspaceSettings(opens=…)`."""
    raise OSError(errno.ENOSYS, "a server under test starts no commands", command.argv[0])


@define(eq=False)
class FixedConfig:
    """A `Configuration` whose values never change."""

    current: LoadedConfig
    asked: list[tuple[object, ...]] = field(factory=list, init=False)
    """Every change that was requested."""
    _newer: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    async def set(self, scope: Scope, key: str, value: Json) -> bool:
        """Check the key, and record the change."""
        set_value(scope, key, value)
        return await self._note("set", scope, key, value)

    async def remove(self, scope: Scope, key: str) -> bool:
        """Check the key, and record the change."""
        remove_value(scope, key)
        return await self._note("remove", scope, key)

    async def set_model(self, scope: Scope, model_type: ModelType, model: SelectedModel) -> bool:
        """Record the change."""
        return await self._note("set_model", scope, model_type, model)

    async def set_compact_mode(self, scope: Scope, enabled: bool) -> bool:
        """Record the change."""
        return await self._note("set_compact_mode", scope, enabled)

    async def set_provider_key(
        self, scope: Scope, provider_id: str, kind: str, api_key: Json
    ) -> bool:
        """Check the key, and record the change without it."""
        set_provider_key(scope, provider_id, kind, api_key)
        return await self._note("set_provider_key", scope, provider_id, kind)

    async def add_rules(self, rules: Sequence[PermissionRule]) -> bool:
        """Add the rules; an invalid one is refused."""
        file = self.current.places.data_file
        await trio.lowlevel.checkpoint()
        known = {rule_id(each.rule) for each in self.current.rules}
        new = [each for each in load_rules(rules, file) if rule_id(each.rule) not in known]
        self.current = evolve(self.current, rules=(*self.current.rules, *new))
        return bool(new) and await self._note("add_rules", *rules)

    async def remove_rule(self, wanted: str) -> bool:
        """Remove the rule with this id."""
        await trio.lowlevel.checkpoint()
        kept = tuple(each for each in self.current.rules if rule_id(each.rule) != wanted)
        found = len(kept) < len(self.current.rules)
        self.current = evolve(self.current, rules=kept)
        return found and await self._note("remove_rule", wanted)

    async def reload(self) -> LoadedConfig:
        """Return the current configuration."""
        await trio.lowlevel.checkpoint()
        return self.current

    async def refresh_wishes(self) -> LoadedConfig:
        """Return the current configuration, in which a project wants nothing."""
        await trio.lowlevel.checkpoint()
        return self.current

    async def answer_wishes(self, wishes: Wishes, answer: TrustAnswer) -> bool:
        """Record the answer."""
        return await self._note("answer_wishes", wishes, answer)

    async def newer_than(self, revision: int) -> LoadedConfig:
        """Wait for a change after *revision*."""
        await trio.lowlevel.checkpoint()
        while self.current.revision <= revision:
            await self._newer.park()
        return self.current

    async def needs_init(self) -> bool:
        """Return False: the project is initialised."""
        await trio.lowlevel.checkpoint()
        return False

    async def mark_initialized(self) -> None:
        """Do nothing: the project is initialised."""
        await trio.lowlevel.checkpoint()

    async def _note(self, *what: object) -> bool:
        await trio.lowlevel.checkpoint()
        self.asked.append(what)
        self.current = evolve(self.current, revision=self.current.revision + 1)
        self._newer.unpark_all()
        return True


@asynccontextmanager
async def open_fixed_config(places: Places) -> AsyncIterator[FixedConfig]:
    """Open the configuration of a directory without configuration files; reads no file."""
    data_dir = places.directory / (places.data_dir or DATA_NAME)
    draft = Draft(
        places=places,
        project=Project(directories=(places.directory,)),
        layers=Layers(()),
        tree={},
        config=Config(),
        data_dir=DataDir(path=data_dir),
        warnings=(),
    )
    yield FixedConfig(
        await finish_draft(draft, catalogue=(), run_command=refuse_command, revision=1)
    )
