"""The run core: accepts runs, decides when each executes, cancels them, and ends each exactly once.

It imports no HTTP, no SQL and no model. Read in this order: `outcome` (values), `lane`, `accepted`,
`run`, `ending`, `workspace`; then `receipt` (what a cancel returns), `journal` (the seam to the
store), `watch` (swallowed cancels) and `tasks` (inspection).
"""

from typing import Final

from crush_trio._exports import Homes, lazy, names_of

_HOMES: Final[Homes] = {
    "crush_trio.limits": ("Limits",),
    "crush_trio.runtime.accepted": ("AcceptedRun",),
    "crush_trio.runtime.journal": (
        "Journal",
        "MemoryJournal",
    ),
    "crush_trio.runtime.lane": (
        "Active",
        "CancelledOnEntry",
        "Folded",
        "Lane",
        "LaneDecision",
    ),
    "crush_trio.runtime.outcome": (
        "Completion",
        "Outcome",
        "Submission",
    ),
    "crush_trio.runtime.receipt": (
        "CloseReport",
        "Hit",
        "StopReceipt",
    ),
    "crush_trio.runtime.run": (
        "Run",
        "Turn",
    ),
    "crush_trio.runtime.workspace": (
        "Workspace",
        "open_workspace",
    ),
}

__all__ = names_of(_HOMES)
__getattr__, __dir__ = lazy(__name__, _HOMES)
