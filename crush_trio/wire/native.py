"""Values of the native stream form and routes, beyond what the crush wire knows.

A run is visible from acceptance to its end: as `run` events in the native form, in the answers of
the run routes, and as the rows a store keeps. One shape serves all three.
"""

from enum import StrEnum

from attrs import frozen

from crush_trio.wire.fields import OmitEmpty
from crush_trio.wire.ids import NO_MESSAGE, MessageId, RunId, SessionId


class RunKind(StrEnum):
    """What a run does with its session."""

    PROMPT = "prompt"
    SUMMARIZE = "summarize"


class RunState(StrEnum):
    """Where a run is. The last five are endings: a run reaches exactly one of them, once."""

    ACCEPTED = "accepted"
    QUEUED = "queued"
    ACTIVE = "active"
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
    """One run as others see it. Times are unix seconds, 0 while they have not come.

    `id` is ours and always there; `run_id` is the caller's, if it gave one. `message_id`, `text`
    and `error` describe the ending; `folded_into` names the run that absorbed this one.
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
