"""Titles: made beside the first run, and never in its way."""

import pytest
import trio
import trio.testing

from crush_trio.agent.turn.title import (
    HEAD_START,
    INSTRUCTIONS,
    OUTPUT_TOKENS,
    UNTITLED,
    clean_title,
    shorten_prompt,
)
from crush_trio.limits import Limits
from crush_trio.providers.base import Finished, Usage
from crush_trio.store.changes import SessionCreated, SessionEdited
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import Pause, Refuse, Say, Sleep
from crush_trio.testing.server.agent import open_test_agent
from crush_trio.testing.server.faulty_store import FaultyStore, StoreFault
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import FinishReason
from crush_trio.wire.runs import RunKind, RunState
from crush_trio.wire.views import Session

DONE = (Say("done"),)


def is_title(request):
    return request.system == (INSTRUCTIONS,)


def answering(*titles, answer=DONE):
    """Return a model that gives one title after the other, and *answer* to everything else."""
    left = list(titles)
    return ScriptedProvider(lambda request: left.pop(0) if is_title(request) else answer)


async def titled(model, prompt="Fix the parser"):
    async with open_test_agent(model, titles=True) as bench:
        await bench.accept(prompt).wait()
        await trio.sleep(120)
        return await bench.session()


@pytest.mark.item("D24", "D25")
async def test_the_first_prompt_gives_the_session_its_title():
    model = answering([Say("<think>hm</think>Parser\n"), Say("fix ")])
    assert (await titled(model)).title == "Parser fix"
    [request] = filter(is_title, model.requests)
    assert request.max_tokens == OUTPUT_TOKENS
    assert request.tools == ()


@pytest.mark.item("D24")
async def test_a_title_is_asked_for_once_the_model_answers():
    speaking = Gate()
    model = answering([Say("Kept")], answer=(Pause(speaking), Say("a"), Sleep(60.0)))
    async with open_test_agent(model, titles=True) as bench:
        bench.accept("first")
        await speaking.reached()
        await trio.testing.wait_all_tasks_blocked()
        assert not any(map(is_title, model.requests))
        speaking.open()
        await trio.testing.wait_all_tasks_blocked()
        assert [*map(is_title, model.requests)] == [False, True]


@pytest.mark.item("D24")
async def test_a_title_does_not_wait_long_for_a_model_that_thinks():
    model = answering([Say("Kept")], answer=(Sleep(60.0), Say("a")))
    async with open_test_agent(model, titles=True) as bench:
        bench.accept("first")
        await trio.sleep(HEAD_START / 2)
        assert not any(map(is_title, model.requests))
        await trio.sleep(HEAD_START)
        assert [*map(is_title, model.requests)] == [False, True]


@pytest.mark.item("D24")
async def test_later_prompts_do_not():
    model = answering([Say("One")])
    async with open_test_agent(model, titles=True) as bench:
        await bench.accept("first").wait()
        await bench.accept("second").wait()
        await trio.sleep(120)
        assert (await bench.session()).title == "One"
    assert sum(map(is_title, model.requests)) == 1


async def rename(bench, title):
    edited = SessionEdited(id=SessionId("s"), at=1, title=title)
    await bench.store.commit(edited)


@pytest.mark.item("D24")
async def test_a_title_that_the_caller_chose_is_kept_and_no_model_is_asked():
    model = answering()
    async with open_test_agent(model, titles=True) as bench:
        await rename(bench, "Mine")
        await bench.accept("first").wait()
        await trio.sleep(120)
        assert (await bench.session()).title == "Mine"
    assert not any(map(is_title, model.requests))


@pytest.mark.item("D24")
async def test_a_title_that_is_chosen_while_one_is_made_is_kept():
    model = answering([Sleep(30), Say("One")])
    async with open_test_agent(model, titles=True) as bench:
        await bench.accept("first").wait()
        await rename(bench, "Mine")
        await trio.sleep(120)
        session = await bench.session()
    assert session.title == "Mine"
    assert sum(map(is_title, model.requests)) == 1


