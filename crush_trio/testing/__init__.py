"""The public test harness: deterministic Trio tests, for this project and for programs that use it.

The pytest plugin (`plugin`) gives async tests a virtual clock and a seeded task order where a project asks
for it. The names below are for tests that need more: a scripted model, a workspace, an agent, a server
and a client in memory, faults at chosen moments. Schedule exploration is in `crush_trio.testing.explore`
and needs Trio and attrs alone; its names, except the function `explore`, are here as well.

A name's module is imported when the name is first used.
"""

from typing import Final

from crush_trio._exports import Homes, lazy, names_of

_HOMES: Final[Homes] = {
    "crush_trio.providers.base": ("Endpoint",),
    "crush_trio.providers.registry": ("open_providers",),
    "crush_trio.testing.hypothesis_schedules": (
        "DrawnSchedule",
        "schedules",
    ),
    "crush_trio.testing.explore.checkpoints": (
        "Call",
        "CheckpointFaults",
        "Fault",
        "Gate",
        "Raise",
        "Stall",
        "checkpoints_of",
    ),
    "crush_trio.testing.explore.disturbance": (
        "CancelSwallowed",
        "Spot",
        "TasksLeft",
        "target",
    ),
    "crush_trio.testing.explore.everywhere": (
        "Everywhere",
        "PlaceFailure",
        "cancel_everywhere",
        "cancelled_at",
        "fail_everywhere",
        "failing_at",
    ),
    "crush_trio.testing.explore.explorer": (
        "Deadlock",
        "Exploration",
        "ExplorerBroken",
        "NotUnderControl",
        "ScheduleFailure",
        "StepLimit",
        "find_violation",
        "replay",
    ),
    "crush_trio.testing.explore.schedule": (
        "Chooser",
        "UnsupportedTrio",
        "controlled",
        "seeded",
    ),
    "crush_trio.testing.explore.story": (
        "Story",
        "explain",
    ),
    "crush_trio.testing.explore.strategies": (
        "PCT",
        "HoldBack",
        "Random",
        "Strategy",
    ),
    "crush_trio.testing.explore.footprints": ("touches",),
    "crush_trio.testing.explore.watched": ("watch",),
    "crush_trio.testing.model.provider": ("ScriptedProvider",),
    "crush_trio.testing.model.script": (
        "CallTool",
        "Refuse",
    ),
    "crush_trio.testing.model.server": (
        "ModelServer",
        "open_model_server",
    ),
    "crush_trio.testing.server.agent": (
        "ScriptedTool",
        "open_test_agent",
    ),
    "crush_trio.testing.server.client": (
        "MemoryTransport",
        "Replica",
        "open_test_client",
    ),
    "crush_trio.testing.server.config": ("open_fixed_config",),
    "crush_trio.testing.server.faults": (
        "FaultyJournal",
        "JournalFault",
        "Moment",
    ),
    "crush_trio.testing.server.server": (
        "WrittenTurns",
        "client_id",
        "open_test_server",
    ),
    "crush_trio.testing.server.turns": (
        "Do",
        "Fail",
        "Fold",
        "Pause",
        "Say",
        "ScriptedTurns",
        "Sleep",
    ),
    "crush_trio.testing.server.workspace": (
        "check_promises",
        "open_test_workspace",
    ),
}

__all__ = names_of(_HOMES)
__getattr__, __dir__ = lazy(__name__, _HOMES)
