"""Deadlines, signs of life and second attempts, around whatever a provider does."""

from contextlib import asynccontextmanager
from math import inf

import pytest
import trio
from attrs import define, field, frozen
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from crush_trio.providers.base import Finished, TextDelta
from crush_trio.providers.conversing import Patience, Waiting, converse
from crush_trio.providers.errors import (
    ProviderError,
    ProviderGarbled,
    ProviderRateLimited,
    ProviderRefused,
    ProviderTooSlow,
    ProviderUnauthorized,
    ProviderUnavailable,
    ProviderUnreachable,
)
from crush_trio.testing import Gate
from crush_trio.testing.model_script import Cut, Fail, Pause, Refuse, Say, Sleep
from crush_trio.testing.scripted_provider import ScriptedProvider
from crush_trio.wire.messages import FinishReason
from tests.providers.asking import Recorder, request

ENDED = Finished(reason=FinishReason.END_TURN)
PATIENCE = Patience(first_part=120, between_parts=90, whole=1800)


@define(eq=False)
class Telling:
    """Everything that was told, and when."""

    told: list = field(factory=list)
    begun: float = field(factory=trio.current_time)

    def __call__(self, waiting):
        self.told.append((round(trio.current_time() - self.begun, 3), waiting))

    @property
    def times(self):
        return [time for time, _ in self.told]

    @property
    def words(self):
        return [str(waiting) for _, waiting in self.told]


@frozen
class Outcome:
    ending: object
    sink: Recorder
    telling: Telling
    model: ScriptedProvider
    seconds: float


async def ask(*answers, patience=PATIENCE, sink=None, **more):
    """Ask a scripted model; return everything there is to know about it."""
    model, sink, telling = ScriptedProvider(answers), sink or Recorder(), Telling()
    begun = trio.current_time()
    try:
        ending = await converse(model, request(**more), sink, patience=patience, waiting=telling)
    except (ProviderError, OSError) as exc:
        ending = exc
    assert model.open == 0
    return Outcome(ending, sink, telling, model, trio.current_time() - begun)


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


async def test_a_model_that_says_nothing_is_given_up_after_two_attempts():
    done = await ask([Sleep(inf)], [Sleep(inf)])
    assert isinstance(done.ending, ProviderTooSlow)
    assert done.ending.detail == "nothing for 120 s"
    assert 241 <= done.seconds <= 241.25  # two waits, and a pause with its jitter
    assert len(done.model.requests) == 2
    assert done.sink.resets == 0


async def test_a_model_that_falls_silent_is_asked_once_more():
    done = await ask([Say("one"), Sleep(inf)], [Say("two")])
    assert done.ending == ENDED
    assert done.sink.text == "two"
    assert done.sink.resets == 1


async def test_what_came_before_the_last_silence_is_kept():
    done = await ask([Say("one"), Sleep(inf)], [Say("two"), Sleep(inf)])
    assert done.ending.detail == "nothing more for 90 s"
    assert done.sink.text == "two"
    assert done.sink.resets == 1


async def test_a_model_that_never_ends_is_cut_off_and_not_asked_again():
    endless = [step for _ in range(100) for step in (Sleep(30), Say("."))]
    done = await ask(endless, patience=Patience(whole=600))
    assert isinstance(done.ending, ProviderTooSlow)
    assert done.ending.detail == "no end after 600 s"
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
            patience=Patience(slow_attempts=1),
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


# ── Another attempt ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D14a")
async def test_before_another_attempt_the_sink_forgets():
    done = await ask([Say("one"), Cut()], [Say("two"), Cut()], [Say("three")])
    assert done.ending == ENDED
    assert done.sink.text == "three"
    assert done.sink.resets == 2


@pytest.mark.item("D14a")
async def test_a_sink_that_has_nothing_is_not_told_to_forget():
    done = await ask([Refuse(503)], [Say("two"), Cut()], [Refuse(503)], [Say("four")])
    assert done.sink.resets == 1


@pytest.mark.item("D14a")
async def test_what_the_last_attempt_said_is_kept():
    answers = [[Say(str(n)), Cut()] for n in range(4)]
    done = await ask(*answers)
    assert isinstance(done.ending, ProviderUnreachable)
    assert done.sink.text == "3"
    assert done.sink.resets == 3


