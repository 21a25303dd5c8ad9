"""The screen of a program that goes on while it is watched.

One task paints, and only when something has changed. Everybody else changes plain data and calls
`touch`. So nothing is drawn twice at once, and nothing waits for the terminal but the painter.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Final, Protocol

import trio
from attrs import define, field
from rich.console import Console

from crush_trio.cli.conversation import Conversation
from crush_trio.cli.region import Bottom, Region
from crush_trio.cli.render import Renderer
from crush_trio.nursery import open_hidden_nursery

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
