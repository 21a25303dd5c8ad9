"""Turns a draft into a snapshot: fills in `env`, then selects providers and models."""

from collections.abc import Mapping, Sequence
from functools import partial

import trio
from attrs import evolve

from crush_trio.config.errors import (
    ConfigWarning,
    ConfigWarningKind,
    ExpansionFailed,
)
from crush_trio.config.expander import Expander, templates_of
from crush_trio.config.load.draft import Draft, known_for, read_draft
from crush_trio.config.models import enable_providers, select_models
from crush_trio.config.secrets.known import KnownSecrets
from crush_trio.config.snapshot import ExpandedEnv, LoadedConfig
from crush_trio.config.sources import (
    Places,
)
from crush_trio.config.template import RunCommand, refuse_command
from crush_trio.wire.config import CatalogProvider
from crush_trio.wire.requests import ModelType


async def load_config(
    places: Places,
    *,
    catalogue: Sequence[CatalogProvider] = (),
    run_command: RunCommand = refuse_command,
    revision: int = 1,
    secrets: KnownSecrets | None = None,
) -> LoadedConfig:
    """Return the configuration of a workspace as it is now.

    Raises a `ConfigInvalid` if a file is not valid. Nothing is written, and only the commands of
    `env` in trusted files are run.
    """
    draft = await trio.to_thread.run_sync(partial(read_draft, places, catalogue=catalogue))
    return await finish_draft(
        draft, catalogue=catalogue, run_command=run_command, revision=revision, secrets=secrets
    )


async def finish_draft(
    draft: Draft,
    *,
    catalogue: Sequence[CatalogProvider],
    run_command: RunCommand,
    revision: int,
    previous: LoadedConfig | None = None,
    secrets: KnownSecrets | None = None,
) -> LoadedConfig:
    """Return the snapshot of *draft*; reuse the `env` of *previous* if it has not changed.

    *secrets* are those that the workspace knows already; new ones are added to them.
    """
    secrets = KnownSecrets() if secrets is None else secrets
    expander = Expander(
        layers=draft.layers,
        tree=draft.tree,
        directory=draft.project.directory,
        environment=draft.places.environment,
        run=run_command,
        secrets=secrets,
    )
    await trio.lowlevel.checkpoint()
    if previous is not None and _same_env(draft, previous):
        env = previous.expanded_env
    else:
        env = await _expand_env(draft.config.env, expander)
    expander = evolve(expander, environment={**expander.environment, **env.values})
    secrets.learn_config(draft.config, expander.environment)
    templates = (expander.template_warning(text, keys) for keys, text in templates_of(draft.config))
    foreseen = [warning for warning in templates if warning is not None]
    enabling = enable_providers(draft.config, known_for(draft.config, catalogue), expander)
    selection = select_models(draft.config.models, enabling.providers, expander.environment)
    return LoadedConfig(
        revision=revision,
        config=evolve(
            draft.config,
            providers={name: each.config for name, each in selection.providers.items()},
            models={
                ModelType.LARGE.value: selection.large.selected,
                ModelType.SMALL.value: selection.small.selected,
            },
        ),
        sources=tuple(layer.source for layer in draft.layers.layers),
        warnings=(
            *(*draft.warnings, *env.warnings, *foreseen),
            *(*enabling.warnings, *selection.warnings),
        ),
        places=draft.places,
        project=draft.project,
        pinned=draft.data_dir,
        trusted=draft.trusted,
        sandbox=draft.sandbox,
        command_env=draft.command_env,
        record=draft.record,
        notify=draft.notify,
        retention=draft.retention,
        rules=draft.rules,
        wishes=draft.wishes,
        expanded_env=env,
        large=selection.large,
        small=selection.small,
        providers=selection.providers,
        expander=expander,
    )


async def _expand_env(templates: Mapping[str, str], expander: Expander) -> ExpandedEnv:
    """Fill in `env`. Its values see the original environment, not each other: order does not matter.

    A variable that cannot be filled in is left out, with a warning. An error would keep the
    workspace from being opened, in which the user may want to repair it.
    """
    await trio.lowlevel.checkpoint()
    values, warnings = {}, []
    for name, text in templates.items():
        try:
            values[name] = await expander.expand(text, "env", name)
        except ExpansionFailed as error:
            foreseen = expander.template_warning(text, ("env", name))
            failed = ConfigWarning(kind=ConfigWarningKind.NOT_EXPANDED, text=error.detail)
            warnings.append(foreseen or failed)
    return ExpandedEnv(values=values, warnings=tuple(warnings))


def _same_env(draft: Draft, previous: LoadedConfig) -> bool:
    """Whether `env` has the same values as before, from the same files, with the same trust."""
    return draft.config.env == previous.config.env and all(
        draft.layers.origin("env", name) == previous.origin("env", name)
        for name in draft.config.env
    )
