"""Deadlines, signs of life and second attempts, around whatever a provider does."""

from contextlib import asynccontextmanager
from math import inf

import pytest
import trio
from attrs import define, frozen
from trio.testing import wait_all_tasks_blocked

from crush_trio.providers.base import TextDelta
from crush_trio.providers.call import Patience, Waiting, converse
from crush_trio.providers.errors import (
    ProviderGarbled,
    ProviderTooSlow,
    ProviderUnavailable,
)
from crush_trio.testing import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import Cut, Pause, Refuse, Say, Sleep
from tests.providers.asking import Recorder, request
from tests.providers.calling import ENDED, PATIENCE, Telling, ask

# ── An answer ───────────────────────────────────────────────────────────────────────────────────


async def test_every_part_reaches_the_sink_and_the_end_is_returned():
    done = await ask([Say("Hel"), Say("lo")])
    assert done.ending == ENDED
    assert done.sink.parts == [TextDelta("Hel"), TextDelta("lo"), ENDED]
    assert done.sink.resets == 0
    assert done.telling.told == []


async def test_an_answer_without_an_end_is_a_broken_answer():
    @asynccontextmanager
    async def stream(_):
        yield _Parts([TextDelta("half")])

    sink = Recorder()
    with pytest.raises(ProviderGarbled):
        await converse(
            _Provider(stream),
            request(),
            sink,
            patience=Patience(attempts=1),
            waiting=Telling(),
        )
    assert sink.text == "half"


@frozen
class _Provider:
    stream: object


@define(eq=False)
class _Parts:
    parts: list

    def __aiter__(self):
        return self

    async def __anext__(self):
        await trio.lowlevel.checkpoint()
        if not self.parts:
            raise StopAsyncIteration
        return self.parts.pop(0)


# ── Deadlines ───────────────────────────────────────────────────────────────────────────────────


async def test_a_model_that_says_nothing_is_not_asked_and_billed_again():
    """It may still be thinking."""
    done = await ask([Sleep(inf)], [Sleep(inf)])
    assert isinstance(done.ending, ProviderTooSlow)
    assert done.ending.detail == (
        "nothing for 120 s; raise providers.p.limits.first if the model needs longer"
    )
    assert done.seconds == 120
    assert len(done.model.requests) == 1


async def test_a_model_that_falls_silent_is_asked_once_more():
    done = await ask([Say("one"), Sleep(inf)], [Say("two")])
    assert done.ending == ENDED
    assert done.sink.text == "two"
    assert done.sink.resets == 1
    assert done.telling.words[-1] == (
        "waiting for another attempt after Timed Out; the broken answer may be billed as well, 0 s"
    )


async def test_what_came_before_the_last_silence_is_kept():
    done = await ask([Say("one"), Sleep(inf)], [Say("two"), Sleep(inf)])
    assert done.ending.detail.startswith("nothing more for 90 s; raise providers.p.limits.idle")
    assert done.sink.text == "two"
    assert done.sink.resets == 1


async def test_a_model_that_never_ends_is_cut_off_and_not_asked_again():
    endless = [step for _ in range(100) for step in (Sleep(30), Say("."))]
    done = await ask(endless, patience=Patience(whole=600))
    assert isinstance(done.ending, ProviderTooSlow)
    assert done.ending.detail.startswith("no end after 600 s; raise providers.p.limits.turn")
    assert done.seconds == 600
    assert len(done.model.requests) == 1
    assert done.sink.text == "." * 19


async def test_silence_may_be_as_long_as_the_limit_between_parts_again_and_again():
    done = await ask([Sleep(119), Say("a"), Sleep(89), Say("b"), Sleep(89)])
    assert done.ending == ENDED
    assert done.seconds == 297


async def test_the_first_part_may_be_the_end():
    done = await ask([Sleep(119)])
    assert done.ending == ENDED


async def test_the_time_that_a_sink_takes_is_not_held_against_the_model():
    class Slow(Recorder):
        async def take(self, part):
            await trio.sleep(500)
            await super().take(part)

    done = await ask([Say("a"), Say("b")], sink=Slow())
    assert done.ending == ENDED
    assert done.sink.text == "ab"
    assert done.telling.told == []


async def test_a_part_that_comes_after_the_deadline_is_not_taken():
    """The sink is not entered only to be interrupted at once."""

    class Late(_Parts):
        async def __anext__(self):
            with trio.CancelScope(shield=True):
                await trio.sleep(121)
            return TextDelta("late")

    @asynccontextmanager
    async def stream(_):
        yield Late([])

    class Noting(Recorder):
        async def take(self, part):
            entered.append(part)
            await trio.lowlevel.checkpoint()

    entered = []
    with pytest.raises(ProviderTooSlow):
        await converse(
            _Provider(stream),
            request(),
            Noting(),
            patience=Patience(first_part=120),
            waiting=Telling(),
        )
    assert entered == []


async def test_a_stream_is_left_before_the_next_one_is_opened():
    model = ScriptedProvider([[Say("a"), Sleep(inf)], [Say("b")]])
    opened = []

    @asynccontextmanager
    async def stream(asked):
        opened.append(model.open)
        async with model.stream(asked) as parts:
            yield parts

    await converse(_Provider(stream), request(), Recorder(), patience=PATIENCE, waiting=Telling())
    assert opened == [0, 0]


