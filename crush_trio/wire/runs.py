"""Runs, and the policies of a submission; `wire.answers` has what only the run routes need.

A run is visible from acceptance to its end: as `run` events of the native form, in the answers of
the run routes, and as rows of a store. `RunView` serves all three.
"""

from enum import StrEnum

from attrs import frozen

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
    sentences for the people who read the result; they are stored with the ending, so a run that a crash
    interrupted has none.
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
    notices: OmitEmpty[tuple[str, ...]] = ()


class SpanKind(StrEnum):
    """What a run does in one stretch of its timeline."""

    ACCEPTED = "accepted"
    """Its acceptance is being stored."""
    QUEUED = "queued"
    MODEL = "model"
    TOOL = "tool"
    ASK = "ask"
    """It waits for a person."""
    SUBAGENT = "subagent"
    """It waits for the run of a task that it has started."""
    ENDING = "ending"
    """Its ending is being stored."""


# ── Policies of a submission ────────────────────────────────────────────────────────────────────


class WhenBusy(StrEnum):
    """What happens to a submission whose session has a run already."""

    ENQUEUE = "enqueue"
    """It waits in the queue, or is folded into the active run."""
    INTERRUPT = "interrupt"
    """Every run the session has is cancelled first."""
    REJECT = "reject"
    """It is refused, and nothing changes."""
    STEER = "steer"
    """The active run takes it in at its next step, also with a run id; without such a step it waits."""


class WhenUnclaimed(StrEnum):
    """What happens to a run when the last client has left its workspace."""

    CANCEL = "cancel"
    """The workspace closes and the run is cancelled (E12)."""
    CONTINUE = "continue"
    """The run holds the workspace open until it ends."""
