"""The protocols of a store, one per consumer, and the values that a store returns.

All writers do the same: they give changes and wait until they are durable (`commit`) or do not wait
(`post`). Reads are split by consumer. `Store` is everything together. `store.memory` and
`store.sqlite` satisfy it and pass the same conformance tests. `StoreLoad` and `Timings` are metrics.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Protocol

import trio
from attrs import define, field, frozen

from crush_trio.store.changes import Change
from crush_trio.store.commit import Commit
from crush_trio.store.overview import OverviewReads
from crush_trio.store.pages import PagedList, Pages
from crush_trio.wire.ids import AskId, FileId, MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import Message
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import File, Session, UsageDay

COMMIT_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds, in seconds, of the histogram of commit times."""


@frozen(kw_only=True)
class StoredRun:
    """A run as it is stored, with what is needed to end it after a crash.

    `prompt_message_id` is set once the prompt is stored as a message of its session.
    """

    view: RunView
    boot_id: str
    prompt: str
    attachments: tuple[Attachment, ...] = field(default=(), repr=False)
    prompt_message_id: MessageId | None = None


@frozen
class Orphan:
    """A run that an earlier start of the program left without an ending.

    Its session may be missing: it was deleted, or never existed.
    """

    run_id: RunId
    session_id: SessionId
    has_session: bool = True


@frozen(kw_only=True)
class StoredMessage:
    """A message, and whether it is finished."""

    message: Message
    finished: bool


@frozen(kw_only=True)
class StoredConversation:
    """A session and the messages that a model gets: those from its summary on, at one moment."""

    session: Session
    messages: list[Message] = field(repr=False)


@frozen(kw_only=True)
class Totals:
    """The tokens a session has used in total; `Session` has those of its present context."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


@frozen(kw_only=True)
class PendingAsk:
    """An ask without an answer."""

    id: AskId
    kind: str
    session_id: SessionId
    run_id: RunId
    tool_call_id: ToolCallId
    payload: str
    created_at: int


@frozen(kw_only=True)
class TailEvent:
    """One stored event of some start of the program."""

    boot_id: str
    seq: int
    terminal: bool
    event: str


@frozen
class StoreWarning:
    """A warning about a store that works: a code for programs, a sentence for people."""

    code: str
    message: str


UNPLACED: Final = 10**15
"""The first seq of endings that got none because the program was killed; larger than any other."""


@frozen(kw_only=True)
class StoredEnding:
    """How a run ended, and the place of its ending among the events of that start of the program.

    If the answer is too long, `run` is without it and `cut` is set.
    """

    boot_id: str
    seq: int
    run: RunView
    cut: bool = False


class Changes(Protocol):
    """Makes changes durable."""

    @property
    def boot_id(self) -> str:
        """The id of this start of the program; every row that it writes for a run has it."""
        ...

    @property
    def degraded(self) -> str | None:
        """A sentence about what is wrong with the store; None if nothing is."""
        ...

    def submit(self, *changes: Change, session: SessionId | None = None) -> Commit[Session | None]:
        """Hand over *changes*, to be applied in order, all or none, after all earlier ones.

        Never waits and never raises. The commit's result is the session of that id as the changes
        leave it, None without one. It raises what is wrong with the changes (`SessionNotFound`,
        `MessageNotFound`, `RunIdTaken`) or with the store (`StoreUnavailable`).
        """
        ...

    async def commit(self, *changes: Change) -> None:
        """Hand over *changes* and wait until they are durable; see `submit`.

        Everything posted before is durable then, too, unless it failed; also if there are no
        *changes*. Cancelling the wait does not undo the write.
        """
        ...

    def post(self, *changes: Change) -> None:
        """Apply *changes* after all earlier ones, without waiting; never raises.

        A failure is logged and shows in `degraded`.
        """
        ...

    def abandon(self) -> None:
        """Give up on a store that does not answer, because its workspace has to close.

        Fails all writes that are not stored yet, which are then never stored, and all later ones.
        """
        ...


class SessionReads(Protocol):
    """Reads sessions. Sees everything that was committed or posted before."""

    async def session(self, session_id: SessionId) -> Session:
        """Return a session, or raise `SessionNotFound`."""
        ...

    async def sessions(self) -> list[Session]:
        """Return the sessions that have no parent, the most recently updated first (G15)."""
        ...

    async def totals(self, session_id: SessionId) -> Totals:
        """Return the tokens that a session has used in total."""
        ...

    async def usage(self, since: int) -> list[UsageDay]:
        """Return what the days from *since* on used, in order; days without anything are left out."""
        ...


class MessageReads(Protocol):
    """Reads messages."""

    async def message(self, message_id: MessageId) -> StoredMessage:
        """Return a message, or raise `MessageNotFound`."""
        ...

    async def messages(self, session_id: SessionId) -> list[Message]:
        """Return a session's messages in their order (L14); none for an unknown session."""
        ...

    async def conversation(
        self, session_id: SessionId, run_id: RunId | None = None
    ) -> StoredConversation:
        """Return a session with the messages that a model gets, or raise `SessionNotFound`.

        The messages of the run *run_id* come last, whatever was written to the session meanwhile.
        Messages before the summary are not read, so the cost does not grow with the session's age.
        Withdrawn messages are left out.
        """
        ...

    async def user_messages(self, session_id: SessionId | None = None) -> list[Message]:
        """Return the user's messages of a session, or of all, the newest first."""
        ...

    async def unfinished_messages(self, session_id: SessionId) -> list[Message]:
        """Return a session's unfinished messages in their order."""
        ...

    async def run_messages(self, run_ids: Sequence[RunId]) -> dict[RunId, list[StoredMessage]]:
        """Return the messages of some runs, each run's in their order."""
        ...


