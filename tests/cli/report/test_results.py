"""Tool results as a person wants to read them, not as the model does; and how each run ended."""

import json

import pytest

from crush_trio.cli.commands.sessions import sessions_table
from crush_trio.cli.report.conversation import with_endings
from crush_trio.cli.report.results import result_lines
from crush_trio.cli.terminal.text import call_title
from crush_trio.wire.messages import Message, Role, ToolCallPart, ToolResultPart
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import Session
from tests.cli.drawing import drawn

TODOS = [
    {"content": "Boil water", "status": "completed", "active_form": ""},
    {"content": "Add tea", "status": "in_progress", "active_form": "Adding tea"},
    {"content": "Wait", "status": "pending", "active_form": ""},
]
QUESTIONS = {
    "questions": [
        {
            "type": "multi_choice",
            "question": "Which tea?",
            "choices": [{"id": "a", "label": "Green"}, {"id": "b", "label": "Black"}],
        },
        {"type": "free_text", "question": "How long?"},
    ]
}


@pytest.mark.parametrize(
    ("name", "arguments", "content", "metadata", "lines"),
    [
        (
            "todos",
            {"todos": TODOS},
            "The todo list has 3 entries now",
            {"todos": TODOS},
            ["[x] Boil water", "[>] Add tea", "[ ] Wait"],
        ),
        (
            "question",
            QUESTIONS,
            'Q1: Which tea?\nUser selected: ["a","b"]\n\nQ2: How long?\nUser provided: 5 minutes',
            {},
            ["Which tea?", "→ Green, Black", "How long?", "→ 5 minutes"],
        ),
        (
            "question",
            QUESTIONS,
            'Q1: Which tea?\nUser selected: ["b"]\n\nQ2: How long?\nUser skipped this question',
            {},
            ["Which tea?", "→ Black", "How long?", "→ skipped"],
        ),
        ("view", {}, "<file>\n  1|tea\n  2|<b>\n</file>", {}, ["  1|tea", "  2|<b>"]),
        ("bash", {}, "hi\n\n<cwd>/w</cwd>", {"output": "hi\n"}, ["hi"]),
        (
            "edit",
            {"file_path": "/w/tea"},
            "Changed tea",
            {"old_content": "hot\nmilk\n", "new_content": "hot\ntea\n"},
            ["@@ -1,2 +1,2 @@", " hot", "-milk", "+tea"],
        ),
    ],
)
def test_a_result_is_shown_for_people(name, arguments, content, metadata, lines):
    call = ToolCallPart(id="c1", name=name, input=json.dumps(arguments))
    result = ToolResultPart(
        tool_call_id="c1", name=name, content=content, metadata=json.dumps(metadata)
    )
    assert [line.plain for line in result_lines(call, result)] == lines


def test_the_title_of_a_call_is_no_json():
    todos = ToolCallPart(id="c", name="todos", input=json.dumps({"todos": TODOS}))
    asked = ToolCallPart(id="c", name="question", input=json.dumps(QUESTIONS))
    assert call_title(todos).plain == "todos 1 of 3 done"
    assert call_title(asked).plain == "question Which tea?"


def test_the_title_of_a_session_takes_one_row():
    table = sessions_table([Session(id="abcdefgh", title="tea " * 40)], 0)
    assert len(drawn(table)) == 2, "its head and one row"


def message(name, role, at):
    return Message(id=name, role=role, session_id="s", created_at=at)


def ended(name, message_id="", at=0):
    return RunView(
        id=name, session_id="s", state=RunState.COMPLETED, message_id=message_id, ended_at=at
    )


def test_a_run_ends_below_its_last_message_or_where_its_time_was():
    messages = [
        message("u1", Role.USER, 1),
        message("a1", Role.ASSISTANT, 2),
        message("t1", Role.TOOL, 3),
        message("u2", Role.USER, 8),
        message("u3", Role.USER, 20),
    ]
    runs = [ended("r3", at=30), ended("r2", at=9), ended("r1", "a1", 4)]
    running = RunView(id="r4", session_id="s", state=RunState.ACTIVE)
    order = [each.id for each in with_endings(messages, [*runs, running])]
    assert order == ["u1", "a1", "t1", "r1", "u2", "r2", "u3", "r3"]