@pytest.mark.item("D24")
async def test_a_title_that_is_chosen_while_one_is_stored_is_kept():
    """The rename was sent before the made title, and is written when that is on its way already."""
    slow = StoreFault(of=(SessionEdited,), wanted=lambda change: change.title == "Mine")
    store = FaultyStore(MemoryStore("boot"), [slow])
    await store.commit(SessionCreated(session=Session(id=SessionId("s"), title="New Session")))
    async with open_test_agent(
        answering([Sleep(30), Say("One")]), titles=True, store=store
    ) as bench:
        await bench.accept("first").wait()
        bench.store.submit(SessionEdited(id=SessionId("s"), at=1, title="Mine"))
        await trio.sleep(120)
        store.heal()
        await trio.sleep(1)
        assert (await bench.session()).title == "Mine"


@pytest.mark.item("D24")
async def test_a_prompt_after_a_summary_is_not_the_first():
    model = answering([Say("One")])
    async with open_test_agent(model, titles=True) as bench:
        await bench.accept("first").wait()
        await trio.sleep(120)
        await bench.accept("", kind=RunKind.SUMMARIZE).wait()
        await bench.accept("second").wait()
        await trio.sleep(120)
        assert (await bench.session()).title == "One"
    assert sum(map(is_title, model.requests)) == 1


@pytest.mark.item("C2", "D24")
async def test_a_prompt_that_is_taken_in_at_once_does_not_take_the_title_away():
    model = answering([Say("One")])
    async with open_test_agent(model, titles=True, limits=Limits(courtesy=10)) as bench:
        first, second = bench.accept("first"), bench.accept("second")
        await first.wait()
        await trio.sleep(120)
        assert (await second.wait()).state is RunState.FOLDED
        assert (await bench.session()).title == "One"


@pytest.mark.item("D24")
async def test_cancelling_the_run_does_not_cancel_its_title():
    speaking, titling = Gate("speaking"), Gate("titling")
    model = answering([Pause(titling), Say("Kept")], answer=(Pause(speaking),))
    async with open_test_agent(model, titles=True) as bench:
        run = bench.accept("first")
        await speaking.reached()
        await titling.reached()
        await bench.cancel().settled()
        titling.open()
        await trio.sleep(1)
        assert (await bench.session()).title == "Kept"
    assert run.outcome.state is RunState.CANCELLED


@pytest.mark.item("D25")
async def test_an_empty_title_is_the_prompt_cut_short():
    session = await titled(answering([Say("<think>only thoughts")]), "word " * 30)
    assert session.title == shorten_prompt("word " * 30)
    assert len(session.title) <= 50
    assert session.title.endswith("…")


@pytest.mark.item("D25")
async def test_the_large_model_is_asked_if_the_small_one_fails():
    cut = [Say("Half a ti"), Finished(reason=FinishReason.MAX_TOKENS)]
    assert (await titled(answering(cut, [Say("Whole title")]))).title == "Whole title"
    assert (await titled(answering([Refuse(400)], [Say("Whole title")]))).title == "Whole title"


@pytest.mark.item("D25")
async def test_without_any_answer_the_session_stays_untitled():
    assert (await titled(answering([Refuse(400)], [Refuse(401)]))).title == UNTITLED


@pytest.mark.item("D25", "L35")
async def test_a_title_has_a_deadline():
    assert (await titled(answering([Pause(Gate("never"))]))).title == UNTITLED


@pytest.mark.item("D26", "L44")
async def test_a_title_adds_to_the_totals_and_leaves_the_gauges_alone():
    used = Usage(input_tokens=7, output_tokens=3)
    model = answering(
        [Say("T"), Finished(reason=FinishReason.END_TURN, usage=used)],
        answer=(Say("x"), Finished(reason=FinishReason.END_TURN, usage=Usage(input_tokens=50))),
    )
    async with open_test_agent(model, titles=True) as bench:
        await bench.accept("first").wait()
        await trio.sleep(1)
        session = await bench.session()
        totals = await bench.store.totals(session.id)
    assert (session.prompt_tokens, session.completion_tokens) == (50, 0)
    assert (totals.prompt_tokens, totals.completion_tokens) == (57, 3)


@pytest.mark.item("L35")
async def test_closing_the_workspace_ends_a_title_that_is_being_made():
    gate = Gate("titling")
    model = answering([Pause(gate), Say("Late")])
    async with open_test_agent(model, titles=True) as bench:
        await bench.accept("first").wait()
        await gate.reached()
    assert model.open == 0


def test_a_title_is_one_line_without_thoughts():
    assert clean_title("a\nb<think>x</think> c <think>never closed") == "a b c"
