"""Events as values, and places in the log as text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.events import Fact, GrowingMessage, MessageChange, Position, RunChange
from crush_trio.events.facts import agent_error
from crush_trio.wire.events import AgentEvent, AgentEventType, EventType, PayloadType
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Message, Role, TextPart
from crush_trio.wire.runs import RunState, RunView

same_every_time = settings(derandomize=True, deadline=None)


@same_every_time
@given(boot=st.text(min_size=1), seq=st.integers(0, 10**18 - 1))
def test_a_position_is_read_back_from_what_it_wrote(boot, seq):
    position = Position(boot=boot, seq=seq)
    assert Position.parse(str(position)) == position


@same_every_time
@given(text=st.text() | st.text("-0123456789٣²").map("boot-{}".format))
def test_any_text_at_all_is_a_position_or_none(text):
    position = Position.parse(text)
    if position is not None:
        assert position.boot
        assert Position.parse(str(position)) == position
        assert text.startswith(position.boot + "-")


@pytest.mark.parametrize(
    "text",
    ["", "-", "boot", "boot-", "-5", "boot-x", "boot-+5", "boot- 5", "boot-1.5", "boot-1_0", "b-٣"],
)
def test_what_is_no_position_reads_as_none(text):
    assert Position.parse(text) is None


def test_a_number_too_long_to_be_one_of_ours_is_no_position():
    assert Position.parse("boot-" + "9" * 18) is not None
    assert Position.parse("boot-" + "9" * 19) is None
    assert Position.parse("boot-" + "9" * 100_000) is None


@pytest.mark.parametrize("state", RunState)
def test_a_run_change_is_terminal_exactly_in_the_five_endings(state):
    run = RunView(id=RunId("r"), session_id=SessionId("s"), state=state)
    before_the_end = {RunState.ACCEPTED, RunState.QUEUED, RunState.ACTIVE, RunState.ENDING}
    assert RunChange(run=run).terminal == (state not in before_the_end)


def test_a_message_change_shows_the_message_as_it_was_then():
    growing = GrowingMessage(
        Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=SessionId("s"))
    )
    growing.append_text("one")
    change = MessageChange(change=EventType.UPDATED, view=growing.view(), plain=True)
    growing.append_text(" two")
    assert change.message_id == "m"
    assert change.message.parts == (TextPart(text="one"),)


@pytest.mark.item("B7")
@pytest.mark.parametrize("run_id", [RunId("mine"), None])
def test_an_agent_error_says_whose_and_what(run_id):
    assert agent_error(SessionId("s"), run_id, "no model") == Fact(
        payload_type=PayloadType.AGENT_EVENT,
        change=EventType.CREATED,
        entity=AgentEvent(
            type=AgentEventType.ERROR, error="no model", run_id=run_id, session_id=SessionId("s")
        ),
    )
