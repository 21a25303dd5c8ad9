"""Untrusted text without control characters, tool calls on one line, and diffs in colours.

The text of models, tools and file names may contain characters that a terminal obeys, or that make
one line look like another. They are replaced by visible ones.
"""

import re
import unicodedata
from collections.abc import Mapping
from typing import Final

import orjson
from rich.text import Text

from crush_trio.wire.fields import Json
from crush_trio.wire.messages import ToolCallPart

_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return *text* with control characters replaced; line feeds and tabs stay."""
    return _CONTROL.sub(_picture, text.replace("\r\n", "\n"))


def one_line(text: str, width: int | None = None) -> str:
    """Return *text* on one line of at most *width* characters."""
    line = " ".join(visible(text).split())
    if width is None or len(line) <= width:
        return line
    return line[: max(0, width - 1)] + "…"


def _picture(match: "re.Match[str]") -> str:
    """Return a visible symbol or name for a control character."""
    letter = match[0]
    if letter < " ":
        return chr(0x2400 + ord(letter))
    if letter == "\x7f":
        return "␡"
    name = unicodedata.name(letter, "")
    return f"<{name.lower()}>" if name else "\ufffd"


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
    lines = visible(diff).rstrip("\n").split("\n")
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
