"""`LogEntry`: an event at its place in a log, with its encoded bytes and its weight in memory.

While an event is new it is encoded at most once per form, when the first reader wants it, and all
readers share the bytes. A frame that is too long for one piece is encoded while it is sent
(`events.pieces`). Later the event is packed: the entry then keeps only the bytes from which both
forms can be made again, so that a log with many events takes little memory.
"""

from typing import Final

from attrs import define, field

from crush_trio.events.facts import Event, Fact, MessageChange, RunChange
from crush_trio.events.frames import (
    Form,
    Packed,
    PackedFact,
    PackedMessage,
    compacted,
    completion_frame,
    crush_frame,
    encode_run,
    idle,
    message_change,
    native_data,
    native_frame,
)
from crush_trio.events.growing_message import MessageView
from crush_trio.events.pieces import JOINED, Chunk, Content, Pieces, assemble, joined
from crush_trio.wire.events import AgentEvent, EventType, PayloadType
from crush_trio.wire.ids import SessionId
from crush_trio.wire.views import File

_OWNED: Final = frozenset({PayloadType.AGENT_EVENT, PayloadType.FILE})
"""The facts that belong to the transcript of a session."""

_ENTRY_WEIGHT: Final = 160
"""Bytes of an entry and of its slot in the log, about. All weights here are measured averages."""

_PACKED_WEIGHT: Final = 120
"""Bytes of the objects around a packed event's JSON."""

_RUN_WEIGHT: Final = 330
"""Bytes of a run change, without its answer and error text."""

_FACT_WEIGHT: Final = 450
"""Bytes of a fact and its entity, without its JSON."""

_MESSAGE_WEIGHT: Final = 2000
"""Bytes of the objects of an unpacked message change, without the text that the message grew by."""

_PIECES_WEIGHT: Final = 600
"""Bytes of a `Pieces` frame: it refers to data that the event holds anyway."""

_LONG: Final = 4096
"""Bytes above which an unfinished message is not packed."""


@define(eq=False)
class ByteMeter:
    """The number of bytes that a log holds, as its entries report it."""

    total: int = 0


