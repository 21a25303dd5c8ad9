"""From one view of a message to the next: the changes are few, small, and lead there exactly."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.agent.record.message import changes_between
from crush_trio.agent.record.transcript import PACE
from crush_trio.events.growing_message import GrowingMessage
from crush_trio.store.changes import (
    MessageCreated,
    MessageFinished,
    PartPut,
    PartsCut,
    TextAppended,
)
from crush_trio.store.memory.apply import apply
from crush_trio.store.memory.tables import BootRow, Tables
from crush_trio.wire.messages import ImageUrlPart, ReasoningPart, TextPart
from tests.agent.durable import END, assistant, open_desk, parts_of, told
from tests.store.stores import M, call, session, text

AT = 200


class Growing:
    """A message that grows, and the changes since it was last asked."""

    def __init__(self, *parts):
        self.message = GrowingMessage(assistant("m", *parts))
        self.seen = self.message.view()

    def changes(self):
        before, self.seen = self.seen, self.message.view(AT)
        return changes_between(before, self.seen, AT)


def put(index, part):
    return PartPut(message_id=M, index=index, part=part, at=AT)


def appended(index, content):
    return TextAppended(message_id=M, index=index, text=content, at=AT)


def test_nothing_new_is_no_change():
    growing = Growing(text("hello"), call())
    assert growing.changes() == []


def test_a_new_part_is_put_empty_and_grows():
    growing = Growing()
    growing.message.append_text("hel")
    growing.message.append_text("lo")
    assert growing.changes() == [put(0, text("")), appended(0, "hello")]
    growing.message.append_text(" world")
    assert growing.changes() == [appended(0, " world")]


def test_the_end_of_reasoning_is_told_without_the_reasoning():
    growing = Growing()
    growing.message.append_reasoning("a long thought", started_at=1)
    growing.changes()
    growing.message.append_reasoning("!")
    growing.message.close_reasoning(finished_at=2, signature="signed")
    blank = ReasoningPart(thinking="", signature="signed", started_at=1, finished_at=2)
    assert growing.changes() == [put(0, blank), appended(0, "!")]


def test_a_tool_call_replaces_itself_in_its_place():
    growing = Growing()
    growing.message.append_text("hm")
    growing.message.put(call())
    growing.changes()
    done = call(input="{}", finished=True)
    growing.message.put(done)
    assert growing.changes() == [put(1, done)]


def test_a_finish_is_put_last_and_says_that_the_message_is_finished():
    growing = Growing()
    growing.message.append_text("hm")
    growing.changes()
    growing.message.put(END)
    assert growing.changes() == [put(1, END), MessageFinished(message_id=M, at=AT)]
    growing.message.put(call())
    assert growing.changes() == [put(1, call()), put(2, END)]


def test_a_reset_cuts_and_what_is_said_anew_is_not_added_to_the_old():
    picture = ImageUrlPart(url="here")
    growing = Growing(picture)
    growing.message.append_text("wrong")
    growing.message.put(call())
    growing.changes()
    growing.message.reset()
    growing.message.append_text("right")
    assert growing.changes() == [
        PartsCut(message_id=M, length=1, at=AT),
        put(1, text("")),
        appended(1, "right"),
    ]


# ── Any growth at all ───────────────────────────────────────────────────────────────────────────

words = st.text(max_size=4)
steps = st.one_of(
    st.tuples(st.just("append_text"), words),
    st.tuples(st.just("append_reasoning"), words),
    st.tuples(st.just("close_reasoning"), words),
    st.tuples(st.just("put"), st.builds(call, st.sampled_from("abc"), finished=st.booleans())),
    st.tuples(st.just("reset")),
    st.tuples(st.just("look")),
)


def perform(growing, name, *arguments):
    match name, arguments:
        case "append_reasoning", (delta,):
            growing.append_reasoning(delta, started_at=7)
        case "close_reasoning", (signature,):
            growing.close_reasoning(finished_at=8, signature=signature)
        case _:
            getattr(growing, name)(*arguments)


@pytest.mark.heavy
@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=20))
def test_the_stored_message_follows_whatever_the_message_does(script):
    tables = Tables(boots={"b": BootRow()})
    growing = Growing(ImageUrlPart(url="here"))
    apply(tables, session(), "b")
    apply(tables, MessageCreated(message=growing.message.view().message()), "b")
    for step in [*script, ("look",), ("append_text", "!"), ("put", END), ("look",)]:
        if step == ("look",):
            for change in growing.changes():
                apply(tables, change, "b")
            stored = tables.message(M).stored()
            assert told(stored.message) == told(growing.message.view().message())
        else:
            perform(growing.message, *step)
    assert stored.finished


# ── What it costs ───────────────────────────────────────────────────────────────────────────────


async def test_a_thousand_pieces_are_written_once_each():
    pieces = [f"piece {n} " for n in range(1000)]
    async with open_desk() as desk:
        opened = await desk.create()
        for piece in pieces:
            opened.append_text(piece)
            await trio.sleep(PACE / 3)
        await opened.finish(END)
        written = [change.text for change in desk.store.committed(TextAppended)]
        assert "".join(written) == "".join(pieces)
        assert 300 < len(written) < 400
        assert [part.part for part in desk.store.committed(PartPut)] == [text(""), END]
        assert parts_of(await desk.stored(), TextPart) == [text("".join(pieces))]
