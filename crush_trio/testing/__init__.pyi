# The names of `__init__.py`, for type checkers and editors.

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
    "find_violation",
    "open_model_server",
    "replay",
    "seeded",
]
