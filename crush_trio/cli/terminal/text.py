"""Untrusted text without control characters, tool calls on one line, and diffs in colours.

The text of models, tools and file names may contain characters that a terminal obeys, or that make
one line look like another. They are replaced by visible ones.
"""

import re
from collections.abc import Mapping
from typing import Final

import orjson
from rich.text import Text

from crush_trio.wire.fields import Json
from crush_trio.wire.messages import ToolCallPart

_OBEYED: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
)
"""Characters that a terminal obeys, or that change the order in which a line is read."""

_NO_WIDTH: Final = "\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"
"""Characters that take no place and that no script needs."""

_JOINING: Final = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200c\u200d\u3164\ufe00-\ufe0f\uffa0"
)
"""Characters that take no place and that scripts or emoji need, so that they stay in ordinary text."""

_UNSEEN: Final = re.compile(f"[{_OBEYED}{_NO_WIDTH}]")
_UNSEEN_OR_JOINING: Final = re.compile(f"[{_OBEYED}{_NO_WIDTH}{_JOINING}]")


def visible(text: str) -> str:
    """Return *text* with control characters and invisible ones replaced; line feeds and tabs stay."""
    return _UNSEEN.sub(_picture, text.replace("\r\n", "\n"))


def every_character(text: str) -> str:
    """Return *text* with every invisible character replaced, also those that some scripts and emoji need.

    For what a person allows: two commands that look the same must be the same.
    """
    return _UNSEEN_OR_JOINING.sub(_picture, text.replace("\r\n", "\n"))


def one_line(text: str, width: int | None = None) -> str:
    """Return *text* on one line of at most *width* characters."""
    line = " ".join(visible(text).split())
    if width is None or len(line) <= width:
        return line
    return line[: max(0, width - 1)] + "…"


def _picture(match: "re.Match[str]") -> str:
    """Return a visible symbol, or the number, of a character that is not seen."""
    letter = match[0]
    if letter < " ":
        return chr(0x2400 + ord(letter))
    if letter == "\x7f":
        return "␡"
    return "\ufffd" if "\ud800" <= letter <= "\udfff" else f"<U+{ord(letter):04X}>"


_SUBJECTS: Final = (
    *("command", "file_path", "pattern", "url", "path", "prompt", "query", "job_id", "shell_id"),
)
"""The arguments that show what a call is about, the best first."""

_DONE: Final = "completed"
_DIFF_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}


def call_title(call: ToolCallPart) -> Text:
    """Return a call on one line: the tool and its main argument."""
    subject = _subject(json_object(call.input))
    return Text.assemble((visible(call.name), "bold"), f" {subject}" if subject else "")


def diff_lines(diff: str, limit: int) -> list[Text]:
    """Return a unified diff in colours, without its header, cut off after *limit* lines."""
    lines = every_character(diff).rstrip("\n").split("\n")
    body = [line for line in lines if not line.startswith(("--- ", "+++ "))]
    return cut([Text(line, _DIFF_STYLES.get(line[:1], "dim")) for line in body], limit)


def cut(lines: list[Text], limit: int) -> list[Text]:
    """Return *lines*, cut off after *limit* of them."""
    if len(lines) <= limit + 1:
        return lines
    return [*lines[:limit], Text(f"… {len(lines) - limit} more lines", "dim italic")]


def _subject(arguments: Mapping[str, Json]) -> str:
    match arguments:
        case {"todos": [*todos]}:
            done = [
                each for each in todos if isinstance(each, dict) and each.get("status") == _DONE
            ]
            return f"{len(done)} of {len(todos)} done"
        case {"questions": [{"question": str(question)}, *_]}:
            return one_line(question)
    for name in _SUBJECTS:
        if isinstance(text := arguments.get(name), str) and text:
            return one_line(text)
    return one_line(orjson.dumps(dict(arguments)).decode()) if arguments else ""


def json_object(text: str) -> Mapping[str, Json]:
    """Return *text* as a JSON object; an empty one if it is incomplete or not an object."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
