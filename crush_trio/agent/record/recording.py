"""`Recording`: records what a run sees, for a capsule. `Recordings`: those of a workspace.

The recording of a run is a context variable. Tasks inherit it: tool calls, the title, and the runs of
sub-agents, whose entries go into the same capsule. If none is set, which is so unless a run was asked to
be recorded, looking at the variable is all that recording costs.

Everything is redacted before it is kept. Entries are stored in pieces, without waiting, while the run goes on;
so the recording of a run whose program was killed can be read. Nothing here may fail a run: an error stops
the recording, and is logged.
"""

import logging
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import takewhile
from typing import Final

import trio
from attrs import define, field

from crush_trio import __version__
from crush_trio.agent.record.capsule import CUT, END, MOST, VERSION, Entry, written
from crush_trio.agent.record.redactor import Redactor
from crush_trio.config.snapshot import LoadedConfig, told_config
from crush_trio.events.facts import Event, Fact, MessageChange, RunChange
from crush_trio.events.log import EventLog
from crush_trio.limits import DEFAULTS, SizeLimits, shown_bytes
from crush_trio.runtime.run import Run
from crush_trio.store.base import Store
from crush_trio.store.changes import RunRecorded
from crush_trio.wire.asks import PermissionNotification, QuestionNotification
from crush_trio.wire.codec import unstructure
from crush_trio.wire.events import EventType
from crush_trio.wire.fields import Json
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import FinishPart, Role
from crush_trio.wire.views import Session

log = logging.getLogger(__name__)

PIECE: Final = 64 * 1024
"""Bytes of a recording that are collected before they are stored."""

PAUSE: Final = 1.0
"""Seconds after which entries are stored with the next one, however few they are."""

STORED_AT_ONCE: Final = frozenset({"request", "failed", "result", "answer"})
"""Kinds of entries that are stored with all before them, for the case that the program is killed."""

END_LIMIT: Final = 5.0
"""Seconds that completing a recording may take while the workspace closes."""

CUT_NOTICE: Final = "The recording of this run was cut at {limit}; it cannot be replayed"

_current: ContextVar["Recording | None"] = ContextVar("recording", default=None)


def current_recording() -> "Recording | None":
    """Return the recording of the run that the current task belongs to; None if it has none."""
    return _current.get()


def note(kind: str, **what: Json) -> None:
    """Add an entry to the recording of the current run, if it has one."""
    if (recording := _current.get()) is not None:
        recording.add(kind, **what)


