"""What others need of a store, each consumer its own small Protocol.

Writing is the same for all: give changes, wait until they are durable (`commit`) or do not wait
(`post`). Reading is split by who reads. `Store` is everything together, for the place that opens
one. `store.memory` and `store.sqlite` satisfy all of it and pass the same conformance tests; a
server database would be a third, and no caller would notice.

How much a store has to do: counted where the work is done, read by whoever looks.

Nothing in here is told to anybody. Counting costs one search in a short tuple; adding up, comparing
and printing is for the reader.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Protocol

import trio
from attrs import define, field, frozen

from crush_trio.store.changes import Change
from crush_trio.store.commit import Commit
from crush_trio.store.pages import PagedList, Pages
from crush_trio.wire.ids import AskId, FileId, MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import Message
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import File, Session

COMMIT_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Seconds between which commits are told apart."""


@define(eq=False)
class Timings:
    """How often something took how long: a count for each range, and the sum of all.

    `counts[n]` is how many took at most `bounds[n]` seconds and more than the bound before; the
    last count is for those beyond every bound. Single values are not kept.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def note(self, seconds: float) -> None:
        """Count one more."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def absorb(self, other: "Timings") -> None:
        """Count everything that *other* has counted; its bounds must be the same."""
        assert other.bounds == self.bounds
        self.counts = [
            mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)
        ]
        self.total += other.total


@frozen(kw_only=True)
class Load:
    """What a store has to do: writes that were given and are not durable yet, and its commits.

    A commit may hold many writes. It is timed from its beginning to its end in the store's own
    thread, failed ones included; how long a write waits for its turn shows in `pending`.
    """

    pending: int = 0
    commits: Timings = field(factory=lambda: Timings(COMMIT_BOUNDS))


@frozen(kw_only=True)
class StoredRun:
    """A run as the store knows it, with what is needed to end it after a crash.

    `prompt_message_id` is there once the prompt stands in its session as a message.
    """

    view: RunView
    boot_id: str
    prompt: str
    attachments: tuple[Attachment, ...] = field(default=(), repr=False)
    prompt_message_id: MessageId | None = None


@frozen
class Orphan:
    """A run that an earlier start of the program left without an ending.

    Its session may not be there: it was deleted, or never existed.
    """

    run_id: RunId
    session_id: SessionId
    has_session: bool = True


@frozen(kw_only=True)
class StoredMessage:
    """A message, and whether it was ever finished."""

    message: Message
    finished: bool


@frozen(kw_only=True)
class Conversation:
    """A session and what a model is told of it: its messages from its summary on, of one moment."""

    session: Session
    messages: list[Message] = field(repr=False)


