"""The scripted model of all servers under test: it answers what the prompt tells it to.

A prompt is a line of the grammar below, so a workload decides what is streamed, how fast, and can
ask afterwards when. The chunks are those of the test harness's OpenAI format, encoded once and
kept: a burst costs one write, so what is measured is the server and not the model.

    say 2000            two thousand tokens at once
    drip 2000 5         two thousand tokens, one every 5 ms
    hold                one token, and then nothing until the connection is closed

Whatever follows `#` is a tag, under which the times of the call are found. Any other prompt, and
any request for the small model, which makes titles, is answered with one token.
"""

import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from itertools import cycle, islice
from typing import Final

import h11
import orjson
import trio
from attrs import define, field, frozen

from crush_trio.providers.base import Finished, TextDelta, Usage
from crush_trio.testing.model.openai import OpenAIAnswer
from crush_trio.wire.fields import Json
from crush_trio.wire.messages import FinishReason

LARGE: Final = "large"
SMALL: Final = "small"

HEAD_START: Final = 0.003
"""Seconds between the head of a response and the first token, so that the server is ready for it."""

_WORDS: Final = ("a ", "run ", "ends ", "once, ", "and ", "every ", "reader ", "is told ", "so.\n")
_PROMPT: Final = re.compile(r"(say|drip|hold)(?: (\d+))?(?: (\d+))?(?: #(\S+))?")
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_END: Final = b"0\r\n\r\n"
_READ: Final = 262144


@cache
def tokens(count: int) -> tuple[str, ...]:
    """Return *count* tokens."""
    return tuple(islice(cycle(_WORDS), count))


@frozen
class Script:
    """An answer: the number of tokens, the pause between two, and whether it ends at all."""

    count: int = 1
    pause: float = 0.0
    ends: bool = True
    tag: str = ""

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(tokens(self.count))


def parse_prompt(prompt: str) -> Script:
    """Parse *prompt*; the answer is one token if it is not in the grammar."""
    found = _PROMPT.fullmatch(prompt.strip())
    if found is None:
        return Script()
    verb, count, pause, tag = found.groups()
    return Script(
        count=int(count or 1),
        pause=int(pause or 0) / 1000 if verb == "drip" else 0.0,
        ends=verb != "hold",
        tag=tag or "",
    )


@define(eq=False)
class Call:
    """The times of one request, by Trio's clock; None means not yet."""

    heard: float | None = field(default=None, init=False)
    spoke: float | None = field(default=None, init=False)
    """When the first token was written."""
    on_first_word: Callable[[], object] | None = field(default=None, init=False)
    """Called right before the first token."""
    finished: float | None = field(default=None, init=False)
    """When the end of the answer was about to be written."""
    closed: float | None = field(default=None, init=False)
    """When the server under test was seen to close the connection in the middle of the answer."""
    _moved: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    def speak(self) -> None:
        """Note that the first token is about to be written."""
        if self.on_first_word is not None:
            self.on_first_word()
        self.spoke = trio.current_time()

    def finish(self) -> None:
        """Note that the end of the answer is about to be written."""
        self.finished = trio.current_time()

    async def when_closed(self) -> float:
        """Wait until the connection is closed; return the time."""
        await trio.lowlevel.checkpoint()
        while self.closed is None:
            await self._moved.park()
        return self.closed

    def close(self) -> None:
        """Note that the connection is closed."""
        if self.closed is None:
            self.closed = trio.current_time()
            self._moved.unpark_all()


@cache
def _chunks(count: int, model: str) -> tuple[bytes, ...]:
    """Return the HTTP chunks of an answer: the beginning, each token, the end."""
    words = OpenAIAnswer({"model": model, "stream_options": {"include_usage": True}})
    usage = Usage(input_tokens=100, output_tokens=count)
    words.usage = usage
    last = words.part(Finished(reason=FinishReason.END_TURN, usage=usage))
    bodies = [words.begin(), *(words.part(TextDelta(token)) for token in tokens(count)), last]
    return tuple(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies)


