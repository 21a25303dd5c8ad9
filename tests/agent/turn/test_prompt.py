"""What a model is asked: stored histories, whole and broken, made fit for it."""

import base64
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.agent.turn.prompt import INTERRUPTED, REMINDER, ModelAbilities, build_prompt
from crush_trio.wire.ids import MessageId, SessionId, ToolCallId
from crush_trio.wire.messages import (
    BinaryPart,
    FinishPart,
    FinishReason,
    Message,
    ReasoningPart,
    ResultMedia,
    Role,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

BLIND = ModelAbilities()
SEEING = ModelAbilities(images=True)
END = FinishPart(reason=FinishReason.END_TURN, time=1)
NONE = MessageId("")

_numbers = count(1)


def message(role, *parts, name=None):
    return Message(
        id=MessageId(name or f"m{next(_numbers)}"),
        role=role,
        session_id=SessionId("s"),
        parts=parts,
    )


def user(text, *parts, name=None):
    return message(Role.USER, TextPart(text=text), *parts, name=name)


def call(name="c1", *, finished=True):
    return ToolCallPart(id=ToolCallId(name), name="view", input='{"a":1}', finished=finished)


def result(name="c1", content="ok", **more):
    part = ToolResultPart(tool_call_id=ToolCallId(name), name="view", content=content, **more)
    return message(Role.TOOL, part)


def prompt(*messages, summary=NONE, can=BLIND, remind=False):
    return build_prompt(messages, summary, can, remind=remind)


def said(built):
    return [(m.role, *(getattr(p, "text", type(p).__name__) for p in m.parts)) for m in built]


@pytest.mark.item("D21")
def test_history_begins_with_the_summary_which_speaks_as_the_user():
    summary = message(Role.ASSISTANT, TextPart(text="in short"), END, name="sum")
    built = prompt(user("old"), summary, user("new"), summary=MessageId("sum"))
    assert said(built) == [(Role.USER, "in short"), (Role.USER, "new")]


@pytest.mark.item("D21")
def test_a_summary_that_is_gone_hides_nothing():
    assert said(prompt(user("old"), summary=MessageId("gone"))) == [(Role.USER, "old")]


@pytest.mark.item("D22")
def test_main_agents_are_reminded_of_the_todo_list_first():
    built = prompt(user("hello"), remind=True)
    assert said(built) == [(Role.USER, REMINDER), (Role.USER, "hello")]


@pytest.mark.item("D22")
def test_answers_that_say_nothing_and_messages_without_parts_are_left_out():
    silent = message(Role.ASSISTANT, TextPart(text=""), END)
    empty = message(Role.USER)
    assert said(prompt(user("a"), silent, empty, user("b"))) == [
        (Role.USER, "a"),
        (Role.USER, "b"),
    ]


@pytest.mark.item("D23")
def test_a_result_without_its_call_is_dropped():
    assert said(prompt(user("a"), result("nobody"))) == [(Role.USER, "a")]


@pytest.mark.item("D23")
def test_a_call_without_result_gets_exactly_one_directly_after_its_message():
    asking = message(Role.ASSISTANT, call("c1"), call("c2"), END)
    built = prompt(user("a"), asking, result("c2"), user("b"))
    assert [m.role for m in built] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL, Role.USER]
    [first], [second] = built[2].parts, built[3].parts
    assert (first.tool_call_id, first.content, first.is_error) == ("c1", INTERRUPTED, True)
    assert (second.tool_call_id, second.content) == ("c2", "ok")


@pytest.mark.item("D23")
def test_results_stand_behind_their_call_even_if_a_prompt_was_folded_in_between():
    asking = message(Role.ASSISTANT, call("c1"), END)
    built = prompt(user("a"), asking, user("folded"), result("c1"))
    assert [m.role for m in built] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER]


@pytest.mark.item("D23")
def test_an_unfinished_call_is_shown_with_no_arguments():
    [_, asking, _] = prompt(user("a"), message(Role.ASSISTANT, call(finished=False)))
    assert asking.parts == (
        ToolCallPart(id=ToolCallId("c1"), name="view", input="{}", finished=True),
    )


