"""Runs, receipts, queues and task trees: values of the native form and its routes.

A run is visible from acceptance to its end: as `run` events of the native form, in the answers of
the run routes, and as rows of a store. `RunView` serves all three.
"""

from enum import StrEnum

from attrs import field, frozen

from crush_trio.wire.fields import OmitEmpty
from crush_trio.wire.ids import NO_MESSAGE, MessageId, RunId, SessionId


class RunKind(StrEnum):
    """What a run does with its session."""

    PROMPT = "prompt"
    SUMMARIZE = "summarize"
    TASK = "task"
    """A subagent's run, started by another run, in a session of its own."""

    @property
    def prompted(self) -> bool:
        """Whether the run answers a prompt, which becomes a message of its session."""
        return self is not RunKind.SUMMARIZE


class RunState(StrEnum):
    """The state of a run. The last five are endings: a run reaches exactly one of them, once."""

    ACCEPTED = "accepted"
    QUEUED = "queued"
    ACTIVE = "active"
    ENDING = "ending"
    """The run has ended, but its ending is not stored yet: the store is slow or fails. Never stored."""
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    ERRORED = "errored"
    FOLDED = "folded"
    INTERRUPTED = "interrupted"

    @property
    def terminal(self) -> bool:
        """Whether this is an ending."""
        return self in _ENDINGS


_ENDINGS = frozenset(
    {
        RunState.COMPLETED,
        RunState.CANCELLED,
        RunState.ERRORED,
        RunState.FOLDED,
        RunState.INTERRUPTED,
    }
)


@frozen(kw_only=True)
class RunView:
    """A run as clients see it. Times are unix seconds, 0 if not known yet.

    `id` is ours and always set; `run_id` is the caller's, if it gave one. `message_id`, `text` and
    `error` describe the ending; `folded_into` is the run that absorbed this one. `outcome` is set
    while the state is `ending`: the state that will follow once the ending is stored. `notices` are
    sentences for the people who read the result; they are not stored, so a run that the server has
    read from its store has none.
    """

    id: RunId
    session_id: SessionId
    state: RunState
    run_id: OmitEmpty[RunId | None] = None
    kind: RunKind = RunKind.PROMPT
    seq: int = 0
    accepted_at: int = 0
    started_at: OmitEmpty[int] = 0
    ended_at: OmitEmpty[int] = 0
    message_id: OmitEmpty[MessageId] = NO_MESSAGE
    text: OmitEmpty[str] = ""
    error: OmitEmpty[str] = ""
    folded_into: OmitEmpty[RunId | None] = None
    outcome: OmitEmpty[RunState | None] = None
    notices: OmitEmpty[tuple[str, ...]] = field(default=(), eq=False)


# ── Policies of a submission ────────────────────────────────────────────────────────────────────


class WhenBusy(StrEnum):
    """What happens to a submission whose session has a run already."""

    ENQUEUE = "enqueue"
    """It waits in the queue, or is folded into the active run."""
    INTERRUPT = "interrupt"
    """Every run the session has is cancelled first."""
    REJECT = "reject"
    """It is refused, and nothing changes."""


class WhenUnclaimed(StrEnum):
    """What happens to a run when the last client has left its workspace."""

    CANCEL = "cancel"
    """The workspace closes and the run is cancelled (E12)."""
    CONTINUE = "continue"
    """The run holds the workspace open until it ends."""


# ── Answers and requests of the native routes ───────────────────────────────────────────────────


@frozen(kw_only=True)
class Repeated:
    """The answer to a submission whose run id names a run that was accepted before."""

    id: RunId
    run_id: RunId
    repeated: bool = True


@frozen(kw_only=True)
class HitView:
    """One run that a cancel hit: its state at that moment, and how it ended.

    `ended` is absent while the run has not ended. It may be other than `cancelled`: a run whose
    turn had returned when the cancel came is completed. `seconds` is from the cancel to the end,
    `processes` are those that were stopped with the run, `left` those that could not be stopped.
    """

    id: RunId
    session_id: SessionId
    state: RunState
    run_id: OmitEmpty[RunId | None] = None
    ended: OmitEmpty[RunState | None] = None
    error: OmitEmpty[str] = ""
    seconds: OmitEmpty[float | None] = None
    processes: OmitEmpty[tuple[int, ...]] = ()
    left: OmitEmpty[tuple[int, ...]] = ()


@frozen(kw_only=True)
class ReceiptView:
    """The runs that one cancel hit. `complete` means that nothing of them is left running."""

    complete: bool
    hits: tuple[HitView, ...] = ()


@frozen(kw_only=True)
class QueueItem:
    """A run that waits in its session's queue."""

    id: RunId
    prompt: str
    run_id: OmitEmpty[RunId | None] = None
    attachments: OmitEmpty[int] = 0
    accepted_at: int = 0
    when_unclaimed: WhenUnclaimed = WhenUnclaimed.CANCEL


@frozen(kw_only=True)
class QueueEdit:
    """`PATCH queue/{run_id}`: changes of a waiting run; absent keys change nothing."""

    prompt: OmitEmpty[str | None] = None
    index: OmitEmpty[int | None] = None


@frozen(kw_only=True)
class WaitView:
    """The line of code at which a task waits."""

    module: str
    function: str
    line: int


@frozen(kw_only=True)
class SubtaskView:
    """A task that another one started; its own subtasks follow it, with a `depth` of one more."""

    name: str
    depth: int
    waits_on: OmitEmpty[WaitView | None] = None


@frozen(kw_only=True)
class TaskView:
    """A live task, and every task below it.

    The task of a run has the run's id, its state, and for how many seconds it has been in that
    state. `below` is the tree of its subtasks as a list, like a table of contents: each task is
    followed by those it started, whose `depth` is one more.
    """

    name: str
    run: OmitEmpty[RunId | None] = None
    session_id: OmitEmpty[SessionId | None] = None
    state: OmitEmpty[RunState | None] = None
    seconds: OmitEmpty[float | None] = None
    waits_on: OmitEmpty[WaitView | None] = None
    below: OmitEmpty[tuple[SubtaskView, ...]] = ()


@frozen(kw_only=True)
class TaskTree:
    """The live tasks of a workspace: one per run, and the services."""

    runs: tuple[TaskView, ...] = ()
    services: tuple[TaskView, ...] = ()
