"""The public test harness: deterministic Trio tests, for this project and for programs that use it.

Async tests get a virtual clock and a seeded task order from the pytest plugin (`plugin.py`). The
names below are for tests that want more: every task order of a small scenario, a fault at every
checkpoint, a look into the middle of things, a model that says what is written. What the latter can
be told to say is in `model_script`.
"""

from typing import Final

from crush_trio._exports import Homes, lazy, names_of

_HOMES: Final[Homes] = {
    "crush_trio.testing.explore.checkpoints": (
        "Call",
        "CheckpointFaults",
        "Fault",
        "Gate",
        "Raise",
        "Stall",
        "checkpoints_of",
    ),
    "crush_trio.testing.explore.explorer": (
        "Deadlock",
        "Exploration",
        "ExplorerBroken",
        "ScheduleFailure",
        "StepLimit",
        "find_violation",
        "replay",
    ),
    "crush_trio.testing.explore.schedule": (
        "Chooser",
        "controlled",
        "seeded",
    ),
    "crush_trio.testing.model.provider": ("ScriptedProvider",),
    "crush_trio.testing.model.server": (
        "ModelServer",
        "open_model_server",
    ),
}

__all__ = names_of(_HOMES)
__getattr__, __dir__ = lazy(__name__, _HOMES)
