"""What a reader is told that has lost its place, as bytes.

First come the endings that it missed, many at a time, and then the state of everything that is still
going on, with the last of the endings.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from attrs import frozen

from crush_trio.events.entry import Entry
from crush_trio.events.facts import Position, Resync, RunChange
from crush_trio.events.frames import Form, crush_frame, encode_run, message_change, native_frame
from crush_trio.events.growing_message import MessageView
from crush_trio.events.pieces import Chunk, Content, assemble, grains_of
from crush_trio.wire.codec import encode
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.runs import RunView

_RUN_SIZE: Final = 400
"""Bytes of a run's JSON, or a little more than that."""


@frozen(eq=False)
class Runs:
    """The JSON of many runs, separated by commas; a source of `events.pieces`."""

    runs: tuple[RunView, ...]

    def __len__(self) -> int:
        return _RUN_SIZE * len(self.runs)

    def grains(self) -> Iterator[bytes | memoryview]:
        """Give run after run."""
        for number, run in enumerate(self.runs):
            yield from grains_of(b"%b%b" % (b"," if number else b"", encode_run(run)))


def resync_frames(resync: Resync, missed: Sequence[Entry], form: Form) -> Content:
    """Return the last endings a reader *missed* and the state of everything under way.

    In native form that is one frame: a stream that is cut has either all of it or none, so that a
    reader which resumes after it has lost nothing. The crush form has no ids and no such word; its
    readers take any message as the newest state of it.
    """
    if form is Form.CRUSH:
        return assemble(_crush_resync(resync, missed))
    ended = b",".join(
        encode_run(entry.event.run) for entry in missed if isinstance(entry.event, RunChange)
    )
    return assemble(
        native_frame(
            str(resync.position),
            "resync",
            b'{"position":%b,"ended":[%b],"runs":[' % (encode(str(resync.position)), ended),
            Runs(resync.runs),
            b'],"messages":[',
            *_messages(resync.messages),
            b"]}",
        )
    )


def _crush_resync(resync: Resync, missed: Sequence[Entry]) -> Iterator[Chunk]:
    for entry in missed:
        yield entry.content(Form.CRUSH)
    for view in resync.messages:
        changed = message_change(EventType.UPDATED, *view.sources())
        yield from crush_frame(PayloadType.MESSAGE, *changed)


def _messages(views: Sequence[MessageView]) -> Iterator[Chunk]:
    for number, view in enumerate(views):
        if number:
            yield b","
        yield from view.sources()


def ending_frames(missed: Sequence[Entry], form: Form) -> Content:
    """Return endings that a reader without a place *missed*, before the state of now is told.

    In native form their ids say that much: who resumes from one is told the endings after it, and
    then the state of that moment (`Position.synced`).
    """
    return assemble(source for entry in missed for source in _ending(entry, form))


def _ending(entry: Entry, form: Form) -> Iterator[Chunk]:
    if form is Form.CRUSH:
        yield entry.content(form)
    elif isinstance(entry.event, RunChange):
        place = Position(boot=entry.boot, seq=entry.id, synced=False)
        yield from native_frame(str(place), "run", encode_run(entry.event.run))
