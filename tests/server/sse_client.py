"""What the tests of streams share: things to publish, and a client that takes a stream."""

from contextlib import aclosing
from functools import partial
from math import inf

import trio
from attrs import define, field

from crush_trio.events import Fact, Form, GrowingMessage, Position, RunChange
from crush_trio.server.sse import Drain, stream
from crush_trio.wire.events import ConfigChanged, EventType, PayloadType
from crush_trio.wire.ids import MessageId, RunId, SessionId, WorkspaceId
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.runs import RunView


def growing_message():
    return GrowingMessage(
        Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=SessionId("s"))
    )


def fact(name="a"):
    return Fact(
        payload_type=PayloadType.CONFIG_CHANGED,
        change=EventType.UPDATED,
        entity=ConfigChanged(workspace_id=WorkspaceId(name)),
    )


def run(state, name="r"):
    return RunChange(run=RunView(id=RunId(name), session_id=SessionId("s"), state=state))


def at(seq, boot="boot"):
    return Position(boot=boot, seq=seq)


def end_of(reason):
    return b'event: end\ndata: {"reason":"%b"}\n\n' % reason


def frames(data):
    """Return the frames of a native stream as dicts of their lines."""
    *blocks, rest = data.split(b"\n\n")
    assert rest == b"", "a frame was left open"
    return [dict(line.split(b": ", 1) for line in block.split(b"\n")) for block in blocks]


@define(eq=False)
class Client:
    """Takes a stream piece by piece, and writes down when each piece came."""

    drain: Drain = field(factory=Drain)
    pieces: list = field(factory=list)
    ended: bool = False

    async def take(self, log, cursor, **options):
        options = {"heartbeat": inf, **options}
        async with aclosing(stream(cursor, boot=log.boot, drain=self.drain, **options)) as pieces:
            async for piece in pieces:
                self.pieces.append((trio.current_time(), piece))
        self.ended = True

    def taking(self, log, form=Form.NATIVE, **options):
        """Return an async function that takes a stream from a new cursor of *log*."""
        return partial(self.take, log, log.cursor(form), **options)

    @property
    def sent(self):
        return [piece for _, piece in self.pieces]

    @property
    def names(self):
        return [frame[b"event"].decode() for frame in frames(b"".join(self.sent))]
