"""A run for a person at a terminal: the answer as it comes, what is asked, and what became of it.

The keyboard is ours for as long as the run lasts, so that nothing typed gets between the lines. What
is asked is answered here; Ctrl-C is a signal as ever, and Escape is the same to a run.
"""

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from attrs import define, field
from rich.console import Console, Group
from rich.text import Text

from crush_trio.cli.asking import Asking, send_answer
from crush_trio.cli.conversation import Conversation, failure
from crush_trio.cli.dialogs import Answer, Dialog
from crush_trio.cli.exits import explain
from crush_trio.cli.interrupts import Interrupts
from crush_trio.cli.keys import Key
from crush_trio.cli.receipts import short, summary
from crush_trio.cli.region import Bottom
from crush_trio.cli.render import Renderer
from crush_trio.cli.report_plain import ending_lines
from crush_trio.cli.reports import DEMO_HINT, End, Start
from crush_trio.cli.stage import Stage, spinner
from crush_trio.cli.terminal import Keyboard, open_keyboard
from crush_trio.client.events import RunEvent
from crush_trio.client.following import Asked, RunEnded, RunPiece, Settled
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.errors import CrushError
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.native import RunState


@define(eq=False)
class TerminalReporter:
    """Shows one run on a terminal. It is its own `Bottoms`: a line that moves, or a question."""

    console: Console = field(repr=False)
    quiet: bool = False
    interactive: bool = True
    _start: Start | None = field(default=None, init=False, repr=False)
    _workspace: RemoteWorkspace | None = field(default=None, init=False, repr=False)
    _state: str = field(default="", init=False)
    _over: bool = field(default=False, init=False)
    _conversation: Conversation = field(factory=Conversation, init=False, repr=False)
    _asking: Asking = field(init=False, repr=False)
    _stage: Stage = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._asking = Asking(self._conversation)
        self._stage = Stage(self.console, self._conversation, self, self._seen)

    def _seen(self) -> None:
        self._asking.seen(trio.current_time())

    # ── Beside the run ──────────────────────────────────────────────────────────────────────────

    def opened(self, workspace: RemoteWorkspace) -> None:
        """Take note of where answers go."""
        self._workspace = workspace

    @asynccontextmanager
    async def open(self, interrupts: Interrupts) -> AsyncIterator[None]:
        """Take the keyboard, and paint, for the length of the block."""
        with open_keyboard(sys.stdin.fileno(), signals=True) as keyboard:
            interrupts.before_leaving(keyboard.leave)
            try:
                async with open_hidden_nursery() as nursery:
                    nursery.start_soon(self._stage.perform)
                    nursery.start_soon(self._attend, keyboard, interrupts)
                    self._stage.touch()
                    yield
                    nursery.cancel_scope.cancel()
            finally:
                self._stage.close()

    async def _attend(self, keyboard: Keyboard, interrupts: Interrupts) -> None:
        """Do what keys mean, for as long as there is a terminal."""
        while True:
            for key in await keyboard.read():
                if key.name == "hangup":
                    interrupts.receive(signal.SIGHUP)
                    return
                given = self._press(key, keyboard, interrupts)
                if given is not None:
                    await self._send(*given)
            self._stage.touch()

    def _press(
        self, key: Key, keyboard: Keyboard, interrupts: Interrupts
    ) -> tuple[Dialog, Answer] | None:
        """Do what a key means; return the answer that it completes."""
        if key.name == "ctrl-z":
            self._stage.withdraw()
            keyboard.suspend()
        elif self._asking.dialog is not None:
            return self._asking.press(key, trio.current_time())
        elif key.name == "escape" and interrupts.number is None:
            interrupts.receive(signal.SIGINT)
        return None

    async def _send(self, dialog: Dialog, answer: Answer) -> None:
        await trio.lowlevel.checkpoint()
        assert self._workspace is not None  # what asks is a run, and that is in a workspace
        try:
            await send_answer(self._workspace, dialog, answer)
        except CrushError as error:
            self._conversation.note(failure(*explain(error)))

    # ── What happens ────────────────────────────────────────────────────────────────────────────

    def began(self, start: Start) -> None:
        """Say who answers."""
        self._start = start
        if start.demo and not self.quiet:
            self._conversation.note(Text(DEMO_HINT, "yellow"))
        self._stage.touch()

    def tell(self, piece: RunPiece) -> None:
        """Show what happened."""
        match piece:
            case Asked(request=request):
                self._asking.ask(request)
            case Settled(request=request, granted=granted):
                self._asking.settle(request.id, granted=granted)
            case RunEvent(run=run):
                self._state = run.state.value
            case RunEnded():
                self._asking.keep(set())
            case _:
                self._conversation.tell(piece)
        self._stage.touch()

    def ended(self, end: End) -> None:
        """Say how it ended."""
        self._over = True
        self._conversation.give_up()
        if end.receipt is not None:
            self._conversation.note(Text(summary(end.receipt), "yellow"))
        if lines := ending_lines(end):
            self._conversation.note(Group(*lines))
        if not self.quiet:
            self._conversation.note(self._epilogue(end))

    def _epilogue(self, end: End) -> Text:
        session = short(end.run.session_id)
        state = end.run.state.value
        return Text(f"{state} after {end.seconds:.1f} s · session {session}", "dim")

    # ── The bottom ──────────────────────────────────────────────────────────────────────────────

    @property
    def moving(self) -> bool:
        """Whether the run is under way."""
        return not self._over and self._asking.dialog is None

    def bottom(self, renderer: Renderer, width: int, room: int) -> Bottom:
        """Return the question there is, or a sign of life."""
        if self._over:
            return Bottom()
        dialog = self._asking.dialog
        if dialog is not None:
            line = dialog.bottom(width)
            return Bottom(("", *line.lines)[-room:], (min(line.row + 1, room - 1), line.column))
        return Bottom(("", *renderer.lines(self._status(), width)[:1])[-room:])

    def _status(self) -> Text:
        what = {
            "": "opening",
            RunState.QUEUED.value: "waiting for another run of the session",
        }.get(self._state, "working")
        model = "" if self._start is None else f" · {self._start.model_name}"
        text = Text.assemble(
            (spinner(trio.current_time()), "cyan"), f" {what}{model} · ctrl-c cancels"
        )
        text.stylize("dim", 1)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text
