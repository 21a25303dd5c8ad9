"""`FixedConfig`: a configuration without files, from values that the program gives.

For an agent inside a program, which should not depend on files that happen to lie on the machine, and
for tests: reading files takes threads, and threads do not follow virtual time. A change publishes a new
revision, but the values stay, except for permission rules.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import trio
from attrs import define, evolve, field

from crush_trio.config.checks import check_hooks, check_sandbox, flat_hooks
from crush_trio.config.edits import remove_value, set_provider_key, set_value
from crush_trio.config.errors import ConfigInvalid
from crush_trio.config.files import (
    NotifyConfig,
    RetentionConfig,
    check_types,
    command_env,
    merged_sandbox,
    own_setting,
    unknown_keys,
)
from crush_trio.config.load import Draft, finish_draft
from crush_trio.config.rules.rules import load_rules, rule_id
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.config.sources import DATA_NAME, DataDir, Layers, Places, Project
from crush_trio.config.template import refuse_command
from crush_trio.config.trust.answers import TrustAnswer
from crush_trio.config.trust.wishes import Wishes
from crush_trio.wire.asks import PermissionRule
from crush_trio.wire.codec import structure
from crush_trio.wire.config import CatalogProvider, Config, SelectedModel
from crush_trio.wire.fields import Json
from crush_trio.wire.requests import ModelType, Scope


@define(eq=False)
class FixedConfig:
    """A `Configuration` whose values never change."""

    current: LoadedConfig
    _newer: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    async def set(self, scope: Scope, key: str, value: Json) -> bool:
        """Check the key; nothing else changes."""
        set_value(scope, key, value)
        return await self._note("set", scope, key, value)

    async def remove(self, scope: Scope, key: str) -> bool:
        """Check the key; nothing else changes."""
        remove_value(scope, key)
        return await self._note("remove", scope, key)

    async def set_model(self, scope: Scope, model_type: ModelType, model: SelectedModel) -> bool:
        """Change nothing."""
        return await self._note("set_model", scope, model_type, model)

    async def set_compact_mode(self, scope: Scope, enabled: bool) -> bool:
        """Change nothing."""
        return await self._note("set_compact_mode", scope, enabled)

    async def set_provider_key(
        self, scope: Scope, provider_id: str, kind: str, api_key: Json
    ) -> bool:
        """Check the key; nothing else changes."""
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
        """Change nothing."""
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

    def noted(self, what: tuple[object, ...]) -> None:
        """Called for every change that is requested; a subclass may record it."""

    async def _note(self, *what: object) -> bool:
        await trio.lowlevel.checkpoint()
        self.noted(what)
        self.current = evolve(self.current, revision=self.current.revision + 1)
        self._newer.unpark_all()
        return True


async def load_fixed(
    places: Places,
    *,
    values: Mapping[str, Json] | None = None,
    catalogue: Sequence[CatalogProvider] = (),
) -> LoadedConfig:
    """Return the configuration of a directory without configuration files; reads no file.

    *values* are what `crush.json` would hold. Raises `ConfigInvalid` for values that it could not hold.
    """
    tree, place = flat_hooks(dict(values or {})), Path("config")
    content = check_types(tree, place)
    check_sandbox(content, place)
    if unknown := sorted(unknown_keys(tree)):
        raise ConfigInvalid.at(place, unknown[0], "unknown key; see docs/configuration.md")
    rules = () if content.permissions is None else content.permissions.rules
    config = structure(tree, Config)
    check_hooks(config, Layers(()))
    draft = Draft(
        places=places,
        project=Project(directories=(places.directory,)),
        layers=Layers(()),
        tree=tree,
        config=config,
        data_dir=DataDir(path=places.directory / (places.data_dir or DATA_NAME)),
        warnings=(),
        sandbox=merged_sandbox([tree]),
        command_env=command_env([content]),
        notify=own_setting([content], "notify", NotifyConfig()),
        retention=own_setting([content], "retention", RetentionConfig()),
        rules=tuple(load_rules(rules, place)),
    )
    return await finish_draft(draft, catalogue=catalogue, run_command=refuse_command, revision=1)
