"""`Follower`: which messages and asks are a run's, told event by event or all at once."""

import pytest

from crush_trio.client.events import MessageEvent, Reconnected, RunEvent
from crush_trio.client.follower import Asked, Follower, Progress, Settled
from crush_trio.client.messages import GrowingMessage, TextPiece
from crush_trio.wire.asks import (
    PermissionNotification,
    PermissionRequest,
    QuestionNotification,
    QuestionRequest,
)
from crush_trio.wire.events import AgentEvent, AgentEventType, Envelope, EventType, PayloadType
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Message, Role, TextPart
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import Session
from tests.client.native_streams import SESSION

OTHER = SessionId("other")
START = 100


def follower(prompt="hello"):
    return Follower(RunId("mine"), SESSION, prompt)


def run(state):
    return RunEvent(run_view(state))


def run_view(state, **more):
    return RunView(
        id=RunId("r"), run_id=RunId("mine"), session_id=SESSION, state=RunState(state), **more
    )


def message(name, text, role=Role.ASSISTANT, session=SESSION, at=START):
    return Message(
        id=MessageId(name),
        role=role,
        session_id=session,
        parts=(TextPart(text=text),),
        created_at=at,
    )


def shown(name, text, change=EventType.CREATED, **more):
    return MessageEvent(change, GrowingMessage(message(name, text, **more)).view())


def permission(name="p", session=SESSION):
    return PermissionRequest(
        id=name, session_id=session, tool_call_id=f"t-{name}", tool_name="bash"
    )


def batch(name="q", session=SESSION):
    return QuestionRequest(id=name, session_id=session, tool_call_id="t", questions=())


def fact(payload_type, entity, change=EventType.CREATED):
    return Envelope(payload_type=payload_type, event_type=change, entity=entity)


def ask(request):
    is_permission = isinstance(request, PermissionRequest)
    kind = PayloadType.PERMISSION_REQUEST if is_permission else PayloadType.QUESTION_BATCH_REQUEST
    return fact(kind, request)


def fed(it, *events):
    return [piece for event in events for piece in it.follow(event)]


def said(*pairs):
    return [TextPiece(MessageId(name), text) for name, text in pairs]


# ── Event by event ──────────────────────────────────────────────────────────────────────────────


def test_what_is_created_while_the_run_is_active_is_the_runs():
    it = follower()
    assert fed(it, shown("before", "a")) == []
    assert fed(it, run("active"), shown("m", "b")) == [run("active"), *said(("m", "b"))]


def test_what_was_there_before_the_run_is_not_the_runs_when_it_changes():
    it = follower()
    assert fed(it, run("active"), shown("before", "a", EventType.UPDATED)) == [run("active")]


def test_other_runs_and_other_sessions_are_not_told():
    it = follower()
    other = RunEvent(RunView(id=RunId("x"), session_id=SESSION, state=RunState.ACTIVE))
    assert fed(it, other, shown("m", "a")) == []
    assert fed(it, run("active"), shown("n", "a", session=OTHER), Reconnected()) == [run("active")]


def test_a_run_is_known_by_the_servers_name_too():
    it = Follower(RunId("r"), SESSION)
    assert fed(it, run("queued")) == [run("queued")]


def test_what_people_say_is_no_piece_and_deleting_a_message_is_none_either():
    it = follower()
    fed(it, run("active"))
    assert fed(it, shown("u", "hello", role=Role.USER)) == []
    assert fed(it, shown("m", "a")) == said(("m", "a"))
    assert fed(it, shown("m", "a", EventType.DELETED)) == []


def test_the_ending_is_not_told_here_but_known():
    it = follower()
    assert fed(it, run("completed")) == []
    assert it.ended


# ── Asks ────────────────────────────────────────────────────────────────────────────────────────


def test_asks_of_the_session_are_told_once_while_the_run_is_active():
    it = follower()
    assert fed(it, ask(permission())) == []
    fed(it, run("active"))
    assert fed(it, ask(permission()), ask(permission())) == [Asked(permission())]
    assert fed(it, ask(permission("x", OTHER))) == []


def test_progress_is_that_of_the_run_and_its_sub_agents_while_it_is_active():
    def progress(text, session=SESSION):
        about = AgentEvent(type=AgentEventType.RESPONSE, session_id=session, progress=text)
        return fact(PayloadType.AGENT_EVENT, about)

    it = follower()
    assert fed(it, progress("early")) == []
    fed(it, run("active"), shown("m", "hi"))
    told = fed(it, progress("half"), progress("no", OTHER), progress("sub", SessionId("m$$call")))
    assert told == [Progress("half"), Progress("sub")]
    assert fed(it, progress("")) == []


