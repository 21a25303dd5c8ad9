"""Both languages through real HTTP, in memory and in virtual time, however the bytes are cut."""

import gc

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from crush_trio.providers.base import (
    Finished,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
    Usage,
)
from crush_trio.providers.call import Patience, converse
from crush_trio.providers.errors import (
    ProviderError,
    ProviderGarbled,
    ProviderRateLimited,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    ProviderUnreachable,
)
from crush_trio.providers.registry import open_providers
from crush_trio.testing import Gate
from crush_trio.testing.model.script import (
    CallTool,
    Cut,
    Garble,
    Pause,
    Ping,
    Refuse,
    Say,
    Sleep,
    Think,
)
from crush_trio.testing.model.server import open_model_server
from crush_trio.wire.messages import FinishReason
from tests.providers.asking import Recorder, dial_to, endpoint, read, request

FAMILIES = pytest.mark.parametrize("family", ["openai-compat", "anthropic"])
USED = Usage(input_tokens=10, output_tokens=5, cache_read_tokens=3, cache_write_tokens=2)
ANSWER = [
    Think("Hm."),
    Think(".", "sig"),
    Say("Yés"),
    Sleep(60),
    Say("!"),
    CallTool("ls", {"path": "ö"}, id="c1", pieces=4),
    CallTool("view", '{"broken', id="c2"),
    CallTool("pwd", "", id="c3"),
    Finished(reason=FinishReason.TOOL_USE, usage=USED),
]


def folded(parts):
    """Return the parts with neighbouring deltas joined, so that only their meaning counts."""
    result = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, TextDelta | ReasoningDelta) and type(last) is type(part):
            result[-1] = type(part)(last.text + part.text)
        elif isinstance(part, ToolCallDelta) and isinstance(last, ToolCallDelta):
            if last.id == part.id:
                result[-1] = ToolCallDelta(part.id, last.text + part.text)
        else:
            result.append(part)
    return result


async def hear(family, *answers, split=None, asked=None):
    """Have the answers read one after the other; return the parts of each, or the error."""
    heard = []
    async with (
        open_model_server(answers, split=split, sockets=False) as server,
        open_providers(dial_to(server)) as providers,
    ):
        for _ in answers:
            provider = providers.provider(endpoint(family))
            try:
                heard.append(folded(await read(provider, asked)))
            except ProviderError as exc:
                heard.append(exc)
    return heard


async def overhear(provider, tell):
    """Have every part told as it comes."""
    async with provider.stream(request()) as parts:
        async for part in parts:
            tell(part)


def expected(family):
    signature = "sig" if family == "anthropic" else "reasoning_content"
    begun = [
        ReasoningDelta("Hm.."),
        ReasoningEnd(signature),
        TextDelta("Yés!"),
        ToolCallBegin("c1", "ls"),
        ToolCallDelta("c1", '{"path":"ö"}'),
    ]
    ends = [
        ToolCallEnd("c1", "ls", '{"path":"ö"}'),
        ToolCallEnd("c2", "view", '{"broken'),
        ToolCallEnd("c3", "pwd", "{}"),
    ]
    second = [ToolCallBegin("c2", "view"), ToolCallDelta("c2", '{"broken')]
    third = [ToolCallBegin("c3", "pwd")]
    finished = Finished(reason=FinishReason.TOOL_USE, usage=USED)
    if family == "anthropic":
        return [*begun, ends[0], *second, ends[1], *third, ends[2], finished]
    return [*begun, *second, *third, *ends, finished]


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.heavy
@FAMILIES
@pytest.mark.parametrize("split", [None, 1, 7, 64])
async def test_an_answer_arrives_whole(family, split):
    [parts] = await hear(family, ANSWER, split=split)
    assert parts == expected(family)


@pytest.mark.heavy
@FAMILIES
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.sets(st.integers(1, 4000), max_size=12))
async def test_wherever_the_bytes_are_cut_the_answer_is_the_same(family, cuts):
    [parts] = await hear(family, ANSWER, split=cuts)
    assert parts == expected(family)


@FAMILIES
@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (FinishReason.END_TURN, [Say("a")]),
        (FinishReason.MAX_TOKENS, [Say("a")]),
        (FinishReason.CONTENT_FILTER, [Say("a")]),
        (FinishReason.TOOL_USE, [CallTool("ls")]),
    ],
)
@pytest.mark.item("D14")
async def test_every_reason_has_its_word(family, reason, said):
    [parts] = await hear(family, [*said, Finished(reason=reason)])
    assert parts[-1] == Finished(reason=reason)


