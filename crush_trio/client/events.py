"""Event classes of the client, and the window of recent events that readers share.

Most events are the wire's own `Envelope`: something was created, updated or deleted. Messages and runs have
classes of their own here, because the native stream says more about them. The rest is about the stream
itself.

There is one connection and any number of readers. A reader is a number: how far it has read. Publishing
never waits for a reader and a reader has no buffer, so a slow one costs nothing. It gets the newest state of a
message and not each one in between; if its place has left the window, it gets a `Resynced` and the
endings that it missed.

Invariant: the window is bounded by count and by bytes, whatever readers do; endings are kept longer.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Final, Self, TypeAlias

import anyio
import anyio.lowlevel
from attrs import define, field, frozen

from crush_trio.client.messages import MessagePiece, MessageView, is_older, pieces_between
from crush_trio.wire.asks import PermissionRequest, QuestionRequest
from crush_trio.wire.events import Envelope, EventType
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.runs import RunView


@define(eq=False)
class MessageEvent:
    """A message was created, has grown, or was deleted.

    `message` is the whole message as of this event. It is built when it is first used; a reader that
    prints an answer as it comes should use `pieces_since` instead, which costs as much as what is new.
    """

    change: EventType
    view: MessageView = field(repr=lambda view: view.id)
    _message: Message | None = field(default=None, init=False, repr=False)

    @property
    def message_id(self) -> MessageId:
        """The id of the message."""
        return self.view.id

    @property
    def session_id(self) -> SessionId:
        """The session that the message is in."""
        return self.view.head.session_id

    @property
    def role(self) -> Role:
        """The role of the message."""
        return self.view.head.role

    @property
    def finished(self) -> bool:
        """Whether the message is complete."""
        return self.view.finished

    @property
    def message(self) -> Message:
        """The whole message."""
        if self._message is None:
            self._message = self.view.message()
        return self._message

    def pieces_since(self, earlier: "MessageEvent | None") -> tuple[MessagePiece, ...]:
        """Return what happened to the message since an *earlier* event of it, or since its beginning.

        Keep the last event that you have seen of each message, and pass it here.
        """
        if earlier is None:
            return pieces_between(None, self.view)
        if is_older(self.view, than=earlier.view):
            return ()
        return pieces_between(earlier.view, self.view)


@frozen
class RunEvent:
    """A run is in a new state. The event of its ending comes once and is the last.

    The text of the answer is not in it: it is in the messages, and in what `RunHandle.wait` returns.
    """

    run: RunView


@frozen(eq=False, kw_only=True)
class Resynced:
    """Some events were missed. This is the current state; it replaces what was known before.

    A run or a message that is not in it has ended, been finished or been deleted meanwhile. The endings
    of runs that were missed are events of their own, before this one or right after it. Other events are
    lost: a reader that shows sessions reads them again.
    """

    runs: tuple[RunView, ...] = ()
    """Every run that has not ended."""
    permissions: tuple[PermissionRequest, ...] = ()
    """What waits for a yes or a no."""
    questions: tuple[QuestionRequest, ...] = ()
    """What waits for an answer."""
    views: tuple[MessageView, ...] = field(default=(), repr=False)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Every message that is not finished."""
        return tuple(view.message() for view in self.views)


@frozen
class Disconnected:
    """The connection is lost. Events continue where they stopped once there is another one."""

    reason: str


@frozen
class Reconnected:
    """There is a connection again. If something was missed, a `Resynced` follows."""


WorkspaceEvent: TypeAlias = (
    MessageEvent | RunEvent | Envelope | Resynced | Disconnected | Reconnected
)
"""Anything that a reader of a workspace's events is given."""


WINDOW_EVENTS: Final = 4096
"""How many events are kept at least, if they are not too large."""

WINDOW_WEIGHT: Final = 16 * 1024 * 1024
"""How many bytes of events are kept at most."""

ENDINGS: Final = 512
"""How many endings are kept beyond the window."""

_by_seq = attrgetter("seq")


@define(eq=False)
class Bell:
    """Wakes the tasks that wait at the moment. Ringing costs nothing if none does."""

    _rung: anyio.Event | None = field(default=None, init=False)

    def ring(self) -> None:
        """Wake every task that waits."""
        if self._rung is not None:
            self._rung.set()
            self._rung = None

    async def wait(self) -> None:
        """Wait for the next ring."""
        if self._rung is None:
            self._rung = anyio.Event()
        await self._rung.wait()


@define(eq=False)
class Entry:
    """An event in the window; `superseded` if a later one contains all of it."""

    seq: int
    event: WorkspaceEvent
    weight: int
    superseded: bool = field(default=False, init=False)


