"""What people are asked, and what their keys answer."""

import pytest

from crush_trio.cli.report.conversation import ConversationView
from crush_trio.cli.report.session import READING_TIME, AskQueue
from crush_trio.cli.terminal.dialogs import (
    Allow,
    AnswerQuestions,
    DeclineQuestions,
    Deny,
    PermissionDialog,
    QuestionDialog,
    answer_text,
    dialog_for,
    read_response,
)
from crush_trio.cli.terminal.keyboard import ESCAPE, Key
from crush_trio.wire.asks import (
    Choice,
    GrantScope,
    PermissionRequest,
    Question,
    QuestionRequest,
    QuestionResponse,
    QuestionType,
)
from tests.cli.drawing import drawn, renderer


def permission(ask_id="p1", **more):
    given = {"tool_name": "bash", "action": "execute", "params": {"command": "touch x"}, **more}
    return PermissionRequest(id=ask_id, session_id="s", tool_call_id=f"call-{ask_id}", **given)


def question(kind=QuestionType.FREE_TEXT, question_id="q1"):
    choices = (Choice(id="a", label="Tea"), Choice(id="b", label="Coffee", description="strong"))
    return Question(id=question_id, type=kind, question="What to drink?", choices=choices)


def batch(*questions):
    return QuestionRequest(id="b1", session_id="s", tool_call_id="c", questions=questions)


def key(letter):
    return Key("text", letter)


# ── Permissions ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("F2")
@pytest.mark.parametrize(
    ("pressed", "answer"),
    [
        (key("y"), Allow(GrantScope.ONCE)),
        (key("Y"), Allow(GrantScope.ONCE)),
        (key("s"), Allow(GrantScope.SESSION)),
        (key("a"), Allow(GrantScope.ALWAYS)),
        (key("n"), Deny()),
        (ESCAPE, Deny()),
        (key("x"), None),
        (Key("enter"), None),
        (key("yes, all of it\n"), None),
    ],
)
def test_only_a_clear_answer_is_one(pressed, answer):
    assert PermissionDialog(permission()).press(pressed) == answer


def test_a_command_is_shown_as_it_will_be_run():
    body = drawn(
        PermissionDialog(permission(params={"command": "rm -rf x\x1b[2K"}, path="/w")).body()
    )
    assert body == ["? bash asks for permission: execute", "  rm -rf x␛[2K", "  in /w"]


def test_a_change_is_shown_as_a_difference():
    params = {"file_path": "/w/a.txt", "old_content": "one\ntwo\n", "new_content": "one\n2\n"}
    body = drawn(PermissionDialog(permission(tool_name="edit", params=params)).body())
    assert body[1:] == ["  /w/a.txt", "  @@ -1,2 +1,2 @@", "   one", "  -two", "  +2"]
    del params["old_content"]
    body = drawn(PermissionDialog(permission(tool_name="write", params=params)).body())
    assert body[1:] == ["  /w/a.txt", "  @@ -0,0 +1,2 @@", "  +one", "  +2"]


def test_what_is_too_long_to_show_is_said_to_be():
    params = {"command": "\n".join(["true"] * 300)}
    assert drawn(PermissionDialog(permission(params=params)).body())[-1] == "  … 100 more lines"


def test_anything_else_is_shown_by_its_description_and_its_arguments():
    body = drawn(dialog_for(permission(params={"depth": 3}, description="Reach out")).body())
    assert body[1:] == ["  Reach out", "  {", '    "depth": 3', "  }"]
    assert drawn(dialog_for(permission(params=None)).body())[1:] == []


