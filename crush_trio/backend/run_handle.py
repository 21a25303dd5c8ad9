"""`AgentRun`: a run of an agent in this program; `TextPieces`: its answer while it is written."""

from collections import deque
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.errors import CrushError, LogClosed
from crush_trio.events.cursor import Batch, Cursor
from crush_trio.events.facts import MessageChange, Position, RunChange
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.outcome import Outcome
from crush_trio.runtime.receipt import StopReceipt
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Message, Role, TextPart
from crush_trio.wire.runs import RunState, RunView

if TYPE_CHECKING:
    from typing import Self


class RunFailed(CrushError):
    """The text of a run was asked for, and the run failed or was cancelled; `outcome` says how."""

    code = "run_failed"
    message = "the run has no answer"

    def __init__(self, detail: str = "", *, outcome: Outcome | None = None) -> None:
        super().__init__(detail)
        self.outcome = outcome


@define(eq=False)
class AgentRun:
    """A run of an agent. `async for piece in run` gives the text of the answer while it is written."""

    _accepted: AcceptedRun
    _workspace: HostedWorkspace = field(repr=False)
    _begin: Position = field(repr=False)

    @property
    def id(self) -> RunId:
        """The id of the run."""
        return self._accepted.id

    @property
    def session_id(self) -> SessionId:
        """The conversation that the run belongs to."""
        return self._accepted.session_id

    @property
    def state(self) -> RunState:
        """The present state."""
        return self._accepted.state

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self._accepted.ended

    async def stored(self) -> None:
        """Return when the prompt is stored; raise `NotAccepted` if it cannot be."""
        await self._accepted.journaled()

    async def wait(self) -> Outcome:
        """Return how the run ended, whatever that is."""
        return await self._accepted.wait()

    async def text(self) -> str:
        """Return the answer when the run has completed; raise `RunFailed` if it ended otherwise."""
        outcome = await self.wait()
        raise_unless_completed(outcome)
        return outcome.text

    def cancel(self) -> StopReceipt:
        """Cancel the run; the receipt is empty if it has ended. `await receipt.settled()` waits for it."""
        return StopReceipt(()) if self.ended else self._workspace.runs.cancel_run(self.id)

    def __aiter__(self) -> "TextPieces":
        return TextPieces(
            self._accepted, self._workspace, self._workspace.events.cursor(after=self._begin)
        )


def raise_unless_completed(outcome: Outcome) -> None:
    """Raise `RunFailed` for a run that did not complete."""
    if outcome.state is not RunState.COMPLETED:
        detail = f"{outcome.state}: {outcome.error}" if outcome.error else str(outcome.state)
        raise RunFailed(detail, outcome=outcome)


@define(eq=False)
class TextPieces:
    """The text of a run's answers, from the first, in pieces as they come. Made by iterating an `AgentRun`.

    Ends with the run, and raises `RunFailed` then if it did not complete. The text of an attempt that is
    repeated, because the model's connection broke, comes again.
    """

    _run: AcceptedRun
    _workspace: HostedWorkspace = field(repr=False)
    _cursor: Cursor = field(repr=False)
    _active: bool = field(default=False, init=False)
    _ended: bool = field(default=False, init=False)
    _ready: deque[str] = field(factory=deque, init=False, repr=False)
    _given: dict[MessageId, int] = field(factory=dict, init=False, repr=False)
    """How many characters of each message have been given."""

    def __aiter__(self) -> "Self":
        return self

    async def __anext__(self) -> str:
        """Return the next piece."""
        await trio.lowlevel.checkpoint()
        while not self._ready and not self._ended:
            await self._read()
        if self._ready:
            return self._ready.popleft()
        raise_unless_completed(await self._run.wait())
        raise StopAsyncIteration

    async def _read(self) -> None:
        try:
            batch = await self._cursor.read()
        except LogClosed:
            self._ended = True
            return  # noqa: ASYNC910  # reading is a checkpoint, also when it raises
        if batch.resync is not None or batch.endings:
            await self._catch_up(batch)
        for event in batch.events:
            match event:
                case RunChange(run=run):
                    self._note(run)
                case MessageChange(view=view) if (
                    self._active and not self._ended and view.head.role is Role.ASSISTANT
                ):
                    if view.head.session_id == self._run.session_id:
                        self._take(view.message())

    def _note(self, run: RunView) -> None:
        if run.id == self._run.id:
            self._active = self._active or run.state is RunState.ACTIVE
            self._ended = run.state.terminal

    async def _catch_up(self, batch: Batch) -> None:
        """Read from the store what the log no longer has, for a reader that was slow."""
        stored = await self._workspace.store.run_messages((self._run.id,))
        for kept in stored.get(self._run.id, ()):
            if kept.message.role is Role.ASSISTANT:
                self._take(kept.message)
        if batch.resync is not None:
            for run in batch.resync.runs:
                self._note(run)
            for view in batch.resync.messages:
                ours = view.head.session_id == self._run.session_id
                if self._active and ours and view.head.role is Role.ASSISTANT:
                    self._take(view.message())
        self._ended = self._ended or self._run.ended

    def _take(self, message: Message) -> None:
        text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
        given = self._given.get(message.id, 0)
        new = text[given:] if len(text) >= given else text
        self._given[message.id] = len(text)
        if new:
            self._ready.append(new)