class RunReads(Protocol):
    """Reads runs."""

    async def run(self, run_id: RunId) -> StoredRun:
        """Return a run, by our id or by its caller's, or raise `RunNotFound`."""
        ...

    async def runs(self, session_id: SessionId | None = None, limit: int = 100) -> list[RunView]:
        """Return the newest runs, of one session or of all, the newest first."""
        ...

    async def orphans(self) -> list[Orphan]:
        """Return the runs that earlier starts of the program left without an ending, in order."""
        ...

    async def stored_runs(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        """Return the runs with these ids of ours that exist, in the order of the ids."""
        ...

    async def recording(self, run_id: RunId) -> list[str]:
        """Return the pieces of a run's recording in order; none if it was not recorded."""
        ...


class FileHistory(Protocol):
    """Stores versions of files, and which session has read which file when."""

    async def add_file(
        self, file_id: FileId, session_id: SessionId, path: str, content: str, at: int
    ) -> File:
        """Store a version of a file; its number is one more than the highest of that path (J5).

        The first version of a path is 0. Raises `SessionNotFound`.
        """
        ...

    async def files(self, session_id: SessionId) -> list[File]:
        """Return every version of every file of a session, by path and version."""
        ...

    async def latest_file(self, session_id: SessionId, path: str) -> File | None:
        """Return the newest version of *path* in a session, if there is one."""
        ...

    async def read_paths(self, session_id: SessionId) -> list[str]:
        """Return the files that a session has read, by path."""
        ...

    async def last_read(self, session_id: SessionId, path: str) -> int | None:
        """Return when a session last read a file."""
        ...


class AskReads(Protocol):
    """Reads asks."""

    async def pending_asks(self) -> list[PendingAsk]:
        """Return the asks without an answer, the oldest first."""
        ...


class TailReads(Protocol):
    """Reads the events of earlier starts of the program."""

    async def tail_after(
        self, boot_id: str, seq: int, *, limit: int = 10_000, size: int = 2**30
    ) -> list[TailEvent] | None:
        """Return the stored events after a place in an earlier start of the program.

        At most *limit* of them, and no more once they have *size* characters together; call again
        for those after the last one. Events of the present start are not included: they are in its
        log.

        None if events may be missing: the start is unknown, it or a later one crashed, or some of
        the events have been trimmed.
        """
        ...

    async def endings_after(
        self, boot_id: str, seq: int, *, upto: int, limit: int = 10_000, size: int = 2**30
    ) -> list[StoredEnding] | None:
        """Return the endings of runs after a place in this start or an earlier one, in order.

        Endings of this start are included up to the seq *upto*. Endings of a start that was killed
        before their events were stored have a seq of `UNPLACED` or more. *limit* and *size* are as
        in `tail_after`, and an answer with more than *size* characters is cut. None if the start is
        unknown.
        """
        ...


class ListReads(Protocol):
    """Reads long lists page by page. Sees everything that was committed or posted before."""

    def pages(self, wanted: PagedList) -> Pages:
        """Return a list to be read; nothing is read yet."""
        ...


@define(eq=False)
class Timings:
    """A histogram of durations: a count for each range, and the sum of all.

    `counts[n]` is the number of those that took at most `bounds[n]` seconds and more than the bound
    before; the last count is for those beyond every bound. Single values are not kept.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def note(self, seconds: float) -> None:
        """Add one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def absorb(self, other: "Timings") -> None:
        """Add everything that *other* has counted; its bounds must be the same."""
        assert other.bounds == self.bounds
        self.counts = [sum(pair) for pair in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


@frozen(kw_only=True)
class StoreLoad:
    """The load of a store: writes that are not durable yet, and the times of its commits.

    A commit may hold many writes. It is timed from begin to end in the store's own thread, also if
    it fails; the time that a write waits in the queue is not part of it.
    """

    pending: int = 0
    size: int = 0
    """The bytes of its files, or of the *database* as it was last measured."""
    database: str = ""
    """The database whose size it is, if several stores share it."""
    commits: Timings = field(factory=lambda: Timings(COMMIT_BOUNDS))


class Store(
    Changes,
    SessionReads,
    MessageReads,
    RunReads,
    FileHistory,
    AskReads,
    TailReads,
    ListReads,
    OverviewReads,
    Protocol,
):
    """A whole store."""

    @property
    def warning(self) -> StoreWarning | None:
        """A warning about this opening of the store, if there is one."""
        return None

    @property
    def load(self) -> StoreLoad:
        """The store's load; empty for a store that writes at once."""
        return StoreLoad()

    async def measure(self) -> None:
        """Look up the size for `load`, if that means asking a server. Takes a second at most."""
        await trio.lowlevel.checkpoint()

    async def check(self) -> None:
        """Read everything and raise `StoreCorrupt` if anything is wrong; for a person who asks."""
        await trio.lowlevel.checkpoint()
