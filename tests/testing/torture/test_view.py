"""What a reader of the torture kit knows after the events of a stream, and what it refuses."""

import json

import pytest

from crush_trio.net.sse import SseEvent
from crush_trio.testing.torture.ledger import Prompt, Stop, Talk, Violation
from crush_trio.testing.torture.view import View, difference


def event(name, data, place=None):
    return SseEvent(name, json.dumps(data).encode(), place)


def message(*parts, role="assistant"):
    return {"id": "m", "role": role, "session_id": "s", "parts": list(parts)}


def text(words):
    return {"type": "text", "data": {"text": words}}


def run(state, **more):
    return event("run", {"id": "r", "run_id": "tag", "state": state, **more}, "b-9")


def test_deltas_are_applied_and_places_kept():
    view = View(native=True)
    assert not view.apply(event("ready", {}, "b-1"))
    view.apply(event("message", {"type": "created", "payload": message()}, "b-2"))
    part = {"index": 0, "part": text("Hel")}
    view.apply(event("message_delta", {"id": "m", "changes": [part]}, "b-3"))
    more = {"index": 0, "offset": 3, "append": "lo"}
    view.apply(event("message_delta", {"id": "m", "changes": [more]}, "b-4"))
    assert view.messages["m"]["parts"] == [text("Hello")]
    assert (view.place, view.heard, len(view.events)) == ("b-4", 3, 3)
    with pytest.raises(Violation, match="does not fit"):
        view.apply(event("message_delta", {"id": "m", "changes": [more]}, "b-5"))


def test_a_run_that_goes_on_after_its_ending_is_refused():
    view = View(native=True)
    view.apply(run("completed"))
    with pytest.raises(Violation, match="tag is active after it had completed"):
        view.apply(run("active"))


def test_endings_of_a_resync_count():
    view = View(native=True)
    ended = {"id": "r", "run_id": "tag", "state": "errored", "error": "boom"}
    view.apply(event("resync", {"ended": [ended], "messages": [message()], "runs": []}, "b-3"))
    assert (view.endings, view.errors, view.resyncs) == ({"tag": "errored"}, {"tag": "boom"}, 1)
    with pytest.raises(Violation, match="ended twice"):
        view.apply(run("errored"))


def test_what_is_not_of_the_wire_is_a_violation():
    with pytest.raises(Violation, match="cannot be read: nonsense"):
        View(native=False).apply(SseEvent("", b"nonsense"))


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ([message(text("a"))], ""),
        ([], "was streamed and is not stored"),
        ([message(text("b"))], "and stored with"),
        ([message(text("a"), role="user")], "stored as user"),
        ([message(text("a")), {**message(), "id": "n"}], "was never streamed"),
    ],
)
def test_messages_are_compared_part_by_part(stored, told):
    found = difference({"m": message(text("a"))}, stored)
    assert told in found
    assert bool(found) == bool(told)


@pytest.mark.parametrize(
    ("sent", "answered", "ended", "lost"),
    [
        (2, 3, 10, True),
        (2, 3, 4, False),  # answered in the second half: the answer may have been complete
        (0.5, 3, 10, False),  # sent before the prompt was accepted
    ],
)
def test_a_cancel_is_lost_if_it_came_in_the_first_half(sent, answered, ended, lost):
    prompt = Prompt("tag", Talk("s"), ["text"], True, 0, answered=1)
    prompt.state, prompt.ended_at = "completed", ended
    assert Stop("cancel", sent, answered).was_lost_on(prompt) == lost
    prompt.state = "cancelled"
    assert not Stop("cancel", sent, answered).was_lost_on(prompt)
