"""Messages that grow: views that stay what they were, deltas that rebuild the message exactly."""

import json
from itertools import pairwise

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crush_trio.events import GrowingMessage
from crush_trio.testing.server.client import apply_change
from crush_trio.wire.codec import encode
from crush_trio.wire.ids import MessageId, SessionId, ToolCallId
from crush_trio.wire.messages import (
    BinaryPart,
    FinishPart,
    FinishReason,
    Message,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

same_every_time = settings(derandomize=True, deadline=None)

FINISH = FinishPart(reason=FinishReason.END_TURN, time=9)
FILE = BinaryPart(path="a.png", mime_type="image/png", data=b"\x00\xff")
DIFFICULT = ['"', "\\", "\n", "\x00", "\x1f", "\x7f", "é", "\u2028", "😀", "\ud83d", "\ude00", "</"]


def growing(*parts):
    return GrowingMessage(
        Message(
            id=MessageId("m"), role=Role.ASSISTANT, session_id=SessionId("s"), parts=tuple(parts)
        )
    )


def call(name, text="{}", *, finished=False):
    return ToolCallPart(id=ToolCallId(name), name="bash", input=text, finished=finished)


def delta(earlier, later):
    return orjson.loads(later.since(earlier))


def changes(earlier, later):
    return delta(earlier, later)["changes"]


def rebuilt(parts, later, earlier):
    """Apply a delta as a client would."""
    for change in changes(earlier, later):
        apply_change(parts, change)
    return parts


# ── Views ──────────────────────────────────────────────────────────────────────────────────────


def test_a_view_keeps_showing_what_the_message_was():
    message = growing()
    message.append_text("one")
    message.append_reasoning("hm")
    earlier = message.view()
    before = earlier.json()
    message.append_text(" two")
    message.close_reasoning(finished_at=5, signature="signed")
    message.put(call("c"))
    message.put(FINISH)
    assert earlier.json() == before
    assert earlier.message().parts == (TextPart(text="one"), ReasoningPart(thinking="hm"))
    assert not earlier.finished
    assert message.view().finished


def test_a_view_is_stamped_with_the_time_it_is_given_and_keeps_it():
    message = growing()
    assert message.view(updated_at=7).head.updated_at == 7
    assert message.view().head.updated_at == 7
    assert message.view(updated_at=8).message().updated_at == 8


def test_parts_that_did_not_change_are_the_same_objects_in_the_next_view():
    message = growing(FILE)
    message.append_reasoning("hm")
    message.append_text("a")
    earlier = message.view()
    message.append_text("b")
    later = message.view()
    assert later.parts[:2] == earlier.parts[:2]
    assert later.parts[2] is not earlier.parts[2]


def test_the_json_of_a_view_is_the_json_of_its_message():
    message = growing(FILE, TextPart(text="a"))
    for piece in DIFFICULT:
        message.append_text(piece)
        message.append_reasoning(piece)
    message.put(call("c", '{"a": "\\u0000"}'))
    message.put(FINISH)
    view = message.view()
    assert view.json() == encode(view.message())


# ── Rules of a message ─────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D3")
def test_there_is_one_text_and_one_reasoning_and_deltas_go_to_them():
    message = growing()
    message.append_reasoning("a", started_at=3)
    message.append_text("x")
    message.append_reasoning("b", started_at=99)
    message.append_text("y")
    assert message.view().message().parts == (
        ReasoningPart(thinking="ab", started_at=3),
        TextPart(text="xy"),
    )


@pytest.mark.item("D2")
def test_a_finish_is_always_last_and_there_is_one():
    message = growing()
    message.put(FinishPart(reason=FinishReason.ERROR, time=1))
    message.put(call("c"))
    message.append_text("late")
    message.put(FINISH)
    parts = message.view().message().parts
    assert parts == (call("c"), TextPart(text="late"), FINISH)


def test_a_message_does_not_begin_with_a_newline():
    message = growing()
    message.append_text("\n")
    message.append_text("\nHello")
    message.append_text("\n")
    assert message.view().message().parts == (TextPart(text="Hello\n"),)


def test_a_tool_call_takes_the_place_of_its_earlier_self():
    message = growing()
    message.put(call("a", ""))
    message.put(call("b", ""))
    message.put(call("a", '{"x":1}', finished=True))
    assert message.tool_calls() == (call("a", '{"x":1}', finished=True), call("b", ""))


def test_reasoning_is_closed_once():
    message = growing()
    assert message.close_reasoning(finished_at=1) is False
    message.append_reasoning("hm", started_at=1)
    assert message.close_reasoning(finished_at=5, signature="sig") is True
    assert message.close_reasoning(finished_at=9) is False
    (part,) = message.view().message().parts
    assert part == ReasoningPart(thinking="hm", signature="sig", started_at=1, finished_at=5)


@pytest.mark.item("D14a")
def test_a_reset_forgets_what_the_model_streamed_and_keeps_the_rest():
    message = growing(FILE)
    message.append_reasoning("hm")
    message.append_text("wrong")
    message.put(call("c"))
    message.put(FINISH)
    message.reset()
    message.append_text("right")
    assert message.view().message().parts == (FILE, TextPart(text="right"))


# ── Deltas ─────────────────────────────────────────────────────────────────────────────────────


def test_a_delta_carries_what_was_appended_and_where():
    message = growing()
    message.append_text("Hello")
    earlier = message.view(updated_at=1)
    message.append_text(", world")
    assert delta(earlier, message.view(updated_at=2)) == {
        "id": "m",
        "session_id": "s",
        "updated_at": 2,
        "changes": [{"index": 0, "offset": 5, "append": ", world"}],
    }


def test_a_delta_is_as_long_as_what_was_appended_however_long_the_message_is():
    message = growing()
    message.append_text("x" * 100_000)
    earlier = message.view()
    message.append_text("y")
    assert len(message.view().since(earlier)) < 200


@pytest.mark.parametrize(
    ("before", "offset"),
    [("é", 2), ("😀", 4), ('"\\\n', 3), ("\ud83d", 3), ("\ud83d\ude00", 4), ("a\u2028b", 5)],
)
def test_an_offset_counts_the_utf8_bytes_of_the_text_itself(before, offset):
    message = growing()
    message.append_text("x")
    message.append_text(before)
    earlier = message.view()
    message.append_text("after")
    assert changes(earlier, message.view()) == [
        {"index": 0, "offset": 1 + offset, "append": "after"}
    ]


def test_halves_of_a_surrogate_pair_in_different_pieces_are_replaced_and_counted_so():
    message = growing()
    views = [message.view()]
    for piece in ("a", "\ud83d", "\ude00", "z"):
        message.append_text(piece)
        views.append(message.view())
    parts = []
    for earlier, later in pairwise(views):
        rebuilt(parts, later, earlier)
    assert parts == [{"type": "text", "data": {"text": "a\ufffd\ufffdz"}}]


def test_closing_the_reasoning_is_a_delta_that_repeats_no_text():
    message = growing()
    message.append_reasoning("a long thought", started_at=1)
    earlier = message.view()
    message.close_reasoning(finished_at=5, signature="sig")
    (change,) = changes(earlier, message.view())
    assert change.pop("part")["data"] == {
        "thinking": "",
        "signature": "sig",
        "started_at": 1,
        "finished_at": 5,
    }
    assert change == {"index": 0, "offset": 14, "append": ""}


def test_a_reset_is_a_delta_that_shortens_the_message():
    message = growing(FILE)
    message.append_text("wrong")
    message.put(call("c"))
    earlier = message.view()
    message.reset()
    assert changes(earlier, message.view()) == [{"length": 1}]


def test_text_after_a_reset_replaces_the_old_text_and_is_not_appended_to_it():
    message = growing()
    message.append_text("wrong")
    earlier = message.view()
    message.reset()
    message.append_text("right")
    assert changes(earlier, message.view()) == [
        {"index": 0, "part": {"type": "text", "data": {"text": "right"}}}
    ]


def test_nothing_new_is_a_delta_without_changes():
    message = growing(FILE, TextPart(text="a"))
    assert changes(message.view(), message.view()) == []


TEXTS = (
    st.text(max_size=6)
    | st.sampled_from(DIFFICULT)
    | st.lists(st.sampled_from(DIFFICULT), max_size=4).map("".join)
)
OPERATIONS = st.one_of(
    TEXTS.map(lambda text: ("append_text", (text,), {})),
    TEXTS.map(lambda text: ("append_reasoning", (text,), {"started_at": 3})),
    TEXTS.map(lambda text: ("close_reasoning", (), {"finished_at": 5, "signature": text})),
    st.builds(call, st.sampled_from("abc"), TEXTS).map(lambda part: ("put", (part,), {})),
    st.sampled_from([FINISH, FILE, TextPart(text="p"), ReasoningPart(thinking="q")]).map(
        lambda part: ("put", (part,), {})
    ),
    TEXTS.map(
        lambda text: (
            "put",
            (ToolResultPart(tool_call_id=ToolCallId("a"), name="n", content=text),),
            {},
        )
    ),
    st.just(("reset", (), {})),
)


@pytest.mark.heavy
@settings(same_every_time, max_examples=200)
@given(steps=st.lists(st.tuples(OPERATIONS, st.booleans()), max_size=25))
@example(steps=[(("append_text", ("\ud83d",), {}), True), (("append_text", ("\ude00",), {}), True)])
def test_deltas_rebuild_the_message_whatever_happens_to_it(steps):
    message = growing()
    parts, seen, taken = [], message.view(), []
    for (name, args, kwargs), look in steps:
        getattr(message, name)(*args, **kwargs)
        if look:
            view = message.view()
            rebuilt(parts, view, seen)
            assert parts == json.loads(view.json())["parts"]
            assert view.json() == encode(view.message())
            taken.append((view, view.json()))
            seen = view
    for view, then in taken:
        assert view.json() == then