@pytest.mark.parametrize("granted", [True, False])
def test_an_answer_is_told_to_those_who_were_told_the_question(granted):
    it = follower()
    fed(it, run("active"), ask(permission()), ask(batch()))
    notice = PermissionNotification(tool_call_id="t-p", granted=granted, denied=not granted)
    settled = fact(PayloadType.PERMISSION_NOTIFICATION, notice)
    assert fed(it, settled, settled) == [Settled(permission(), granted)]
    answered = fact(PayloadType.QUESTION_BATCH_NOTIFICATION, QuestionNotification(batch_id="q"))
    assert fed(it, answered, answered) == [Settled(batch())]


def test_that_somebody_is_being_asked_settles_nothing():
    it = follower()
    fed(it, run("active"), ask(permission()))
    notice = PermissionNotification(tool_call_id="t-p")
    assert fed(it, fact(PayloadType.PERMISSION_NOTIFICATION, notice)) == []


def test_what_a_task_of_the_run_asks_is_asked_by_the_run_however_deep_it_is():
    it = follower()
    fed(it, run("active"))
    child, grandchild = SessionId("m$$c1"), SessionId("n$$c2")
    fed(it, fact(PayloadType.SESSION, Session(id=child, parent_session_id=SESSION)))
    fed(it, fact(PayloadType.SESSION, Session(id=grandchild, parent_session_id=child)))
    asks = [permission("a", child), batch("b", grandchild)]
    assert fed(it, *map(ask, asks)) == [Asked(request) for request in asks]


def test_a_task_is_known_by_its_name_if_its_beginning_was_missed():
    it = follower()
    it.catch_up(
        run_view("active", started_at=START),
        [message("u", "hello", Role.USER), message("m", "a")],
        [],
    )
    assert fed(it, ask(permission("a", SessionId("m$$c1")))) == [
        Asked(permission("a", SessionId("m$$c1")))
    ]
    assert fed(it, ask(permission("b", SessionId("x$$c1")))) == []


# ── All at once ─────────────────────────────────────────────────────────────────────────────────

PAST = [message("u0", "hello", Role.USER, at=START - 9), message("m0", "old", at=START - 9)]
TURN = [
    message("u1", "hello", Role.USER),
    message("m1", "one"),
    message("t1", "", Role.TOOL),
    message("m2", "two"),
]
LATER = [message("u2", "next", Role.USER), message("m3", "three")]


def test_a_run_that_is_joined_is_told_from_its_prompt_on():
    it = follower()
    view = run_view("active", started_at=START)
    assert list(it.catch_up(view, PAST + TURN, [])) == [
        RunEvent(view),
        *said(("m1", "one"), ("m2", "two")),
    ]
    assert it.active
    assert not it.ended


def test_an_ended_run_is_told_up_to_the_prompt_after_its_answer():
    it = follower()
    view = run_view("completed", started_at=START, message_id=MessageId("m2"))
    assert list(it.catch_up(view, PAST + TURN + LATER, [])) == said(("m1", "one"), ("m2", "two"))
    assert it.ended


def test_the_prompt_tells_two_turns_of_the_same_second_apart():
    view = run_view("completed", started_at=START, message_id=MessageId("m3"))
    assert list(follower("next").catch_up(view, TURN + LATER, [])) == said(("m3", "three"))


def test_a_run_that_has_not_begun_has_no_messages_yet():
    it = follower()
    view = run_view("queued")
    assert list(it.catch_up(view, PAST + TURN, [permission()])) == [RunEvent(view)]
    assert not it.active


def test_what_was_told_already_is_not_told_again_and_what_was_not_is():
    it = follower()
    fed(it, run("active"), shown("u1", "hello", role=Role.USER), shown("m1", "on"))
    view = run_view("active", started_at=START)
    assert list(it.catch_up(view, PAST + TURN, [])) == said(("m1", "e"), ("m2", "two"))
    assert fed(it, shown("m1", "on", EventType.UPDATED)) == []


def test_asks_are_compared_with_those_that_wait_now():
    it = follower()
    fed(it, run("active"), ask(permission("a")), ask(permission("b")))
    view = run_view("active", started_at=START)
    told = it.catch_up(view, [], [permission("b"), permission("c"), permission("x", OTHER)])
    assert list(told) == [Settled(permission("a")), Asked(permission("c"))]