@define(eq=False)
class Recording:
    """The recording of one run and of the runs that it started."""

    run: Run = field(repr=False)
    store: Store = field(repr=False)
    redactor: Redactor = field(repr=False)
    most: int = MOST
    sizes: SizeLimits = field(default=DEFAULTS, repr=False)
    ended: trio.Event = field(factory=trio.Event, init=False, repr=False)
    """Set when the last entry is stored, or when there will be none."""
    runs: list[RunId] = field(init=False)
    exchanges: int = field(default=0, init=False)
    """How many model calls have begun."""
    stopped: bool = field(default=False, init=False)
    begun: float = field(factory=trio.current_time, init=False)
    _last: float = field(default=0.0, init=False)
    _size: int = field(default=0, init=False)
    _pieces: int = field(default=0, init=False)
    _waiting: list[str] = field(factory=list, init=False, repr=False)
    _unstored: int = field(default=0, init=False)
    _stored_at: float = field(default=0.0, init=False)
    _sessions: set[SessionId] = field(init=False, repr=False)
    _requests: dict[Hashable, tuple[list[Json], Entry]] = field(
        factory=dict, init=False, repr=False
    )
    _told_end: bool = field(default=False, init=False)
    """Whether the event that the run has ended was recorded."""
    _asked: set[str] = field(factory=set, init=False, repr=False)
    """The ids of tool calls and of question batches that belong to the run."""

    @runs.default
    def _runs(self) -> list[RunId]:
        return [self.run.id]

    @_sessions.default
    def _own_sessions(self) -> set[SessionId]:
        return {self.run.session_id}

    # ── Entries ─────────────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> float:
        """Seconds since the run began; no two calls return the same."""
        self._last = max(round(trio.current_time() - self.begun, 6), round(self._last + 1e-6, 6))
        return self._last

    def add(self, kind: str, **what: Json) -> None:
        """Add an entry, redacted; nothing once the recording has stopped."""
        with self._barrier():
            if not self.stopped:
                self._put({"t": self.now, "k": kind, **self.redactor.tree(what)})

    def begin(self, header: Entry) -> None:
        """Write the header."""
        with self._barrier():
            about = {"capsule": VERSION, "program": f"crush_trio {__version__}"}
            self._put({**about, **self.redactor.tree(header)})
            self._store()

    def _put(self, entry: Entry) -> None:
        line = written([entry])
        size = len(line.encode())
        if self._size + size > self.most:
            self.stopped = True
            self.run.accepted.add_notice(CUT_NOTICE.format(limit=shown_bytes(self.most)))
            if not self._size:  # the header itself; without what is long in it, it is short
                self._waiting.append(written([{**entry, "history": [], "prompt": ""}]))
            self._waiting.append(written([{"t": self._last, "k": CUT, "bytes": self._size}]))
            self._store()
            return
        self._size += size
        self._unstored += size
        self._waiting.append(line)
        waited = self._last - self._stored_at >= PAUSE
        if self._unstored >= PIECE or waited or entry.get("k") in STORED_AT_ONCE:
            self._store()

    def _store(self) -> None:
        if self._waiting:
            piece = "".join(self._waiting)
            self.store.post(
                RunRecorded(
                    run_id=self.run.id,
                    session_id=self.run.session_id,
                    n=self._pieces,
                    data=piece,
                )
            )
            self._pieces += 1
            self._waiting.clear()
            self._unstored, self._stored_at = 0, self._last

    @contextmanager
    def _barrier(self) -> Generator[None]:
        try:
            yield
        except Exception:  # barrier: a run must not fail because it cannot be recorded
            self.stopped = True
            log.exception("recording.failed", extra={"run_id": self.run.id})

    # ── What belongs to the run ─────────────────────────────────────────────────────────────────

    def adopt(self, run: Run) -> None:
        """Record *run* too, which the recorded run has started."""
        self.runs.append(run.id)
        self._sessions.add(run.session_id)

    def asks(self, known: str) -> None:
        """Note the id of a tool call, or of a batch of questions."""
        self._asked.add(known)

    def answered(self, known: str) -> None:
        """Forget the id of a tool call that has ended: some models use the same ids again and again."""
        self._asked.discard(known)

    def changed(self, place: Hashable, messages: list[Json], **whole: Json) -> Entry:
        """Return what is new in a request since the last one of *place*: most of it is the same.

        `kept` is how many messages at the beginning are the same; values that are the same are left out.
        """
        before, known = self._requests.get(place, ([], {}))
        self._requests[place] = messages, whole
        pairs = zip(before, messages, strict=False)
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        new = {name: value for name, value in whole.items() if known.get(name) != value}
        return {"kept": kept, "messages": messages[kept:], **new}

    # ── Events ──────────────────────────────────────────────────────────────────────────────────

    def hear(self, event: Event) -> None:
        """Record an event of the workspace, if it is about this run.

        After the ending nothing is: the next run of the session may begin before the recording is complete.
        """
        with self._barrier():
            if self.stopped or self._told_end:
                return
            if (shown := self._shown(event)) is not None:
                self.add("event", **shown)
            if isinstance(event, RunChange) and event.terminal:
                self._told_end = event.run.id == self.run.id

    def _shown(self, event: Event) -> Entry | None:
        match event:
            case MessageChange(plain=True):
                return None  # the parts of the answer are recorded as they come
            case MessageChange(change=change):
                return self._message(event, change)
            case RunChange(run=run):
                ours = run.session_id in self._sessions
                return {"type": "run", "value": unstructure(run)} if ours else None
            case Fact(entity=entity):
                return self._fact(event) if self._concerns(entity) else None

    def _message(self, event: MessageChange, change: EventType) -> Entry | None:
        if event.view.head.session_id not in self._sessions:
            return None
        message = event.message
        grows = message.role is Role.ASSISTANT and not any(
            isinstance(part, FinishPart) for part in message.parts
        )
        if grows and change is EventType.UPDATED:
            parts = [part.kind for part in message.parts]
            value = {"id": message.id, "session_id": message.session_id, "parts": parts}
            return {"type": "message", "change": "growing", "value": value}
        return {"type": "message", "change": change.value, "value": unstructure(message)}

    def _concerns(self, entity: object) -> bool:
        match entity:
            case Session(id=session_id, parent_session_id=parent):
                return session_id in self._sessions or parent in self._sessions
            case PermissionNotification(tool_call_id=call_id):
                return call_id in self._asked
            case QuestionNotification(batch_id=batch_id):
                return batch_id in self._asked
        return getattr(entity, "session_id", None) in self._sessions

    def _fact(self, fact: Fact) -> Entry:
        value = unstructure(fact.entity)
        return {"type": fact.payload_type.value, "change": fact.change.value, "value": value}

    # ── The end ─────────────────────────────────────────────────────────────────────────────────

    async def finish(self) -> None:  # noqa: ASYNC910  # a failure of the store was waited for
        """Record what is stored of the run, and the end. A service task of the workspace."""
        try:
            await self._finish()
        except Exception:  # barrier: see `_barrier`
            log.exception("recording.failed", extra={"run_id": self.run.id})
        finally:
            self.ended.set()

    async def _finish(self) -> None:
        stored = await self.store.run_messages(self.runs)
        for run_id in self.runs:
            said = [unstructure(each.message) for each in stored.get(run_id, [])]
            self.add("stored", run=run_id, messages=said)
        view = self.run.accepted.view
        end = {"state": view.state.value, "error": view.error, "complete": not self.stopped}
        last = {"t": self.now, "k": END, **self.redactor.tree(end)}
        pieces = self._pieces + 1  # this one too: so it shows if one of them could not be stored
        last = {**last, "redacted": self.redactor.told, "pieces": pieces}
        self._waiting.append(written([last]))
        self.stopped = True  # a title may take longer than its run
        self._store()
        await self.store.commit()


