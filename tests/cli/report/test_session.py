"""A session as somebody sees it who is attached to it."""

from types import SimpleNamespace

import pytest
import trio

from crush_trio.cli.commands.attach import farewell
from crush_trio.cli.report.session import HISTORY, SessionView, send_answer
from crush_trio.cli.terminal.dialogs import Allow, PermissionDialog
from crush_trio.client.events import Disconnected, MessageEvent, Reconnected, RunEvent
from crush_trio.client.messages import GrowingMessage
from crush_trio.errors import RuleNotPossible
from crush_trio.wire.answers import HitView, ReceiptView
from crush_trio.wire.asks import (
    GrantScope,
    PermissionNotification,
    PermissionRequest,
    Question,
    QuestionNotification,
    QuestionRequest,
    QuestionType,
)
from crush_trio.wire.events import AgentEvent, AgentEventType, Envelope, EventType, PayloadType
from crush_trio.wire.integrations import (
    McpEvent,
    McpEventType,
    McpState,
    SkillsEvent,
    SkillState,
)
from crush_trio.wire.messages import (
    FinishPart,
    FinishReason,
    Message,
    Role,
    ShellCommandPart,
    TextPart,
)
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import Session
from tests.cli.drawing import renderer


def message(text, message_id="m1", role=Role.ASSISTANT, session="s1", *, ended=False):
    parts = (TextPart(text=text),)
    if ended:
        parts += (FinishPart(reason=FinishReason.END_TURN, time=1),)
    return Message(id=message_id, role=role, session_id=session, parts=parts)


def event(*args, change=EventType.UPDATED, **more):
    return MessageEvent(change, GrowingMessage(message(*args, **more)).view())


def run_event(state, run_id="r1", session="s1", **more):
    return RunEvent(RunView(id=run_id, session_id=session, state=state, **more))


def envelope(entity, change=EventType.CREATED, payload=PayloadType.PERMISSION_REQUEST):
    return Envelope(payload_type=payload, event_type=change, entity=entity)


def permission(ask_id="p1", session="s1"):
    return PermissionRequest(
        id=ask_id,
        session_id=session,
        tool_call_id=f"call-{ask_id}",
        tool_name="bash",
        params={"command": ask_id},
    )


@pytest.fixture
def view():
    return SessionView(Session(id="s1", title="Tea"))


def lines(view):
    shown = view.conversation.advance(renderer().lines, 60, 20)
    return [line for line in (*shown.done, *shown.live) if line]


def test_prompts_and_answers_are_shown_whoever_caused_them(view):
    view.take(event("what?", "m0", Role.USER))
    view.take(event("wha", "m1"))
    view.take(event("what is", "m1"))
    assert lines(view) == ["> what?", "what is"]
    view.take(event("what?", "m0", Role.USER))
    assert lines(view) == ["what is"], "a prompt is shown once"


def test_other_sessions_are_none_of_its_business(view):
    view.take(event("x", session="s2"))
    view.take(run_event(RunState.ACTIVE, session="s2"))
    view.take(envelope(permission(session="s2")))
    assert lines(view) == []
    assert not view.busy
    assert view.asks.dialog is None


def test_a_message_that_is_read_anew_adds_only_what_was_missed(view):
    view.take(event("one two", "m1"))
    assert lines(view) == ["one two"]
    view.catch_up([message("one two three", ended=True)], [], [])
    assert lines(view) == ["one two three"]
    view.take(event("one two", "m1"))
    assert lines(view) == []


def test_progress_is_shown_until_something_follows(view):
    def progress(session):
        about = AgentEvent(type=AgentEventType.RESPONSE, session_id=session, progress="1 of 2")
        return envelope(about, payload=PayloadType.AGENT_EVENT)

    view.take(progress("s1"))
    assert view.progress == "", "no run is active"
    view.take(run_event(RunState.ACTIVE))
    view.take(progress("s2"))
    assert view.progress == ""
    view.take(progress("s1"))
    assert view.progress == "1 of 2"
    view.take(event("so"))
    assert view.progress == ""


def test_what_is_wrong_with_a_skill_is_shown_once(view):
    states = (SkillState(name="a", path="/a", warning="no name"), SkillState(name="b", path="/b"))
    for _ in range(2):
        view.take(envelope(SkillsEvent(states=states), payload=PayloadType.SKILLS_EVENT))
    assert lines(view) == ["Skill /a: no name"]


def test_an_mcp_server_that_cannot_be_used_is_shown_once_with_the_reason(view):
    for state in (McpState.STARTING, McpState.ERROR, McpState.STARTING, McpState.ERROR):
        error = "no such program" if state is McpState.ERROR else ""
        event = McpEvent(type=McpEventType.STATE_CHANGED, name="desk", state=state, error=error)
        view.take(envelope(event, payload=PayloadType.MCP_EVENT))
    assert lines(view) == ["MCP server desk has failed: no such program"]