@frozen(kw_only=True)
class Totals:
    """What a session has used in all; the gauges in `Session` say what its context holds now."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


@frozen(kw_only=True)
class PendingAsk:
    """An ask that nobody has answered."""

    id: AskId
    kind: str
    session_id: SessionId
    run_id: RunId
    tool_call_id: ToolCallId
    payload: str
    created_at: int


@frozen(kw_only=True)
class TailEvent:
    """One remembered event of some start of the program."""

    boot_id: str
    seq: int
    terminal: bool
    event: str


@frozen
class StoreWarning:
    """What a user should know about a store that works: a code for programs, a sentence for people."""

    code: str
    message: str


UNPLACED: Final = 10**15
"""The seq of an ending whose start was killed before it had one: after every event of that start."""


@frozen(kw_only=True)
class StoredEnding:
    """How a run ended, and the place of that among the events of the start in which it ended.

    An answer that is too long is left out of `run`, and `cut` says so.
    """

    boot_id: str
    seq: int
    run: RunView
    cut: bool = False


class Changes(Protocol):
    """Makes changes durable."""

    @property
    def boot_id(self) -> str:
        """The name of this start of the program; every row it writes for a run carries it."""
        ...

    @property
    def degraded(self) -> str | None:
        """What is wrong with the store, in a sentence; None while nothing is."""
        ...

    def submit(self, *changes: Change, session: SessionId | None = None) -> Commit[Session | None]:
        """Hand over *changes*, to be applied in order, all or none, after all handed over before.

        Never waits and never raises. The commit's result is the session of that id as the changes
        leave it, None without one. It raises what is wrong with the changes (`SessionNotFound`,
        `MessageNotFound`, `RunIdTaken`) or with the store (`StoreUnavailable`).
        """
        ...

    async def commit(self, *changes: Change) -> None:
        """Hand over *changes* and wait until they are durable; see `submit`.

        So is then what was posted before and did not fail, also if there are no *changes*.
        Cancelling the wait does not undo it.
        """
        ...

    def post(self, *changes: Change) -> None:
        """Apply *changes* after everything given before, without waiting; never raises.

        A failure is logged and shows in `degraded`.
        """
        ...

    def abandon(self) -> None:
        """Give up on a store that does not answer, because its workspace has to close.

        Fails what was handed over and is not stored, which is then never stored, and all that
        comes later.
        """
        ...


class SessionReads(Protocol):
    """Reads sessions. What was committed or posted before is seen."""

    async def session(self, session_id: SessionId) -> Session:
        """Return a session, or raise `SessionNotFound`."""
        ...

    async def sessions(self) -> list[Session]:
        """Return the sessions that have no parent, the most recently updated first (G15)."""
        ...

    async def totals(self, session_id: SessionId) -> Totals:
        """Return what a session has used in all."""
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
    ) -> Conversation:
        """Return a session with what a model is to be told of it, or raise `SessionNotFound`.

        The messages of the run *run_id* come last, whatever was written to the session meanwhile.
        What was said before the summary is not read: a session may grow old without growing slow.
        Withdrawn messages are left out.
        """
        ...

    async def user_messages(self, session_id: SessionId | None = None) -> list[Message]:
        """Return the user's messages of a session, or of all, the newest first."""
        ...

    async def unfinished_messages(self, session_id: SessionId) -> list[Message]:
        """Return a session's messages that were never finished, in their order."""
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
        """Return runs by our ids, those that there are, in the order of the ids."""
        ...


class FileHistory(Protocol):
    """Keeps versions of files, and which session has read which file when."""

    async def add_file(
        self, file_id: FileId, session_id: SessionId, path: str, content: str, at: int
    ) -> File:
        """Store one more version of a file: one more than the highest of that path so far (J5).

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
        """Return the asks that wait, the oldest first."""
        ...


class TailReads(Protocol):
    """Reads the events that outlived the start of the program they belong to."""

    async def tail_after(
        self, boot_id: str, seq: int, *, limit: int = 10_000, size: int = 2**30
    ) -> list[TailEvent] | None:
        """Return the kept events after a place in an earlier start, up to the end of the last one.

        At most *limit* of them, and no more after those that have *size* characters together: ask
        again for what comes after the last one.

        None if the continuation is not certain: the start is unknown, it or a later one did not
        end in good order, or some of the events have been dropped. Events of this start are not
        included: they are in its log.
        """
        ...

    async def endings_after(
        self, boot_id: str, seq: int, *, upto: int, limit: int = 10_000, size: int = 2**30
    ) -> list[StoredEnding] | None:
        """Return how runs ended after a place in this start or an earlier one, in that order.

        Endings of this start are included up to the seq *upto*. Endings of an earlier one that was
        killed before their events were kept have the seq `UNPLACED` and more. *limit* and *size*
        are as in `tail_after`, and an answer with more than *size* characters is cut. None if the
        start is unknown.
        """
        ...


class Lists(Protocol):
    """Reads long lists, page by page. What was committed or posted before is seen."""

    def pages(self, wanted: PagedList) -> Pages:
        """Return a list that is about to be read; nothing is read yet."""
        ...


class Store(
    Changes,
    SessionReads,
    MessageReads,
    RunReads,
    FileHistory,
    AskReads,
    TailReads,
    Lists,
    Protocol,
):
    """Everything a store does."""

    @property
    def warning(self) -> StoreWarning | None:
        """What is to be known about this opening of the store, if there is anything."""
        return None

    @property
    def load(self) -> Load:
        """How much it has to do; nothing, for a store that is never behind."""
        return Load()

    async def check(self) -> None:
        """Read everything and raise `StoreCorrupt` if anything is wrong; for a person who asks."""
        await trio.lowlevel.checkpoint()