@define(eq=False)
class Window:
    """The newest events, shared by all readers. *snapshot* gives the current state to readers that lost their place."""

    _snapshot: Callable[[], Resynced] = field(repr=False)
    events: int = WINDOW_EVENTS
    weight: int = WINDOW_WEIGHT
    head: int = field(default=0, init=False)
    closed: bool = field(default=False, init=False)
    _floor: int = field(default=0, init=False)
    _total: int = field(default=0, init=False)
    _entries: list[Entry] = field(factory=list, init=False, repr=False)
    _updates: dict[MessageId, Entry] = field(factory=dict, init=False, repr=False)
    _endings: deque[Entry] = field(factory=lambda: deque(maxlen=ENDINGS), init=False, repr=False)
    _readers: Bell = field(factory=Bell, init=False, repr=False)

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────

    def publish(self, event: WorkspaceEvent, weight: int = 0) -> None:
        """Append *event*, of *weight* bytes. The cost does not depend on the number of readers."""
        self.head += 1
        entry = Entry(self.head, event, weight)
        if isinstance(event, MessageEvent):
            self._supersede(event, entry)
        self._total += entry.weight
        self._entries.append(entry)
        if len(self._entries) > 2 * self.events or self._total > self.weight:
            self._trim()
        self._readers.ring()

    def close(self) -> None:
        """End readers once they have read everything. Closing again does nothing."""
        self.closed = True
        self._readers.ring()

    def _supersede(self, event: MessageEvent, entry: Entry) -> None:
        """Replace the update before *entry* by it, weight included: they share their text.

        But not across the beginning of another message: a result is read after its call, and before the
        finish of the answer.
        """
        last = self._updates.pop(event.message_id, None)
        if last is not None:
            last.superseded = True
            entry.weight += last.weight
            if last.seq > self._floor:
                self._total -= last.weight
            last.weight = 0
        if event.change is EventType.CREATED:
            self._updates.clear()
        elif event.change is EventType.UPDATED and not event.finished:
            self._updates[event.message_id] = entry

    def _trim(self) -> None:
        """Drop superseded entries, then the oldest until the window fits again.

        Frees a good part of it at a time, so that the cost per event is constant.
        """
        self._entries = [entry for entry in self._entries if not entry.superseded]
        start, last = 0, len(self._entries) - 1
        heavy = self._total > self.weight
        while start < last and (
            len(self._entries) - start > self.events or (heavy and self._total > self.weight // 2)
        ):
            self._drop(self._entries[start])
            start += 1
        del self._entries[:start]

    def _drop(self, entry: Entry) -> None:
        self._floor = entry.seq
        self._total -= entry.weight
        if _is_ending(entry.event):
            self._endings.append(entry)

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────

    def reader(self, after: int | None = None) -> "EventReader":
        """Return a reader of what comes after *after*, by default of what comes from now on."""
        return EventReader(self, self.head if after is None else after)

    def next(self, after: int) -> Entry | None:
        """Return the first entry after *after* that is not superseded; None if there is none yet."""
        for place in range(bisect_right(self._entries, after, key=_by_seq), len(self._entries)):
            if not self._entries[place].superseded:
                return self._entries[place]
        return None

    def lost(self, after: int) -> tuple[WorkspaceEvent, ...] | None:
        """Return the events for a reader whose place has left the window; None if it is still there."""
        if after >= self._floor:
            return None
        kept = (*self._endings, *self._entries)
        missed = (entry.event for entry in kept if entry.seq > after and _is_ending(entry.event))
        return (self._snapshot(), *missed)

    async def wait_beyond(self, after: int) -> None:
        """Wait until there is an event after *after*, or none can come."""
        await anyio.lowlevel.checkpoint()
        while self.head <= after and not self.closed:
            await self._readers.wait()


def _is_ending(event: WorkspaceEvent) -> bool:
    return isinstance(event, RunEvent) and event.run.state.terminal


@define(eq=False)
class EventReader:
    """One reader's place. Iterating gives events until the workspace is left.

    It holds no resources: it may be left at any point, and later reading continues where it stopped.
    """

    _window: Window = field(repr=False)
    _after: int
    _owed: deque[WorkspaceEvent] = field(factory=deque, init=False, repr=False)

    def take(self) -> WorkspaceEvent | None:
        """Return the next event that is there already; None if there is none."""
        if not self._owed:
            self._look()
        return self._owed.popleft() if self._owed else None

    def _look(self) -> None:
        owed = self._window.lost(self._after)
        if owed is not None:
            self._after = self._window.head
            self._owed.extend(owed)
            return
        entry = self._window.next(self._after)
        if entry is None:
            self._after = self._window.head
        else:
            self._after = entry.seq
            self._owed.append(entry.event)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WorkspaceEvent:
        """Wait for the next event and return it."""
        await anyio.lowlevel.checkpoint()
        while (event := self.take()) is None:
            if self._window.closed:
                raise StopAsyncIteration
            await self._window.wait_beyond(self._after)
        return event
