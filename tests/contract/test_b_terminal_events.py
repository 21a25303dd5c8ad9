"""Section B: how a run's end reaches everybody who waits for it.

B13, B15 and B9 are tested as corrected by L7, L8 and L43. B18, turns with bugs, is in
`test_b_broken_turns.py`. B16 (sub-agents) is the agent's business and B20 a rule for clients.
"""

import orjson
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.errors import AcceptanceNotStored
from crush_trio.events import Fact, Form, GrowingMessage, MessageChange, RunChange
from crush_trio.runtime.journal import MemoryJournal
from crush_trio.runtime.outcome import Completion
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.faults import FaultyJournal, JournalFault
from crush_trio.testing.server.turns import Fail, Pause, Say, ScriptedTurns
from crush_trio.testing.server.workspace import open_test_workspace
from crush_trio.wire.events import AgentEvent, AgentEventType, EventType, PayloadType
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart
from crush_trio.wire.runs import RunState

S = SessionId("s")


def stream(reader):
    """What a client of the Go program is sent next: (payload type, entity), in order."""
    frames = reader.take().encode(Form.CRUSH).split(b"\n\n")[:-1]
    events = [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames]
    return [(event["type"], event["payload"]["payload"]) for event in events]


def completions(reader):
    return [entity for payload_type, entity in stream(reader) if payload_type == "run_complete"]


def texts(messages):
    """Role and text of stored messages; a message without text shows its finish reason."""
    return [
        (m.role, next((p.text for p in m.parts if isinstance(p, TextPart)), m.parts[-1].reason))
        for m in messages
    ]


# ── Exactly one ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("B1")
@pytest.mark.parametrize("seed", range(10))
async def test_every_accepted_run_id_has_exactly_one_completion_however_it_ends(seed):
    never = Gate("never opened")
    turns = ScriptedTurns({"fails": [Fail(ValueError("no"))], "waits": [Say("a"), Pause(never)]})
    async with open_test_workspace(turns) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        bench.accept("works", "a", "works")
        bench.accept("fails", "b", "fails")
        bench.accept("waits", "c", "cancelled-active")
        bench.accept("waits", "c", "cancelled-behind")
        bench.accept("waits", "d", "closed-active")
        bench.accept("waits", "d", "closed-behind")
        await wait_all_tasks_blocked()
        bench.cancel("c")
        bench.accept("early", "e", "cancelled-accepted")
        bench.cancel("e")
        bench.accept("last", "f", "closed-accepted")
    ends = completions(reader)
    assert sorted(end["run_id"] for end in ends) == [
        "cancelled-accepted",
        "cancelled-active",
        "cancelled-behind",
        "closed-accepted",
        "closed-active",
        "closed-behind",
        "fails",
        "works",
    ]
    not_cancelled = {end["run_id"] for end in ends if "cancelled" not in end}
    assert not_cancelled == {"works", "fails"}


@pytest.mark.item("B1")
async def test_a_prompt_that_was_not_accepted_has_no_completion():
    journal = FaultyJournal(
        MemoryJournal(), (JournalFault(method="accept", error=OSError("full")),)
    )
    async with open_test_workspace(journal=journal) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        accepted = bench.accept("hello", run_id="mine")
        with pytest.raises(AcceptanceNotStored):
            await accepted.journaled()
    assert stream(reader) == []


@pytest.mark.item("B14")
async def test_a_run_id_submitted_again_still_has_one_completion():
    gate = Gate()
    async with open_test_workspace(ScriptedTurns({"go": [Pause(gate)]})) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        first = bench.accept("go", run_id="mine")
        assert bench.accept("go", run_id="mine") is first
        await gate.reached()
        assert bench.accept("go", run_id="mine") is first
        gate.open()
        await first.wait()
        assert bench.accept("go", run_id="mine") is first
        await wait_all_tasks_blocked()
        assert [end["run_id"] for end in completions(reader)] == ["mine"]
        assert gate.arrivals == 1


# ── What a completion says ─────────────────────────────────────────────────────────────────────


@pytest.mark.item("B2")
async def test_a_normal_end_names_the_answer_and_its_text():
    async with open_test_workspace(ScriptedTurns({"hi": [Say("Hel"), Say("lo")]})) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        accepted = bench.accept("hi", run_id="mine")
        await accepted.wait()
        assert completions(reader) == [
            {
                "session_id": "s",
                "run_id": "mine",
                "message_id": f"answer-{accepted.id}",
                "text": "Hello",
            }
        ]


@pytest.mark.item("B3")
async def test_a_cancel_while_streaming_is_cancelled_with_an_error_and_the_partial_text():
    gate = Gate()
    async with open_test_workspace(ScriptedTurns({"hi": [Say("Hel"), Pause(gate)]})) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        accepted = bench.accept("hi", run_id="mine")
        await gate.reached()
        await bench.cancel().settled()
        (end,) = completions(reader)
    assert end.pop("error")
    assert end == {
        "session_id": "s",
        "run_id": "mine",
        "message_id": f"answer-{accepted.id}",
        "text": "Hel",
        "cancelled": True,
    }


