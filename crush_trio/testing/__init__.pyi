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
from crush_trio.testing.explore.explorer import (
    Deadlock,
    Exploration,
    ExplorerBroken,
    ScheduleFailure,
    StepLimit,
    find_violation,
    replay,
)
from crush_trio.testing.explore.schedule import Chooser, UnsupportedTrio, controlled, seeded
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
    "Call",
    "CallTool",
    "CheckpointFaults",
    "Chooser",
    "Deadlock",
    "Do",
    "Endpoint",
    "Exploration",
    "ExplorerBroken",
    "Fail",
    "Fault",
    "FaultyJournal",
    "Fold",
    "Gate",
    "JournalFault",
    "MemoryTransport",
    "ModelServer",
    "Moment",
    "Pause",
    "Raise",
    "Refuse",
    "Replica",
    "Say",
    "ScheduleFailure",
    "ScriptedProvider",
    "ScriptedTool",
    "ScriptedTurns",
    "Sleep",
    "Stall",
    "StepLimit",
    "UnsupportedTrio",
    "WrittenTurns",
    "check_promises",
    "checkpoints_of",
    "client_id",
    "controlled",
    "find_violation",
    "open_fixed_config",
    "open_model_server",
    "open_providers",
    "open_test_agent",
    "open_test_client",
    "open_test_server",
    "open_test_workspace",
    "replay",
    "seeded",
]
