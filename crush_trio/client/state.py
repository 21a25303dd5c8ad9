"""The client's picture of a workspace: frames in, state and events out.

Plain data, no `await`: every frame is applied in one step, and its events are in the window when the step is
over. The picture is a replica of what is under way on the server: runs that have not ended, messages that
are not finished, asks that are not answered. What has ended is reported and then forgotten.

A stream may be cut anywhere and resumed. The picture remembers its place, drops events that it has seen, and
after a resync it has *doubts*: runs that were live and messages that were growing, which the server no longer
mentions. The client asks the server about them. A resync may come in pieces: first endings that were
missed, as `run` events with places of their own, then the state. So the ending of a run is reported exactly
once, whatever happened to the connection.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Final, TypeVar

import anyio
import orjson
from attrs import define, field

from crush_trio.client.events import (
    Disconnected,
    MessageEvent,
    Reconnected,
    Resynced,
    RunEvent,
    Window,
)
from crush_trio.client.http import StreamBroken
from crush_trio.client.messages import GrowingMessage
from crush_trio.errors import DecodeError
from crush_trio.net.sse import SseEvent
from crush_trio.wire.asks import (
    PermissionNotification,
    PermissionRequest,
    QuestionNotification,
    QuestionRequest,
)
from crush_trio.wire.codec import structure
from crush_trio.wire.events import ENTITIES, Entity, Envelope, EventType, PayloadType
from crush_trio.wire.fields import Json
from crush_trio.wire.ids import AskId, MessageId, RunId, SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import Session

T = TypeVar("T")

NOWHERE: Final = "0-0"
"""A place that no log has: a stream from there begins with the current state."""

HEARTBEATS_MISSED: Final = 3
"""How many heartbeats may be missing before a connection counts as lost."""

ENDED_MOST: Final = 4096
"""How many ended runs are remembered, so that no ending is reported twice."""


@define(eq=False)
class Picture:
    """The state of one workspace, as far as this client knows it; see the module."""

    window: Window = field(init=False, repr=False)
    place: str = field(default=NOWHERE, init=False)
    """Where the stream is to be resumed."""
    silence: float = field(default=inf, init=False)
    """Seconds without a sound after which the connection is dead."""
    farewell: str = field(default="", init=False)
    """Why the server ended the stream; empty if it did not say."""
    synced: anyio.Event = field(factory=anyio.Event, init=False, repr=False)
    """Set once the state of the workspace is known for the first time."""
    runs: dict[RunId, RunView] = field(factory=dict, init=False)
    permissions: dict[AskId, PermissionRequest] = field(factory=dict, init=False)
    questions: dict[AskId, QuestionRequest] = field(factory=dict, init=False)
    doubtful_runs: dict[RunId, RunView] = field(factory=dict, init=False)
    doubtful_messages: dict[MessageId, GrowingMessage] = field(factory=dict, init=False)
    _away: bool = field(default=False, init=False)
    _messages: dict[MessageId, GrowingMessage] = field(factory=dict, init=False, repr=False)
    _ended: "OrderedDict[RunId, None]" = field(factory=OrderedDict, init=False, repr=False)
    _news: dict[RunId, set[anyio.Event]] = field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.window = Window(self.snapshot)

    def snapshot(self) -> Resynced:
        """Return the current state."""
        return Resynced(
            runs=tuple(self.runs.values()),
            permissions=tuple(self.permissions.values()),
            questions=tuple(self.questions.values()),
            views=tuple(message.view() for message in self._messages.values()),
        )

    @property
    def in_doubt(self) -> bool:
        """Whether there are doubts, which only the server can settle."""
        return bool(self.doubtful_runs or self.doubtful_messages)

    # ── The connection ──────────────────────────────────────────────────────────────────────────

    def disconnected(self, reason: str) -> None:
        """Record that the connection is lost, and report it once."""
        self.farewell = ""
        if not self._away:
            self._away = True
            self.window.publish(Disconnected(reason))

    def mislay(self) -> None:
        """Forget the place: the next stream is to begin with the current state."""
        self.place = NOWHERE

    def close(self) -> None:
        """End all readers and waits: nothing will come any more."""
        self.window.close()
        for waiting in self._news.values():
            _wake(waiting)

    @property
    def closed(self) -> bool:
        """Whether the workspace has been left."""
        return self.window.closed

    @contextmanager
    def news_of(self, run_id: RunId) -> Iterator[anyio.Event]:
        """Give an event that is set when there is a reason to look at a run again.

        That is its ending, every new connection, because events may have been missed without one, and
        leaving the workspace.
        """
        event = anyio.Event()
        waiting = self._news.setdefault(run_id, set())
        waiting.add(event)
        try:
            yield event
        finally:
            waiting.discard(event)
            if not waiting:
                self._news.pop(run_id, None)

    # ── Frames ──────────────────────────────────────────────────────────────────────────────────

    def apply(self, frame: SseEvent) -> None:
        """Apply one frame; raises `StreamBroken` if it does not fit what is known."""
        if frame.id is not None and frame.name not in _PLACED and self._is_old(frame.id):
            return
        apply = _APPLY.get(frame.name) or self._entity(frame)
        if apply is not None:
            try:
                apply(self, _json_of(frame), len(frame.data))
            except (KeyError, TypeError, ValueError, AttributeError, DecodeError) as flaw:
                raise StreamBroken(f"{frame.name}: {flaw!r}") from flaw
        if frame.id is not None:
            self.place = frame.id

    def _is_old(self, place: str) -> bool:
        """Whether an event of this place has been applied before."""
        (boot, seq), (last_boot, last_seq) = _place(place), _place(self.place)
        return boot == last_boot and seq <= last_seq

    def _entity(self, frame: SseEvent) -> "_Apply | None":
        """Return how to apply an event about any other entity; None for unknown names."""
        if not frame.name:
            raise StreamBroken("an event without a name: this is not the native form")
        if frame.name not in _PAYLOADS:
            return None
        return partial(_changed, PayloadType(frame.name))

    def _ready(self, data: Mapping[str, Json], _weight: int) -> None:
        heartbeat = data["heartbeat"]
        self.silence = inf if heartbeat is None else HEARTBEATS_MISSED * float(heartbeat)
        if self._away:
            self._away = False
            self.window.publish(Reconnected())
        for waiting in self._news.values():
            _wake(waiting)

    def _heartbeat(self, _data: Json, _weight: int) -> None:
        """Do nothing: its arrival is all that matters."""

    def _end(self, data: Mapping[str, Json], _weight: int) -> None:
        self.farewell = str(data["reason"])

    def _asks(self, data: Mapping[str, Json], _weight: int) -> None:
        requests = structure(data["permissions"], tuple[PermissionRequest, ...])
        batches = structure(data["questions"], tuple[QuestionRequest, ...])
        self.permissions = {request.id: request for request in requests}
        self.questions = {batch.id: batch for batch in batches}

    # ── Runs ────────────────────────────────────────────────────────────────────────────────────

    def _run(self, data: Json, weight: int) -> None:
        """Follow a run; one that ended before this client attached is not reported."""
        run = structure(data, RunView)
        if run.state.terminal and not self.synced.is_set():
            self._remember(run)
        else:
            self._tell_run(run, weight)

    def _tell_run(self, run: RunView, weight: int) -> None:
        """Follow a run into a new state. Its ending is reported once, and nothing after it."""
        if run.id in self._ended:
            return
        self.doubtful_runs.pop(run.id, None)
        if not run.state.terminal:
            self.runs[run.id] = run
            self.window.publish(RunEvent(run), weight)
            return
        self.runs.pop(run.id, None)
        self._remember(run)
        self.window.publish(RunEvent(run), weight)
        for name in {run.id, run.run_id or run.id}:
            _wake(self._news.get(name, ()))

    def _remember(self, run: RunView) -> None:
        self._ended[run.id] = None
        while len(self._ended) > ENDED_MOST:
            self._ended.popitem(last=False)

    def settle_run(self, run_id: RunId, run: RunView | None) -> None:
        """Settle a doubt: the run as it is, or None if there is no such run."""
        if self.doubtful_runs.pop(run_id, None) is not None and run is not None:
            self._tell_run(run, len(run.error))

    # ── Messages ────────────────────────────────────────────────────────────────────────────────

    def _message(self, data: Mapping[str, Json], weight: int) -> None:
        change = EventType(data["type"])
        growing = GrowingMessage(structure(data["payload"], Message))
        view = growing.view()
        self._messages.pop(view.id, None)
        self.doubtful_messages.pop(view.id, None)
        if change is not EventType.DELETED and not view.finished:
            self._messages[view.id] = growing
        self.window.publish(MessageEvent(change, view), weight)

    def _message_delta(self, data: Mapping[str, Json], weight: int) -> None:
        growing = self._messages.get(data["id"])
        if growing is None:
            raise StreamBroken(f"a delta of an unknown message: {data['id']}")
        view = growing.apply(data)
        if view.finished:
            del self._messages[view.id]
        self.window.publish(MessageEvent(EventType.UPDATED, view), weight)

    def settle_messages(self, session_id: SessionId, messages: Iterable[Message]) -> None:
        """Settle the doubts about a session: all of its messages as they are.

        A message that was growing and is not among them has been deleted.
        """
        found = {message.id: message for message in messages}
        doubtful = [
            growing.view()
            for growing in self.doubtful_messages.values()
            if growing.view().head.session_id == session_id
        ]
        for view in doubtful:
            del self.doubtful_messages[view.id]
            if view.id in found:
                newest = GrowingMessage(found[view.id]).view()
                self.window.publish(MessageEvent(EventType.UPDATED, newest), _size(found[view.id]))
            else:
                self.window.publish(MessageEvent(EventType.DELETED, view))

    # ── Everything else ─────────────────────────────────────────────────────────────────────────

    def _follow(self, change: EventType, entity: Entity) -> bool:
        """Follow an entity that the picture has; return whether anything changed."""
        match entity:
            case PermissionRequest():
                news = self.permissions.get(entity.id) != entity
                self.permissions[entity.id] = entity
                return news
            case PermissionNotification(granted=granted, denied=denied) if granted or denied:
                self.permissions = {
                    name: request
                    for name, request in self.permissions.items()
                    if request.tool_call_id != entity.tool_call_id
                }
            case QuestionRequest():
                news = self.questions.get(entity.id) != entity
                self.questions[entity.id] = entity
                return news
            case QuestionNotification():
                self.questions.pop(entity.batch_id, None)
            case Session() if change is EventType.DELETED:
                self._forget_session(entity.id)
        return True

    def _forget_session(self, session_id: SessionId) -> None:
        """Forget the open messages of a deleted session; no event says so one by one."""
        for messages in (self._messages, self.doubtful_messages):
            for growing in list(messages.values()):
                view = growing.view()
                if view.head.session_id == session_id:
                    del messages[view.id]

    # ── Resyncs ─────────────────────────────────────────────────────────────────────────────────

    def _resync(self, data: Mapping[str, Json], weight: int) -> None:
        """Replace the state by the current one; what it does not mention is in doubt."""
        ended = structure(data["ended"], tuple[RunView, ...])
        live = structure(data["runs"], tuple[RunView, ...])
        messages = structure(data["messages"], tuple[Message, ...])
        self.doubtful_runs |= self.runs
        self.doubtful_messages |= self._messages
        self.runs = {run.id: run for run in live if run.id not in self._ended}
        self._messages = {message.id: GrowingMessage(message) for message in messages}
        for run in live:
            self.doubtful_runs.pop(run.id, None)
        for message in messages:
            self.doubtful_messages.pop(message.id, None)
        if self.synced.is_set():
            self.window.publish(self.snapshot(), weight)
            for run in ended:
                self._tell_run(run, 0)
        else:
            for run in ended:
                self._remember(run)
            self.synced.set()


def _changed(
    payload_type: PayloadType, picture: Picture, data: Mapping[str, Json], weight: int
) -> None:
    """Apply a change of an entity that is neither a message nor a run."""
    change = EventType(data["type"])
    entity = structure(data["payload"], ENTITIES[payload_type])
    if picture._follow(change, entity):
        envelope = Envelope(payload_type=payload_type, event_type=change, entity=entity)
        picture.window.publish(envelope, weight)


def _json_of(frame: SseEvent) -> Json:
    try:
        return orjson.loads(frame.data)
    except orjson.JSONDecodeError:
        raise StreamBroken(f"the data of {frame.name or 'an event'} is no JSON") from None


def _wake(waiting: Iterable[anyio.Event]) -> None:
    for event in waiting:
        event.set()


def _place(text: str) -> tuple[str, int]:
    """Parse a place: the server's start, and the number of the event since then."""
    boot, _, seq = text.rpartition("-")
    return boot, int(seq) if seq.isascii() and seq.isdigit() else -1


def _size(message: Message) -> int:
    return sum(len(str(part)) for part in message.parts)


_Apply = Callable[[Picture, Json, int], None]
_PAYLOADS: Final = frozenset(PayloadType) - {PayloadType.MESSAGE}
_PLACED: Final = frozenset({"ready", "resync"})
"""Frames that name a place, which may be the current one."""

_APPLY: Final[Mapping[str, _Apply]] = {
    "asks": Picture._asks,
    "end": Picture._end,
    "heartbeat": Picture._heartbeat,
    "message": Picture._message,
    "message_delta": Picture._message_delta,
    "ready": Picture._ready,
    "resync": Picture._resync,
    "run": Picture._run,
}
