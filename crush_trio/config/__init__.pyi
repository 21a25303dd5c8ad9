# The names of `__init__.py`, for type checkers and editors.

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
    ConfigWarning,
    ConfigWarningKind,
    ExpansionFailed,
    NotConfigured,
)
from crush_trio.config.known_providers import DEMO_PROVIDER
from crush_trio.config.live import (
    LiveConfig,
    open_live_config,
)
from crush_trio.config.load import (
    load_config,
)
from crush_trio.config.models import (
    DEMO_CHOICE,
    DEMO_CONFIG,
    DEMO_MODEL,
    EnabledProvider,
    ModelSlot,
)
from crush_trio.config.snapshot import (
    LoadedConfig,
    Resolved,
    shown_config,
)
from crush_trio.config.sources import (
    Places,
    Source,
    SourceKind,
)
from crush_trio.config.template import (
    CommandFailed,
    RunCommand,
)

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
    "ConfigWarning",
    "ConfigWarningKind",
    "ContextFile",
    "ContextPath",
    "EnabledProvider",
    "ExpansionFailed",
    "LiveConfig",
    "LoadedConfig",
    "ModelSlot",
    "NotConfigured",
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