@FAMILIES
async def test_one_connection_serves_one_answer_after_the_other(family):
    answers = [[Say(str(n))] for n in range(5)]
    async with (
        open_model_server(answers, sockets=False) as server,
        open_providers(dial_to(server)) as providers,
    ):
        for n in range(5):
            parts = await read(providers.provider(endpoint(family)))
            assert parts[0] == TextDelta(str(n))
            assert providers.idle == 1
        assert len(server.connections) == 1
        assert server.open == 1
    assert server.open == 0


@FAMILIES
async def test_answers_that_overlap_have_connections_of_their_own(family):
    gate = Gate()
    async with (
        open_model_server([[Pause(gate), Say("a")]] * 6, sockets=False) as server,
        open_providers(dial_to(server)) as providers,
    ):
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(read, providers.provider(endpoint(family)))
            await gate.reached(6)
            gate.open()
        assert len(server.connections) == 6
        assert providers.idle == 4  # no more than that are kept


@FAMILIES
async def test_a_connection_that_has_been_idle_for_long_is_not_trusted(family):
    async with (
        open_model_server([[Say("a")], [Say("b")]], sockets=False) as server,
        open_providers(dial_to(server)) as providers,
    ):
        await read(providers.provider(endpoint(family)))
        await trio.sleep(60)
        await read(providers.provider(endpoint(family)))
        assert len(server.connections) == 2
        assert server.connections[0].closed_by_client


@FAMILIES
async def test_signs_of_life_that_say_nothing_are_no_parts(family):
    [parts] = await hear(family, [Ping(), Sleep(20), Ping(), Say("a")])
    assert parts == [TextDelta("a"), Finished(reason=FinishReason.END_TURN)]


# ── Errors ──────────────────────────────────────────────────────────────────────────────────────


@FAMILIES
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ProviderRefused),
        (401, ProviderUnauthorized),
        (403, ProviderUnauthorized),
        (413, ProviderRefused),
        (429, ProviderRateLimited),
        (500, ProviderUnavailable),
        (503, ProviderUnavailable),
        (529, ProviderUnavailable),
    ],
)
async def test_a_refusal_is_told_by_its_status_and_its_words(family, status, error):
    [refused] = await hear(family, [Refuse(status, "because", retry_after=7)])
    assert type(refused) is error
    assert (refused.detail, refused.status, refused.retry_after) == ("because", status, 7)


@FAMILIES
async def test_a_refusal_does_not_cost_the_connection(family):
    async with (
        open_model_server([[Refuse(429)], [Say("a")]], sockets=False) as server,
        open_providers(dial_to(server)) as providers,
    ):
        with pytest.raises(ProviderRateLimited):
            await read(providers.provider(endpoint(family)))
        await read(providers.provider(endpoint(family)))
        assert len(server.connections) == 1


@FAMILIES
@pytest.mark.parametrize("split", [None, 1])
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (529, ProviderUnavailable),
        (500, ProviderUnavailable),
        (429, ProviderRateLimited),
        (400, ProviderRefused),
    ],
)
async def test_an_error_in_the_midst_comes_after_what_came_before(family, status, error, split):
    async with (
        open_model_server(
            [[Say("half"), Refuse(status, "sorry")]], split=split, sockets=False
        ) as server,
        open_providers(dial_to(server)) as providers,
    ):
        heard = []
        with pytest.raises(error, match="sorry"):
            await overhear(providers.provider(endpoint(family)), heard.append)
        assert folded(heard) == [TextDelta("half")]


@FAMILIES
async def test_a_stream_that_ends_early_is_a_broken_answer(family):
    tidy, torn = await hear(family, [Say("a"), Cut(tidy=True)], [Say("a"), Cut()])
    assert type(tidy) is ProviderGarbled
    assert type(torn) is ProviderUnreachable


@FAMILIES
async def test_a_server_that_hangs_up_without_a_word_is_unreachable(family):
    [error] = await hear(family, [Cut()])
    assert type(error) is ProviderUnreachable


