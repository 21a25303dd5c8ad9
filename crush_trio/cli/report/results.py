"""Tool results as lines.

A change of a file is shown as a diff, a todo list as a checklist, questions with their answers, a file
without the tags that are for the model. Of everything else the first lines are shown.
"""

import re
from collections.abc import Mapping
from typing import Final

import orjson
from rich.text import Text

from crush_trio.cli.terminal.text import cut, diff_lines, json_object, one_line, visible
from crush_trio.tools.files.text import difference
from crush_trio.wire.fields import Json
from crush_trio.wire.messages import ToolCallPart, ToolResultPart

PREVIEW: Final = 4
"""How many lines of a result are shown."""

DIFF_PREVIEW: Final = 16
"""How many lines of a change are shown in its result."""

LIST_MOST: Final = 40
"""How many lines of a todo list, or of questions and answers, are shown."""

_MARKS: Final = {
    "completed": ("[x] ", "green"),
    "in_progress": ("[>] ", "bold yellow"),
    "pending": ("[ ] ", ""),
}
_FILE_TAGS: Final = {"<file>", "</file>"}
_ANSWER: Final = re.compile(
    r"User (?:(?P<kind>selected|provided|answered): (?P<text>.*)|(?P<skipped>skipped) .*)"
)
"""A line with an answer, as the model reads it (F15)."""


def result_lines(call: ToolCallPart, result: ToolResultPart) -> list[Text]:
    """Return the result of *call* as lines."""
    metadata = json_object(result.metadata)
    if result.is_error:
        return _preview(result.content, "red")
    if diff := _diff(metadata, call):
        return diff_lines(diff, DIFF_PREVIEW)
    if call.name == "todos" and isinstance(todos := metadata.get("todos"), list):
        return cut([_todo(todo) for todo in todos if isinstance(todo, dict)], LIST_MOST)
    if call.name == "question":
        return cut(_answers(call, result.content), LIST_MOST)
    output = metadata.get("output")
    content = output if isinstance(output, str) else result.content
    if call.name == "view":
        lines = content.split("\n")
        content = "\n".join(line for line in lines if line not in _FILE_TAGS)
    return _preview(content, "dim")


def _preview(content: str, style: str) -> list[Text]:
    lines = visible(content).strip("\n").split("\n")
    return cut([Text(line, style) for line in lines], PREVIEW)


def _diff(metadata: Mapping[str, Json], call: ToolCallPart) -> str:
    """Return the change in a result; a server sends it as a diff, or as the old and the new content."""
    if isinstance(diff := metadata.get("diff"), str):
        return diff
    old, new = metadata.get("old_content", ""), metadata.get("new_content")
    if isinstance(old, str) and isinstance(new, str) and old != new:
        return difference(old, new).unified(str(json_object(call.input).get("file_path", "")))
    return ""


def _todo(todo: Mapping[str, Json]) -> Text:
    mark, style = _MARKS.get(str(todo.get("status")), _MARKS["pending"])
    return Text(mark + one_line(str(todo.get("content", ""))), style)


def _answers(call: ToolCallPart, content: str) -> list[Text]:
    """Return questions and answers; a choice is shown by its label, which the call has, not by its id."""
    labels = _labels(json_object(call.input))
    lines = []
    for line in filter(None, visible(content).split("\n")):
        match = _ANSWER.fullmatch(line)
        if match is None:
            lines.append(Text(re.sub(r"^Q\d+: ", "", line)))
        else:
            lines.append(Text(f"→ {_answer(match, labels)}", "green"))
    return lines


def _answer(match: "re.Match[str]", labels: Mapping[str, str]) -> str:
    if match["skipped"]:
        return "skipped"
    if match["kind"] != "selected":
        return match["text"]
    try:
        chosen = orjson.loads(match["text"])
    except orjson.JSONDecodeError:
        return match["text"]
    names = chosen if isinstance(chosen, list) else [chosen]
    return ", ".join(one_line(labels.get(str(name), str(name))) for name in names)


def _labels(arguments: Mapping[str, Json]) -> dict[str, str]:
    """Return the label of each choice by its id."""
    asked = arguments.get("questions")
    found: dict[str, str] = {}
    for question in asked if isinstance(asked, list) else []:
        choices = question.get("choices") if isinstance(question, dict) else None
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict):
                found[str(choice.get("id"))] = str(choice.get("label") or choice.get("id"))
    return found
