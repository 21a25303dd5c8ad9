"""A run for a person at a terminal: the answer as it comes, what is asked, and what became of it.

The keyboard is ours for as long as the run lasts, so that nothing typed gets between the lines. What
is asked is answered here; Ctrl-C is a signal as ever, and Escape is the same to a run.

The screen of a program that goes on while it is watched.

One task paints, and only when something has changed. Everybody else changes plain data and calls
`touch`. So nothing is drawn twice at once, and nothing waits for the terminal but the painter.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

import trio
from attrs import define, field
from rich.console import Console, Group
from rich.text import Text

from crush_trio.cli.exits import explain
from crush_trio.cli.report.conversation import Conversation, failure
from crush_trio.cli.report.plain import ending_lines
from crush_trio.cli.report.reporter import DEMO_HINT, End, Start, short, summary
from crush_trio.cli.report.session import Asking, send_answer
from crush_trio.cli.terminal.dialogs import Answer, Dialog
from crush_trio.cli.terminal.keyboard import Key, Keyboard, open_keyboard
from crush_trio.cli.terminal.screen import Bottom, Region, Renderer
from crush_trio.cli.terminal.signals import Interrupts
from crush_trio.client.events import RunEvent
from crush_trio.client.follower import Asked, RunEnded, RunPiece, Settled
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.errors import CrushError
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.runs import RunState

FRAME: Final = 0.05
"""Seconds between two pictures at least."""

_SHARE: Final = 3
"""How many times as long as it took to paint one picture to wait for the next."""

TICK: Final = 0.12
"""Seconds between two steps of an animation."""

_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Bottoms(Protocol):
    """What decides what is at the bottom of the screen."""

    @property
    def moving(self) -> bool:
        """Whether it changes by itself, with time."""
        ...

    def bottom(self, renderer: Renderer, width: int, room: int) -> Bottom:
        """Return what is at the bottom now, in *room* lines at most."""
        ...


@define(eq=False)
class Stage:
    """A conversation above, a bottom below."""

    console: Console = field(repr=False)
    conversation: Conversation
    bottoms: Bottoms = field(repr=False)
    seen: Callable[[], object] = field(default=lambda: None, repr=False)
    """Called when a picture has been painted."""
    _region: Region = field(factory=Region, init=False, repr=False)
    _renderer: Renderer = field(init=False, repr=False)
    _changed: trio.Event = field(factory=trio.Event, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._renderer = Renderer.like(self.console)

    def touch(self) -> None:
        """Have the screen painted anew, soon."""
        self._changed.set()

    async def perform(self) -> None:
        """Paint whenever something has changed, for ever."""
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(self._animate)
            nursery.start_soon(self._follow_size)
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                began = trio.current_time()
                self.paint()
                await trio.sleep(max(FRAME, _SHARE * (trio.current_time() - began)))

    async def _animate(self) -> None:
        while True:
            await trio.sleep(TICK)
            if self.bottoms.moving:
                self.touch()

    async def _follow_size(self) -> None:
        with trio.open_signal_receiver(signal.SIGWINCH) as arrivals:
            async for _ in arrivals:
                self.touch()

    def paint(self) -> None:
        """Paint the screen as it is to be now."""
        width, height = self._size()
        bottom = self.bottoms.bottom(self._renderer, width, max(height - 2, 1))
        room = max(height - 1 - len(bottom.lines), 0)
        shown = self.conversation.advance(self._renderer.lines, width, room)
        above = len(shown.live)
        cursor = bottom.cursor and (bottom.cursor[0] + above, bottom.cursor[1])
        whole = Bottom((*shown.live, *bottom.lines), cursor)
        self._write(self._region.paint(shown.done, whole, width))
        self.seen()

    def withdraw(self) -> None:
        """Take the bottom away, and leave the terminal to others until the next picture."""
        self._write(self._region.close(self._size()[0]))

    def close(self) -> None:
        """Show everything that is left of the conversation, and nothing below it."""
        width, _ = self._size()
        done = self.conversation.finish(self._renderer.lines, width)
        self._write(self._region.paint(done, Bottom(), width) + self._region.close(width))

    def _size(self) -> tuple[int, int]:
        """Return how large the terminal is now; the environment may say how large it was."""
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except (OSError, ValueError):
            size = os.terminal_size(self.console.size)
        return max(size.columns, 10), max(size.lines, 3)

    def _write(self, text: str) -> None:
        try:
            self.console.file.write(text)
            self.console.file.flush()
        except OSError:
            return  # the terminal is gone; whoever reads its keys notices


def spinner(now: float) -> str:
    """Return the picture of an animation at some time."""
    return _SPINNER[int(now / TICK) % len(_SPINNER)]


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
