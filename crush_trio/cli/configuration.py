"""The configuration and the stored data of a directory, as a command without a server finds them.

Apart from `server_link`, because a command that has a server needs none of what this imports.
"""

from collections.abc import Mapping
from pathlib import Path

from crush_trio.clock import SystemClock
from crush_trio.config.load import load_config
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.config.sources import Places
from crush_trio.providers.catalog import catalog_providers
from crush_trio.store.open import StoreSettings
from crush_trio.store.open import has_data as store_has_data
from crush_trio.tools.shell.environment import config_commands


def places_of(directory: Path, environ: Mapping[str, str]) -> Places:
    """Return where the configuration of a directory is looked for."""
    home = Path(environ.get("HOME") or "/")
    return Places(
        directory=directory, home=home if home.is_absolute() else Path("/"), environment=environ
    )


async def configuration_of(directory: Path, environ: Mapping[str, str]) -> LoadedConfig:
    """Return the configuration that a workspace would have; raises `ConfigInvalid`.

    Commands in it are run as a workspace runs them, because their output is part of it.
    """
    return await load_config(
        places_of(directory, environ),
        catalogue=catalog_providers(),
        run_command=config_commands(SystemClock()),
    )


async def has_data(directory: Path, environ: Mapping[str, str]) -> bool:
    """Whether the store has data of the workspace of a directory."""
    config = await configuration_of(directory, environ)
    settings = StoreSettings.from_environment(environ)
    return await store_has_data(settings, config.data_dir, directory)
