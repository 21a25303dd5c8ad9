"""What an incomplete turn is given, and in which words."""

import pytest

from crush_trio.agent.record.unfinished_turn import (
    TOOL_CANCELLED,
    TOOL_FAILED,
    close_answer,
    closing_answer,
    finish_of,
    missing_results,
    prompt_message,
    result_message,
)
from crush_trio.events.growing_message import GrowingMessage
from crush_trio.runtime.outcome import INTERRUPTED_BY_RESTART, Completion, Outcome
from crush_trio.testing.server.turns import prompt
from crush_trio.wire.ids import MessageId, RunId
from crush_trio.wire.messages import (
    BinaryPart,
    FinishPart,
    FinishReason,
    ReasoningPart,
    Role,
    ToolResultPart,
)
from crush_trio.wire.requests import Attachment
from tests.agent.durable import END, S, assistant
from tests.store.stores import STOP, call, text

OUTCOMES = {
    "cancelled": Outcome.cancelled("run cancelled"),
    "errored": Outcome.errored("the model is gone"),
    "interrupted": Outcome.interrupted(),
    "completed": Outcome.completed(Completion()),
    "folded": Outcome.folded(RunId("r")),
}


@pytest.mark.item("D18")
@pytest.mark.parametrize(
    ("outcome", "reason", "message", "details"),
    [
        ("cancelled", FinishReason.CANCELLED, "User canceled request", ""),
        ("errored", FinishReason.ERROR, "Provider Error", "the model is gone"),
        ("interrupted", FinishReason.ERROR, "Interrupted", INTERRUPTED_BY_RESTART),
        ("completed", FinishReason.UNKNOWN, "", ""),
    ],
)
def test_an_answer_that_was_cut_short_says_why(outcome, reason, message, details):
    expected = FinishPart(reason=reason, time=5, message=message, details=details)
    assert finish_of(OUTCOMES[outcome], 5) == expected


@pytest.mark.item("D15", "D16", "D18")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_unfinished_answer_gets_what_it_lacks_and_keeps_what_it_has(outcome):
    growing = GrowingMessage(
        assistant(
            "m",
            ReasoningPart(thinking="hm", started_at=1),
            text("half a sen"),
            call("open", input='{"pa'),
            call("closed", input='{"path":"x"}', finished=True),
        )
    )
    close_answer(growing, OUTCOMES[outcome], 5)
    assert growing.view().message().parts == (
        ReasoningPart(thinking="hm", started_at=1, finished_at=5),
        text("half a sen"),
        call("open", input="{}", finished=True),
        call("closed", input='{"path":"x"}', finished=True),
        finish_of(OUTCOMES[outcome], 5),
    )


def test_a_finished_answer_is_left_alone():
    growing = GrowingMessage(assistant("m", ReasoningPart(thinking="hm"), call("open"), END))
    before = growing.view().message()
    close_answer(growing, OUTCOMES["cancelled"], 5)
    assert growing.view().message() == before


def test_reasoning_that_was_closed_keeps_its_time():
    growing = GrowingMessage(assistant("m", ReasoningPart(thinking="hm", finished_at=2)))
    close_answer(growing, OUTCOMES["cancelled"], 5)
    assert growing.view().message().parts[0] == ReasoningPart(thinking="hm", finished_at=2)


@pytest.mark.item("D17")
@pytest.mark.parametrize(
    ("outcome", "content"),
    [
        ("cancelled", "Error: user cancelled assistant tool calling"),
        ("errored", "There was an error while executing the tool"),
        ("interrupted", "There was an error while executing the tool"),
    ],
)
def test_each_call_that_was_never_answered_gets_an_error_for_a_result(outcome, content):
    results = missing_results([call("a"), call("b"), call("c")], {"b"}, OUTCOMES[outcome])
    assert content in {TOOL_CANCELLED, TOOL_FAILED}
    assert results == [
        ToolResultPart(tool_call_id=name, name="bash", content=content, is_error=True)
        for name in ("a", "c")
    ]


@pytest.mark.item("D1", "D23a")
def test_a_prompt_becomes_a_finished_message_that_keeps_every_attachment():
    files = (
        Attachment(file_path="/a/b.txt", file_name="b.txt", mime_type="text/plain", content=b"x"),
        Attachment(file_path="", file_name="c.png", mime_type="image/png", content=b"\x00"),
    )
    message = prompt_message(RunId("r"), prompt("look", attachments=files), 5)
    assert (message.id, message.role) == ("r", Role.USER)
    assert (message.created_at, message.updated_at) == (5, 5)
    assert message.parts == (
        text("look"),
        BinaryPart(path="/a/b.txt", mime_type="text/plain", data=b"x"),
        BinaryPart(path="c.png", mime_type="image/png", data=b"\x00"),
        STOP,
    )


@pytest.mark.item("D23a")
def test_a_prompt_of_attachments_alone_begins_with_an_empty_text():
    files = (Attachment(file_path="/a", file_name="a", mime_type="text/plain", content=b"x"),)
    message = prompt_message(RunId("r"), prompt("", attachments=files), 5)
    assert [part.kind for part in message.parts] == ["text", "binary", "finish"]
    assert message.parts[0] == text("")


@pytest.mark.item("D1")
def test_a_tool_result_is_a_finished_message_of_its_own():
    result = ToolResultPart(tool_call_id="c", name="bash", content="x")
    message = result_message(result, S, MessageId("m"), 5)
    assert (message.role, message.parts) == (Role.TOOL, (result, STOP))


@pytest.mark.item("A21", "D20")
def test_a_turn_without_an_answer_gets_one_that_only_says_how_it_ended():
    message = closing_answer(OUTCOMES["cancelled"], S, MessageId("m"), 5)
    assert (message.role, message.parts) == (
        Role.ASSISTANT,
        (finish_of(OUTCOMES["cancelled"], 5),),
    )
