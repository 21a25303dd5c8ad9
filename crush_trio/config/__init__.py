"""Configuration: its files, its meaning, and what clients see of it.

`sources` finds and merges the files, `files` reads and writes them, `checks` validates them,
`template` and `expander` fill in variables and commands, `models` selects providers and models, and
`load` turns it all into an immutable `LoadedConfig` (`snapshot`). `live` holds the newest one of an
open workspace and applies `edits`.
"""

from typing import Final

from crush_trio._exports import Homes, lazy, names_of

_HOMES: Final[Homes] = {
    "crush_trio.config.context_files": (
        "CONTEXT_NAMES",
        "ContextFile",
        "ContextPath",
        "mark_initialized",
        "needs_init",
    ),
    "crush_trio.config.errors": (
        "ConfigInvalid",
        "ConfigLocked",
        "ConfigNotWritten",
        "ConfigWarning",
        "ConfigWarningKind",
        "ExpansionFailed",
        "NotConfigured",
    ),
    "crush_trio.config.known_providers": ("DEMO_PROVIDER",),
    "crush_trio.config.live": (
        "LiveConfig",
        "open_live_config",
    ),
    "crush_trio.config.load": ("load_config",),
    "crush_trio.config.models": (
        "DEMO_CHOICE",
        "DEMO_CONFIG",
        "DEMO_MODEL",
        "EnabledProvider",
        "ModelSlot",
    ),
    "crush_trio.config.snapshot": (
        "LoadedConfig",
        "Resolved",
        "shown_config",
    ),
    "crush_trio.config.sources": (
        "Places",
        "Source",
        "SourceKind",
    ),
    "crush_trio.config.template": (
        "CommandFailed",
        "RunCommand",
    ),
}

__all__ = names_of(_HOMES)
__getattr__, __dir__ = lazy(__name__, _HOMES)
