"""A run on a terminal, and the screen that `run` and `attach` draw on.

`LiveScreen` shows a conversation above a footer. One task paints, when something has changed; all
others change plain data and call `touch`. So only the painter waits for the terminal.

`TerminalReporter` shows one run. It reads the keyboard while the run lasts, so that typed text is
not echoed between the lines, and answers asks. Ctrl-C stays a signal, and Escape has the same effect.
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
from crush_trio.cli.report.conversation import ConversationView, failure
from crush_trio.cli.report.plain import ending_lines
from crush_trio.cli.report.reporter import RunEnd, RunStart, short, summary
from crush_trio.cli.report.session import AskQueue, send_answer
from crush_trio.cli.terminal.dialogs import Dialog, DialogAnswer
from crush_trio.cli.terminal.keyboard import Key, Keyboard, open_keyboard
from crush_trio.cli.terminal.screen import Bottom, Region, Renderer
from crush_trio.cli.terminal.signals import Interrupts
from crush_trio.cli.terminal.text import one_line
from crush_trio.client.events import RunEvent
from crush_trio.client.follower import Asked, Progress, RunEnded, RunPiece, Settled
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.errors import CrushError
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.runs import RunState

FRAME: Final = 0.05
"""The least number of seconds between two frames."""

_SHARE: Final = 3
"""The pause after a frame, as a multiple of the time it took to paint."""

TICK: Final = 0.12
"""Seconds between two steps of the spinner."""

_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Footer(Protocol):
    """Draws the lines at the bottom of the screen."""

    @property
    def moving(self) -> bool:
        """Whether it changes with time, so that it must be repainted."""
        ...

    def bottom(self, renderer: Renderer, width: int, room: int) -> Bottom:
        """Return the current lines, at most *room*."""
        ...


@define(eq=False)
class LiveScreen:
    """A conversation, with a footer below it."""

    console: Console = field(repr=False)
    conversation: ConversationView
    footer: Footer = field(repr=False)
    seen: Callable[[], object] = field(default=lambda: None, repr=False)
    """Called after each frame."""
    _region: Region = field(factory=Region, init=False, repr=False)
    _renderer: Renderer = field(init=False, repr=False)
    _changed: trio.Event = field(factory=trio.Event, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._renderer = Renderer.like(self.console)

    def touch(self) -> None:
        """Request a repaint."""
        self._changed.set()

    async def keep_painted(self) -> None:
        """Repaint on request and on resize, until cancelled."""
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
            if self.footer.moving:
                self.touch()

    async def _follow_size(self) -> None:
        with trio.open_signal_receiver(signal.SIGWINCH) as arrivals:
            async for _ in arrivals:
                self.touch()

    def paint(self) -> None:
        """Paint one frame."""
        width, height = self._size()
        bottom = self.footer.bottom(self._renderer, width, max(height - 2, 1))
        room = max(height - 1 - len(bottom.lines), 0)
        shown = self.conversation.advance(self._renderer.lines, width, room)
        above = len(shown.live)
        cursor = bottom.cursor and (bottom.cursor[0] + above, bottom.cursor[1])
        whole = Bottom((*shown.live, *bottom.lines), cursor)
        self._write(self._region.paint(shown.done, whole, width))
        self.seen()

    def withdraw(self) -> None:
        """Erase the footer, and leave the terminal to other programs until the next frame."""
        self._write(self._region.close(self._size()[0]))

    def close(self) -> None:
        """Print the rest of the conversation, and erase the footer."""
        width, _ = self._size()
        done = self.conversation.finish(self._renderer.lines, width)
        self._write(self._region.paint(done, Bottom(), width) + self._region.close(width))

    def _size(self) -> tuple[int, int]:
        """Return the terminal's current size; rich might take an outdated one from the environment.

        A terminal whose size was never set, such as one in a container, reports none.
        """
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except (OSError, ValueError):
            size = os.terminal_size(self.console.size)
        return max(size.columns or 80, 10), max(size.lines or 24, 3)

    def _write(self, text: str) -> None:
        try:
            self.console.file.write(text)
            self.console.file.flush()
        except OSError:
            return  # the terminal is gone; the task that reads its keys handles that


def spinner(now: float) -> str:
    """Return the frame of the spinner at the time *now*."""
    return _SPINNER[int(now / TICK) % len(_SPINNER)]


@define(eq=False)
class TerminalReporter:
    """Shows one run on a terminal. It draws its own `Footer`: a status line, or an ask."""

    console: Console = field(repr=False)
    quiet: bool = False
    interactive: bool = True
    _start: RunStart | None = field(default=None, init=False, repr=False)
    _workspace: RemoteWorkspace | None = field(default=None, init=False, repr=False)
    _state: str = field(default="", init=False)
    _progress: str = field(default="", init=False)
    _cancelling: bool = field(default=False, init=False)
    _over: bool = field(default=False, init=False)
    _conversation: ConversationView = field(factory=ConversationView, init=False, repr=False)
    _asks: AskQueue = field(init=False, repr=False)
    _screen: LiveScreen = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._asks = AskQueue(self._conversation)
        self._screen = LiveScreen(self.console, self._conversation, self, self._seen)

    def _seen(self) -> None:
        self._asks.seen(trio.current_time())

    # ── Beside the run ──────────────────────────────────────────────────────────────────────────

    def opened(self, workspace: RemoteWorkspace) -> None:
        """Set the workspace to which answers are sent."""
        self._workspace = workspace

    @asynccontextmanager
    async def open(self, interrupts: Interrupts) -> AsyncIterator[None]:
        """Read the keyboard and paint, for the length of the block."""
        with open_keyboard(sys.stdin.fileno(), signals=True) as keyboard:
            interrupts.before_leaving(keyboard.leave)
            try:
                async with open_hidden_nursery() as nursery:
                    nursery.start_soon(self._screen.keep_painted)
                    nursery.start_soon(self._read_keys, keyboard, interrupts)
                    self._screen.touch()
                    yield
                    nursery.cancel_scope.cancel()
            finally:
                self._screen.close()

    async def _read_keys(self, keyboard: Keyboard, interrupts: Interrupts) -> None:
        """Handle keys, until cancelled or the terminal hangs up."""
        while True:
            for key in await keyboard.read():
                if key.name == "hangup":
                    interrupts.receive(signal.SIGHUP)
                    return
                given = self._press(key, keyboard, interrupts)
                if given is not None:
                    await self._send(*given)
            self._screen.touch()

    def _press(
        self, key: Key, keyboard: Keyboard, interrupts: Interrupts
    ) -> tuple[Dialog, DialogAnswer] | None:
        """Handle a key; return the answer if the key completes one."""
        if key.name == "ctrl-z":
            self._screen.withdraw()
            keyboard.suspend()
        elif self._asks.dialog is not None:
            return self._asks.press(key, trio.current_time())
        elif key.name == "escape" and interrupts.number is None:
            interrupts.receive(signal.SIGINT)
        return None

    async def _send(self, dialog: Dialog, answer: DialogAnswer) -> None:
        await trio.lowlevel.checkpoint()
        assert self._workspace is not None  # only a run asks, and `opened` was called before it
        try:
            await send_answer(self._workspace, dialog, answer)
        except CrushError as error:
            self._conversation.note(failure(*explain(error)))

    # ── Pieces of the run ───────────────────────────────────────────────────────────────────────

    def began(self, start: RunStart) -> None:
        """Show hints, for example that the offline demo answers."""
        self._start = start
        for hint in () if self.quiet else start.hints:
            self._conversation.note(Text(hint, "yellow"))
        self._screen.touch()

    def tell(self, piece: RunPiece) -> None:
        """Show a piece of the run; what follows a progress takes its place."""
        self._progress = one_line(piece.text, 60) if isinstance(piece, Progress) else ""
        match piece:
            case Progress():
                pass
            case Asked(request=request):
                self._asks.ask(request)
            case Settled(request=request, granted=granted):
                self._asks.settle(request.id, granted=granted)
            case RunEvent(run=run):
                self._state = run.state.value
            case RunEnded():
                self._asks.keep(set())
            case _:
                self._conversation.tell(piece)
        self._screen.touch()

    def cancelling(self) -> None:
        """Show it in the status line."""
        self._cancelling = True
        self._screen.touch()

    def ended(self, end: RunEnd) -> None:
        """Show how the run ended."""
        self._over = True
        self._conversation.give_up()
        for notice in () if self.quiet else end.run.notices:
            self._conversation.note(Text(one_line(notice), "yellow"))
        if end.receipt is not None:
            self._conversation.note(Text(summary(end.receipt), "yellow"))
        if lines := ending_lines(end):
            self._conversation.note(Group(*lines))
        if not self.quiet:
            self._conversation.note(self._epilogue(end))

    def _epilogue(self, end: RunEnd) -> Text:
        session = short(end.run.session_id)
        state = end.run.state.value
        return Text(f"{state} after {end.seconds:.1f} s · session {session}", "dim")

    # ── The footer ──────────────────────────────────────────────────────────────────────────────

    @property
    def moving(self) -> bool:
        """Whether the spinner turns: the run is active and not asking."""
        return not self._over and self._asks.dialog is None

    def bottom(self, renderer: Renderer, width: int, room: int) -> Bottom:
        """Return the dialog of an ask, or the status line."""
        if self._over:
            return Bottom()
        dialog = self._asks.dialog
        if dialog is not None:
            line = dialog.bottom(width)
            return Bottom(("", *line.lines)[-room:], (min(line.row + 1, room - 1), line.column))
        return Bottom(("", *renderer.lines(self._status(), width)[:1])[-room:])

    def _status(self) -> Text:
        what = self._progress or {
            "": "opening",
            RunState.QUEUED.value: "queued behind another run of the session",
        }.get(self._state, "working")
        what, ctrl_c = ("cancelling", "again exits") if self._cancelling else (what, "cancels")
        model = "" if self._start is None else f" · {self._start.model_name}"
        text = Text.assemble(
            (spinner(trio.current_time()), "cyan"), f" {what}{model} · ctrl-c {ctrl_c}"
        )
        text.stylize("dim", 1)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text
