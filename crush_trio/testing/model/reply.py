"""How a scripted answer becomes bytes on a connection.

A `Format` has the words of a provider, `cut` says where writes begin and end, and a `Reply` takes
the steps of an answer one by one. The head of a response is sent with the first thing there is to
say. So a pause before that is a provider that has not answered yet, and a refusal before that is a
status; later, the one is a stream that stands still and the other an error in its midst.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import ClassVar, Protocol, TypeAlias

import h11
import trio
from attrs import define, field

from crush_trio.providers.base import StreamPart, TextDelta
from crush_trio.testing.model.script import Cut, Fail, Garble, Pause, Ping, PlainStep, Refuse, Sleep

Split: TypeAlias = int | Collection[int] | None
"""How bytes are cut into writes: pieces of a length, at offsets, or not at all."""


class Format(Protocol):
    """The words of a provider, for one answer."""

    content_type: ClassVar[bytes]
    id_header: ClassVar[bytes]
    number: int

    def begin(self) -> bytes:
        """Return what comes before all parts."""
        ...

    def part(self, part: StreamPart) -> bytes:
        """Return *part*, which may be nothing."""
        ...

    def ping(self) -> bytes:
        """Return something that means nothing."""
        ...

    def garbled(self, text: str) -> bytes:
        """Return *text* where a chunk should be."""
        ...

    def error(self, refusal: Refuse) -> bytes:
        """Return an error in the midst of an answer."""
        ...

    def refusal(self, refusal: Refuse) -> bytes:
        """Return the body of an HTTP error."""
        ...


def cut(data: bytes, start: int, split: Split) -> Iterator[bytes]:
    """Yield *data*, which begins at the offset *start* of its response, as *split* cuts it."""
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
class Reply:
    """The response to one request."""

    http: h11.Connection
    stream: trio.abc.Stream
    split: Split = None
    _sent: int = field(default=0, init=False)
    _begun: bool = field(default=False, init=False)

    async def play(self, words: Format, steps: Iterable[PlainStep]) -> None:
        """Take every step; the response is complete after this, or broken if it was cut."""
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
                    return await self._refuse(words, step)
                case Cut(tidy=tidy):
                    return await self._break_off(words, tidy=tidy)
                case Ping():
                    await self._say(words, words.ping())
                case Garble(text=text):
                    await self._say(words, words.garbled(text))
                case _:
                    await self._say(words, words.part(step))
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

    async def _say(self, words: Format, data: bytes) -> None:
        await self._begin(words)
        if data:
            await self._send(h11.Data(data=data))

    async def _begin(self, words: Format) -> None:
        await trio.lowlevel.checkpoint()
        if self._begun:
            return
        self._begun = True
        headers = [
            (b"content-type", words.content_type),
            (b"transfer-encoding", b"chunked"),
            (words.id_header, b"req_%d" % words.number),
        ]
        await self._send(h11.Response(status_code=200, headers=headers))
        await self._send(h11.Data(data=words.begin()))

    async def _refuse(self, words: Format, refusal: Refuse) -> None:
        if self._begun:
            await self._send(h11.Data(data=words.error(refusal)))
            await self._send(h11.EndOfMessage())
            return
        headers = [(words.id_header, b"req_%d" % words.number)]
        if refusal.retry_after is not None:
            headers.append((b"retry-after", b"%g" % refusal.retry_after))
        await self.send_json(refusal.status, words.refusal(refusal), headers)

    async def _break_off(self, words: Format, *, tidy: bool) -> None:
        """End a response too early: after its last event, or in the middle of a chunk.

        A response that was not ended cannot be followed by another, so the connection closes.
        """
        await trio.lowlevel.checkpoint()
        if tidy:
            await self._begin(words)
            await self._send(h11.EndOfMessage())
        elif self._begun:
            chunk = self.http.send(h11.Data(data=words.part(TextDelta("cut off")))) or b""
            await self._write(chunk[: len(chunk) // 2])

    async def _send(self, event: h11.Event) -> None:
        await self._write(self.http.send(event) or b"")

    async def _write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        for piece in cut(data, self._sent, self.split):
            await self.stream.send_all(piece)
            self._sent += len(piece)
