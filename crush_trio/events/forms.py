"""What events look like as bytes, in the two forms a stream can have.

`crush` is the wire of the Go program: bare `data:` lines, a whole message per update, no word about
runs but their completion. `native` adds an id and a name to each event, shows every state of a run,
and sends of a growing message only what was appended. Both come from the same log.

While an event is new it is encoded at most once per form, when the first reader wants it, and all
readers share the bytes. Later it is packed: what is kept then is what both forms can be put together
from, so that a log that remembers much does not weigh much.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

from attrs import define, evolve, field

from crush_trio.events.facts import Event, Fact, MessageChange, Resync, RunChange
from crush_trio.events.growing import MessageView
from crush_trio.events.packed import Packed, PackedFact, PackedMessage
from crush_trio.wire.codec import encode, encode_change, wrap_change
from crush_trio.wire.events import EventType, PayloadType, RunComplete
from crush_trio.wire.native import RunState, RunView

_ENTRY_WEIGHT: Final = 160
"""Bytes of an entry and of its place in the log, near enough; like all of these, as measured."""

_PACKED_WEIGHT: Final = 120
"""Bytes of the objects around a packed event's JSON."""

_RUN_WEIGHT: Final = 330
"""Bytes of a run's change, besides the answer and the error."""

_FACT_WEIGHT: Final = 450
"""Bytes of a fact and of what it is about, besides its JSON."""

_MESSAGE_WEIGHT: Final = 2000
"""Bytes of the objects of a message change that is not packed, besides what the message grew by."""

_LONG: Final = 4096
"""Bytes from which on a message that goes on is not packed."""


class Form(Enum):
    """How a reader wants its events."""

    CRUSH = "crush"
    NATIVE = "native"


@define(eq=False)
class Meter:
    """How many bytes a log holds on to."""

    total: int = 0