@pytest.mark.parametrize("first", [True, False])
async def test_bytes_without_a_part_restart_the_limit_and_not_the_notices(first):
    class Thinking(_Parts):
        async def __anext__(self):
            if first or len(self.parts) == 1:
                for _ in range(10):
                    await trio.sleep(80)
                    heard()
            return await super().__anext__()

    @asynccontextmanager
    async def stream(asked):
        nonlocal heard
        heard = asked.heard
        yield Thinking([ENDED] if first else [TextDelta("a"), ENDED])

    heard, telling = None, Telling()
    done = await converse(
        _Provider(stream), request(), Recorder(), patience=PATIENCE, waiting=telling
    )
    assert done == ENDED
    assert trio.current_time() - telling.begun == 800
    assert telling.times[-1] == 790


async def test_the_limits_are_those_of_the_providers_configuration():
    assert Patience().limited({"connect": 5.0}) == Patience()
    limits = {"first": 1.0, "idle": 2.0, "turn": 3.0}
    assert Patience().limited(limits) == Patience(first_part=1, between_parts=2, whole=3)
    assert Patience(whole=3).limited({"turn": inf}) == Patience(whole=inf)


# ── Signs of life ───────────────────────────────────────────────────────────────────────────────


async def test_somebody_is_told_of_silence_long_before_a_deadline():
    done = await ask([Sleep(50), Say("a"), Sleep(30)])
    assert done.telling.times == [10, 25, 40, 60, 75]
    assert done.telling.words[0] == "waiting for the model, 10 s"
    assert done.telling.words[-2:] == [
        "waiting for more of the answer, 10 s",
        "waiting for more of the answer, 25 s",
    ]


async def test_steady_parts_need_no_signs_of_life():
    done = await ask([step for _ in range(50) for step in (Sleep(9), Say("."))])
    assert done.ending == ENDED
    assert done.telling.told == []


async def test_with_little_patience_the_sign_comes_halfway():
    hasty = Patience(first_part=4, slow_attempts=1)
    done = await ask([Sleep(inf)], patience=hasty)
    assert isinstance(done.ending, ProviderTooSlow)
    assert done.telling.times == [2]


async def test_the_end_of_the_whole_is_announced_even_to_a_model_that_talks():
    talk = [step for _ in range(200) for step in (Sleep(5), Say("."))]
    done = await ask(talk, patience=Patience(whole=100))
    assert isinstance(done.ending, ProviderTooSlow)
    assert done.telling.words == ["waiting for the end of the answer, 90 s"]


async def test_nobody_is_told_anything_after_the_answer():
    done = await ask([Sleep(12), Say("a")])
    told = list(done.telling.told)
    await trio.sleep(1000)
    assert done.telling.told == told


async def test_a_pause_before_another_attempt_is_told_at_once():
    done = await ask([Refuse(503)], [Say("a")], affinity="x")
    [(time, waiting)] = done.telling.told
    assert time == 0
    assert waiting == Waiting(
        what="another attempt after Service Unavailable",
        seconds=0,
        attempt=1,
        cause=waiting.cause,
    )
    assert isinstance(waiting.cause, ProviderUnavailable)


async def test_a_long_pause_is_told_again():
    done = await ask([Refuse(429, retry_after=40)], [Say("a")])
    assert done.telling.times == [0, 15, 30]
    assert done.telling.words[-1] == "waiting for another attempt after Too Many Requests, 30 s"


async def test_the_second_attempt_says_that_it_is_one():
    done = await ask([Refuse(503)], [Sleep(20), Say("a")])
    assert [waiting.attempt for _, waiting in done.telling.told] == [1, 2]


# ── A cancel ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answers", "at"),
    [
        ([[Sleep(inf)]], 5),
        ([[Say("a"), Sleep(inf)]], 5),
        ([[Say("a"), Cut()], [Say("b")]], 0.5),
        ([[Refuse(503)], [Sleep(inf)]], 5),
    ],
    ids=["before the first part", "between parts", "in a pause", "in the second attempt"],
)
async def test_a_cancel_passes_through_at_once(answers, at):
    model = ScriptedProvider(answers)
    with trio.move_on_after(at) as scope:
        await converse(model, request(), Recorder(), patience=PATIENCE, waiting=Telling())
    assert scope.cancelled_caught
    assert model.open == 0
    assert trio.current_time() - scope.deadline < 0.001


async def test_a_cancel_while_the_sink_takes_a_part_is_the_sinks_to_bear():
    gate, scope = Gate(), trio.CancelScope()

    class Standing(Recorder):
        async def take(self, part):
            try:
                await gate.wait()
            finally:
                self.parts.append("cancelled here")

    sink, model = Standing(), ScriptedProvider([[Say("a")]])
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def run():
            with scope:
                await converse(model, request(), sink, patience=PATIENCE, waiting=Telling())

        await gate.reached()
        scope.cancel()
    assert sink.parts == ["cancelled here"]
    assert model.open == 0


async def test_while_a_sink_is_at_work_there_is_no_timer():
    """Virtual time stands still then, so a sink may wait for threads under a clock that jumps."""
    gate, telling = Gate(), Telling()

    class Standing(Recorder):
        async def take(self, part):
            await gate.wait()

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def run():
            model = ScriptedProvider([[Say("a"), Pause(Gate())]])
            await converse(model, request(), Standing(), patience=PATIENCE, waiting=telling)

        await gate.reached()
        before = trio.current_time()
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == inf
        assert trio.current_time() == before
        nursery.cancel_scope.cancel()
