"""The model of a soak: answers each prompt with the prompt's own tag, and reports what it was asked.

The grammar is that of `benchmarks.driver.provider`, with a tag in every prompt, and one verb more:

    shell 2 #tag        have a command run that sleeps for two seconds, then say one word
"""

import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import orjson
import trio
from attrs import define, field
from typing_extensions import override

from benchmarks.driver.provider import (
    SMALL,
    Call,
    Provider,
    Script,
    parse_prompt,
    spoken_text,
    tokens,
    watch_leaving,
)
from benchmarks.soak.ledger import Ledger, tags_of
from crush_trio.providers.base import Finished, StreamPart, TextDelta, ToolCallBegin, ToolCallDelta
from crush_trio.testing.model.openai import OpenAIAnswer
from crush_trio.wire.fields import Json
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import FinishReason

_SHELL: Final = re.compile(r"shell (\d+) #(\S+)")
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_END: Final = b"0\r\n\r\n"


def answer_to(prompt: str) -> str:
    """Return what the model says to *prompt* if it is not cut short."""
    shell = _SHELL.search(prompt)
    if shell is not None:
        return f"{shell.group(2)} done"
    script = parse_prompt(prompt)
    return f"{script.tag} {script.text}"


@define(eq=False)
class Model(Provider):
    """A scripted model that reports to the ledger. Made by `open_model`."""

    ledger: Ledger = field(kw_only=True)
    report: Callable[[Exception], None] = field(kw_only=True)
    """Called with what the ledger raises."""
    titles: int = field(default=0, init=False)

    @override
    async def _answer(self, stream: trio.SocketStream, body: Json) -> None:
        messages = body.get("messages", ())
        spoken = [(m["role"], spoken_text(m.get("content"))) for m in messages]
        try:
            self._check(spoken, titles=body.get("model") == SMALL)
        except Exception as exc:  # noqa: BLE001 - it must end the whole soak
            self.report(exc)
        call = Call()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_leaving, stream, call, nursery.cancel_scope)
            try:
                await self._say(stream, body, spoken)
            except trio.BrokenResourceError:
                call.close()
            nursery.cancel_scope.cancel()
        if call.closed is not None:
            raise trio.BrokenResourceError

    def _check(self, spoken: list[tuple[str, str]], *, titles: bool) -> None:
        """Report the prompts in a request to the ledger; those after the last answer are new."""
        last = max((i for i, (role, _) in enumerate(spoken) if role == "assistant"), default=-1)
        tagged = [
            (i, tag)
            for i, (role, text) in enumerate(spoken)
            if role == "user"
            for tag in tags_of(text)
        ]
        if titles:
            self.titles += 1
            self.ledger.ask([], [tag for _, tag in tagged], time.monotonic())
            return
        own = [tag for i, tag in tagged if i > last]
        self.ledger.ask(own, [tag for i, tag in tagged if i <= last], time.monotonic())

    async def _say(
        self, stream: trio.SocketStream, body: Json, spoken: list[tuple[str, str]]
    ) -> None:
        parts, pause, ends = _parts(body, spoken)
        words = OpenAIAnswer(body)
        await stream.send_all(_HEAD + _chunk(words.begin()))
        for number, part in enumerate(parts):
            if pause and number:
                await trio.sleep(pause)
            await stream.send_all(_chunk(words.part(part)))
        if not ends:
            await trio.sleep_forever()
        await stream.send_all(_END)


def _parts(body: Json, spoken: list[tuple[str, str]]) -> tuple[list[StreamPart], float, bool]:
    """Return the answer, the pause between its pieces, and whether it ends."""
    prompts = [text for role, text in spoken if role == "user"]
    prompt = prompts[-1] if prompts else ""
    if body.get("model") == SMALL:
        return [TextDelta("a title"), Finished(reason=FinishReason.END_TURN)], 0.0, True
    shell = _SHELL.search(prompt)
    if shell is not None and spoken[-1][0] != "tool":
        return _tool_call(int(shell.group(1))), 0.0, True
    script = Script() if shell is not None else parse_prompt(prompt)
    if shell is not None:
        said = [answer_to(prompt)]
    elif script.pause:
        said = [f"{script.tag} ", *tokens(script.count)]
    else:
        said = [answer_to(prompt)]
    parts: list[StreamPart] = [TextDelta(word) for word in said]
    if script.ends:
        parts.append(Finished(reason=FinishReason.END_TURN))
    return parts, script.pause, script.ends


def _tool_call(seconds: int) -> list[StreamPart]:
    call = ToolCallId(f"call-{time.monotonic_ns()}")
    given = {"command": f"sleep {seconds}", "description": "wait"}
    return [
        ToolCallBegin(id=call, name="bash"),
        ToolCallDelta(id=call, text=orjson.dumps(given).decode()),
        Finished(reason=FinishReason.TOOL_USE),
    ]


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


@asynccontextmanager
async def open_model(ledger: Ledger, report: Callable[[Exception], None]) -> AsyncIterator[Model]:
    """Listen on any free port during the block."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        port = listeners[0].socket.getsockname()[1]
        model = Model(port, ledger=ledger, report=report)
        await nursery.start(trio.serve_listeners, model.serve, listeners)
        try:
            yield model
        finally:
            nursery.cancel_scope.cancel()
