"""The ledger of the soak notices each broken promise, and none that was kept."""

import pytest

from benchmarks.soak.ledger import (
    CANCEL_LIMIT,
    IN_FLIGHT,
    Ledger,
    Prompt,
    Violation,
    check_sequence,
    tags_of,
)


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
def talk(ledger):
    return ledger.talk("s1", 0, ordered=True)


def sent(ledger, talk, tag, at, verdict="accepted", **more):
    """Enter a prompt that was sent at *at* and answered a second later."""
    prompt = Prompt(tag, talk, [f"{more.pop('words', 'say 1')} #{tag}"], True, at, **more)
    stop = ledger.send(prompt)
    ledger.settle(prompt, verdict, at + 1, stop)
    return prompt


def cancel(ledger, talk, at):
    """Enter a cancel of the session that was sent at *at* and answered a second later."""
    stop = ledger.stop(talk, "cancel", at)
    ledger.stopped(stop, talk.prompts, at + 1)
    return stop


def test_the_tag_of_a_prompt_is_found_in_what_a_model_is_sent():
    assert tags_of("say 3 #w0-1") == ["w0-1"]
    assert tags_of("nothing") == []


def test_a_run_that_is_asked_about_and_ends_breaks_nothing(ledger, talk):
    sent(ledger, talk, "a", 0)
    ledger.ask(["a"], [], 2)
    ledger.end("a", "completed", 3)
    ledger.end("a", "completed", 4)  # another reader
    ledger.check_due(1000)
    assert ledger.unsettled() == []


def test_two_different_endings_are_noticed(ledger, talk):
    sent(ledger, talk, "a", 0)
    ledger.ask(["a"], [], 2)
    ledger.end("a", "completed", 3)
    with pytest.raises(Violation, match="as completed and as interrupted"):
        ledger.end("a", "interrupted", 4)


def test_a_withdrawn_prompt_in_a_later_request_is_noticed(ledger, talk):
    gone = sent(ledger, talk, "a", 0)
    sent(ledger, talk, "b", 1)
    ledger.withdrawn(gone, "it was removed from the queue")
    with pytest.raises(Violation, match="a is in a model request: it was removed"):
        ledger.ask(["b"], ["a"], 3)


def test_a_prompt_that_a_model_saw_before_it_was_withdrawn_is_noticed(ledger, talk):
    prompt = sent(ledger, talk, "a", 0)
    ledger.ask(["a"], [], 2)
    with pytest.raises(Violation, match="it was removed"):
        ledger.withdrawn(prompt, "it was removed")


def test_a_refused_prompt_that_runs_is_noticed(ledger, talk):
    sent(ledger, talk, "a", 0, "acceptance_not_stored")
    with pytest.raises(Violation, match="acceptance_not_stored"):
        ledger.ask(["a"], [], 2)
    with pytest.raises(Violation, match="was refused"):
        ledger.end("a", "completed", 3)


def test_a_cancelled_run_is_not_asked_about_any_more(ledger, talk):
    sent(ledger, talk, "a", 0)
    cancel(ledger, talk, 2)
    ledger.ask(["a"], [], 3 + IN_FLIGHT)  # it may have been on its way
    with pytest.raises(Violation, match="after its cancel"):
        ledger.ask(["a"], [], 4 + IN_FLIGHT)


def test_a_cancel_that_is_lost_is_noticed(ledger, talk):
    sent(ledger, talk, "a", 0)
    cancel(ledger, talk, 2)
    ledger.check_due(3 + CANCEL_LIMIT)
    with pytest.raises(Violation, match="a was cancelled and did not end"):
        ledger.check_due(4 + CANCEL_LIMIT)


def test_a_prompt_sent_after_a_cancel_was_answered_cannot_be_hit_by_it(ledger, talk):
    cancel(ledger, talk, 0)
    sent(ledger, talk, "a", 2)
    with pytest.raises(Violation, match="cancelled by nothing"):
        ledger.end("a", "cancelled", 4)


def test_a_prompt_sent_during_a_cancel_may_be_hit_by_it_or_not(ledger, talk):
    cancel(ledger, talk, 0)
    sent(ledger, talk, "a", 0.5)
    ledger.end("a", "cancelled", 4)


def test_an_interruption_that_was_refused_is_no_reason_for_a_cancel(ledger, talk):
    sent(ledger, talk, "a", 0)
    sent(ledger, talk, "b", 2, "acceptance_not_stored", policy="interrupt")
    with pytest.raises(Violation, match="cancelled by nothing"):
        ledger.end("a", "cancelled", 4)


def test_an_interruption_that_was_accepted_is_one(ledger, talk):
    sent(ledger, talk, "a", 0)
    sent(ledger, talk, "b", 2, policy="interrupt")
    ledger.end("a", "cancelled", 4)


def test_a_run_that_nothing_answered_does_not_complete(ledger, talk):
    sent(ledger, talk, "a", 0, words="hold")
    ledger.ask(["a"], [], 2)
    with pytest.raises(Violation, match="never answered it in full"):
        ledger.end("a", "completed", 3)


def test_a_failure_without_a_fault_of_the_disk_is_noticed(ledger, talk):
    sent(ledger, talk, "a", 0)
    with pytest.raises(Violation, match="nothing was wrong with the disk"):
        ledger.end("a", "errored", 3)


def test_an_order_that_is_not_that_of_acceptance_is_noticed(ledger, talk):
    first = sent(ledger, talk, "a", 0)
    beside = sent(ledger, talk, "b", 0.5)
    last = sent(ledger, talk, "c", 2)
    check_sequence("the queue", [first, beside, last])
    check_sequence("the queue", [beside, first, last])  # both were on their way at the same time
    with pytest.raises(Violation, match="c before b"):
        check_sequence("the queue", [first, last, beside])
