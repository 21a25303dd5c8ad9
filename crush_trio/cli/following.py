"""Follow a run that this program submitted: report its pieces, cancel it when asked to.

`crush-trio run` uses this; what decides its exit code is kept here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import trio
from attrs import define, field

from crush_trio.cli.report.reporter import Reporter
from crush_trio.client.follower import RunEnded, RunPiece
from crush_trio.client.http import AnswerLost
from crush_trio.client.messages import (
    MessageRestarted,
    TextPiece,
    ToolCallFinished,
    ToolResult,
)
from crush_trio.client.run import RunHandle
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.answers import ReceiptView
from crush_trio.wire.asks import is_refused, refusal_of
from crush_trio.wire.ids import MessageId, ToolCallId
from crush_trio.wire.messages import ToolCallPart
from crush_trio.wire.runs import RunView

CANCEL_LIMIT = 25.0
"""Seconds within which a cancel must be answered; a server does so within 20, whatever the run does."""


async def follow(handle: RunHandle, watcher: "RunWatcher", canceller: "Canceller") -> RunView:
    """Report the run until it ends; return its final view."""
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(canceller.wait, handle)
        async with handle.stream() as pieces:
            async for piece in pieces:
                watcher.see(piece)
        if not canceller.begun:
            nursery.cancel_scope.cancel()
    assert watcher.run is not None  # the last piece of a stream is the run's end
    return watcher.run


@define(eq=False)
class Canceller:
    """Cancels the run at a request, or after the timeout."""

    timeout: float
    _reporter: Reporter = field(repr=False)
    _requested: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _bound: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    begun: bool = field(default=False, init=False)
    timed_out: bool = field(default=False, init=False)
    receipt: ReceiptView | None = field(default=None, init=False)

    def request(self) -> None:
        """Have the run cancelled, and say so at once: the server may be slow to answer, or stopped."""
        self._requested.set()
        self._begin()

    def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            self._bound.deadline = trio.current_time() + CANCEL_LIMIT
            self._reporter.cancelling()

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Raise `AnswerLost` if the server does not answer the cancel in time, during the block.

        Leaving the workspace then releases its claim, and that cancels the run too.
        """
        with self._bound:
            yield
        if self._bound.cancelled_caught:
            raise AnswerLost(f"the cancel was not answered for {CANCEL_LIMIT:g} seconds")

    async def wait(self, handle: RunHandle) -> None:
        """Wait for the request or the timeout, then cancel and keep the receipt."""
        with trio.move_on_after(self.timeout):
            await self._requested.wait()
        self.timed_out = not self._requested.is_set()
        self._begin()
        self.receipt = await handle.cancel()
        self._bound.deadline = inf


@define(eq=False)
class RunWatcher:
    """Passes the pieces of a run to the reporter, and keeps what the exit code depends on."""

    reporter: Reporter
    run: RunView | None = field(default=None, init=False)
    refusal: str | None = field(default=None, init=False)
    """Why the last refused call was refused."""
    denied: ToolCallPart | None = field(default=None, init=False)
    """The last call that was refused permission, unless the model wrote text after it."""
    text_is_refusal: bool = field(default=False, init=False)
    """Whether the message with that call has no text, so that the run's text is the refusal."""
    _calls: dict[ToolCallId, ToolCallFinished] = field(factory=dict, init=False)
    _spoken: MessageId | None = field(default=None, init=False)
    """The last message in which the model wrote text."""

    def see(self, piece: RunPiece) -> None:
        """Report a piece."""
        match piece:
            case ToolCallFinished(call=call):
                self._calls[call.id] = piece
            case ToolResult(result=result) if result.is_error and is_refused(result.metadata):
                if (refused := self._calls.get(result.tool_call_id)) is not None:
                    self.denied, self.refusal = refused.call, refusal_of(result.metadata)
                    self.text_is_refusal = refused.message_id != self._spoken
            case TextPiece(message_id=message_id):
                self._spoken = message_id
                self.denied, self.text_is_refusal = None, False
            case MessageRestarted(message_id=message_id) if message_id == self._spoken:
                self._spoken = None
            case RunEnded(run=run):
                self.run = run
        self.reporter.tell(piece)
