"""What is new about a message: nothing twice, nothing left out, whatever the states came from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.client.messages import (
    GrowingMessage,
    MessageFinished,
    MessageRestarted,
    ReasoningPiece,
    TextPiece,
    ToolCallBegun,
    ToolCallFinished,
    ToolResult,
    is_older,
    pieces_between,
)
from crush_trio.wire.ids import MessageId, SessionId, ToolCallId
from crush_trio.wire.messages import (
    FinishPart,
    FinishReason,
    Message,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
)
from tests.client.native_streams import STEPS, play, stream_of, tool_result, written
from tests.client.test_messages import rebuilt


def shown(*parts):
    """Return a view of a message that was read as a whole."""
    head = Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=SessionId("s"), parts=parts)
    return GrowingMessage(head).view()


def said(text):
    return TextPart(text=text)


def call(name="c", **more):
    return ToolCallPart(id=ToolCallId(name), name="bash", **more)


DONE = FinishPart(reason=FinishReason.END_TURN, time=1)


# ── One step ────────────────────────────────────────────────────────────────────────────────────


def test_the_first_view_of_a_message_is_all_new():
    parts = (ReasoningPart(thinking="hm"), said("Hi"), call(finished=True), DONE)
    assert pieces_between(None, shown(*parts)) == (
        ReasoningPiece("m", "hm"),
        TextPiece("m", "Hi"),
        ToolCallBegun("m", parts[2]),
        ToolCallFinished("m", parts[2]),
        MessageFinished("m", DONE),
    )


@pytest.mark.parametrize(
    ("before", "after", "pieces"),
    [
        ([said("Hel")], [said("Hello")], [TextPiece("m", "lo")]),
        ([said("Hi")], [said("Hi")], []),
        ([said("Hi")], [said("Hi"), DONE], [MessageFinished("m", DONE)]),
        (
            [ReasoningPart(thinking="h")],
            [ReasoningPart(thinking="hm", finished_at=3)],
            [ReasoningPiece("m", "m")],
        ),
        ([], [call()], [ToolCallBegun("m", call())]),
        (
            [call()],
            [call(input="{}", finished=True)],
            [ToolCallFinished("m", call(input="{}", finished=True))],
        ),
        ([call()], [call(input="{")], []),
        ([], [tool_result()], [ToolResult("m", tool_result())]),
        ([said("Hi")], [said("Ho")], [MessageRestarted("m"), TextPiece("m", "Ho")]),
        ([said("Hi"), call()], [said("Hi")], [MessageRestarted("m"), TextPiece("m", "Hi")]),
        ([call("a")], [call("b")], [MessageRestarted("m"), ToolCallBegun("m", call("b"))]),
        ([said("Hi")], [call()], [MessageRestarted("m"), ToolCallBegun("m", call())]),
    ],
)
def test_what_leads_from_one_view_to_another(before, after, pieces):
    assert list(pieces_between(shown(*before), shown(*after))) == pieces


@pytest.mark.parametrize(
    ("view", "than", "older"),
    [
        ([said("He")], [said("Hello")], True),
        ([said("Hello")], [said("Hello")], True),
        ([], [said("Hello")], True),
        ([said("Hello!")], [said("Hello")], False),
        ([said("Hx")], [said("Hello")], False),
        ([said("He"), DONE], [said("Hello")], False),
        ([said("He")], [said("Hello"), call()], True),
        ([said("He"), call()], [said("Hello")], False),
        ([call()], [call(finished=True)], True),
        ([call(finished=True)], [call()], False),
        ([call("a")], [call("b")], False),
        ([ReasoningPart(thinking="")], [said("Hello")], False),
    ],
)
def test_a_view_is_older_if_the_other_shows_all_of_it(view, than, older):
    assert is_older(shown(*view), than=shown(*than)) is older


def test_a_message_that_was_begun_anew_is_not_older_than_what_it_was():
    """Views of one source come in order: there a shorter text is another text."""
    log, author = written([("say", "Hello")], finish=False)
    author.restart()
    full, empty = rebuilt(stream_of(log))[-2:]
    assert not is_older(empty, than=full)
    assert pieces_between(full, empty) == (MessageRestarted("m"),)


# ── A printer ───────────────────────────────────────────────────────────────────────────────────


class Printer:
    """Does with pieces what a program does that shows an answer as it comes."""

    def __init__(self):
        self.clear()
        self.seen = None

    def clear(self):
        self.text, self.thought, self.calls, self.finished = "", "", {}, False

    def show(self, view):
        if self.seen is not None and is_older(view, than=self.seen):
            return
        for piece in pieces_between(self.seen, view):
            match piece:
                case TextPiece(text=text):
                    self.text += text
                case ReasoningPiece(text=text):
                    self.thought += text
                case ToolCallBegun(call=begun):
                    assert begun.id not in self.calls
                    self.calls[begun.id] = False
                case ToolCallFinished(call=done):
                    assert self.calls[done.id] is False
                    self.calls[done.id] = True
                case MessageFinished():
                    assert not self.finished
                    self.finished = True
                case MessageRestarted():
                    self.clear()
        self.seen = view

    def matches(self, message):
        texts = [part.text for part in message.parts if isinstance(part, TextPart)]
        thoughts = [part.thinking for part in message.parts if isinstance(part, ReasoningPart)]
        calls = {p.id: p.finished for p in message.parts if isinstance(p, ToolCallPart)}
        finished = any(isinstance(part, FinishPart) for part in message.parts)
        return (self.text, self.thought, self.calls, self.finished) == (
            "".join(texts),
            "".join(thoughts),
            calls,
            finished,
        )


@given(st.lists(STEPS, max_size=15), st.data())
def test_a_printer_that_skips_states_ends_up_with_the_whole_message(steps, data):
    views = rebuilt(stream_of(written(steps)[0]))
    kept = data.draw(st.lists(st.booleans(), min_size=len(views), max_size=len(views)))
    printer = Printer()
    for view, wanted in zip(views, kept, strict=True):
        if wanted or view is views[-1]:
            printer.show(view)
            assert printer.matches(view.message())


@given(st.lists(STEPS, max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_a_printer_that_reads_the_message_anew_in_between_is_told_nothing_twice(steps, ahead, late):
    """It reads the state after *ahead* steps as a whole, and then goes on with older deltas."""
    log, author = written([], finish=False)
    states = [author.growing.view().message()]
    for step in steps:
        play(author, step)
        states.append(author.growing.view().message())
    author.finish()
    views = rebuilt(stream_of(log))
    ahead = min(ahead, len(states) - 1)
    late = min(late, ahead)
    printer = Printer()
    for view in views[:late]:
        printer.show(view)
    printer.show(GrowingMessage(states[ahead]).view())
    for view in views[late:]:
        printer.show(view)
    assert printer.matches(views[-1].message())
