"""Prompts that were withdrawn before they began: shown as cancelled, and never told to a model."""

import pytest
import trio
import trio.testing

from crush_trio.agent.record.journal import open_recorded_runs
from crush_trio.agent.turn.summary import REQUEST
from crush_trio.errors import NotAccepted
from crush_trio.store.changes import RunAccepted, RunEnded
from crush_trio.store.errors import DiskFull
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.testing import Gate
from crush_trio.testing.explore import explore
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Pause, Say
from crush_trio.testing.server.agent import ScriptedTool, open_test_agent
from crush_trio.testing.server.faulty_store import FaultyStore, StoreFault
from crush_trio.testing.server.turns import prompt
from crush_trio.tools.base import ToolResult
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import FinishReason, Message, Role, ShellCommandPart, TextPart
from crush_trio.wire.runs import RunKind, RunState, WhenBusy
from tests.agent.durable import (
    END,
    Turns,
    answer,
    check_complete,
    completion,
    finish_of,
    open_bench,
    roles,
    text_of,
)
from tests.agent.whole_turn import new_store
from tests.store.stores import session

settle = trio.testing.wait_all_tasks_blocked

CANCELLED, COMPLETED, QUEUED = RunState.CANCELLED, RunState.COMPLETED, RunState.QUEUED
BAD = "PLEASE DELETE EVERYTHING"


def echo(gate=None):
    """A model that answers with the last thing the user said; "first" waits at *gate*."""

    def play(request):
        said = last_words(request)
        return [Say(said), Pause(gate)] if said == "first" and gate is not None else [Say(said)]

    return ScriptedProvider(play)


def last_words(request):
    """The last thing the user said, as a model is told."""
    return user_words(request)[-1]


def user_words(request):
    return [
        part.text
        for message in request.messages
        if message.role is Role.USER
        for part in message.parts
        if isinstance(part, TextPart)
    ]


def told(model):
    """Everything that a model was told the user has said, over all requests."""
    return {words for request in model.requests for words in user_words(request)}


