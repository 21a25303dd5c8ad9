"""`TranscriptJournal`: what it stores, what it tells readers, and what it will not let pass."""

import pytest
import trio

from crush_trio.clock import TrioClock
from crush_trio.events import EventLog, MessageChange
from crush_trio.runtime import AcceptedRun, Completion, Lane, Outcome
from crush_trio.testing.server.turns import TranscriptJournal, prompt
from crush_trio.wire.codec import USER_CANCELLED
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, RunId
from crush_trio.wire.messages import FinishPart, FinishReason, Role, TextPart
from crush_trio.wire.runs import RunState, RunView

ANSWERED = Completion(message_id=MessageId("answer"), text="so far")


def bare_run(name: str = "a", session: str = "s") -> AcceptedRun:
    """Return a token that no workspace knows."""
    submission = prompt(f"prompt of {name}", session)
    view = RunView(id=RunId(name), session_id=submission.session_id, state=RunState.ACCEPTED)
    return AcceptedRun(view, submission, Lane(), lambda _run: None, lambda _run: None)


def new_journal():
    return TranscriptJournal(EventLog("boot"), TrioClock())


def stored(journal, session="s"):
    return [message.id for message in journal.messages.get(session, [])]


async def test_the_rows_follow_a_run_from_acceptance_to_its_ending():
    journal, run = new_journal(), bare_run()
    journal.accept(run, begins=False)
    assert journal.rows == {"a": RunState.ACCEPTED}
    run.move(RunState.ACTIVE)
    journal.begin(run)
    assert journal.rows == {"a": RunState.ACTIVE}
    outcome = Outcome.completed(ANSWERED)
    journal.end(run, outcome)
    assert journal.rows == {"a": RunState.COMPLETED}
    assert journal.endings == {"a": outcome}


async def test_a_retracted_acceptance_leaves_no_row_and_no_message():
    journal, run = new_journal(), bare_run()
    journal.retract(run)
    journal.accept(run, begins=True)
    assert stored(journal) == ["prompt-a"]
    journal.retract(run)
    assert (journal.rows, stored(journal)) == ({}, [])


async def test_a_prompt_is_stored_as_a_finished_message_of_the_user_and_then_told_to_readers():
    journal = new_journal()
    reader = journal.events.cursor()
    await trio.sleep(100)
    entry = journal.begin(bare_run())
    (message,) = journal.messages["s"]
    assert (message.id, message.role, message.session_id) == ("prompt-a", Role.USER, "s")
    assert message.parts[0] == TextPart(text="prompt of a")
    assert isinstance(message.parts[-1], FinishPart)
    assert message.created_at == message.updated_at == journal.clock.unix()
    assert reader.take().events == ()
    entry.tell()
    (event,) = reader.take().events
    assert isinstance(event, MessageChange)
    assert (event.change, event.message) == (EventType.CREATED, message)


async def test_sessions_are_kept_apart_and_in_order():
    journal = new_journal()
    for name, session in (("a", "s"), ("b", "t"), ("c", "s")):
        journal.begin(bare_run(name, session))
    assert (stored(journal, "s"), stored(journal, "t")) == (["prompt-a", "prompt-c"], ["prompt-b"])


async def test_withdrawn_runs_are_ended_unless_they_were_refused():
    journal = new_journal()
    runs = [bare_run("a"), bare_run("b")]
    journal.accept(runs[0], begins=False)
    journal.withdraw(runs)
    assert journal.rows == {"a": RunState.CANCELLED}
    assert stored(journal) == ["prompt-a", "cancelled-a"]


@pytest.mark.item("A21", "D20")
@pytest.mark.parametrize(
    ("outcome", "recorded", "messages"),
    [
        (Outcome.cancelled(), False, ["prompt-a", "cancelled-a"]),
        (Outcome.cancelled(), True, ["prompt-a", "cancelled-a"]),
        (Outcome.cancelled("stopped", ANSWERED), True, ["prompt-a"]),
        (Outcome.errored("boom"), False, ["prompt-a"]),
        (Outcome.completed(ANSWERED), True, ["prompt-a"]),
        (Outcome.folded(RunId("b")), True, ["prompt-a"]),
    ],
    ids=["early", "before it spoke", "half-way", "errored", "completed", "folded"],
)
async def test_an_ending_writes_what_the_record_of_the_turn_still_lacks(
    outcome, recorded, messages
):
    journal, run = new_journal(), bare_run()
    reader = journal.events.cursor()
    if recorded:
        journal.begin(run)
    journal.end(run, outcome).tell()
    assert stored(journal) == messages
    assert [event.message_id for event in reader.take().events] == messages


async def test_the_record_of_a_cancel_says_who_cancelled():
    journal, run = new_journal(), bare_run()
    journal.end(run, Outcome.cancelled())
    record = journal.messages["s"][-1]
    assert record.role is Role.ASSISTANT
    (finish,) = record.parts
    assert (finish.reason, finish.message) == (FinishReason.CANCELLED, USER_CANCELLED)


async def test_a_second_ending_of_a_run_is_an_assertion_and_changes_nothing():
    journal, run = new_journal(), bare_run()
    journal.end(run, Outcome.cancelled())
    before = stored(journal)
    with pytest.raises(AssertionError, match="a run ends once"):
        journal.end(run, Outcome.completed(ANSWERED))
    assert journal.endings == {"a": Outcome.cancelled()}
    assert journal.rows == {"a": RunState.CANCELLED}
    assert stored(journal) == before