@define(eq=False)
class LogEntry:
    """An event at its place in the log, with the bytes made of it so far.

    `before` is the message as an earlier entry showed it last: the native form sends the
    difference. A `superseded` entry holds nothing that a later entry does not hold too.
    """

    id: int
    _held: Event | Packed
    boot: str = field(repr=False)
    _meter: ByteMeter = field(repr=False)
    before: MessageView | None = field(default=None, repr=False)
    superseded: bool = field(default=False, init=False)
    _packed: bool = field(default=False, init=False)
    _weight: int = field(default=0, init=False, repr=False)
    _crush_frame: Content | None = field(default=None, init=False, repr=False)
    _native_frame: Content | None = field(default=None, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._weigh(_ENTRY_WEIGHT + self._held_weight())

    @property
    def event(self) -> Event:
        """The event; for a packed entry, an equal event that is made on demand."""
        match self._held:
            case PackedFact() | PackedMessage() as packed:
                return packed.unpack()
            case event:
                return event

    @property
    def merged(self) -> bool:
        """Whether only the delta is left: a later entry holds the message, and `event` is gone."""
        return isinstance(self._held, PackedMessage) and not self._held.whole

    @property
    def terminal(self) -> bool:
        """Whether this is the ending of a run."""
        return isinstance(self._held, RunChange) and self._held.terminal

    @property
    def topic(self) -> PayloadType | None:
        """What the event is about; None for a run."""
        match self._held:
            case MessageChange() | PackedMessage():
                return PayloadType.MESSAGE
            case Fact(payload_type=topic) | PackedFact(payload_type=topic):
                return topic
        return None

    @property
    def owner(self) -> SessionId | None:
        """The session whose transcript the event belongs to; None for what concerns the workspace.

        Runs, sessions and asks concern the workspace, whichever session they are in.
        """
        match self._held:
            case MessageChange(view=view):
                return view.head.session_id
            case PackedMessage(session_id=session_id):
                return session_id
            case Fact(entity=AgentEvent() | File() as entity):
                return entity.session_id
            case PackedFact(payload_type=topic) as packed if topic in _OWNED:
                unpacked = packed.unpack().entity
                assert isinstance(unpacked, AgentEvent | File)
                return unpacked.session_id
        return None

    @property
    def grows(self) -> bool:
        """Whether this is a change of a message that exists already."""
        match self._held:
            case MessageChange(change=change) | PackedMessage(change=change):
                return change is EventType.UPDATED
        return False

    @property
    def urgent(self) -> bool:
        """Whether readers are woken at once: for endings, and for the first words of a message."""
        if self.before is None:
            return self.terminal
        return not self.before.parts

    # ── As bytes ────────────────────────────────────────────────────────────────────────────────

    def frame(self, form: Form) -> bytes:
        """Return the event's frame as one bytes object, however long; see `content`."""
        return joined(self.content(form))

    def content(self, form: Form) -> Content:
        """Return the event's frame; empty if *form* has no frame for it."""
        known = self._crush_frame if form is Form.CRUSH else self._native_frame
        if known is not None:
            return known
        content = assemble(self.sources(form), JOINED)
        if not self._packed:
            if form is Form.CRUSH:
                self._crush_frame = content
            else:
                self._native_frame = content
            self._weigh(_cached_weight(content))
        return content

    def sources(self, form: Form) -> list[Chunk]:
        """Return the event's frame as unjoined sources."""
        return self._crush() if form is Form.CRUSH else self._native()

    def _crush(self) -> list[Chunk]:
        match self._held:
            case RunChange(run=run):
                return completion_frame(run)
            case MessageChange(change=change, view=view):
                return crush_frame(PayloadType.MESSAGE, *message_change(change, *view.sources()))
            case PackedMessage(change=change, whole=whole):
                return crush_frame(PayloadType.MESSAGE, *message_change(change, whole))
            case (
                Fact(payload_type=name, encoded=data) | PackedFact(payload_type=name, encoded=data)
            ):
                return crush_frame(name, *(idle(data) if name is PayloadType.SESSION else (data,)))

    def _native(self) -> list[Chunk]:
        place = f"{self.boot}-{self.id}"
        match self._held:
            case RunChange(run=run):
                return native_frame(place, "run", encode_run(run))
            case MessageChange(change=EventType.UPDATED, view=view) if self.before is not None:
                return native_frame(place, "message_delta", *view.sources_since(self.before))
            case MessageChange(change=change, view=view):
                changed = message_change(change, *view.sources())
                return native_frame(place, PayloadType.MESSAGE, *changed)
            case PackedMessage(delta=delta) if delta:
                return native_frame(place, "message_delta", delta)
            case PackedMessage(change=change, whole=whole):
                return native_frame(place, PayloadType.MESSAGE, *message_change(change, whole))
            case (
                Fact(payload_type=name, encoded=data) | PackedFact(payload_type=name, encoded=data)
            ):
                return native_frame(place, name, data)

    # ── Packing ─────────────────────────────────────────────────────────────────────────────────

    def supersede(self) -> None:
        """Note that a later entry holds all that this one does; only its delta may be needed."""
        self.superseded = True
        self._drop_crush()

    def pack(self) -> None:
        """Keep only the bytes from which the event can be made again. Packing again does nothing.

        A long unfinished message is kept as it is, with its delta: all its changes share one text,
        and packing would keep a copy of the text for each of them.
        """
        match self._held:
            case MessageChange() as event if self._shares_text(event):
                self.content(Form.NATIVE)
                self._drop_crush()
                self._packed, self.before = True, None
                return
            case MessageChange() as event:
                self._held = self._pack_message(event)
            case Fact(payload_type=payload_type, encoded=encoded):
                self._held = PackedFact(payload_type, encoded)
        self._packed = True
        self._crush_frame = self._native_frame = self.before = None
        self._weigh(_ENTRY_WEIGHT + self._held_weight() - self._weight)

    def _drop_crush(self) -> None:
        if self._crush_frame is not None:
            self._weigh(-_cached_weight(self._crush_frame))
            self._crush_frame = None

    def _shares_text(self, event: MessageChange) -> bool:
        if self.superseded or event.change is not EventType.UPDATED:
            return False
        return event.view.size > _LONG and not event.view.finished

    def _pack_message(self, event: MessageChange) -> PackedMessage:
        delta: Content = b""
        if event.change is EventType.UPDATED and self.before is not None:
            told = self._native_frame
            if isinstance(told, bytes):
                delta = native_data(told)
            else:
                delta = compacted(event.view.sources_since(self.before))
        whole = b"" if self.superseded and delta else compacted(event.view.sources())
        return PackedMessage(event.change, event.plain, whole, delta, event.view.head.session_id)

    # ── Weight ──────────────────────────────────────────────────────────────────────────────────

    def release(self) -> None:
        """Take the entry's weight off the log, which drops it; readers may still hold the entry."""
        self._weigh(-self._weight)
        self._meter = ByteMeter()

    def _weigh(self, change: int) -> None:
        self._weight += change
        self._meter.total += change

    def _held_weight(self) -> int:
        match self._held:
            case RunChange(run=run):
                return _RUN_WEIGHT + len(run.text) + len(run.error)
            case PackedFact(size=size) | PackedMessage(size=size):
                return _PACKED_WEIGHT + size
            case Fact(encoded=encoded):
                return _FACT_WEIGHT + len(encoded)
            case MessageChange(view=view):
                grown = view.size - (self.before.size if self.before else 0)
                return _MESSAGE_WEIGHT + max(0, grown)


def _cached_weight(content: Content) -> int:
    """Return the weight of a cached frame; a long one only refers to data that is counted already."""
    return _PIECES_WEIGHT if isinstance(content, Pieces) else len(content)