@pytest.mark.item("D23a")
def test_text_attachments_are_inlined_and_named():
    notes = BinaryPart(path="notes.txt", mime_type="text/plain", data="grün".encode())
    [(_, text)] = said(prompt(user("read", notes)))
    assert text == 'read\n\n<file path="notes.txt">\ngrün\n</file>'


@pytest.mark.item("D23a")
def test_a_command_of_the_users_is_told_with_output_and_exit_code_but_no_colours():
    ran = ShellCommandPart(command="ls", output="\x1b[31mred\x1b[0m\n", exit_code=2)
    [(_, text)] = said(prompt(message(Role.USER, ran)))
    assert "$ ls" in text
    assert "red" in text
    assert "exit code 2" in text
    assert "\x1b" not in text


@pytest.mark.item("D23a")
@pytest.mark.parametrize(("can", "parts"), [(BLIND, 1), (SEEING, 2)])
def test_pictures_go_only_to_models_that_can_look_at_them(can, parts):
    picture = BinaryPart(path="a.png", mime_type="image/png", data=b"png")
    [built] = prompt(user("look", picture), can=can)
    assert len(built.parts) == parts


@pytest.mark.item("D23b")
def test_a_blind_model_is_told_that_there_was_a_picture():
    data = base64.b64encode(b"png").decode()
    asking = message(Role.ASSISTANT, call())
    answer = result(content="", data=data, mime_type="image/png")
    [_, _, tool] = prompt(user("a"), asking, answer)
    [part] = tool.parts
    assert not part.data
    assert "image/png" in part.content


@pytest.mark.item("D23b")
def test_pictures_of_tools_follow_in_a_message_of_the_users():
    data = base64.b64encode(b"png").decode()
    asking = message(Role.ASSISTANT, call())
    answer = result(content="", data=data, mime_type="image/png")
    [_, _, tool, follow] = prompt(user("a"), asking, answer, can=SEEING)
    assert not tool.parts[0].data
    assert follow.role is Role.USER
    assert follow.parts[-1] == BinaryPart(path="view", mime_type="image/png", data=b"png")


@pytest.mark.item("D23b")
def test_pictures_stay_in_the_result_where_the_provider_takes_them_there():
    data = base64.b64encode(b"png").decode()
    asking = message(Role.ASSISTANT, call())
    can = ModelAbilities(images=True, media_results=True)
    [_, _, tool] = prompt(user("a"), asking, result(data=data, mime_type="image/png"), can=can)
    assert tool.parts[0].data == data


@pytest.mark.item("D23b")
def test_all_pictures_of_a_result_follow_it():
    first, second = (base64.b64encode(each).decode() for each in (b"one", b"two"))
    more = (ResultMedia(data=second, mime_type="image/gif"),)
    answer = result(content="", data=first, mime_type="image/png", more_media=more)
    asking = message(Role.ASSISTANT, call())
    [_, _, tool, follow] = prompt(user("a"), asking, answer, can=SEEING)
    assert not tool.parts[0].media
    assert [part.data for part in follow.parts[1:]] == [b"one", b"two"]


def test_reasoning_is_given_back_with_its_signature():
    thought = ReasoningPart(thinking="hm", signature="sig", started_at=1, finished_at=2)
    [_, answer] = prompt(user("a"), message(Role.ASSISTANT, thought, TextPart(text="b")))
    assert answer.parts[0] == thought


_calls = st.integers(0, 5).map(lambda n: call(f"c{n}"))
_messages = st.one_of(
    st.text(max_size=5).map(user),
    st.lists(_calls, max_size=3, unique_by=lambda c: c.id).map(
        lambda calls: message(Role.ASSISTANT, TextPart(text="x"), *calls)
    ),
    st.integers(0, 5).map(lambda n: result(f"c{n}")),
)


@pytest.mark.item("D23")
@given(st.lists(_messages, max_size=8))
def test_whatever_is_stored_every_call_has_one_result_right_behind_its_message(messages):
    waiting: list[str] = []
    for each in prompt(*messages):
        if each.role is Role.TOOL:
            [part] = each.parts
            assert part.tool_call_id == waiting.pop(0)
        else:
            assert not waiting
            waiting = [p.id for p in each.parts if isinstance(p, ToolCallPart)]
    assert not waiting