@define(eq=False)
class Entry:
    """An event in its place in the log, with the bytes made of it so far.

    `before` is the message as the entry before this one showed it: the native form sends the
    difference. `superseded` entries say nothing that a later entry does not say in full.
    """

    id: int
    _held: Event | Packed
    boot: str = field(repr=False)
    _meter: Meter = field(repr=False)
    before: MessageView | None = field(default=None, repr=False)
    superseded: bool = field(default=False, init=False)
    _packed: bool = field(default=False, init=False)
    _weight: int = field(default=0, init=False, repr=False)
    _crush_frame: bytes | None = field(default=None, init=False, repr=False)
    _native_frame: bytes | None = field(default=None, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._weigh(_ENTRY_WEIGHT + self._held_weight())

    @property
    def event(self) -> Event:
        """The event; of one that was packed, another that says the same."""
        match self._held:
            case PackedFact() | PackedMessage() as packed:
                return packed.unpack()
            case event:
                return event

    @property
    def merged(self) -> bool:
        """Whether only its delta is left of it: a later entry says the rest, and there is no event."""
        return isinstance(self._held, PackedMessage) and not self._held.whole

    @property
    def terminal(self) -> bool:
        """Whether this is the ending of a run."""
        return isinstance(self._held, RunChange) and self._held.terminal

    @property
    def urgent(self) -> bool:
        """Whether readers are told at once: of endings, and of the first words of a message."""
        if self.before is None:
            return self.terminal
        return not self.before.parts

    # ── As bytes ────────────────────────────────────────────────────────────────────────────────

    def frame(self, form: Form) -> bytes:
        """Return the event as it goes over the wire; empty if *form* has no word for it."""
        known = self._crush_frame if form is Form.CRUSH else self._native_frame
        if known is not None:
            return known
        frame = self._crush() if form is Form.CRUSH else self._native()
        if not self._packed:
            if form is Form.CRUSH:
                self._crush_frame = frame
            else:
                self._native_frame = frame
            self._weigh(len(frame))
        return frame

    def _crush(self) -> bytes:
        match self._held:
            case RunChange(run=run):
                complete = run_complete(run)
                if complete is None:
                    return b""
                return crush_frame(
                    PayloadType.RUN_COMPLETE, encode_change(EventType.UPDATED, complete)
                )
            case MessageChange(change=change, view=view):
                return crush_frame(PayloadType.MESSAGE, message_change(change, view.json()))
            case PackedMessage(change=change, whole=whole):
                return crush_frame(PayloadType.MESSAGE, message_change(change, whole))
            case (
                Fact(payload_type=name, encoded=data) | PackedFact(payload_type=name, encoded=data)
            ):
                return crush_frame(name, data)

    def _native(self) -> bytes:
        place = f"{self.boot}-{self.id}"
        match self._held:
            case RunChange(run=run):
                # The answer itself has been sent as deltas; sending it again would double it.
                return native_frame(place, "run", encode(evolve(run, text="")))
            case MessageChange(change=EventType.UPDATED, view=view) if self.before is not None:
                return native_frame(place, "message_delta", view.since(self.before))
            case MessageChange(change=change, view=view):
                return native_frame(place, PayloadType.MESSAGE, message_change(change, view.json()))
            case PackedMessage(delta=delta) if delta:
                return native_frame(place, "message_delta", delta)
            case PackedMessage(change=change, whole=whole):
                return native_frame(place, PayloadType.MESSAGE, message_change(change, whole))
            case (
                Fact(payload_type=name, encoded=data) | PackedFact(payload_type=name, encoded=data)
            ):
                return native_frame(place, name, data)

    # ── Growing old ─────────────────────────────────────────────────────────────────────────────

    def supersede(self) -> None:
        """A later entry says all this one says; only its delta can still be wanted."""
        self.superseded = True
        self._drop_crush()

    def pack(self) -> None:
        """Keep no more than what the event can be told from again. Packing again does nothing.

        A long message that went on stays as it is, with its delta: its changes share their text,
        which packed would be kept once for each of them.
        """
        match self._held:
            case MessageChange() as event if self._shares_text(event):
                self.frame(Form.NATIVE)
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
        self._weigh(-len(self._crush_frame or b""))
        self._crush_frame = None

    def _shares_text(self, event: MessageChange) -> bool:
        if self.superseded or event.change is not EventType.UPDATED:
            return False
        return event.view.size > _LONG and not event.view.finished

    def _pack_message(self, event: MessageChange) -> PackedMessage:
        delta = b""
        if event.change is EventType.UPDATED and self.before is not None:
            told = self._native_frame
            delta = event.view.since(self.before) if told is None else data_of(told)
        whole = b"" if self.superseded and delta else event.view.json()
        return PackedMessage(event.change, event.plain, whole, delta)

    # ── Weight ──────────────────────────────────────────────────────────────────────────────────

    def release(self) -> None:
        """The log lets go of this entry; whoever still holds it does so at no cost of the log's."""
        self._weigh(-self._weight)
        self._meter = Meter()

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


def run_complete(run: RunView) -> RunComplete | None:
    """Return the completion that *run* is known by in crush form, if it has one.

    A folded run has no completion of its own: the run that absorbed it has (C4).
    """
    if not run.state.terminal or run.state is RunState.FOLDED:
        return None
    return RunComplete(
        session_id=run.session_id,
        run_id=run.run_id,
        message_id=run.message_id,
        text=run.text,
        error=run.error,
        cancelled=run.state is RunState.CANCELLED,
    )


def resync_frames(resync: Resync, missed: Sequence[Entry], form: Form) -> bytes:
    """Return the endings a reader *missed* and the state of everything under way.

    In native form that is one frame: a stream that is cut has either all of it or none, so that a
    reader which resumes after it has lost nothing. The crush form has no ids and no such word; its
    readers take any message as the newest state of it.
    """
    if form is Form.CRUSH:
        messages = (
            crush_frame(PayloadType.MESSAGE, message_change(EventType.UPDATED, view.json()))
            for view in resync.messages
        )
        return b"".join((*(entry.frame(form) for entry in missed), *messages))
    ended = (entry.event.run for entry in missed if isinstance(entry.event, RunChange))
    state = b'{"position":%b,"ended":[%b],"runs":[%b],"messages":[%b]}' % (
        encode(str(resync.position)),
        b",".join(encode(evolve(run, text="")) for run in ended),
        b",".join(encode(run) for run in resync.runs),
        b",".join(view.json() for view in resync.messages),
    )
    return native_frame(str(resync.position), "resync", state)


def message_change(change: EventType, message: bytes) -> bytes:
    """Return a message change as `encode_change` would, from bytes that exist already."""
    return b'{"type":"%b","payload":%b}' % (change.encode(), message)


def crush_frame(payload_type: PayloadType, change: bytes) -> bytes:
    """Wrap an encoded change as the Go program's clients expect it."""
    return b"data: %b\n\n" % wrap_change(payload_type, change)


def data_of(frame: bytes) -> bytes:
    """Return the encoded data that a native frame was made of."""
    return frame[frame.index(b"\ndata: ") + 7 : -2]


def native_frame(place: str, name: str, data: bytes) -> bytes:
    """Wrap encoded data with its place in the log and its name."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (place.encode(), name.encode(), data)