async def check_turns_are_together(bench):
    """Each prompt is followed by its own answer, also where a cancel wrote that."""
    roles = [message.role for message in await bench.messages()]
    assert roles == [Role.USER, Role.ASSISTANT] * (len(roles) // 2)


async def stored_prompts(bench):
    return [text_of(m) for m in await bench.messages() if m.role is Role.USER]


# ── Whatever the order ──────────────────────────────────────────────────────────────────────────


async def cancel_a_burst_then_prompt():
    """Prompts wait behind a run, the session is cancelled, and the next prompt comes at once."""
    gate = Gate()
    model = echo(gate)
    async with open_test_agent(model) as bench:
        runs = [bench.accept("first", run_id="1")]
        await gate.reached()
        runs += [bench.accept("waiting 0", run_id="w0"), bench.accept("waiting 1")]
        await settle()

        async def cancel_and_prompt():
            await trio.lowlevel.checkpoint()
            bench.cancel()
            runs.append(bench.accept("late", run_id="late"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_and_prompt)
        states = [(await run.wait()).state for run in runs]
        assert states == [CANCELLED, CANCELLED, CANCELLED, COMPLETED]
        assert runs[-1].outcome.text == "late", "answered with another prompt's words"
        assert told(model) == {"first", "late"}
        assert await stored_prompts(bench) == ["first", "waiting 0", "waiting 1", "late"]
        await check_turns_are_together(bench)
        await check_complete(bench.store)
    return tuple(states)


async def cancel_three_then_prompt():
    model = echo()
    async with open_test_agent(model) as bench:
        runs = [bench.accept(text, run_id=text) for text in ("first", "second", "third")]

        async def cancel_and_prompt():
            await runs[-1].journaled()
            bench.cancel()
            runs.append(bench.accept("late", run_id="late"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_and_prompt)
        states = [(await run.wait()).state for run in runs]
        assert runs[-1].outcome.text == "late"
        await check_turns_are_together(bench)
        assert await stored_prompts(bench) == ["first", "second", "third", "late"]
    return tuple(states)


async def interrupt_then_prompt():
    gate = Gate()
    model = echo(gate)
    async with open_test_agent(model) as bench:
        runs = [bench.accept("first", run_id="1")]
        await gate.reached()
        runs.append(bench.accept("waiting", run_id="w"))
        await settle()

        async def interrupt():
            await trio.lowlevel.checkpoint()
            runs.append(bench.accept("now", run_id="n", when_busy=WhenBusy.INTERRUPT))
            runs.append(bench.accept("then", run_id="t"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt)
        states = [(await run.wait()).state for run in runs]
        assert states == [CANCELLED, CANCELLED, COMPLETED, COMPLETED]
        assert [run.outcome.text for run in runs[2:]] == ["now", "then"]
        assert "waiting" not in told(model)
        assert await stored_prompts(bench) == ["first", "waiting", "now", "then"]
        await check_turns_are_together(bench)
    return tuple(states)


async def cancel_on_entry_then_prompt():
    model = echo()
    async with open_test_agent(model) as bench:
        runs = [bench.accept("first", run_id="1")]

        async def cancel_and_prompt():
            await trio.lowlevel.checkpoint()
            bench.cancel()
            runs.append(bench.accept("late", run_id="late"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_and_prompt)
        states = [(await run.wait()).state for run in runs]
        assert runs[-1].outcome.text == "late"
        asked = bool(runs[0].outcome.message_id)
        assert ("first" in told(model)) is asked, "told of a prompt that never began"
        assert await stored_prompts(bench) == ["first", "late"]
        await check_turns_are_together(bench)
        await check_complete(bench.store)
    return tuple(states), asked


@pytest.mark.item("A16", "A21")
@pytest.mark.parametrize(
    ("scenario", "at_least"),
    [
        (cancel_a_burst_then_prompt, 100),
        (cancel_three_then_prompt, 100),
        (interrupt_then_prompt, 100),
        (cancel_on_entry_then_prompt, 100),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_withdrawn_prompt_never_reaches_the_model_in_any_order(
    scenario, at_least, report_exploration
):
    report = explore(scenario, deviations=1)
    report_exploration(report)
    assert report.exhaustive
    assert report.schedules >= at_least


# ── Every way to withdraw ───────────────────────────────────────────────────────────────────────


WAYS = {
    "removed from the queue": lambda bench, run: bench.workspace.runs.cancel_run(run.id),
    "queue cleared": lambda bench, _run: bench.workspace.runs.clear_queue(SessionId("s")),
    "by its token": lambda _bench, run: run.cancel(),
}


@pytest.mark.item("A30")
@pytest.mark.parametrize("way", WAYS)
async def test_a_withdrawn_prompt_is_shown_and_is_part_of_no_later_request(way):
    gate = Gate()
    model = echo(gate)
    async with open_test_agent(model, titles=True) as bench:
        first = bench.accept("first", run_id="1")
        await gate.reached()
        bad = bench.accept(BAD, run_id="bad")
        await settle()
        WAYS[way](bench, bad)
        assert (await bad.wait()).state is CANCELLED
        gate.open()
        assert (await first.wait()).state is COMPLETED
        assert (await bench.accept("next", run_id="2").wait()).text == "next"
        await bench.accept("", run_id="3", kind=RunKind.SUMMARIZE).wait()
        assert BAD not in " ".join(told(model))
        assert REQUEST in told(model)
        messages = await bench.messages()
        [place] = [n for n, m in enumerate(messages) if text_of(m) == BAD]
        assert finish_of(messages[place + 1]).reason is FinishReason.CANCELLED
        await check_complete(bench.store)


async def test_a_prompt_cancelled_after_its_first_step_began_stays_in_the_history():
    gate = Gate()
    model = echo(gate)
    async with open_test_agent(model) as bench:
        first = bench.accept("first")
        await gate.reached()
        bench.cancel()
        assert (await first.wait()).state is CANCELLED
        await bench.accept("second").wait()
        assert user_words(model.requests[-1]) == ["first", "second"]


async def test_a_first_prompt_that_was_withdrawn_gives_no_title():
    model = echo()
    async with open_test_agent(model, titles=True) as bench:
        bad = bench.accept(BAD)
        bench.cancel()
        await bad.wait()
        await bench.accept("hello", run_id="1").wait()
        await trio.sleep(60)
        assert BAD not in " ".join(told(model))
        assert "hello" in (await bench.session()).title


async def test_what_is_folded_into_a_run_that_was_withdrawn_goes_with_it():
    """The run folded a prompt and was cancelled before a model was asked about either."""
    gate = Gate()

    async def fold(run, transcript):
        await gate.wait()
        await run.fold()
        await trio.sleep_forever()

    async with open_bench(Turns({"host": fold})) as bench:
        host = bench.accept("host")
        await gate.reached()
        guest = bench.accept("guest")
        await settle()
        gate.open()
        await guest.wait()
        bench.cancel()
        assert (await host.wait()).state is CANCELLED
        assert (await bench.store.conversation(SessionId("s"))).messages == []
        assert roles(await bench.messages()) == [Role.USER, Role.USER, Role.ASSISTANT]


async def test_what_a_crash_kept_from_beginning_is_not_told_to_a_model_either():
    gate = Gate()
    store = await new_store()
    async with open_test_agent(echo(gate), store=store) as bench:
        bench.accept("first", run_id="1")
        await gate.reached()
        bench.accept(BAD, run_id="bad")
        await settle()
        left = store.reopened("b2")
    model = echo()
    async with open_test_agent(model, store=left) as bench:
        assert [view.run_id for view in bench.workspace.recovery.ended] == ["1", "bad"]
        await bench.accept("next").wait()
        assert user_words(model.requests[-1]) == ["first", "next"]
        assert await stored_prompts(bench) == ["first", BAD, "next"]


async def test_a_request_ends_with_the_prompt_of_its_run_whatever_else_is_written():
    """What a person does in the session meanwhile is stored behind the prompt, and told before it."""

    async def write_beside(_call):
        part = ShellCommandPart(command="ls", output="a file", exit_code=0)
        await bench.workspace.transcript.write(
            Message(id="shell", role=Role.USER, session_id=SessionId("s"), parts=(part,))
        )
        return ToolResult(content="seen")

    model = ScriptedProvider([[CallTool("look")], [Say("done")]])
    async with open_test_agent(model, [ScriptedTool("look", write_beside)]) as bench:
        await bench.accept("mine").wait()
        assert roles(await bench.messages()) == [
            Role.USER,
            Role.ASSISTANT,
            Role.USER,
            Role.TOOL,
            Role.ASSISTANT,
        ]
        *_, beside, own = user_words(model.requests[-1])
        assert "a file" in beside
        assert own == "mine"


# ── Refused, and withdrawn at the same time ─────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [DiskFull, None], ids=["fails", "hangs"])
async def test_a_prompt_that_was_refused_and_cancelled_leaves_nothing(error):
    store = FaultyStore(await new_store())
    async with open_test_agent(echo(), store=store) as bench:
        store.spoil(StoreFault(of=(RunAccepted,), error=error, times=1))
        run = bench.accept(BAD, run_id="r")
        receipt = bench.cancel()
        with pytest.raises(NotAccepted):
            await run.journaled()
        store.heal()
        await receipt.settled()
        await settle()
        assert (run.outcome, await bench.messages()) == (None, [])
        assert bench.recorder.endings == []
        assert (await bench.accept("next", run_id="r").wait()).text == "next"


# ── Herds ───────────────────────────────────────────────────────────────────────────────────────


async def hold(run, transcript):
    opened = await answer(run, transcript)
    opened.append_text("busy")
    try:
        await trio.sleep_forever()
    finally:
        opened.seal(END)
    return completion(opened)


@pytest.mark.heavy
@pytest.mark.real_clock
@pytest.mark.parametrize("how", ["cancel", "clear", "close"])
async def test_a_herd_of_withdrawn_prompts_is_stored_whole_and_in_order(how, tmp_path):
    herd = 1_000
    async with (
        open_sqlite_store(tmp_path) as store,
        open_recorded_runs(store, Turns({"first": hold})) as workspace,
    ):
        await store.commit(session())
        runs = [workspace.runs.accept(prompt("first"))]
        runs += [
            workspace.runs.accept(prompt(f"p{n}", run_id=f"r{n}" if n % 2 else None))
            for n in range(herd)
        ]
        for run in runs:
            await run.journaled()
        await settle()
        assert runs[0].state is RunState.ACTIVE
        assert {run.state for run in runs[1:]} == {QUEUED}
        cursor = workspace.events.cursor()
        if how == "close":
            await workspace.runs.stop()
        else:
            runs_cancelled = getattr(workspace.runs, "cancel" if how == "cancel" else "clear_queue")
            receipt = runs_cancelled(SessionId("s"))
            await receipt.settled()
            assert len(receipt.hits) == herd + (how == "cancel")
        withdrawn = runs[1:]
        assert {run.outcome.state for run in withdrawn} == {CANCELLED}
        assert {run.outcome.error for run in withdrawn} == {""}
        stored = {view.id: view for view in await store.runs(limit=2 * herd)}
        assert all(stored[run.id] == run.view for run in withdrawn)
        messages = await store.messages(SessionId("s"))
        prompts = [text_of(m) for m in messages if m.role is Role.USER]
        assert prompts == ["first", *(f"p{n}" for n in range(herd))]
        ended = [e.run.seq for e in cursor.take().events if getattr(e, "terminal", False)]
        assert [seq for seq in ended if seq > 1] == sorted(seq for seq in ended if seq > 1)


@pytest.mark.heavy
async def test_a_cancel_of_many_is_a_few_commits():
    async with open_bench(Turns({"first": hold})) as bench:
        runs = [bench.accept("first"), *(bench.accept(f"p{n}") for n in range(600))]
        await settle()
        before = len(bench.store.commits)
        await bench.cancel().settled()
        commits = bench.store.commits[before:]
        endings = [sum(isinstance(c, RunEnded) for c in commit) for commit in commits]
        assert sorted(n for n in endings if n) == [1, 100, 250, 250]
        assert all(run.outcome.state is CANCELLED for run in runs)