@pytest.mark.item("B4")
async def test_a_run_cancelled_before_it_became_active_is_cancelled_without_an_error():
    gate = Gate()
    async with open_test_workspace(ScriptedTurns({"first": [Pause(gate)]})) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        bench.accept("hi", "other", "on-entry")
        bench.cancel("other")
        bench.accept("first")
        await gate.reached()
        bench.accept("second", run_id="queued")
        await wait_all_tasks_blocked()
        await bench.workspace.clear_queue(S).settled()
        assert completions(reader) == [
            {"session_id": "other", "run_id": "on-entry", "message_id": "", "cancelled": True},
            {"session_id": "s", "run_id": "queued", "message_id": "", "cancelled": True},
        ]


@pytest.mark.item("B5")
async def test_a_failure_carries_its_text_and_the_partial_answer():
    script = [Say("Hel"), Fail(ValueError("model went away"))]
    async with open_test_workspace(ScriptedTurns({"hi": script})) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        accepted = bench.accept("hi", run_id="mine")
        await accepted.wait()
        assert completions(reader) == [
            {
                "session_id": "s",
                "run_id": "mine",
                "message_id": f"answer-{accepted.id}",
                "text": "Hel",
                "error": "model went away",
            }
        ]


@pytest.mark.item("B17")
async def test_a_run_without_a_run_id_has_a_completion_without_one():
    async with open_test_workspace() as bench:
        reader = bench.events.cursor(Form.CRUSH)
        await bench.accept("hi").wait()
        (end,) = completions(reader)
    assert end["session_id"] == "s"
    assert end["text"] == "done"
    assert "run_id" not in end


# ── Order ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("B6")
@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_last_words_of_a_turn_come_before_its_completion(form, cancelled):
    gate = Gate()
    turns = ScriptedTurns({"hi": [Say("first "), Pause(gate), Say("last words")]})
    if cancelled:
        turns = ScriptedTurns({"hi": [Say("first "), Say("last words"), Pause(gate)]})
    async with open_test_workspace(turns) as bench:
        reader = bench.events.cursor(form)
        accepted = bench.accept("hi", run_id="mine")
        await gate.reached()
        accepted.cancel() if cancelled else gate.open()
        await accepted.wait()
        sent = reader.take().encode(form)
    ending = b'"run_complete"' if form is Form.CRUSH else b'"state":"%b"' % accepted.state.encode()
    assert sent.count(ending) == 1
    assert b"last words" in sent[: sent.index(ending)]
    assert b'"type":"text"' not in sent[sent.index(ending) :]


@pytest.mark.item("B13", "B15")
@pytest.mark.parametrize("run_id", ["mine", None])
async def test_a_finished_run_is_completed_at_its_own_end_and_not_after_those_behind_it(run_id):
    first, second = Gate("first"), Gate("second")
    turns = ScriptedTurns({"one": [Pause(first)], "two": [Pause(second)]})
    async with open_test_workspace(turns) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        one = bench.accept("one", run_id=run_id)
        await first.reached()
        two = bench.accept("two", run_id="two")
        await wait_all_tasks_blocked()
        first.open()
        await second.reached()
        assert [end.get("run_id") for end in completions(reader)] == [run_id]
        second.open()
        await two.wait()
        assert [end.get("run_id") for end in completions(reader)] == ["two"]
        moves = [event.run.id for event in bench.recorder.events if isinstance(event, RunChange)]
        assert moves[-3:] == [one.id, two.id, two.id]


@pytest.mark.item("D28")
async def test_notices_come_right_before_the_ending_and_find_the_session_free():
    notice = Fact(
        payload_type=PayloadType.AGENT_EVENT,
        change=EventType.CREATED,
        entity=AgentEvent(type=AgentEventType.AGENT_FINISHED, session_id=S),
    )

    async def turn(run):
        await trio.lowlevel.checkpoint()
        return Completion(text="done", notices=(notice,))

    async with open_test_workspace(turn) as bench, trio.open_nursery() as nursery:
        await nursery.start(bench._recorder.record)
        bench.accept("hi", run_id="mine")
        await bench._recorder.seen(lambda event: event is notice)
        assert not bench.workspace.session_busy(S)
        assert bench.recorder.events[-2] is notice
        assert bench.recorder.events[-1].run.state is RunState.COMPLETED
        nursery.cancel_scope.cancel()


# ── Failures and who is told ───────────────────────────────────────────────────────────────────


@pytest.mark.item("B7", "B19")
@pytest.mark.parametrize("run_id", ["mine", None])
async def test_a_failure_before_the_turn_began_is_told_as_agent_error_and_as_completion(run_id):
    fault = JournalFault(method="begin", error=OSError("disk full"))
    async with open_test_workspace(journal=FaultyJournal(MemoryJournal(), (fault,))) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        await bench.accept("hi", run_id=run_id).wait()
        (notice_type, notice), (end_type, end) = stream(reader)
    assert (notice_type, end_type) == ("agent_event", "run_complete")
    assert notice.pop("message")["id"] == ""
    mine = {} if run_id is None else {"run_id": run_id}
    assert notice == {"error": "disk full", "type": "error", "session_id": "s", **mine}
    assert end == {"session_id": "s", "message_id": "", "error": "disk full", **mine}


