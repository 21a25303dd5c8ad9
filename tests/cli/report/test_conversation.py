"""A conversation on a screen: in order, each thing once, what is under way below."""

from crush_trio.cli.report.conversation import ConversationView, failure
from crush_trio.client.messages import (
    MessageFinished,
    MessageRestarted,
    ReasoningPiece,
    TextPiece,
    ToolCallBegun,
    ToolCallFinished,
    ToolResult,
)
from crush_trio.wire.messages import FinishPart, FinishReason, ToolCallPart, ToolResultPart
from tests.cli.drawing import drawn, renderer


def call(name="bash", input="", call_id="c1"):  # noqa: A002
    return ToolCallPart(id=call_id, name=name, input=input, finished=bool(input))


def answer(content="hi", *, call_id="c1", name="bash", is_error=False, metadata=""):
    return ToolResult(
        "t1",
        ToolResultPart(
            tool_call_id=call_id, name=name, content=content, is_error=is_error, metadata=metadata
        ),
    )


def finish(reason=FinishReason.END_TURN, **more):
    return MessageFinished("m1", FinishPart(reason=reason, time=1, **more))


def show(conversation, room=20, width=60):
    shown = conversation.advance(renderer().lines, width, room)
    return list(shown.done), list(shown.live)


def told(*pieces):
    conversation = ConversationView()
    for piece in pieces:
        conversation.tell(piece)
    return conversation


def test_text_grows_below_and_is_let_go_when_it_has_ended():
    conversation = told(TextPiece("m1", "Hel"), TextPiece("m1", "lo"))
    assert show(conversation) == ([], ["Hello"])
    conversation.tell(finish())
    assert show(conversation) == (["Hello"], [])
    assert show(conversation) == ([], [])


def test_a_prompt_and_its_answer_stand_apart():
    conversation = ConversationView()
    conversation.prompt("do it\nnow")
    conversation.tell(TextPiece("m1", "done"))
    assert show(conversation) == (["> do it", "  now"], ["", "done"])


def test_a_call_is_below_while_it_takes_and_joins_the_rest_with_its_result():
    conversation = told(TextPiece("m1", "Look:"), ToolCallBegun("m1", call()))
    assert show(conversation) == (["Look:"], ["", "… bash"])
    conversation.tell(ToolCallFinished("m1", call(input='{"command":"ls -l"}')))
    assert show(conversation) == ([], ["", "… bash ls -l"])
    conversation.tell(answer("one\ntwo"))
    assert show(conversation) == (["", "✓ bash ls -l", "  one", "  two"], [])


def test_calls_side_by_side_end_in_their_own_order_and_stand_together():
    conversation = told(
        ToolCallFinished("m1", call("ls", '{"path":"a"}', "c1")),
        ToolCallFinished("m1", call("ls", '{"path":"b"}', "c2")),
        answer("x", call_id="c2"),
    )
    assert show(conversation) == (["✓ ls b", "  x"], ["", "… ls a"])
    conversation.tell(answer("no", call_id="c1", is_error=True))
    assert show(conversation) == (["✗ ls a", "  no"], [])


def test_a_long_result_is_cut_and_a_change_is_shown_as_what_it_changed():
    long = told(answer("\n".join(map(str, range(20)))))
    assert show(long)[0] == ["✓ bash", "  0", "  1", "  2", "  3", "  … 16 more lines"]
    diff = "--- a/x\\n+++ b/x\\n@@ -1 +1 @@\\n-old\\n+new\\n"
    changed = told(answer("done", metadata=f'{{"diff":"{diff}"}}'))
    assert show(changed)[0] == ["✓ bash", "  @@ -1 +1 @@", "  -old", "  +new"]


def test_what_a_tool_prints_is_not_obeyed():
    conversation = told(answer("\x1b]0;owned\x07"))
    assert show(conversation)[0] == ["✓ bash", "  ␛]0;owned␇"]


def test_of_a_thought_the_end_is_shown_and_then_how_much_it_was():
    conversation = told(ReasoningPiece("m1", "word " * 100))
    done, live = show(conversation, width=20)
    assert done == []
    assert len(live) == 3
    conversation.tell(TextPiece("m1", "So."))
    assert show(conversation) == (["(reasoning, 100 words)"], ["", "So."])


def test_what_was_not_let_go_of_a_message_that_begins_again_is_forgotten():
    conversation = told(TextPiece("m1", "wrong"), MessageRestarted("m1"), TextPiece("m1", "right"))
    assert show(conversation) == ([], ["right"])


def test_what_was_let_go_of_a_message_that_begins_again_is_taken_back_in_words():
    conversation = told(TextPiece("m1", "wrong\n\nmore\n"))
    assert show(conversation)[0] == ["wrong"]
    conversation.tell(MessageRestarted("m1"))
    conversation.tell(TextPiece("m1", "right"))
    done, live = show(conversation)
    assert done == ["", "(the model failed; it is called again)"]
    assert live == ["", "right"]


def test_a_failure_is_told_with_its_reason():
    conversation = told(
        TextPiece("m1", "so f"),
        finish(FinishReason.ERROR, message="Overloaded", details="try later"),
    )
    assert show(conversation)[0] == ["so f", "", "✗ Overloaded", "try later"]
    assert drawn(failure("")) == ["✗ failed"]


def test_a_run_that_ended_leaves_no_call_behind():
    conversation = told(ToolCallBegun("m1", call()))
    assert conversation.calling
    conversation.give_up()
    assert show(conversation) == ([], [])


def test_the_rest_is_never_higher_than_its_room():
    conversation = told(
        TextPiece("m1", "word " * 200),
        *(ToolCallBegun("m1", call(call_id=f"c{n}")) for n in range(9)),
    )
    conversation.tell(TextPiece("m2", "word " * 200))
    for room in (0, 1, 3, 8):
        assert len(show(conversation, room)[1]) <= room


def test_at_the_end_everything_is_let_go():
    conversation = told(TextPiece("m1", "to be"), ToolCallBegun("m1", call()))
    conversation.note("noted")
    assert conversation.finish(renderer().lines, 60) == ("to be", "", "noted")
