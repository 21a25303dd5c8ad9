"""What waits for a person, as the bytes that tell a reader who has not heard of it."""

from collections.abc import Iterator
from operator import is_
from weakref import WeakKeyDictionary

from attrs import define, field, frozen

from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.events.frames import Form, crush_frame
from crush_trio.events.pieces import Chunk, Content, assemble
from crush_trio.wire.asks import PermissionRequest, QuestionRequest
from crush_trio.wire.codec import encode, encode_change
from crush_trio.wire.events import EventType, PayloadType


@frozen(eq=False)
class _Waiting:
    """What waits in a workspace at one moment, and how it was told in each form."""

    permissions: tuple[PermissionRequest, ...]
    questions: tuple[QuestionRequest, ...]
    told: dict[Form, Content] = field(factory=dict, init=False)

    def is_same(self, other: "_Waiting") -> bool:
        """Whether *other* has the very same requests."""
        mine, theirs = (*self.permissions, *self.questions), (*other.permissions, *other.questions)
        return len(mine) == len(theirs) and all(map(is_, mine, theirs))


@define(eq=False)
class AskFrames:
    """The frames of what waits, made once and shared until something else waits.

    A request may be long: it has what a tool is about to write.
    """

    _last: "WeakKeyDictionary[HostedWorkspace, _Waiting]" = field(
        factory=WeakKeyDictionary, init=False, repr=False
    )

    def frames(self, opened: HostedWorkspace, form: Form) -> Content:
        """Return everything that can be answered now.

        In native form that is one event, which is there even if it is empty: what it does not name is
        settled. It has no id, for it has no place in the log. The crush form has no such word, and its
        clients replace a dialog they show by the same one.
        """
        waiting = _Waiting(opened.asks.permissions.pending, opened.asks.questions.pending)
        last = self._last.get(opened)
        if last is not None and last.is_same(waiting):
            waiting = last
        else:
            self._last[opened] = waiting
        if form not in waiting.told:
            frames = _native(waiting) if form is Form.NATIVE else _crush(waiting)
            waiting.told[form] = assemble(frames)
        return waiting.told[form]


def _native(waiting: _Waiting) -> Iterator[Chunk]:
    requests = {"permissions": waiting.permissions, "questions": waiting.questions}
    yield b"event: asks\ndata: %b\n\n" % encode(requests)


def _crush(waiting: _Waiting) -> Iterator[Chunk]:
    for request in waiting.permissions:
        change = encode_change(EventType.CREATED, request)
        yield from crush_frame(PayloadType.PERMISSION_REQUEST, change)
    for batch in waiting.questions:
        change = encode_change(EventType.CREATED, batch)
        yield from crush_frame(PayloadType.QUESTION_BATCH_REQUEST, change)
