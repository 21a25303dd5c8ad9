"""The grammar of the offline demo model: phrases that become tool calls.

| Said | Done |
|---|---|
| `tool NAME {JSON}` | a call with exactly these arguments; several lines, several calls |
| `use NAME on SUBJECT` | a call whose main argument is the subject |
| run `COMMAND`, `$ COMMAND` | `bash` |
| view FILE, read FILE | `view` |
| list DIRECTORY, ls | `ls` |
| search for TEXT in PATH | `grep` |
| find PATTERN | `glob` |
| write TEXT to FILE | `write` |
| replace OLD with NEW in FILE, edit FILE: OLD => NEW | `edit` |
| fetch URL, download URL to FILE | `fetch`, `download` |
| remember THIS, THAT | `todos` |
| ask me QUESTION | `question` |
| delegate TASK | `agent` |
| think about SUBJECT | reasoning, then an answer |
| long NUMBER | that many words |

A wish is read whether or not its tool is available; the provider decides what to answer if it is not.
Required arguments that the phrase does not mention are filled in from the tool's schema.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import orjson
from attrs import field, frozen

from crush_trio.providers.base import ToolSpec
from crush_trio.wire.fields import Json, JsonObject

Offered: TypeAlias = Mapping[str, ToolSpec]
"""The tools of a request, by name."""

FILLER: Final = "asked for in the offline demo"
"""The value of a required text argument that was not given."""

LONG: Final = 400
"""The number of words of `long` without a number."""


@frozen
class Wish:
    """A tool call that was asked for. *arguments* may be any text; invalid JSON is passed on unchanged."""

    tool: str
    arguments: str = field(default="{}", repr=False)


# ── Forms ───────────────────────────────────────────────────────────────────────────────────────

_POLITE: Final = re.compile(r"(?:please|(?:can|could|would) you(?: please)?)\s+", re.IGNORECASE)
_TOOL: Final = re.compile(r"tool\s+([\w.-]+)\s*(.*)", re.IGNORECASE)
_USE: Final = re.compile(
    r"use\s+(?:the\s+)?(?P<tool>[\w.-]+)(?:\s+tool)?(?:\s+(?:on|with|for|to)\s+(?P<subject>.+))?",
    re.IGNORECASE | re.DOTALL,
)
_THINK: Final = re.compile(r"think(?:\s+(?:about\s+)?(?P<subject>.+))?", re.IGNORECASE | re.DOTALL)
_LONG: Final = re.compile(r"long(?:\s+(?P<words>\d{1,6}))?", re.IGNORECASE)

_FORMS: Final = tuple(
    (tool, re.compile(pattern, re.IGNORECASE | re.DOTALL))
    for tool, pattern in (
        ("bash", r"(?:(?:run|execute)\s+|\$\s*)(?P<command>.+)"),
        ("view", r"(?:view|read|open|show)\s+(?:me\s+)?(?:the\s+)?(?:file\s+)?(?P<file_path>\S+)"),
        ("ls", r"(?:ls|list)(?:\s+(?:the\s+)?files)?(?:\s+(?:in\s+)?(?P<path>\S+))?"),
        (
            "grep",
            r"""(?:grep|search)\s+(?:for\s+)?"""
            r"""(?P<pattern>"[^"]+"|'[^']+'|`[^`]+`|.+?)(?:\s+in\s+(?P<path>\S+))?""",
        ),
        ("glob", r"(?:glob|find)\s+(?:files\s+)?(?P<pattern>\S+)"),
        ("write", r"write\s+(?P<content>.+)\s+to\s+(?P<file_path>\S+)"),
        ("edit", r"edit\s+(?P<file_path>\S+?):\s*(?P<old_string>.+?)\s*=>\s*(?P<new_string>.*)"),
        (
            "edit",
            r"replace\s+(?P<old_string>.+?)\s+with\s+(?P<new_string>.+)\s+in\s+(?P<file_path>\S+)",
        ),
        ("fetch", r"fetch\s+(?P<url>https?://\S+)"),
        ("download", r"download\s+(?P<url>https?://\S+)\s+to\s+(?P<file_path>\S+)"),
        ("agent", r"delegate:?\s+(?P<prompt>.+)"),
        ("todos", r"(?:remember|todos?):?\s+(?P<items>.+)"),
        ("question", r"ask\s+me:?\s+(?P<question>.+)"),
    )
)