# ── Questions ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "text", "response"),
    [
        (QuestionType.YES_NO, "y", {"yes": True}),
        (QuestionType.YES_NO, "No", {"yes": False}),
        (QuestionType.YES_NO, "perhaps", None),
        (QuestionType.FREE_TEXT, "water", {"fill_in_text": "water"}),
        (QuestionType.SINGLE_CHOICE, "2", {"selected_ids": ("b",)}),
        (QuestionType.SINGLE_CHOICE, "3", None),
        (QuestionType.SINGLE_CHOICE, "1 2", None),
        (QuestionType.SINGLE_CHOICE, "", None),
        (QuestionType.MULTI_CHOICE, "2, 1", {"selected_ids": ("b", "a")}),
        (QuestionType.MULTI_CHOICE, "", {"selected_ids": ()}),
        (QuestionType.MULTI_CHOICE, "tea", None),
    ],
)
def test_an_answer_has_the_form_of_its_question(kind, text, response):
    expected = None if response is None else QuestionResponse(request_id="q1", **response)
    assert read_response(question(kind), text) == expected


def test_questions_are_answered_one_after_the_other_and_together():
    dialog = QuestionDialog(batch(question(), question(QuestionType.YES_NO, "q2")))
    presses = [
        key("t"),
        key("e"),
        key("a"),
        Key("enter"),
        key("m"),
        Key("enter"),
        Key("backspace"),
        key("y"),
    ]
    assert [dialog.press(pressed) for pressed in presses] == [None] * len(presses)
    assert dialog.press(Key("enter")) == AnswerQuestions(
        (
            QuestionResponse(request_id="q1", fill_in_text="tea"),
            QuestionResponse(request_id="q2", yes=True),
        )
    )


def test_a_question_shows_what_may_be_chosen():
    body = drawn(QuestionDialog(batch(question(QuestionType.SINGLE_CHOICE))).body())
    assert body == ["? What to drink?", "  1. Tea", "  2. Coffee — strong"]


def test_a_batch_may_be_refused():
    assert QuestionDialog(batch(question())).press(ESCAPE) == DeclineQuestions()


@pytest.mark.parametrize(
    "answer", [Allow(GrantScope.SESSION), Deny(), DeclineQuestions(), AnswerQuestions(())]
)
def test_every_answer_is_shown(answer):
    assert answer_text(answer).plain


# ── One at a time ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def conversation():
    return ConversationView()


def shown(conversation):
    return [line for line in conversation.advance(renderer().lines, 60, 20).done if line]


def test_a_key_from_before_a_question_could_be_read_is_no_answer(conversation):
    asking = AskQueue(conversation)
    asking.ask(permission())
    assert asking.press(key("y"), 10.0) is None
    asking.seen(10.0)
    assert asking.press(key("y"), 10.0 + READING_TIME / 2) is None
    dialog, answer = asking.press(key("y"), 10.0 + READING_TIME)
    assert (dialog.request.id, answer) == ("p1", Allow(GrantScope.ONCE))
    assert asking.dialog is None
    assert shown(conversation)[-1] == "✓ allowed once"


def test_the_oldest_is_asked_first_and_the_next_one_when_it_is_settled(conversation):
    asking = AskQueue(conversation)
    for ask_id in ("p1", "p2", "p2"):
        asking.ask(permission(ask_id, params={"command": ask_id}))
    assert "  p1" in shown(conversation)
    asking.seen(0)
    asking.press(key("n"), 1)
    assert asking.dialog.request.id == "p2"
    assert "  p2" in shown(conversation)
    assert asking.press(key("y"), 2) is None, "nobody has seen the second one yet"


@pytest.mark.item("F4")
def test_what_others_have_answered_is_not_asked_any_more(conversation):
    asking = AskQueue(conversation)
    asking.ask(permission("p1"))
    asking.ask(permission("p2"))
    asking.settle("p1", granted=True)
    assert shown(conversation)[2:] == [
        "(allowed by another client)",
        "? bash asks for permission: execute",
        "  touch x",
    ]
    asking.keep(set())
    assert asking.dialog is None


def test_our_own_answer_comes_back_and_changes_nothing(conversation):
    asking = AskQueue(conversation)
    asking.ask(permission())
    asking.seen(0)
    asking.press(key("y"), 1)
    asking.settle("p1", granted=True)
    asking.ask(permission())
    assert asking.dialog is None
    assert shown(conversation)[-1] == "✓ allowed once"
