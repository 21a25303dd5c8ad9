"""Schedule exploration: run a scenario under every order of its tasks, and with faults.

`explorer` enumerates the orders, `walk` is one run of a scenario, `schedule` controls Trio's scheduler,
`checkpoints` has faults and gates at the k-th checkpoint of a coroutine.
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

__all__ = [
    "Call",
    "CheckpointFaults",
    "Chooser",
    "Deadlock",
    "Exploration",
    "ExplorerBroken",
    "Fault",
    "Gate",
    "Raise",
    "ScheduleFailure",
    "Stall",
    "StepLimit",
    "checkpoints_of",
    "controlled",
    "explore",
    "find_violation",
    "replay",
    "seeded",
]