def read_wishes(prompt: str, offered: Offered) -> tuple[Wish, ...]:
    """Return the tool calls that *prompt* asks for, in its order."""
    lines = [line.strip() for line in prompt.splitlines()]
    exact = [match for line in lines if (match := _TOOL.fullmatch(line))]
    if exact:
        return tuple(Wish(match[1], match[2] or "{}") for match in exact)
    text = _POLITE.sub("", prompt.strip(), count=1)
    for tool, form in _FORMS:
        if match := form.fullmatch(text):
            return (_wish(tool, _arguments(tool, match.groupdict()), offered),)
    if match := _USE.fullmatch(text):
        return (_use(match["tool"], match["subject"], offered),)
    return ()


def read_thought(prompt: str) -> str | None:
    """Return the subject of the reasoning; None if none was asked for."""
    match = _THINK.fullmatch(prompt.strip())
    return None if match is None else unquoted(match["subject"] or "") or "nothing in particular"


def read_length(prompt: str) -> int:
    """Return how many words the answer should have; 0 if the prompt does not say."""
    match = _LONG.fullmatch(prompt.strip())
    return 0 if match is None else int(match["words"] or LONG)


def unquoted(text: str) -> str:
    """Return what stands between quotes; without any, leave out the end of the sentence."""
    text = text.strip()
    if text and text[0] in "`\"'" and text.find(text[0], 1) > 0:
        return text[1 : text.index(text[0], 1)]
    return text.rstrip("?!.,;") or text


# ── Arguments ───────────────────────────────────────────────────────────────────────────────────


def _arguments(tool: str, said: Mapping[str, str | None]) -> dict[str, Json]:
    words = {name: unquoted(text) for name, text in said.items() if text is not None}
    if tool == "todos":
        return {"todos": [_todo(item) for item in _items(words["items"])]}
    if tool == "question":
        return {"questions": [_question((said["question"] or "").strip())]}
    return dict(words)


def _items(text: str) -> Iterator[str]:
    return (item.strip() for item in re.split(r"[,;\n]", text) if item.strip())


def _todo(item: str) -> JsonObject:
    return {"content": item, "status": "pending", "active_form": item}


def _question(text: str) -> JsonObject:
    return {"type": "free_text", "question": text, "description": FILLER, "label": "Demo"}


def _use(tool: str, subject: str | None, offered: Offered) -> Wish:
    """Return a call of *tool* in which *subject* is what it is mainly about."""
    if tool in offered and subject is not None:
        name = _main_argument(offered[tool].parameters)
        return _wish(tool, {name: unquoted(subject)} if name else {}, offered)
    return _wish(tool, {}, offered)


def _wish(tool: str, arguments: dict[str, Json], offered: Offered) -> Wish:
    if tool in offered:
        arguments = _completed(arguments, offered[tool].parameters)
    return Wish(tool, orjson.dumps(arguments).decode())


def _main_argument(schema: JsonObject) -> str:
    """Return the first text that a tool requires, or takes at all."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    names = [*schema.get("required", ()), *properties]
    texts = (name for name in names if properties.get(name, {}).get("type") == "string")
    return next(texts, "")


def _completed(arguments: dict[str, Json], schema: JsonObject) -> dict[str, Json]:
    properties: Mapping[str, Any] = schema.get("properties", {})
    missing = {name: _filler(properties.get(name, {})) for name in schema.get("required", ())}
    return {**missing, **arguments}


def _filler(shape: JsonObject) -> Json:
    if shape.get("enum"):
        return shape["enum"][0]
    empty: Mapping[str, Json] = {
        "integer": 0,
        "number": 0,
        "boolean": False,
        "array": [],
        "object": {},
    }
    return empty.get(shape.get("type", ""), FILLER)
