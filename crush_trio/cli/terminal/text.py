"""Untrusted text without control characters, and tool calls and results as lines.

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
from crush_trio.wire.messages import ToolCallPart, ToolResultPart

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

PREVIEW: Final = 4
"""How many lines of a result are shown."""

DIFF_PREVIEW: Final = 16
"""How many lines of a change are shown in its result."""

_DIFF_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}


def call_title(call: ToolCallPart) -> Text:
    """Return a call on one line: the tool and its main argument."""
    subject = _subject(_json(call.input))
    return Text.assemble((visible(call.name), "bold"), f" {subject}" if subject else "")


def result_preview(result: ToolResultPart) -> list[Text]:
    """Return the first lines of a tool's result, or of the diff in it."""
    metadata = _json(result.metadata)
    if isinstance(diff := metadata.get("diff"), str) and diff and not result.is_error:
        return diff_lines(diff, DIFF_PREVIEW)
    output = metadata.get("output")
    content = output if isinstance(output, str) and not result.is_error else result.content
    style = "red" if result.is_error else "dim"
    return _cut([Text(line, style) for line in visible(content).strip("\n").split("\n")], PREVIEW)


def diff_lines(diff: str, limit: int) -> list[Text]:
    """Return a unified diff in colours, without its header, cut off after *limit* lines."""
    lines = visible(diff).rstrip("\n").split("\n")
    body = [line for line in lines if not line.startswith(("--- ", "+++ "))]
    return _cut([Text(line, _DIFF_STYLES.get(line[:1], "dim")) for line in body], limit)


def _cut(lines: list[Text], limit: int) -> list[Text]:
    if len(lines) <= limit + 1:
        return lines
    return [*lines[:limit], Text(f"… {len(lines) - limit} more lines", "dim italic")]


def _subject(arguments: Mapping[str, Json]) -> str:
    for name in _SUBJECTS:
        if isinstance(text := arguments.get(name), str) and text:
            return one_line(text)
    return one_line(orjson.dumps(dict(arguments)).decode()) if arguments else ""


def _json(text: str) -> Mapping[str, Json]:
    """Return *text* as a JSON object; an empty one if it is incomplete or not an object."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
