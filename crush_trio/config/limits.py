"""The limits that hold in a server: as the user's files and the environment have them.

They hold for the whole server, so they are read once, when it starts. Files that come with a project
have no say, and neither has the environment that a client sends along.
"""

from collections.abc import Mapping
from pathlib import Path

from crush_trio.config.errors import ConfigInvalid
from crush_trio.config.format import OWN_KEY, ConfigFile, check_types, read_tree
from crush_trio.config.sources import Places
from crush_trio.errors import LimitInvalid
from crush_trio.limits import DEFAULTS, VARIABLE, SizeLimits, read_pairs, read_value

LIMITS_KEY = f"{OWN_KEY}.limits"


def chosen_limits(environ: Mapping[str, str]) -> SizeLimits:
    """Return the limits of the user's files, with those of `CRUSH_TRIO_LIMITS` over them.

    Raises `ConfigInvalid` for a file, `LimitInvalid` for the variable. Touches the disk.
    """
    home = Path(environ.get("HOME") or "/")
    places = Places(
        directory=Path("/"), home=home if home.is_absolute() else Path("/"), environment=environ
    )
    limits = DEFAULTS
    for source in places.user_sources():
        tree = read_tree(source.path)
        if tree is not None:
            limits = limits.changed(file_limits(check_types(tree, source.path), source.path))
    try:
        return limits.changed(read_pairs(environ.get(VARIABLE, "")))
    except LimitInvalid as error:
        raise LimitInvalid(f"{VARIABLE}: {error.detail}") from None


def file_limits(content: ConfigFile, path: Path) -> dict[str, float]:
    """Return the limits that one of the user's files sets; raise `ConfigInvalid` for a wrong one."""
    own = content.crush_trio
    try:
        written = {} if own is None else own.limits
        return {name: read_value(name, value) for name, value in written.items()}
    except LimitInvalid as error:
        raise ConfigInvalid.at(path, LIMITS_KEY, error.detail) from None
