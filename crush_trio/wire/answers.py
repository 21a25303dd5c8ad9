"""Answers of routes that the run core does without: receipts, queues, task trees, errors, small results.

And the events of a native stream that are not about an entity.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from attrs import frozen

from crush_trio.wire.asks import PermissionRequest, QuestionRequest
from crush_trio.wire.fields import JsonObject, OmitEmpty
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Message, Part
from crush_trio.wire.runs import RunState, RunView, SpanKind, WhenUnclaimed
from crush_trio.wire.views import Roster, RosterSessionChange, RosterWorkspaceChange

Diagnostics: TypeAlias = Mapping[str, tuple[JsonObject, ...]]
"""A language server's diagnostics by document, as the server wrote them."""


@frozen(kw_only=True)
class Version:
    """The version of the server; `platform` is `os/arch`."""

    version: str
    commit: str
    build_id: str
    go_version: str
    platform: str


@frozen(kw_only=True)
class ErrorBody:
    """The body of every answer that reports a failure: a sentence for people, a code for programs.

    `detail` says more if the message is one that clients compare. The Go program sends neither code nor
    detail.
    """

    message: str
    code: OmitEmpty[str] = ""
    detail: OmitEmpty[str] = ""


@frozen(kw_only=True)
class Health:
    """`GET health` of a server that works and lacks something; without a problem there is no body."""

    problems: tuple[ErrorBody, ...] = ()


@frozen(kw_only=True)
class Resolved:
    """Whether an answer resolved an ask. False: none waited, or another client was first."""

    resolved: bool


@frozen(kw_only=True)
class ShellResult:
    """The output and the exit code of a command."""

    output: str
    exit_code: int


@frozen(kw_only=True)
class NeedsInit:
    """Whether the project has not been set up for an agent yet."""

    needs_init: bool


@frozen(kw_only=True)
class PromptText:
    """A prompt, ready to be sent."""

    prompt: str


# ── Runs ────────────────────────────────────────────────────────────────────────────────────────


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
    """`PATCH queue/{run_id}`: changes of a waiting run; absent keys change nothing.

    With `interrupt` the run is put first in the queue and the active run is cancelled: it runs now.
    """

    prompt: OmitEmpty[str | None] = None
    index: OmitEmpty[int | None] = None
    interrupt: OmitEmpty[bool] = False


@frozen(kw_only=True)
class SpanView:
    """One stretch of a run's timeline, in unix seconds with a fraction; `end` is null while it lasts.

    A model call that has ended has what its provider reported.
    """

    kind: SpanKind
    name: str = ""
    begin: float
    end: float | None = None
    detail: str = ""
    tokens_in: OmitEmpty[int] = 0
    tokens_out: OmitEmpty[int] = 0
    cost: OmitEmpty[float] = 0


@frozen(kw_only=True)
class TimelineView:
    """`GET runs/{rid}/timeline`: what a run did when.

    `coarse` if it was made from what is stored, in whole seconds and without asks and tools.
    `left_out` is how many spans were too many to be kept.
    """

    run: RunView
    spans: tuple[SpanView, ...]
    coarse: bool = False
    left_out: OmitEmpty[int] = 0


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


# ── Events that only the native form has ────────────────────────────────────────────────────────


class EndReason(StrEnum):
    """Why a stream ended: its reader needs another workspace, or another server."""

    WORKSPACE_CLOSED = "workspace_closed"
    SERVER_SHUTTING_DOWN = "server_shutting_down"


@frozen(kw_only=True)
class StreamAsks:
    """Every ask that waits for an answer; those that are not listed are settled."""

    permissions: tuple[PermissionRequest, ...] = ()
    questions: tuple[QuestionRequest, ...] = ()


@frozen(kw_only=True)
class StreamReady:
    """The stream has begun: the reader's place, and after how many seconds of silence a heartbeat comes.

    `position` is null for a reader that has lost its place, and `heartbeat` if there are none.
    """

    position: str | None
    heartbeat: float | None


@frozen(kw_only=True)
class StreamHeartbeat:
    """Nothing has happened for a while, and the stream is alive."""


@frozen(kw_only=True)
class StreamEnd:
    """The last event of a stream; one that stops without it was cut."""

    reason: EndReason


@frozen(kw_only=True)
class StreamResync:
    """The present state, for a reader whose place the log has dropped; it goes on from `position`.

    `ended` are the last endings that the reader missed, `runs` all that have not ended, `messages`
    all without a finish part. `events.cursor` writes it piece by piece.
    """

    position: str
    ended: tuple[RunView, ...]
    runs: tuple[RunView, ...]
    messages: tuple[Message, ...]


@frozen(kw_only=True)
class PartChange:
    """One change of the parts of a message.

    With `length`, only that many parts stay. With `append`, the text is added to the one of part
    `index`, which has `offset` bytes of UTF-8 before, and a `part` beside it has the other members.
    With `part` alone, it replaces part `index` or is added at the end.
    """

    length: OmitEmpty[int | None] = None
    index: OmitEmpty[int | None] = None
    offset: OmitEmpty[int | None] = None
    append: OmitEmpty[str | None] = None
    part: OmitEmpty[Part | None] = None


@frozen(kw_only=True)
class MessageDelta:
    """What has changed in a message since the last event about it.

    `events.growing_message` writes it from the bytes of what was appended.
    """

    id: MessageId
    session_id: SessionId
    updated_at: int
    changes: tuple[PartChange, ...]


NATIVE: Final[Mapping[str, type]] = {
    "asks": StreamAsks,
    "ready": StreamReady,
    "heartbeat": StreamHeartbeat,
    "run": RunView,
    "message_delta": MessageDelta,
    "resync": StreamResync,
    "end": StreamEnd,
    "roster": Roster,
    "roster_session": RosterSessionChange,
    "roster_workspace": RosterWorkspaceChange,
}
"""The class of the data of each event that only the native form has, by the event's name."""

UNNUMBERED: Final = frozenset(
    {"asks", "heartbeat", "end", "roster", "roster_session", "roster_workspace"}
)
"""The events of `NATIVE` without an id: they do not move a reader's place."""


@frozen(kw_only=True)
class PageView:
    """`GET page`: what a browser may do here. One that has to log in first learns nothing else."""

    login: bool
    """Whether the browser must log in, or has; without a right it has not yet."""
    right: str | None = None
    """`watch`, `answer` or `admin`; None before the login."""
    logged_in: bool = False
    """Whether there is a session to log out of."""
    version: str = ""
    directory: str = ""
    """The directory that the server was started in."""


@frozen(kw_only=True)
class RenderedPart:
    """A part of a message as HTML that is safe to show; `index` is its place in the message."""

    index: int
    html: str


@frozen(kw_only=True)
class RenderedMessage:
    """The parts of a finished message that are more than plain text."""

    id: MessageId
    updated_at: int
    parts: tuple[RenderedPart, ...] = ()


@frozen(kw_only=True)
class RenderedDiff:
    """A change of a file as an HTML table."""

    html: str
