"""The terminal that a person sits at: reading keys without an echo, and leaving no trace of it.

`open_keyboard` changes the modes of the terminal for the length of a block and puts them back on every
way out. Reading waits in Trio, not in a thread. Output stays as it is: line feeds still begin lines.
"""

import os
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio
from attrs import define, field

from crush_trio.cli.keys import Key, KeyDecoder
from crush_trio.cli.region import SHOW_CURSOR

ESCAPE_TIME: Final = 0.05
"""Seconds within which the rest of a key comes that begins with an escape."""

PASTE_ON: Final = "\x1b[?2004h"
PASTE_OFF: Final = "\x1b[?2004l"

_INPUT: Final = 0
_LOCAL: Final = 3
_CHARACTERS: Final = 6
_DISABLED: Final = b"\0"


@define(eq=False)
class Keyboard:
    """The keys of a terminal. Made by `open_keyboard`."""

    _fd: int
    _signals: bool
    _before: list[Any] = field(repr=False)
    _decoder: KeyDecoder = field(factory=KeyDecoder, init=False, repr=False)

    async def read(self) -> tuple[Key, ...]:
        """Wait for keys; a terminal that is gone is the key `hangup`."""
        await trio.lowlevel.checkpoint()
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            try:
                data = os.read(self._fd, 4096)
            except OSError:
                data = b""
            if not data:
                return (Key("hangup"),)
            keys = self._decoder.feed(data)
            while self._decoder.unsure and not keys:
                keys = await self._rest()
            if keys:
                return keys

    async def _rest(self) -> tuple[Key, ...]:
        """Return what follows an escape, or the escape itself if nothing does."""
        with trio.move_on_after(ESCAPE_TIME):
            await trio.lowlevel.wait_readable(self._fd)
            return self._decoder.feed(os.read(self._fd, 4096))
        return self._decoder.flush()

    def enter(self) -> None:
        """Read keys one by one and do not show them."""
        modes = termios.tcgetattr(self._fd)
        modes[_INPUT] &= ~termios.ICRNL
        modes[_LOCAL] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        if not self._signals:
            modes[_LOCAL] &= ~termios.ISIG
        modes[_CHARACTERS][termios.VSUSP] = _DISABLED
        termios.tcsetattr(self._fd, termios.TCSANOW, modes)
        _tell(PASTE_ON)

    def leave(self) -> None:
        """Put the modes back; doing it twice does no harm."""
        _tell(PASTE_OFF + SHOW_CURSOR)
        try:
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)
        except termios.error:
            return  # the terminal is gone, and its modes with it

    def suspend(self) -> None:
        """Stop this program as Ctrl-Z does, with the terminal as it was; returns when it goes on."""
        self.leave()
        os.kill(0, signal.SIGTSTP)
        self.enter()


@contextmanager
def open_keyboard(fd: int, *, signals: bool) -> Iterator[Keyboard]:
    """Read the keys of the terminal *fd* for the length of the block.

    With *signals*, Ctrl-C is the signal that it always is; without, it is a key. Ctrl-Z is a key.
    """
    keyboard = Keyboard(fd, signals, termios.tcgetattr(fd))
    try:
        keyboard.enter()
        yield keyboard
    finally:
        keyboard.leave()


def _tell(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError):
        return  # nobody is there to see it
