"""What is configured for a directory, and where its data is, looked at from outside."""

from collections.abc import Mapping
from pathlib import Path

import trio

from crush_trio.backend.agency import config_commands
from crush_trio.clock import SystemClock
from crush_trio.config.load import load_config
from crush_trio.config.loaded import LoadedConfig
from crush_trio.config.sources import Places
from crush_trio.providers.catalog import catalog_providers
from crush_trio.store.sqlite.database import DATABASE_NAME


def places_of(directory: Path, environ: Mapping[str, str]) -> Places:
    """Return where the configuration of a directory is looked for."""
    home = Path(environ.get("HOME") or "/")
    return Places(
        directory=directory, home=home if home.is_absolute() else Path("/"), environment=environ
    )


async def configuration_of(directory: Path, environ: Mapping[str, str]) -> LoadedConfig:
    """Return the configuration that a workspace would have; raises `ConfigInvalid`.

    Commands that stand in it are run as a workspace runs them: what they give is part of it.
    """
    return await load_config(
        places_of(directory, environ),
        catalogue=catalog_providers(),
        run_command=config_commands(SystemClock()),
    )


async def has_data(directory: Path, environ: Mapping[str, str]) -> bool:
    """Whether a directory has ever been a workspace."""
    config = await configuration_of(directory, environ)
    return await trio.Path(config.data_dir / DATABASE_NAME).exists()
