"""What events look like as bytes, in the two forms a stream can have.

`crush` is the wire of the Go program: bare `data:` lines, a whole message per update, no word about
runs but their completion. `native` adds an id and a name to each event, shows every state of a run,
and sends of a growing message only what was appended. Both come from the same log.

An event is encoded at most once per form and all its readers share the bytes. Whole messages are
encoded only when a reader wants one.
"""

from collections.abc import Sequence
from enum import Enum

from attrs import define, evolve, field

from crush_trio.events.facts import Event, Fact, MessageChange, Resync, RunChange
from crush_trio.events.growing import MessageView
from crush_trio.wire.codec import encode, encode_change, wrap_change
from crush_trio.wire.events import EventType, PayloadType, RunComplete
from crush_trio.wire.native import RunState, RunView

_ENTRY_WEIGHT = 400  # bytes of Python objects per entry, near enough


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
    event: Event
    boot: str = field(repr=False)
    _meter: Meter = field(repr=False)
    before: MessageView | None = field(default=None, repr=False)
    superseded: bool = field(default=False, init=False)
    _weight: int = field(default=0, init=False, repr=False)
    _frames: dict[Form, bytes] = field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        match self.event:
            case Fact(encoded=encoded):
                self._weigh(len(encoded))
            case MessageChange(view=view):
                self._weigh(max(0, view.size - (self.before.size if self.before else 0)))
            case RunChange(run=run):
                self._weigh(len(run.text) + len(run.error))
        self._weigh(_ENTRY_WEIGHT)

    @property
    def terminal(self) -> bool:
        """Whether this is the ending of a run."""
        return isinstance(self.event, RunChange) and self.event.terminal

    def frame(self, form: Form) -> bytes:
        """Return the event as it goes over the wire; empty if *form* has no word for it."""
        frame = self._frames.get(form)
        if frame is None:
            frame = self._crush() if form is Form.CRUSH else self._native()
            self._frames[form] = frame
            self._weigh(len(frame))
        return frame

    def supersede(self) -> None:
        """A later entry says all this one says; only its delta can still be wanted."""
        self.superseded = True
        self._weigh(-len(self._frames.pop(Form.CRUSH, b"")))

    def release(self) -> None:
        """The log lets go of this entry; whoever still holds it does so at no cost of the log's."""
        self._weigh(-self._weight)
        self._meter = Meter()

    def _weigh(self, change: int) -> None:
        self._weight += change
        self._meter.total += change

    def _crush(self) -> bytes:
        match self.event:
            case RunChange(run=run):
                complete = run_complete(run)
                if complete is None:
                    return b""
                return crush_frame(
                    PayloadType.RUN_COMPLETE, encode_change(EventType.UPDATED, complete)
                )
            case MessageChange(change=change, view=view):
                return crush_frame(PayloadType.MESSAGE, message_change(change, view))
            case Fact(payload_type=payload_type, encoded=encoded):
                return crush_frame(payload_type, encoded)

    def _native(self) -> bytes:
        place = f"{self.boot}-{self.id}"
        match self.event:
            case RunChange(run=run):
                # The answer itself has been sent as deltas; sending it again would double it.
                return native_frame(place, "run", encode(evolve(run, text="")))
            case MessageChange(change=EventType.UPDATED, view=view) if self.before is not None:
                return native_frame(place, "message_delta", view.since(self.before))
            case MessageChange(change=change, view=view):
                return native_frame(place, PayloadType.MESSAGE, message_change(change, view))
            case Fact(payload_type=payload_type, encoded=encoded):
                return native_frame(place, payload_type, encoded)


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
            crush_frame(PayloadType.MESSAGE, message_change(EventType.UPDATED, view))
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


def message_change(change: EventType, view: MessageView) -> bytes:
    """Return a message change as `encode_change` would, from bytes that exist already."""
    return b'{"type":"%b","payload":%b}' % (change.encode(), view.json())


def crush_frame(payload_type: PayloadType, change: bytes) -> bytes:
    """Wrap an encoded change as the Go program's clients expect it."""
    return b"data: %b\n\n" % wrap_change(payload_type, change)


def native_frame(place: str, name: str, data: bytes) -> bytes:
    """Wrap encoded data with its place in the log and its name."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (place.encode(), name.encode(), data)
