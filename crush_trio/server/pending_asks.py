"""Pending asks as frames of an event stream, for a reader that does not know them yet."""

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
class _Pending:
    """The pending asks of a workspace at one moment, and their frames in each form."""

    permissions: tuple[PermissionRequest, ...]
    questions: tuple[QuestionRequest, ...]
    frames: dict[Form, Content] = field(factory=dict, init=False)

    def is_same(self, other: "_Pending") -> bool:
        """Whether *other* has the same request objects."""
        mine, theirs = (*self.permissions, *self.questions), (*other.permissions, *other.questions)
        return len(mine) == len(theirs) and all(map(is_, mine, theirs))


@define(eq=False)
class AskFrames:
    """The frames of pending asks, made once and shared until the pending asks change.

    A request may be long: it contains what a tool is about to write.
    """

    _last: "WeakKeyDictionary[HostedWorkspace, _Pending]" = field(
        factory=WeakKeyDictionary, init=False, repr=False
    )

    def frames(self, workspace: HostedWorkspace, form: Form) -> Content:
        """Return the frames of all asks that can be answered now.

        In the native form that is one event, sent even if it is empty: an ask that it does not name is
        resolved. It has no id, because it is not in the log. The crush form has no such event; its
        clients get each request again, and replace a dialog they show by the same one.
        """
        pending = _Pending(workspace.asks.permissions.pending, workspace.asks.questions.pending)
        last = self._last.get(workspace)
        if last is not None and last.is_same(pending):
            pending = last
        else:
            self._last[workspace] = pending
        if form not in pending.frames:
            frames = _native(pending) if form is Form.NATIVE else _crush(pending)
            pending.frames[form] = assemble(frames)
        return pending.frames[form]


def _native(pending: _Pending) -> Iterator[Chunk]:
    requests = {"permissions": pending.permissions, "questions": pending.questions}
    yield b"event: asks\ndata: %b\n\n" % encode(requests)


def _crush(pending: _Pending) -> Iterator[Chunk]:
    for request in pending.permissions:
        change = encode_change(EventType.CREATED, request)
        yield from crush_frame(PayloadType.PERMISSION_REQUEST, change)
    for batch in pending.questions:
        change = encode_change(EventType.CREATED, batch)
        yield from crush_frame(PayloadType.QUESTION_BATCH_REQUEST, change)
