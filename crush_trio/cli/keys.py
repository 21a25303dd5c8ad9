"""What a terminal sends when somebody types, as keys.

Bytes in, keys out; nothing here reads anything. The escape key and the first byte of every special
key are the same byte, so one that stands at the end of what was read is kept back: more may come.
Whoever reads decides how long to wait for it, and calls `flush` then.
"""

import codecs
import re
from collections.abc import Iterator, Mapping
from typing import Final

from attrs import define, field, frozen


@frozen
class Key:
    """One key, by name; of one that writes something, the name is `text`."""

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
    """Turns what a terminal sends into keys, however the bytes are cut into pieces."""

    _text: str = field(default="", init=False)
    _pasting: bool = field(default=False, init=False)
    _bytes: codecs.IncrementalDecoder = field(
        factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"), init=False, repr=False
    )

    @property
    def unsure(self) -> bool:
        """Whether something is kept back that may be the beginning of a longer key."""
        return bool(self._text)

    def feed(self, data: bytes) -> tuple[Key, ...]:
        """Return the keys that *data* completes."""
        self._text += self._bytes.decode(data)
        return tuple(self._keys(final=False))

    def flush(self) -> tuple[Key, ...]:
        """Return what was kept back: nothing more has come."""
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
        """Yield the key that begins with the escape at hand; sequences nobody knows are dropped."""
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
        """Yield what was pasted once all of it is there; it is text, whatever it says."""
        pasted, end, rest = self._text.partition(_PASTE_END)
        if end:
            self._pasting, self._text = False, rest
            yield Key("text", pasted.replace("\r\n", "\n").replace("\r", "\n"))
