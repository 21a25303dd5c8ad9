"""Whether a model is asked again, when, and what its sink has then."""

from math import inf

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.providers.call import Patience, converse
from crush_trio.providers.errors import (
    ProviderGarbled,
    ProviderRateLimited,
    ProviderRefused,
    ProviderTooSlow,
    ProviderUnauthorized,
    ProviderUnavailable,
    ProviderUnreachable,
)
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import Cut, Fail, Refuse, Say, Sleep
from tests.providers.asking import Recorder, request
from tests.providers.calling import ENDED, PATIENCE, Telling, ask


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


@pytest.mark.parametrize(
    ("seconds", "error", "told"),
    [
        (60, ProviderUnreachable("lost"), True),
        (0, ProviderUnreachable("lost"), False),
        (60, ProviderRateLimited("busy"), False),
    ],
)
async def test_a_request_that_was_dropped_after_a_while_may_be_billed(seconds, error, told, caplog):
    done = await ask([Sleep(seconds), Fail(error)], [Say("a")])
    assert any("may be billed" in words for words in done.telling.words) is told
    [logged] = [each for each in caplog.records if each.msg.startswith("provider.retry: ")]
    assert logged.billed is told
