"""The public test harness: deterministic Trio tests, for this project and for programs that use it.

Async tests get a virtual clock and a seeded task order from the pytest plugin (`plugin.py`). The
names below are for tests that want more: every task order of a small scenario, a fault at every
checkpoint, a look into the middle of things, a model that says what is written. What the latter can
be told to say is in `model_script`.
"""

from crush_trio.testing.explore.checkpoints import (
    Call,
    CheckpointFaults,
    Fault,
    Gate,
    Raise,
    Stall,
    checkpoints_of,
)
from crush_trio.testing.explore.explorer import (
    Deadlock,
    Exploration,
    ExplorerBroken,
    ScheduleFailure,
    StepLimit,
    explore,
    find_violation,
    replay,
)
from crush_trio.testing.explore.schedule import Chooser, controlled, seeded
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.server import ModelServer, open_model_server

__all__ = [
    "Call",
    "CheckpointFaults",
    "Chooser",
    "Deadlock",
    "Exploration",
    "ExplorerBroken",
    "Fault",
    "Gate",
    "ModelServer",
    "Raise",
    "ScheduleFailure",
    "ScriptedProvider",
    "Stall",
    "StepLimit",
    "checkpoints_of",
    "controlled",
    "explore",
    "find_violation",
    "open_model_server",
    "replay",
    "seeded",
]