@cache
def _burst(count: int, model: str) -> bytes:
    """Return all tokens of an answer but the first, and its end, as one piece."""
    return b"".join(_chunks(count, model)[2:]) + _END


@define(eq=False)
class Provider:
    """The model server. `open_provider` makes one."""

    port: int
    calls: dict[str, Call] = field(factory=dict, init=False)
    """The calls that had a tag."""
    asked: int = field(default=0, init=False)
    """The number of requests."""

    @property
    def base_url(self) -> str:
        """The URL for the configuration of a server."""
        return f"http://127.0.0.1:{self.port}/v1"

    def call(self, tag: str) -> Call:
        """Return the call that has *tag*, or will have it."""
        return self.calls.setdefault(tag, Call())

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer the requests of one connection until it closes."""
        http = h11.Connection(h11.SERVER)
        async with stream:
            try:
                while (body := await hear(http, stream)) is not None:
                    self.asked += 1
                    await self._answer(stream, body)
                    http = h11.Connection(h11.SERVER)
            except trio.BrokenResourceError:
                return

    async def _answer(self, stream: trio.SocketStream, body: Json) -> None:
        script = _script_of(body)
        call = self.call(script.tag) if script.tag else Call()
        call.heard = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_leaving, stream, call, nursery.cancel_scope)
            try:
                await _play(stream, script, body.get("model", ""), call)
            except trio.BrokenResourceError:
                call.close()
            nursery.cancel_scope.cancel()
        if call.closed is not None:
            raise trio.BrokenResourceError


async def watch_leaving(stream: trio.SocketStream, call: Call, scope: trio.CancelScope) -> None:
    """Detect that the server disconnects.

    Data it sends is its next request and is not read here.
    """
    sock = stream.socket
    await trio.lowlevel.wait_readable(sock.fileno())
    try:
        gone = not await sock.recv(1, socket.MSG_PEEK)
    except OSError:
        gone = True
    if gone:
        call.close()
        scope.cancel()


async def _play(stream: trio.SocketStream, script: Script, model: str, call: Call) -> None:
    begin, first, *rest = _chunks(script.count, model)
    await stream.send_all(_HEAD + begin)
    await trio.sleep(HEAD_START)
    call.speak()
    if not script.ends:
        await stream.send_all(first)
        await trio.sleep_forever()
    if script.pause == 0:
        call.finish()
        await stream.send_all(first + _burst(script.count, model))
        return
    await stream.send_all(first)
    *words, last = rest
    due = await _drip(stream, words, script.pause)
    await trio.sleep_until(due)
    call.finish()
    await stream.send_all(last + _END)


async def _drip(stream: trio.SocketStream, chunks: Sequence[bytes], pause: float) -> float:
    """Send one chunk per *pause*, at fixed times: a late chunk does not delay the later ones.

    Returns when the next one is due.
    """
    due = trio.current_time() + pause
    for chunk in chunks:
        await trio.sleep_until(due)
        await stream.send_all(chunk)
        due += pause
    return due


def _script_of(body: Json) -> Script:
    if body.get("model") == SMALL:
        return Script()
    spoken = [message for message in body.get("messages", ()) if message.get("role") == "user"]
    return parse_prompt(spoken_text(spoken[-1].get("content")) if spoken else "")


def spoken_text(content: object) -> str:
    """Return the text of a message's content, which is text or a list of blocks."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(block.get("text", "") for block in blocks)


async def hear(http: h11.Connection, stream: trio.SocketStream) -> Json:
    """Return the body of the next request; None if the connection is closed."""
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = await stream.receive_some(_READ)
            if not data:
                return None
            http.receive_data(bytes(data))
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return orjson.loads(body) if body else {}


@asynccontextmanager
async def open_provider(port: int = 0) -> AsyncIterator[Provider]:
    """Listen on *port*, or on any free one, during the block."""
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        provider = Provider(listeners[0].socket.getsockname()[1])
        await nursery.start(trio.serve_listeners, provider.serve, listeners)
        try:
            yield provider
        finally:
            nursery.cancel_scope.cancel()
