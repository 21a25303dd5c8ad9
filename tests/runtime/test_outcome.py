"""Submissions, and the ways in which a run can end."""

import pytest

from crush_trio.errors import PromptEmpty, SessionMissing
from crush_trio.events.facts import agent_error
from crush_trio.runtime import Completion, Outcome, Submission
from crush_trio.runtime.outcome import INTERRUPTED_BY_RESTART, NOTHING_YET
from crush_trio.testing.server.turns import prompt
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunKind, RunState

SAID = Completion(message_id=MessageId("m"), text="so far")
NOTICE = agent_error(SessionId("s"), None, "for instance")


def attachment(mime_type: str) -> Attachment:
    return Attachment(file_path="/a", file_name="a", mime_type=mime_type, content=b"a")


@pytest.mark.item("A1")
@pytest.mark.parametrize("mime_type", ["text/plain", "text/markdown; charset=utf-8"])
def test_a_text_attachment_is_a_prompt(mime_type):
    prompt("", attachments=(attachment("image/png"), attachment(mime_type))).check()


@pytest.mark.item("A1")
@pytest.mark.parametrize("attachments", [(), (attachment("image/png"),), (attachment("x-text/a"),)])
def test_nothing_readable_is_no_prompt(attachments):
    with pytest.raises(PromptEmpty):
        prompt("", attachments=attachments).check()


@pytest.mark.item("A1")
def test_the_prompt_is_checked_before_the_session():
    with pytest.raises(SessionMissing):
        prompt("hello", session="").check()
    with pytest.raises(PromptEmpty):
        prompt("", session="").check()


def test_a_summary_needs_a_session_but_no_prompt():
    Submission(session_id=SessionId("s"), kind=RunKind.SUMMARIZE).check()
    with pytest.raises(SessionMissing):
        Submission(session_id=SessionId(""), kind=RunKind.SUMMARIZE).check()


@pytest.mark.item("C2")
def test_only_a_prompt_that_nobody_waits_for_may_be_folded():
    assert prompt("hello").foldable
    assert not prompt("hello", run_id="mine").foldable
    assert not prompt("hello", kind=RunKind.SUMMARIZE).foldable


def test_a_completion_keeps_its_answer_and_its_notices():
    done = Completion(message_id=MessageId("m"), text="all", notices=(NOTICE,))
    outcome = Outcome.completed(done)
    assert outcome.state is RunState.COMPLETED
    assert (outcome.message_id, outcome.text, outcome.error) == ("m", "all", "")
    assert outcome.notices == (NOTICE,)


@pytest.mark.item("B4")
def test_a_run_cancelled_before_it_began_has_nothing_to_show():
    assert Outcome.cancelled() == Outcome(state=RunState.CANCELLED)


@pytest.mark.item("B3")
def test_a_run_cancelled_half_way_keeps_what_it_had_said():
    outcome = Outcome.cancelled("run cancelled", SAID)
    assert outcome.state is RunState.CANCELLED
    assert (outcome.message_id, outcome.text, outcome.error) == ("m", "so far", "run cancelled")


@pytest.mark.item("B5")
def test_a_failed_run_keeps_what_it_had_said():
    outcome = Outcome.errored("boom", SAID)
    assert outcome.state is RunState.ERRORED
    assert (outcome.message_id, outcome.text, outcome.error) == ("m", "so far", "boom")


def test_a_failure_without_words_still_has_an_error():
    assert Outcome.errored("").error == "unknown error"


def test_a_folded_run_names_the_run_that_took_it_in():
    outcome = Outcome.folded(RunId("host"))
    assert (outcome.state, outcome.folded_into) == (RunState.FOLDED, "host")


def test_an_interrupted_run_says_what_interrupted_it():
    outcome = Outcome.interrupted()
    assert (outcome.state, outcome.error) == (RunState.INTERRUPTED, INTERRUPTED_BY_RESTART)


@pytest.mark.parametrize("state", [s for s in RunState if not s.terminal])
def test_a_state_that_is_no_ending_makes_no_outcome(state):
    with pytest.raises(ValueError, match="is not an ending"):
        Outcome(state=state)


def test_a_turn_that_says_nothing_completes_with_nothing():
    assert Outcome.completed(NOTHING_YET) == Outcome(state=RunState.COMPLETED)
