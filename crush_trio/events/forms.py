"""The two forms a stream can have, and the frames that each of them is made of.

`crush` is the wire of the Go program: bare `data:` lines, a whole message per update, no word about
runs but their completion. `native` adds an id and a name to each event, shows every state of a run,
and sends of a growing message only what was appended. Both come from the same log.

Functions here return the bytes of a frame as sources of `events.pieces`, not put together.
"""

from enum import Enum
from typing import Final

from attrs import evolve

from crush_trio.events.pieces import PIECE, Chunk, Escaped
from crush_trio.wire.codec import encode, encode_change
from crush_trio.wire.events import EventType, PayloadType, RunComplete
from crush_trio.wire.native import RunState, RunView

_MARK: Final = "\0"
_ESCAPED_MARK: Final = b"\\u0000"
"""A text that is put in the place of a long one, and how it is found there: no id has a NUL."""


class Form(Enum):
    """How a reader wants its events."""

    CRUSH = "crush"
    NATIVE = "native"


def message_change(change: EventType, *message: Chunk) -> list[Chunk]:
    """Return a message change as `encode_change` would, around JSON that exists already."""
    return [b'{"type":"%b","payload":' % change.encode(), *message, b"}"]


def crush_frame(payload_type: PayloadType, *change: Chunk) -> list[Chunk]:
    """Wrap an encoded change as the Go program's clients expect it."""
    return [b'data: {"type":"%b","payload":' % payload_type.encode(), *change, b"}\n\n"]


def data_of(frame: bytes) -> bytes:
    """Return the encoded data that a native frame was made of."""
    return frame[frame.index(b"\ndata: ") + 7 : -2]


def native_frame(place: str, name: str, *data: Chunk) -> list[Chunk]:
    """Wrap encoded data with its place in the log and its name."""
    return [b"id: %b\nevent: %b\ndata: " % (place.encode(), name.encode()), *data, b"\n\n"]


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


def completion(run: RunView) -> list[Chunk]:
    """Return the crush frame of a run's change: that of its completion, if it has one."""
    complete = run_complete(run)
    if complete is None:
        return []
    if len(run.text) <= PIECE:
        changed = encode_change(EventType.UPDATED, complete)
        return crush_frame(PayloadType.RUN_COMPLETE, changed)
    around = encode_change(EventType.UPDATED, evolve(complete, text=_MARK))
    before, after = around.split(_ESCAPED_MARK, 1)
    return crush_frame(PayloadType.RUN_COMPLETE, before, Escaped(run.text), after)


def encode_run(run: RunView) -> bytes:
    """Return a run as the native form shows it.

    The answer itself has been sent as deltas; sending it again would double it.
    """
    return encode(evolve(run, text="") if run.text else run)