@FAMILIES
async def test_nonsense_is_a_broken_answer(family):
    [error] = await hear(family, [Say("a"), Garble()])
    assert type(error) is ProviderGarbled


@FAMILIES
async def test_no_error_repeats_the_key(family):
    key = endpoint().api_key
    answers = [
        [Refuse(401, f"Incorrect key: {key}")],
        [Say("a"), Refuse(500, f"Bearer {key} failed")],
    ]
    for error in await hear(family, *answers):
        assert key not in str(error)
        assert "[redacted]" in str(error)


@FAMILIES
async def test_a_key_that_cannot_be_a_header_is_refused_without_being_repeated(family):
    async with (
        open_model_server([], sockets=False) as server,
        open_providers(dial_to(server)) as providers,
    ):
        with pytest.raises(ProviderRefused) as refused:
            await read(providers.provider(endpoint(family, api_key="se\ncret")))
        assert "se" not in refused.value.detail.replace("sent", "")
        assert refused.value.__cause__ is None
        assert refused.value.__suppress_context__


# ── Leaving early ───────────────────────────────────────────────────────────────────────────────


@FAMILIES
async def test_leaving_in_the_midst_closes_the_connection(family):
    async with (
        open_model_server([[Say("a"), Sleep(1000), Say("b")]], sockets=False) as server,
        open_providers(dial_to(server)) as providers,
    ):
        async with providers.provider(endpoint(family)).stream(request()) as parts:
            assert isinstance(await anext(parts), TextDelta)
        await server.all_closed()
        assert server.connections[0].closed_by_client
        assert trio.current_time() - server.connections[0].opened_at < 1
        assert providers.idle == 0


@FAMILIES
async def test_an_error_of_the_reader_closes_the_connection_and_leaves_nothing_behind(family):
    async with (
        open_model_server([[Say("a"), Sleep(1000)]], sockets=False) as server,
        open_providers(dial_to(server)) as providers,
    ):
        with pytest.raises(ZeroDivisionError):
            await overhear(providers.provider(endpoint(family)), lambda _: 1 / 0)
        gc.collect()
        await server.all_closed()


@FAMILIES
@pytest.mark.parametrize("seconds", [0, 5, 15])
async def test_a_cancel_closes_the_connection_at_once(family, seconds):
    """Before the answer, within it, and between two parts of it."""
    async with (
        open_model_server(
            [[Sleep(1), Say("a"), Sleep(10), Say("b"), Sleep(1000)]], sockets=False
        ) as server,
        open_providers(dial_to(server)) as providers,
    ):
        with trio.move_on_after(seconds) as scope:
            await read(providers.provider(endpoint(family)))
        assert scope.cancelled_caught
        await server.all_closed()
        assert all(c.closed_at - scope.deadline < 0.001 for c in server.connections)
        assert providers.idle == 0


@FAMILIES
@pytest.mark.parametrize("seed", range(10))
async def test_a_storm_of_cancels_leaves_no_connection(family, seed):
    steps = [step for n in range(20) for step in (Say(str(n)), Sleep(0.1))]
    async with (
        open_model_server(lambda _: steps, sockets=False) as server,
        open_providers(dial_to(server)) as providers,
    ):

        async def ask(seconds):
            with trio.move_on_after(seconds):
                await read(providers.provider(endpoint(family)))

        async with trio.open_nursery() as nursery:
            for n in range(40):
                nursery.start_soon(ask, n * 0.07)
                if n % 3 == 0:
                    await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        assert server.open == providers.idle <= 4
        assert folded(await read(providers.provider(endpoint(family))))[0].text.endswith("19")
    assert server.open == 0


# ── With patience ───────────────────────────────────────────────────────────────────────────────


@FAMILIES
@pytest.mark.item("D14a")
async def test_a_second_attempt_heals_what_the_first_one_broke(family):
    sink = Recorder()
    answers = [[Say("one"), Cut()], [Refuse(529, retry_after=3)], [Say("two")]]
    async with (
        open_model_server(answers, sockets=False) as server,
        open_providers(dial_to(server)) as providers,
    ):
        provider = providers.provider(endpoint(family))
        ended = await converse(
            provider, request(), sink, patience=Patience(), waiting=lambda _: None
        )
    assert ended.reason is FinishReason.END_TURN
    assert (sink.text, sink.resets) == ("two", 1)
