"""Schedule exploration: run a scenario under every order of its tasks, and with faults.

`explorer` runs the orders that a strategy of `strategies` asks for, `walk` is one run of a scenario,
`schedule` controls Trio's scheduler. `story` tells what happened in a failing run, which `shrink` has
made as simple as it can be, from the notes of a `recorder`; `places` says where tasks are. `footprints`
and `reduction` leave out orders that make no difference. `everywhere` cancels a scenario, or has it fail,
at each of its checkpoints, with `disturbance`. `checkpoints` has faults and gates at the k-th
checkpoint of a coroutine.
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
from crush_trio.testing.explore.everywhere import (
    CancelSwallowed,
    Everywhere,
    PlaceFailure,
    Spot,
    TasksLeft,
    cancel_everywhere,
    cancelled_at,
    fail_everywhere,
    failing_at,
    target,
)
from crush_trio.testing.explore.explorer import (
    Deadlock,
    Exploration,
    ExplorerBroken,
    NotUnderControl,
    ScheduleFailure,
    StepLimit,
    explore,
    find_violation,
    replay,
)
from crush_trio.testing.explore.footprints import touches
from crush_trio.testing.explore.schedule import Chooser, controlled, seeded
from crush_trio.testing.explore.story import Story, explain
from crush_trio.testing.explore.strategies import PCT, HoldBack, Random, Strategy
from crush_trio.testing.explore.watched import watch

__all__ = [
    "PCT",
    "Call",
    "CancelSwallowed",
    "CheckpointFaults",
    "Chooser",
    "Deadlock",
    "Everywhere",
    "Exploration",
    "ExplorerBroken",
    "Fault",
    "Gate",
    "HoldBack",
    "NotUnderControl",
    "PlaceFailure",
    "Raise",
    "Random",
    "ScheduleFailure",
    "Spot",
    "Stall",
    "StepLimit",
    "Story",
    "Strategy",
    "TasksLeft",
    "cancel_everywhere",
    "cancelled_at",
    "checkpoints_of",
    "controlled",
    "explain",
    "explore",
    "fail_everywhere",
    "failing_at",
    "find_violation",
    "replay",
    "seeded",
    "target",
    "touches",
    "watch",
]