@pytest.mark.item("B8")
async def test_a_run_that_fails_late_is_told_once_of_each_kind():
    script = [Say("all of it"), Fail(ValueError("too late"))]
    async with open_test_workspace(ScriptedTurns({"hi": script})) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        await bench.accept("hi", run_id="mine").wait()
        kinds = [kind for kind, _ in stream(reader) if kind != "message"]
    assert kinds == ["agent_event", "run_complete"]


@pytest.mark.item("B10")
@pytest.mark.parametrize("queued", [False, True])
async def test_a_cancel_is_no_agent_error(queued, caplog):
    gate = Gate()
    async with open_test_workspace(ScriptedTurns({"hi": [Say("a"), Pause(gate)]})) as bench:
        bench.accept("hi")
        await gate.reached()
        if queued:
            bench.accept("behind", run_id="mine")
            await wait_all_tasks_blocked()
        await bench.cancel().settled()
        assert {run.state for run in bench.recorder.endings} == {RunState.CANCELLED}
        assert bench.recorder.errors == []
    assert caplog.records == []


@pytest.mark.item("B9")
@pytest.mark.parametrize("how", ["cancel", "clear_queue", "cancel_run"])
@pytest.mark.parametrize("run_id", ["mine", None])
async def test_a_prompt_dropped_from_the_queue_has_a_completion_and_a_stored_turn(how, run_id):
    gate = Gate()
    async with open_test_workspace(ScriptedTurns({"first": [Pause(gate)]})) as bench:
        bench.accept("first")
        await gate.reached()
        reader = bench.events.cursor(Form.CRUSH)
        waiting = bench.accept("second", run_id=run_id)
        await wait_all_tasks_blocked()
        assert waiting.state is RunState.QUEUED
        if how == "cancel_run":
            bench.workspace.cancel_run(waiting.id)
        else:
            getattr(bench.workspace, how)(S)
        await waiting.wait()
        dropped = [end for end in completions(reader) if "error" not in end]
        assert [end.get("run_id") for end in dropped] == [run_id]
        assert dropped[0]["cancelled"] is True
        record = [m for m in bench.messages() if m.id.endswith(waiting.id)]
        assert texts(record) == [
            (Role.USER, "second"),
            (Role.ASSISTANT, FinishReason.CANCELLED),
        ]


@pytest.mark.item("B11")
async def test_a_turn_that_tries_again_inside_has_one_completion_with_the_last_attempt():
    answer = GrowingMessage(Message(id=MessageId("answer"), role=Role.ASSISTANT, session_id=S))

    async def turn(run):
        for attempt in ("bad", "worse", "good"):
            answer.reset()
            answer.append_text(attempt)
            run.publish(MessageChange(change=EventType.UPDATED, view=answer.view(), plain=True))
            await trio.sleep(1)
        answer.put(FinishPart(reason=FinishReason.END_TURN, time=3))
        run.publish(MessageChange(change=EventType.UPDATED, view=answer.view()))
        return Completion(message_id=MessageId("answer"), text="good")

    async with open_test_workspace(turn) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        await bench.accept("hi", run_id="mine").wait()
        (end,) = completions(reader)
        assert end["text"] == "good"
        assert bench.recorder.messages["answer"].parts[0] == TextPart(text="good")


@pytest.mark.item("B12")
async def test_a_queued_run_says_nothing_of_its_end_until_it_has_run_and_keeps_its_run_id():
    gate = Gate()
    async with open_test_workspace(ScriptedTurns({"first": [Pause(gate)]})) as bench:
        bench.accept("first")
        await gate.reached()
        reader = bench.events.cursor(Form.CRUSH)
        queued = bench.accept("second", run_id="mine")
        await wait_all_tasks_blocked()
        assert bench.recorder.states("mine") == [RunState.ACCEPTED, RunState.QUEUED]
        assert completions(reader) == []
        gate.open()
        await queued.wait()
        assert bench.recorder.states("mine")[2:] == [RunState.ACTIVE, RunState.COMPLETED]
        assert [end.get("run_id") for end in completions(reader)] == [None, "mine"]


@pytest.mark.item("B19")
async def test_an_agent_error_names_the_run_that_failed_and_no_other():
    gate = Gate()
    turns = ScriptedTurns({"first": [Pause(gate)], "bad": [Fail(ValueError("no"))]})
    async with open_test_workspace(turns) as bench:
        bench.accept("first", run_id="outer")
        await gate.reached()
        failing = bench.accept("bad", run_id="queued")
        await wait_all_tasks_blocked()
        gate.open()
        await failing.wait()
        (error,) = bench.recorder.errors
        assert (error.run_id, error.session_id, error.error) == ("queued", "s", "no")
        assert bench.find("outer").outcome.state is RunState.COMPLETED