def test_of_a_long_past_only_the_end_is_shown(view):
    past = [message(f"text {n}", f"m{n}", ended=True) for n in range(HISTORY + 5)]
    view.catch_up(past, [], [])
    shown = lines(view)
    assert shown[0] == "(5 earlier messages: crush-trio sessions show s1)"
    assert shown[1] == "text 5"
    assert len(shown) == HISTORY + 1


def test_a_command_that_a_person_ran_is_shown_as_one(view):
    ran = Message(
        id="m0",
        role=Role.USER,
        session_id="s1",
        parts=(ShellCommandPart(command="make", output="", exit_code=0),),
    )
    view.catch_up([ran], [], [])
    assert lines(view) == ["> $ make"]


def test_it_is_busy_while_a_run_has_not_ended(view):
    view.take(run_event(RunState.ACTIVE))
    view.take(run_event(RunState.QUEUED, "r2"))
    assert (view.busy, view.waiting) == (True, 1)
    view.take(run_event(RunState.COMPLETED))
    view.take(run_event(RunState.ERRORED, "r2", error="no money"))
    assert not view.busy
    assert lines(view) == ["(completed)", "✗ no money"]


def test_what_a_cancel_hit_is_shown_below_the_last_words_of_what_it_hit(view):
    hit = HitView(
        id="r1", session_id="s1", state=RunState.ACTIVE, ended=RunState.CANCELLED, seconds=1
    )
    view.take(run_event(RunState.ACTIVE))
    view.take(event("so f"))
    view.cancelled(ReceiptView(complete=True, hits=(hit,)))
    assert lines(view) == ["so f"]
    view.take(event("so far"))
    view.take(run_event(RunState.CANCELLED))
    assert lines(view) == ["so far", "Stopped 1 run in 1.00 s; nothing is left running."]


def test_a_cancel_of_somebody_else_is_mentioned(view):
    view.take(run_event(RunState.ACTIVE))
    view.take(run_event(RunState.CANCELLED))
    assert lines(view) == ["(cancelled)"]


def test_asks_of_the_session_and_of_the_tasks_it_gave_to_others_are_asked_here(view):
    view.take(event("x", "m1"))
    view.take(envelope(Session(id="child", parent_session_id="s1"), payload=PayloadType.SESSION))
    for ask in (permission("p1"), permission("p2", "child"), permission("p3", "m1$$call")):
        view.take(envelope(ask))
        assert view.asks.dialog.request.id == ask.id
        notice = PermissionNotification(tool_call_id=ask.tool_call_id, denied=True)
        view.take(envelope(notice, payload=PayloadType.PERMISSION_NOTIFICATION))
        assert view.asks.dialog is None


def test_a_notice_that_something_is_asked_settles_nothing(view):
    view.take(envelope(permission("p1")))
    view.take(envelope(PermissionNotification(tool_call_id="call-p1")))
    assert view.asks.dialog is not None


def test_a_question_is_asked_until_it_is_settled(view):
    question = Question(id="q", type=QuestionType.FREE_TEXT, question="Why?")
    view.take(
        envelope(QuestionRequest(id="b", session_id="s1", tool_call_id="c", questions=(question,)))
    )
    assert view.asks.dialog is not None
    view.take(envelope(QuestionNotification(batch_id="b")))
    assert view.asks.dialog is None


def test_after_a_gap_only_what_still_waits_is_asked(view):
    view.take(envelope(permission("p1")))
    view.catch_up([], [], [permission("p2"), permission("p9", "s2")])
    assert view.asks.dialog.request.id == "p2"


def test_a_lost_connection_is_known_until_there_is_one_again(view):
    view.take(Disconnected("gone"))
    assert view.offline == "gone"
    view.take(Reconnected())
    assert view.offline == ""


def test_a_new_title_is_taken_over_and_a_deleted_session_is_gone(view):
    view.take(envelope(Session(id="s1", title="Biscuits"), EventType.UPDATED, PayloadType.SESSION))
    assert (view.session.title, view.gone) == ("Biscuits", False)
    view.take(envelope(Session(id="s1"), EventType.DELETED, PayloadType.SESSION))
    assert view.gone


def test_leaving_says_what_happens_to_the_run_and_how_to_attach_again(view):
    assert farewell(view, embedded=True) == "Attach again with: crush-trio attach s1"
    view.take(run_event(RunState.ACTIVE))
    assert farewell(view, embedded=True).startswith("The run was cancelled")
    assert farewell(view, embedded=False).startswith("The run continues")


async def test_what_cannot_be_allowed_always_is_allowed_once_and_the_user_is_told():
    scopes = []

    class Permissions:
        async def grant(self, _request, scope):
            await trio.lowlevel.checkpoint()
            scopes.append(scope)
            if scope is GrantScope.ALWAYS:
                raise RuleNotPossible("it is asked each time")
            return True

    asked = PermissionRequest(id="p", session_id="s", tool_call_id="t", tool_name="bash")
    workspace = SimpleNamespace(permissions=Permissions())
    with pytest.raises(RuleNotPossible, match="asked each time; it was allowed once"):
        await send_answer(workspace, PermissionDialog(asked), Allow(GrantScope.ALWAYS))
    assert scopes == [GrantScope.ALWAYS, GrantScope.ONCE]
