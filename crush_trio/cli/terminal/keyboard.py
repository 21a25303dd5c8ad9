"""The keyboard of a terminal: raw mode, and bytes decoded to keys.

`KeyDecoder` turns bytes into keys and reads nothing. The Escape key sends the byte that also begins
every special key, so an escape at the end of the input is kept back until more bytes arrive or
`flush` is called.

`open_keyboard` sets the modes of the terminal for the length of a block and always restores them.
Reading waits in Trio, not in a thread. Output modes do not change: a line feed still begins a line.
"""

import codecs
import os
import re
import signal
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import trio
from attrs import define, field, frozen

from crush_trio.cli.terminal.screen import SHOW_CURSOR


@frozen
class Key:
    """A key, by name; `text` is the name of keys that type characters."""

    name: str
    text: str = ""


ESCAPE: Final = Key("escape")

_CONTROLS: Final[Mapping[str, str]] = {
    "\r": "enter",
    "\n": "newline",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    **{
        chr(number): f"ctrl-{chr(number + 96)}"
        for number in range(1, 27)
        if number not in {8, 9, 10, 13}
    },
}
_SEQUENCES: Final[Mapping[str, str]] = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "[H": "home",
    "[F": "end",
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
    "OH": "home",
    "OF": "end",
    "[1~": "home",
    "[3~": "delete",
    "[4~": "end",
    "[7~": "home",
    "[8~": "end",
    "[1;5C": "word-right",
    "[1;5D": "word-left",
    "[1;3C": "word-right",
    "[1;3D": "word-left",
    "f": "word-right",
    "b": "word-left",
    "\r": "newline",
    "\x7f": "ctrl-w",
}
_SEQUENCE: Final = re.compile(r"\[[0-?]*[ -/]*[@-~]|O[@-~]|[^\[O\x1b]", re.DOTALL)
_UNFINISHED: Final = re.compile(r"\[[0-?]*[ -/]*|O|")
_PASTE_BEGIN: Final = "[200~"
_PASTE_END: Final = "\x1b[201~"


@define(eq=False)
class KeyDecoder:
    """Decodes the input of a terminal to keys, however it is split into chunks."""

    _text: str = field(default="", init=False)
    _pasting: bool = field(default=False, init=False)
    _bytes: codecs.IncrementalDecoder = field(
        factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"), init=False, repr=False
    )

    @property
    def unsure(self) -> bool:
        """Whether the beginning of a key is kept back."""
        return bool(self._text)

    def feed(self, data: bytes) -> tuple[Key, ...]:
        """Return the keys that *data* completes."""
        self._text += self._bytes.decode(data)
        return tuple(self._keys(final=False))

    def flush(self) -> tuple[Key, ...]:
        """Return the keys that were kept back, because no more input follows."""
        return tuple(self._keys(final=True))

    def _keys(self, *, final: bool) -> Iterator[Key]:
        while self._text:
            if self._pasting:
                yield from self._pasted()
                if self._pasting:
                    return
            elif self._text[0] == "\x1b":
                if not final and _UNFINISHED.fullmatch(self._text, 1):
                    return
                yield from self._escaped()
            else:
                first, self._text = self._text[0], self._text[1:]
                if first in _CONTROLS:
                    yield Key(_CONTROLS[first])
                elif first.isprintable():
                    yield Key("text", first)

    def _escaped(self) -> Iterator[Key]:
        """Yield the key that begins with the next escape; unknown sequences are dropped."""
        match = _SEQUENCE.match(self._text, 1)
        if match is None:
            self._text = self._text[1:]
            yield ESCAPE
            return
        self._text = self._text[match.end() :]
        if match[0] == _PASTE_BEGIN:
            self._pasting = True
        elif match[0] in _SEQUENCES:
            yield Key(_SEQUENCES[match[0]])

    def _pasted(self) -> Iterator[Key]:
        """Yield pasted text once it is complete; it is text even if it contains key codes."""
        pasted, end, rest = self._text.partition(_PASTE_END)
        if end:
            self._pasting, self._text = False, rest
            yield Key("text", pasted.replace("\r\n", "\n").replace("\r", "\n"))


ESCAPE_TIME: Final = 0.05
"""Seconds to wait for the rest of a key after an escape."""

PASTE_ON: Final = "\x1b[?2004h"
PASTE_OFF: Final = "\x1b[?2004l"

_INPUT: Final = 0
_LOCAL: Final = 3
_CHARACTERS: Final = 6
_DISABLED: Final = b"\0"


@define(eq=False)
class Keyboard:
    """A terminal in raw mode. Made by `open_keyboard`."""

    _fd: int
    _signals: bool
    _before: list[Any] = field(repr=False)
    _decoder: KeyDecoder = field(factory=KeyDecoder, init=False, repr=False)

    async def read(self) -> tuple[Key, ...]:
        """Wait for keys; returns the key `hangup` when the terminal is gone."""
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
        """Return the key that begins with an escape, or the Escape key if nothing follows in time."""
        with trio.move_on_after(ESCAPE_TIME):
            await trio.lowlevel.wait_readable(self._fd)
            return self._decoder.feed(os.read(self._fd, 4096))
        return self._decoder.flush()

    def enter(self) -> None:
        """Set raw mode: keys are read one by one and not echoed."""
        modes = termios.tcgetattr(self._fd)
        modes[_INPUT] &= ~termios.ICRNL
        modes[_LOCAL] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        if not self._signals:
            modes[_LOCAL] &= ~termios.ISIG
        modes[_CHARACTERS][termios.VSUSP] = _DISABLED
        termios.tcsetattr(self._fd, termios.TCSANOW, modes)
        _send(PASTE_ON)

    def leave(self) -> None:
        """Restore the modes; may be called twice."""
        _send(PASTE_OFF + SHOW_CURSOR)
        try:
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)
        except termios.error:
            return  # the terminal is gone, and its modes with it

    def suspend(self) -> None:
        """Suspend the process as Ctrl-Z does, with modes restored; returns when it is resumed."""
        self.leave()
        os.kill(0, signal.SIGTSTP)
        self.enter()


@contextmanager
def open_keyboard(fd: int, *, signals: bool) -> Iterator[Keyboard]:
    """Put the terminal *fd* into raw mode for the length of the block.

    With *signals*, Ctrl-C sends SIGINT as usual; without, it is a key. Ctrl-Z is a key.
    """
    keyboard = Keyboard(fd, signals, termios.tcgetattr(fd))
    try:
        keyboard.enter()
        yield keyboard
    finally:
        keyboard.leave()


def _send(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError):
        return  # the terminal is gone
