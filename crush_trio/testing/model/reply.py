"""Scripted answers as bytes on an HTTP connection.

A `Format` writes the format of a provider, `cut` splits bytes into writes, and a `ScriptedReply`
takes the steps of an answer one by one. The head of a response is sent with the first output. So a
pause before it is a provider that has not answered yet, and a refusal before it is an HTTP status;
later, a pause is a stalled stream, and a refusal is an error event.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import ClassVar, Protocol, TypeAlias

import h11
import trio
from attrs import define, field

from crush_trio.providers.base import StreamPart, TextDelta
from crush_trio.testing.model.script import Cut, Fail, Garble, Pause, Ping, PlainStep, Refuse, Sleep

Split: TypeAlias = int | Collection[int] | None
"""How bytes are split into writes: pieces of a length, at offsets, or not at all."""


class Format(Protocol):
    """The format of a provider, for one answer."""

    content_type: ClassVar[bytes]
    id_header: ClassVar[bytes]
    number: int

    def begin(self) -> bytes:
        """Return the beginning of the stream, before all parts."""
        ...

    def part(self, part: StreamPart) -> bytes:
        """Return *part* in this format; may be empty."""
        ...

    def ping(self) -> bytes:
        """Return a keep-alive."""
        ...

    def garbled(self, text: str) -> bytes:
        """Return *text* in the place of a chunk."""
        ...

    def error(self, refusal: Refuse) -> bytes:
        """Return an error event, for an answer that has begun."""
        ...

    def refusal(self, refusal: Refuse) -> bytes:
        """Return the body of an HTTP error."""
        ...


def cut(data: bytes, start: int, split: Split) -> Iterator[bytes]:
    """Split *data*, which begins at the offset *start* of its response, as *split* says."""
    end = start + len(data)
    if split is None:
        inner: Iterable[int] = ()
    elif isinstance(split, int):
        inner = range(start + split, end, split)
    else:
        inner = sorted(offset for offset in set(split) if start < offset < end)
    left = start
    for right in (*inner, end):
        if right > left:
            yield data[left - start : right - start]
        left = right


@define(eq=False)
class ScriptedReply:
    """The response to one request."""

    http: h11.Connection
    stream: trio.abc.Stream
    split: Split = None
    _sent: int = field(default=0, init=False)
    _begun: bool = field(default=False, init=False)

    async def play(self, format_: Format, steps: Iterable[PlainStep]) -> None:
        """Take every step; afterwards the response is complete, or broken off by a `Cut`."""
        await trio.lowlevel.checkpoint()
        for step in steps:
            match step:
                case Pause(gate=gate):
                    await gate.wait()
                case Sleep(seconds=seconds):
                    await trio.sleep(seconds)
                case Fail(error=error):
                    raise error
                case Refuse():
                    return await self._refuse(format_, step)
                case Cut(tidy=tidy):
                    return await self._break_off(format_, tidy=tidy)
                case Ping():
                    await self._say(format_, format_.ping())
                case Garble(text=text):
                    await self._say(format_, format_.garbled(text))
                case _:
                    await self._say(format_, format_.part(step))
        return await self._send(h11.EndOfMessage())

    async def send_json(
        self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Send a whole response with a JSON body."""
        length = b"%d" % len(body)
        own = [(b"content-type", b"application/json"), (b"content-length", length)]
        await self._send(h11.Response(status_code=status, headers=[*own, *headers]))
        await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())

    async def _say(self, format_: Format, data: bytes) -> None:
        await self._begin(format_)
        if data:
            await self._send(h11.Data(data=data))

    async def _begin(self, format_: Format) -> None:
        await trio.lowlevel.checkpoint()
        if self._begun:
            return
        self._begun = True
        headers = [
            (b"content-type", format_.content_type),
            (b"transfer-encoding", b"chunked"),
            (format_.id_header, b"req_%d" % format_.number),
        ]
        await self._send(h11.Response(status_code=200, headers=headers))
        await self._send(h11.Data(data=format_.begin()))

    async def _refuse(self, format_: Format, refusal: Refuse) -> None:
        if self._begun:
            await self._send(h11.Data(data=format_.error(refusal)))
            await self._send(h11.EndOfMessage())
            return
        headers = [(format_.id_header, b"req_%d" % format_.number)]
        if refusal.retry_after is not None:
            headers.append((b"retry-after", b"%g" % refusal.retry_after))
        await self.send_json(refusal.status, format_.refusal(refusal), headers)

    async def _break_off(self, format_: Format, *, tidy: bool) -> None:
        """End a response too early: after an event if *tidy*, otherwise in the middle of a chunk.

        Without an end of the response the connection cannot be used again, so it closes.
        """
        await trio.lowlevel.checkpoint()
        if tidy:
            await self._begin(format_)
            await self._send(h11.EndOfMessage())
        elif self._begun:
            chunk = self.http.send(h11.Data(data=format_.part(TextDelta("cut off")))) or b""
            await self._write(chunk[: len(chunk) // 2])

    async def _send(self, event: h11.Event) -> None:
        await self._write(self.http.send(event) or b"")

    async def _write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        for piece in cut(data, self._sent, self.split):
            await self.stream.send_all(piece)
            self._sent += len(piece)