@pytest.mark.item("D14a")
async def test_what_was_said_stays_until_the_next_attempt_begins():
    """A cancel in the pause finds the words that everybody has seen."""
    sink = Recorder()
    with trio.move_on_after(0.5):
        await converse(
            ScriptedProvider([[Say("seen"), Cut()]]),
            request(),
            sink,
            patience=PATIENCE,
            waiting=Telling(),
        )
    assert sink.text == "seen"


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (ProviderUnauthorized("no"), 1),
        (ProviderRefused("no"), 1),
        (ProviderRateLimited("slow down"), 4),
        (ProviderUnavailable("overloaded"), 4),
        (ProviderUnreachable("reset"), 4),
        (ProviderGarbled("?"), 4),
    ],
)
async def test_only_what_may_pass_is_tried_again(error, attempts):
    done = await ask(*[[Fail(error)]] * 5)
    assert done.ending is error
    assert len(done.model.requests) == attempts


async def test_pauses_double():
    done = await ask(*[[Refuse(503)]] * 3, [Say("a")])
    assert [round(time) for time in done.telling.times] == [0, 1, 3]
    assert 7 <= done.seconds <= 7 * 1.25


async def test_no_pause_is_longer_than_the_longest():
    short = Patience(attempts=9, longest_pause=3)
    done = await ask(*[[Refuse(503)]] * 8, [Say("a")], patience=short)
    assert done.ending == ENDED
    assert done.seconds <= 1.25 + 2.5 + 6 * 3


async def test_conversations_that_fail_together_come_back_apart_and_always_the_same():
    again = [(await ask([Refuse(503)], [Say("a")], affinity=name)).seconds for name in "abcdabcd"]
    assert len(set(again)) == 4
    assert again[:4] == again[4:]


async def test_a_provider_that_names_a_time_is_asked_after_that_time():
    done = await ask([Refuse(429, retry_after=20)], [Say("a")])
    assert 20 <= done.seconds <= 21


async def test_a_provider_that_asks_for_too_much_time_is_not_waited_for():
    done = await ask([Refuse(429, "quota", retry_after=3600)])
    assert isinstance(done.ending, ProviderRateLimited)
    assert done.ending.detail == "quota (it asks for a pause of 3600 s)"
    assert done.ending.retry_after == 3600
    assert done.seconds == 0


async def test_a_pause_that_would_not_end_in_time_is_not_begun():
    done = await ask(
        [Sleep(95), Say("a"), Refuse(429, "busy", retry_after=10)], patience=Patience(whole=100)
    )
    assert isinstance(done.ending, ProviderRateLimited)
    assert done.ending.detail == "busy"
    assert done.seconds == 95
    assert done.sink.text == "a"


async def test_silence_and_errors_share_the_attempts():
    done = await ask([Refuse(503)], [Refuse(503)], [Refuse(503)], [Sleep(inf)])
    assert isinstance(done.ending, ProviderTooSlow)
    assert len(done.model.requests) == 4


async def test_a_failing_sink_is_not_answered_with_another_attempt():
    class Failing(Recorder):
        async def take(self, part):
            raise OSError("disk full")

    done = await ask([Say("a")], sink=Failing())
    assert isinstance(done.ending, OSError)
    assert len(done.model.requests) == 1


@given(
    fates=st.lists(st.sampled_from(["cut", "refuse", "silent", "silent later"]), max_size=6),
    chatty=st.booleans(),
)
async def test_whatever_happens_the_sink_has_the_parts_of_one_attempt(fates, chatty):
    scripts = {
        "cut": lambda n: [Say(f"{n}"), Cut()],
        "refuse": lambda n: [Refuse(500)],
        "silent": lambda n: [Sleep(inf)],
        "silent later": lambda n: [Say(f"{n}"), Sleep(inf)],
    }
    answers = [scripts[fate](n) for n, fate in enumerate(fates)]
    done = await ask(*answers, [Say(f"{len(fates)}")])
    last = len(done.model.requests) - 1
    spoke = last == len(fates) or fates[last] in {"cut", "silent later"}
    assert done.sink.text == (str(last) if spoke else "")
    assert len(done.model.requests) <= PATIENCE.attempts
    assert (done.ending == ENDED) == (last == len(fates))


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
