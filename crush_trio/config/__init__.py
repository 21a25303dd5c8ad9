"""Configuration: where it comes from, what it says, and what of it others may see.

`sources` finds the files, `merge` makes one of them, `expand` fills in what they leave open, and `load`
turns it all into a `LoadedConfig`, which never changes. `live` keeps the newest one of an open workspace
and makes changes through `writing`. `shown` is what clients get to see of it.
"""

from crush_trio.config.context_files import (
    CONTEXT_NAMES,
    ContextFile,
    ContextPath,
    mark_initialized,
    needs_init,
)
from crush_trio.config.errors import (
    ConfigInvalid,
    ConfigLocked,
    ConfigNotWritten,
    ExpansionFailed,
    NotConfigured,
    Notice,
    NoticeKind,
)
from crush_trio.config.live import LiveConfig, open_live_config
from crush_trio.config.load import load_config
from crush_trio.config.models import (
    DEMO_CHOICE,
    DEMO_CONFIG,
    DEMO_MODEL,
    DEMO_PROVIDER,
    EnabledProvider,
    ModelSlot,
)
from crush_trio.config.snapshot import LoadedConfig, Resolved, shown_config
from crush_trio.config.sources import Places, Source, SourceKind
from crush_trio.config.template import CommandFailed, RunCommand

__all__ = [
    "CONTEXT_NAMES",
    "DEMO_CHOICE",
    "DEMO_CONFIG",
    "DEMO_MODEL",
    "DEMO_PROVIDER",
    "CommandFailed",
    "ConfigInvalid",
    "ConfigLocked",
    "ConfigNotWritten",
    "ContextFile",
    "ContextPath",
    "EnabledProvider",
    "ExpansionFailed",
    "LiveConfig",
    "LoadedConfig",
    "ModelSlot",
    "NotConfigured",
    "Notice",
    "NoticeKind",
    "Places",
    "Resolved",
    "RunCommand",
    "Source",
    "SourceKind",
    "load_config",
    "mark_initialized",
    "needs_init",
    "open_live_config",
    "shown_config",
]