def described_config(loaded: LoadedConfig) -> Entry:
    """Return what a recording says about the configuration: no secrets, and the limits of providers."""
    limits = {name: dict(each.limits) for name, each in loaded.config.providers.items()}
    return {"config": unstructure(told_config(loaded)), "limits": limits}


MakeHeader = Callable[[Run], Entry]
"""Describes the workspace for the header of a recording: configuration, permissions."""


@define(eq=False)
class Recordings:
    """The recordings of a workspace."""

    store: Store = field(repr=False)
    events: EventLog = field(repr=False)
    make_redactor: Callable[[], Redactor] = field(repr=False)
    make_header: MakeHeader = field(repr=False)
    always: Callable[[], bool] = field(repr=False)
    """Whether the configuration has every run recorded."""
    sizes: SizeLimits = field(default=DEFAULTS, repr=False)
    most: int = MOST
    _open: dict[RunId, Recording] = field(factory=dict, init=False, repr=False)

    def wants(self, run: Run) -> bool:
        """Whether *run* is recorded: it was asked for, or belongs to a run that is."""
        return run.submission.record or _current.get() is not None or self.always()

    async def settled(self, run_id: RunId) -> None:
        """Wait until the recording of a run that has ended is stored; return at once for others."""
        await trio.lowlevel.checkpoint()
        recording = self._open.get(run_id)
        if recording is not None and recording.run.accepted.outcome is not None:
            await recording.ended.wait()

    async def begin(self, run: Run) -> Recording:
        """Begin to record *run*, or have it recorded with the run that has started it."""
        recording = _current.get()
        if recording is not None:
            await trio.lowlevel.checkpoint()
            recording.adopt(run)
            return recording
        said = await self.store.conversation(run.session_id, run.id)
        redactor = self.make_redactor()
        recording = Recording(run, self.store, redactor, self.most, self.sizes)
        submission = run.submission
        recording.begin(
            {
                "run": run.id,
                "session": unstructure(said.session),
                "accepted_at": run.accepted.view.accepted_at,
                "kind": run.kind.value,
                "run_id": submission.run_id,
                "prompt": submission.prompt,
                "attachments": unstructure(submission.attachments),
                "interactive": submission.interactive,
                "permissions": unstructure(submission.permissions),
                "model": unstructure(submission.model),
                "history": [
                    unstructure(each) for each in said.messages if each.id != MessageId(run.id)
                ],
                **self.make_header(run),
            }
        )
        return recording

    @contextmanager
    def playing(self, recording: Recording, run: Run) -> Iterator[None]:
        """Record what the block does, and the events of its run until the run has ended."""
        if run is not recording.run:
            yield
            return
        token = _current.set(recording)
        self._open[run.id] = recording
        self.events.listeners.append(recording.hear)
        run.host.services.start_soon(self._close, recording, name="recording")
        try:
            yield
        finally:
            cancelled = run.accepted.cancel_time
            if cancelled is not None:
                at = round(cancelled - recording.begun, 6)
                recording.add("cancel", at=at)
            _current.reset(token)

    async def _close(self, recording: Recording) -> None:
        """Wait for the end of the run; then complete its recording."""
        run = recording.run
        try:
            await run.accepted.wait_ended()
            with trio.move_on_after(END_LIMIT, shield=True):
                await recording.finish()
        finally:
            recording.ended.set()
            self.events.listeners.remove(recording.hear)
            self._open.pop(run.id, None)
