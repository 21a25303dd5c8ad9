# The names of `__init__.py`, for type checkers and editors.

from crush_trio.providers.base import Endpoint
from crush_trio.providers.registry import open_providers
from crush_trio.testing.explore.checkpoints import (
    Call,
    CheckpointFaults,
    Fault,
    Gate,
    Raise,
    Stall,
    checkpoints_of,
)
from crush_trio.testing.explore.disturbance import CancelSwallowed, Spot, TasksLeft, target
from crush_trio.testing.explore.everywhere import (
    Everywhere,
    PlaceFailure,
    cancel_everywhere,
    cancelled_at,
    fail_everywhere,
    failing_at,
)
from crush_trio.testing.explore.explorer import (
    Deadlock,
    Exploration,
    ExplorerBroken,
    NotUnderControl,
    ScheduleFailure,
    StepLimit,
    find_violation,
    replay,
)
from crush_trio.testing.explore.footprints import touches
from crush_trio.testing.explore.schedule import Chooser, UnsupportedTrio, controlled, seeded
from crush_trio.testing.explore.story import Story, explain
from crush_trio.testing.explore.strategies import PCT, HoldBack, Random, Strategy
from crush_trio.testing.explore.watched import watch
from crush_trio.testing.hypothesis_schedules import DrawnSchedule, schedules
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Refuse
from crush_trio.testing.model.server import ModelServer, open_model_server
from crush_trio.testing.server.agent import ScriptedTool, open_test_agent
from crush_trio.testing.server.client import MemoryTransport, Replica, open_test_client
from crush_trio.testing.server.config import open_fixed_config
from crush_trio.testing.server.faults import FaultyJournal, JournalFault, Moment
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Do, Fail, Fold, Pause, Say, ScriptedTurns, Sleep
from crush_trio.testing.server.workspace import check_promises, open_test_workspace

__all__ = [
    "PCT",
    "Call",
    "CallTool",
    "CancelSwallowed",
    "CheckpointFaults",
    "Chooser",
    "Deadlock",
    "Do",
    "DrawnSchedule",
    "Endpoint",
    "Everywhere",
    "Exploration",
    "ExplorerBroken",
    "Fail",
    "Fault",
    "FaultyJournal",
    "Fold",
    "Gate",
    "HoldBack",
    "JournalFault",
    "MemoryTransport",
    "ModelServer",
    "Moment",
    "NotUnderControl",
    "Pause",
    "PlaceFailure",
    "Raise",
    "Random",
    "Refuse",
    "Replica",
    "Say",
    "ScheduleFailure",
    "ScriptedProvider",
    "ScriptedTool",
    "ScriptedTurns",
    "Sleep",
    "Spot",
    "Stall",
    "StepLimit",
    "Story",
    "Strategy",
    "TasksLeft",
    "UnsupportedTrio",
    "WrittenTurns",
    "cancel_everywhere",
    "cancelled_at",
    "check_promises",
    "checkpoints_of",
    "client_id",
    "controlled",
    "explain",
    "fail_everywhere",
    "failing_at",
    "find_violation",
    "open_fixed_config",
    "open_model_server",
    "open_providers",
    "open_test_agent",
    "open_test_client",
    "open_test_server",
    "open_test_workspace",
    "replay",
    "schedules",
    "seeded",
    "target",
    "touches",
    "watch",
]
