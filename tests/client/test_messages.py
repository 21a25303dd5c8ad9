"""`GrowingMessage`: what the stream says of a message is what its author wrote, at every moment."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.client.attachment import FRAME_MOST
from crush_trio.client.http import StreamBroken
from crush_trio.client.messages import GrowingMessage
from crush_trio.net.sse import SseDecoder
from crush_trio.testing.server.client import Replica
from crush_trio.testing.server.client import ReplicaMismatch as Refused
from crush_trio.wire.codec import encode, structure
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import (
    FinishPart,
    FinishReason,
    Message,
    ReasoningPart,
    Role,
    TextPart,
)
from tests.client.native_streams import STEPS, play, stream_of, written


def message(*parts):
    return GrowingMessage(
        Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=SessionId("s"), parts=parts)
    )


def delta(*changes):
    return {"id": "m", "session_id": "s", "updated_at": 7, "changes": list(changes)}


def text_part(text):
    return {"type": "text", "data": {"text": text}}


# ── Deltas ──────────────────────────────────────────────────────────────────────────────────────


def test_text_grows_at_its_end_and_counts_in_bytes():
    growing = message(TextPart(text="Grüß"))
    view = growing.apply(delta({"index": 0, "offset": 6, "append": " Gott"}))
    assert view.message().parts == (TextPart(text="Grüß Gott"),)
    assert view.head.updated_at == 7


def test_a_part_at_the_end_is_new_and_one_before_it_is_replaced():
    growing = message(TextPart(text="a"))
    growing.apply(delta({"index": 1, "part": text_part("b")}))
    view = growing.apply(delta({"index": 0, "part": text_part("c")}))
    assert view.message().parts == (TextPart(text="c"), TextPart(text="b"))


def test_reasoning_grows_and_is_closed_in_one_change():
    growing = message(ReasoningPart(thinking="hm", started_at=5))
    closed = {"type": "reasoning", "data": {"thinking": "", "signature": "s", "finished_at": 9}}
    view = growing.apply(delta({"index": 0, "offset": 2, "append": "m", "part": closed}))
    assert view.message().parts == (ReasoningPart(thinking="hmm", signature="s", finished_at=9),)


def test_parts_disappear_from_the_end():
    growing = message(TextPart(text="a"), TextPart(text="b"))
    assert growing.apply(delta({"length": 1})).message().parts == (TextPart(text="a"),)


def test_an_earlier_view_keeps_showing_what_was_there():
    growing = message(TextPart(text="a"))
    before = growing.view()
    growing.apply(delta({"index": 0, "offset": 1, "append": "b"}))
    growing.apply(delta({"length": 0}, {"index": 0, "part": text_part("other")}))
    assert before.message().parts == (TextPart(text="a"),)


def test_a_view_costs_as_much_as_what_is_new_and_not_as_the_whole():
    """The pieces of a text are shared by all views of it; none of them has a copy."""
    growing = message(TextPart(text="a" * 1000))
    views = [
        growing.apply(delta({"index": 0, "offset": 1000 + n, "append": "b"})) for n in range(100)
    ]
    assert len({id(view.parts[0].growth.pieces) for view in views}) == 1
    assert [view.parts[0].count for view in views] == list(range(2, 102))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"index": 0, "offset": 1, "append": "x"}, "has 2 bytes, and the delta begins at 1"),
        ({"index": 1, "offset": 0, "append": "x"}, "part 1 of m does not grow"),
        ({"index": 2, "part": {"type": "text", "data": {"text": ""}}}, "part 2 of m, which has 1"),
        ({"index": -1, "part": {"type": "text", "data": {"text": ""}}}, "part -1 of m"),
        ({"length": 2}, "part 2 of m, which has 1"),
        ({"index": 0, "part": {"type": "weather", "data": {}}}, "unknown part type"),
        ({"offset": 0}, "KeyError"),
        ({"index": 0, "offset": 2, "append": 7}, "a delta of m"),
        ({"index": "0", "part": {}}, "a delta of m"),
    ],
)
def test_what_does_not_fit_is_not_guessed_at(change, why):
    with pytest.raises(StreamBroken, match=why):
        message(TextPart(text="ab")).apply(delta(change))


def test_a_part_that_does_not_grow_is_not_made_to():
    growing = message(FinishPart(reason=FinishReason.STOP, time=1))
    with pytest.raises(StreamBroken, match="does not grow"):
        growing.apply(delta({"index": 0, "offset": 0, "append": "x"}))


# ── Against the author, and against the reference ───────────────────────────────────────────────


def rebuilt(stream, name="m"):
    """Return the message after each frame that was about it."""
    growing, states = None, []
    for frame in SseDecoder(FRAME_MOST).feed(stream):
        if frame.name == "message":
            growing = GrowingMessage(structure(orjson.loads(frame.data)["payload"], Message))
        elif frame.name == "message_delta":
            growing.apply(orjson.loads(frame.data))
        else:
            continue
        states.append(growing.view())
    return states


@given(st.lists(STEPS, max_size=15))
def test_every_state_is_what_the_author_had_written_by_then(steps):
    log, author = written([], finish=False)
    expected = [author.growing.view().json()]
    for step in steps:
        play(author, step)
        expected.append(author.growing.view().json())
    views = rebuilt(stream_of(log))
    assert [orjson.loads(encode(view.message())) for view in views] == [
        orjson.loads(state) for state in expected
    ]


@given(st.lists(STEPS, max_size=15))
def test_the_result_is_that_of_the_reference_client(steps):
    stream = stream_of(written(steps)[0])
    replica = Replica()
    replica.feed(stream)
    view = rebuilt(stream)[-1]
    assert orjson.loads(encode(view.message())) == replica.messages["m"]
    assert view.finished


@given(st.lists(STEPS, min_size=2, max_size=10), st.data())
def test_a_stream_with_a_frame_missing_is_refused_where_the_reference_refuses_it(steps, data):
    frames = stream_of(written(steps, finish=False)[0]).split(b"\n\n")[2:-1]
    missing = data.draw(st.integers(0, len(frames) - 1))
    kept = stream_of(written([], finish=False)[0]) + b"".join(
        frame + b"\n\n" for place, frame in enumerate(frames) if place != missing
    )
    replica, refused = Replica(), False
    try:
        replica.feed(kept)
    except Refused:
        refused = True
    if refused:
        with pytest.raises(StreamBroken):
            rebuilt(kept)
    else:
        assert orjson.loads(encode(rebuilt(kept)[-1].message())) == replica.messages["m"]
