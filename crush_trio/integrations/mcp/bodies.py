"""`BoundedBody` and `BoundedEvents`: the bodies of a server's HTTP responses, limited to the size of a message.

The `mcp` package reads them. It limits the events of one of its two transports only, and with an error that
does not say what to do.
"""

import logging
import re
from typing import Final, Self

import httpx2
import orjson
import trio
from typing_extensions import override

from crush_trio.integrations.mcp.stdio import (
    EDGE,
    LONGEST_MESSAGE,
    METHOD,
    TOO_LONG,
    answered_by,
    refusal,
)

log = logging.getLogger(__name__)

_EVENT_END: Final = re.compile(rb"\r?\n\r?\n|\r\r")
_LONGEST_END: Final = 4


class BoundedBody(httpx2.AsyncByteStream):
    """The body of a response that is one message, limited to the size of one.

    If it is the answer to the request *asked*, it must have its id: the package would ignore it, and
    wait for ever. The package makes an answer of the errors that are raised here.
    """

    def __init__(self, body: httpx2.AsyncByteStream, asked: int | None) -> None:
        self._body = body
        self._asked = asked
        self._chunks = aiter(body)
        self._content = bytearray()

    @override
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk."""
        try:
            data = await anext(self._chunks)
        except StopAsyncIteration:
            if self._asked is not None:
                self._check(self._asked)
            raise
        self._content += data
        if len(self._content) > LONGEST_MESSAGE:
            raise httpx2.StreamError(TOO_LONG)
        return data

    def _check(self, asked: int) -> None:
        try:
            said = orjson.loads(self._content)
        except orjson.JSONDecodeError:
            return  # the package reports it
        if isinstance(said, dict) and str(said.get("id")) != str(asked):
            raise httpx2.StreamError("its answer is not to this request: it has another id")

    @override
    async def aclose(self) -> None:
        """Close it."""
        await self._body.aclose()


class BoundedEvents(httpx2.AsyncByteStream):
    """The body of a response that is an event stream, each event limited to the size of a message.

    An event that is too long is not kept. If it is an answer, an error takes its place; if it may be
    the answer to any request, the stream ends.
    """

    def __init__(self, body: httpx2.AsyncByteStream, asked: int | None) -> None:
        self._body = body
        self._asked = asked
        self._chunks = aiter(body)
        self._pending = bytearray()
        self._searched = 0
        self._head = b""

    @override
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next event, or what follows the last one at the end of the stream."""
        await trio.lowlevel.checkpoint()
        while (found := _EVENT_END.search(self._pending, self._searched)) is None:
            if len(self._pending) > LONGEST_MESSAGE:
                self._head = self._head or bytes(self._pending[: 2 * EDGE])
                del self._pending[:-EDGE]
            self._searched = max(0, len(self._pending) - _LONGEST_END)
            data = await anext(self._chunks, b"")
            if not data:
                break
            self._pending += data
        end = len(self._pending) if found is None else found.end()
        event = bytes(self._pending[:end])
        del self._pending[:end]
        self._searched = 0
        if not event:
            raise StopAsyncIteration
        if not self._head and len(event) <= LONGEST_MESSAGE:
            return event
        head, self._head = self._head or event[: 2 * EDGE], b""
        return self._refused(head[head.find(b"data:") :].removeprefix(b"data:"), event[-EDGE:])

    def _refused(self, head: bytes, tail: bytes) -> bytes:
        """Return what takes the place of a too long event."""
        log.warning("mcp.message_too_long")
        if METHOD.search(head):
            return b": left out\n\n"
        answered = self._asked if self._asked is not None else answered_by(head, tail)
        if answered is None:
            raise httpx2.StreamError(TOO_LONG)
        return (
            b"event: message\ndata: %s\n\n" % refusal(answered, TOO_LONG).model_dump_json().encode()
        )

    @override
    async def aclose(self) -> None:
        """Close it."""
        await self._body.aclose()
