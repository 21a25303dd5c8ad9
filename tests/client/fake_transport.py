"""A transport whose answers a test writes."""

from contextlib import asynccontextmanager

import orjson
import trio
from attrs import define, field

from crush_trio.net.client import Response


@define(eq=False)
class Pieces:
    """A body that comes in these pieces."""

    pieces: list

    async def receive(self):
        await trio.lowlevel.checkpoint()
        return self.pieces.pop(0) if self.pieces else b""


def answered(body=b"", *, status=200):
    """Return a response; a *body* that is neither bytes nor a list of pieces is sent as JSON."""
    if not isinstance(body, bytes | list):
        body = orjson.dumps(body)
    return Response(status, {}, Pieces([body] if isinstance(body, bytes) else body))


@define(eq=False)
class FakeTransport:
    """Answers a request with what *answer* returns for it, or raises."""

    answer: object
    requests: list = field(factory=list)

    @asynccontextmanager
    async def open(self, request):
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        yield self.answer(request)
