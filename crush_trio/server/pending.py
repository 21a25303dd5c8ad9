"""What waits for a person, as the bytes that tell a reader who has not heard of it."""

from crush_trio.backend.opened import OpenedWorkspace
from crush_trio.events.forms import Form, crush_frame
from crush_trio.wire.codec import encode, encode_change
from crush_trio.wire.events import Entity, EventType, PayloadType


def asks_frames(opened: OpenedWorkspace, form: Form) -> bytes:
    """Return everything that can be answered now.

    In native form that is one event, which is there even if it is empty: what it does not name is
    settled. It has no id, for it has no place in the log. The crush form has no such word, and its
    clients replace a dialog they show by the same one.
    """
    permissions, questions = opened.permissions.pending, opened.questions.pending
    if form is Form.NATIVE:
        waiting = {"permissions": permissions, "questions": questions}
        return b"event: asks\ndata: %b\n\n" % encode(waiting)
    return b"".join(
        (
            *(_again(PayloadType.PERMISSION_REQUEST, request) for request in permissions),
            *(_again(PayloadType.QUESTION_BATCH_REQUEST, batch) for batch in questions),
        )
    )


def _again(payload_type: PayloadType, entity: Entity) -> bytes:
    return crush_frame(payload_type, encode_change(EventType.CREATED, entity))
