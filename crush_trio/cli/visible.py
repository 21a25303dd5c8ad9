"""Text of strangers, made fit for a terminal.

What a model says, what a tool prints and what files are called may contain anything, also characters
that a terminal obeys, or that make a line look like another one. They are shown as what they are.
"""

import re
import unicodedata
from typing import Final

_SUSPICIOUS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return *text* with everything a terminal could obey replaced; lines and tabs stay."""
    return _SUSPICIOUS.sub(_picture, text.replace("\r\n", "\n"))


def one_line(text: str, width: int | None = None) -> str:
    """Return *text* on one line, with *width* characters at most."""
    line = " ".join(visible(text).split())
    if width is None or len(line) <= width:
        return line
    return line[: max(0, width - 1)] + "…"


def _picture(match: "re.Match[str]") -> str:
    """Return a character that shows which one it stands for."""
    letter = match[0]
    if letter < " ":
        return chr(0x2400 + ord(letter))
    if letter == "\x7f":
        return "␡"
    name = unicodedata.name(letter, "")
    return f"<{name.lower()}>" if name else "\ufffd"
