# The names of `__init__.py`, for type checkers and editors.

from crush_trio.limits import (
    Limits,
)
from crush_trio.runtime.accepted import (
    AcceptedRun,
)
from crush_trio.runtime.journal import (
    Journal,
    MemoryJournal,
)
from crush_trio.runtime.lane import (
    Active,
    CancelledOnEntry,
    Folded,
    Lane,
    LaneDecision,
)
from crush_trio.runtime.outcome import (
    Completion,
    Outcome,
    Submission,
)
from crush_trio.runtime.receipt import (
    CloseReport,
    Hit,
    StopReceipt,
)
from crush_trio.runtime.run import (
    Run,
    Turn,
)
from crush_trio.runtime.workspace import (
    Workspace,
    open_workspace,
)

__all__ = [
    "AcceptedRun",
    "Active",
    "CancelledOnEntry",
    "CloseReport",
    "Completion",
    "Folded",
    "Hit",
    "Journal",
    "Lane",
    "LaneDecision",
    "Limits",
    "MemoryJournal",
    "Outcome",
    "Run",
    "StopReceipt",
    "Submission",
    "Turn",
    "Workspace",
    "open_workspace",
]
