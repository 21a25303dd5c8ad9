"""Requests end, in whatever order answers, cancels and the end of the peer come."""

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from attrs import define, field

from crush_trio.integrations.lsp.connection import (
    ConnectionLost,
    LspFailure,
    RequestRefused,
    RequestTimedOut,
    RpcConnection,
    UnknownMethod,
)
from tests.integrations.lsp_bench import ends


@define(eq=False)
class Listener:
    """Takes note of what the peer says by itself."""

    heard: list = field(factory=list)

    def notified(self, method, params):
        self.heard.append((method, params))

    def asked(self, method, params):
        if method == "nonsense":
            raise UnknownMethod
        return {"you said": params}


@asynccontextmanager
async def connected(**settings):
    near, far = ends()
    connection = RpcConnection(near, Listener(), **settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        yield connection, far
        nursery.cancel_scope.cancel()


async def ask(connection, outcomes, name, limit=5.0):
    try:
        outcomes[name] = await connection.request(name, {"n": name}, limit=limit)
    except LspFailure as error:
        outcomes[name] = error


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


async def test_answers_find_their_requests_in_any_order():
    outcomes = {}
    async with connected() as (connection, far):
        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(ask, connection, outcomes, name)
            asked = [await far.next() for _ in range(3)]
            for request in reversed(asked):
                await far.answer(request, request["params"]["n"] * 2)
    assert outcomes == {"a": "aa", "b": "bb", "c": "cc"}


async def test_an_answer_that_is_null_is_an_answer():
    outcomes = {}
    async with connected() as (connection, far), trio.open_nursery() as nursery:
        nursery.start_soon(ask, connection, outcomes, "a")
        await far.answer(await far.next(), None)
    assert outcomes == {"a": None}


async def test_an_error_is_told_in_the_words_of_the_peer():
    outcomes = {}
    async with connected() as (connection, far), trio.open_nursery() as nursery:
        nursery.start_soon(ask, connection, outcomes, "a")
        request = await far.next()
        await far.say(id=request["id"], error={"code": 1, "message": "no such symbol"})
    assert isinstance(outcomes["a"], RequestRefused)
    assert str(outcomes["a"]) == "a: no such symbol"


async def test_a_request_without_params_has_none():
    async with connected() as (connection, far), trio.open_nursery() as nursery:

        async def shutdown():
            await connection.request("shutdown", limit=1)

        nursery.start_soon(shutdown)
        request = await far.next()
        assert request == {"jsonrpc": "2.0", "id": request["id"], "method": "shutdown"}
        await far.answer(request, None)


# ── Not waiting any more ────────────────────────────────────────────────────────────────────────


async def test_after_its_limit_a_request_fails_and_the_peer_is_told(autojump_clock):
    async with connected() as (connection, far):
        with pytest.raises(RequestTimedOut, match="a was not answered within 5 seconds"):
            await connection.request("a", {}, limit=5)
        assert trio.current_time() == pytest.approx(5)
        request, cancelled = await far.next(), await far.next()
        assert cancelled["method"] == "$/cancelRequest"
        assert cancelled["params"] == {"id": request["id"]}


@pytest.mark.parametrize("seed", range(20))
async def test_a_cancelled_request_says_so_and_a_late_answer_harms_nobody(seed):
    outcomes = {}
    async with connected() as (connection, far):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, connection, outcomes, "a")
            request = await far.next()
            nursery.cancel_scope.cancel()
        told = await far.next()
        assert (told["method"], told["params"]) == ("$/cancelRequest", {"id": request["id"]})
        assert "a" not in outcomes
        await far.answer(request, "too late")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, connection, outcomes, "b")
            await far.answer(await far.next(), "in time")
    assert outcomes == {"b": "in time"}


@pytest.mark.parametrize("seed", range(20))
async def test_a_cancel_and_an_answer_at_once_leave_no_request_behind(seed):
    outcomes = {}
    async with connected() as (connection, far):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, connection, outcomes, "a")
            request = await far.next()
            nursery.start_soon(far.answer, request, 1)
            nursery.cancel_scope.cancel()
        assert connection._waiting == {}
        assert outcomes in ({}, {"a": 1})


# ── The end of the peer ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(20))
async def test_a_peer_that_ends_in_the_midst_of_requests_ends_them(seed):
    outcomes = {}
    async with connected() as (connection, far):
        async with trio.open_nursery() as nursery:
            for name in ("a", "b"):
                nursery.start_soon(ask, connection, outcomes, name)
            await far.next()
            await far.stream.aclose()
        await connection.ended.wait()
        assert {type(each) for each in outcomes.values()} == {ConnectionLost}
        with pytest.raises(ConnectionLost, match="it has ended"):
            await connection.request("c", limit=5)
        connection.notify("nobody listens")


@pytest.mark.parametrize(
    "nonsense",
    [b"Content-Length: 9999999999\r\n\r\n", b"Content-Length: 3\r\n\r\n{]}", b"\0" * 9000],
)
async def test_what_is_no_message_ends_the_connection(nonsense):
    outcomes = {}
    async with connected() as (connection, far):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, connection, outcomes, "a")
            await far.next()
            await far.stream.send_all(nonsense)
        assert connection.lost.startswith("it sent an invalid message")
    assert isinstance(outcomes["a"], ConnectionLost)


async def test_a_peer_that_does_not_read_is_given_up_before_memory_is():
    near, far = trio.testing.lockstep_stream_pair()
    connection = RpcConnection(near, Listener(), backlog=10_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        for _ in range(200):
            connection.notify("x", {"text": "y" * 100})
        assert connection.lost == "it no longer reads what it is sent"
        assert connection._unwritten <= 10_200
        nursery.cancel_scope.cancel()
    await far.aclose()


async def test_closing_a_connection_lets_go_of_who_waits():
    outcomes = {}
    near, far = ends()
    connection = RpcConnection(near, Listener())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, connection, outcomes, "a")
        async with trio.open_nursery() as talk:
            talk.start_soon(connection.run)
            await far.next()
            talk.cancel_scope.cancel()
    assert str(outcomes["a"]) == "the connection was closed"


# ── What the peer says by itself ────────────────────────────────────────────────────────────────


async def test_the_peer_is_answered_or_told_that_its_question_is_not_known():
    async with connected() as (_, far):
        await far.say(id="x", method="question", params=[1])
        assert await far.next() == {"jsonrpc": "2.0", "id": "x", "result": {"you said": [1]}}
        await far.say(id=7, method="nonsense")
        refused = await far.next()
        assert (refused["id"], refused["error"]["code"]) == (7, -32601)


async def test_messages_that_mean_nothing_are_passed_over():
    async with connected() as (connection, far):
        await far.stream.send_all(b"Content-Length: 2\r\n\r\n[]")
        await far.say(id=99, result="never asked")
        await far.say(id=None, result="no id")
        await far.say(method=3)
        await far.say(method="news", params={"a": 1})
        await far.say(id=1, method="question")
        await far.next()
        assert connection._peer.heard == [("news", {"a": 1})]


async def test_a_text_that_was_cut_inside_a_character_does_not_end_the_connection():
    async with connected() as (connection, far):
        body = rb'{"jsonrpc":"2.0","method":"news","params":"cut \ud83d"}'
        await far.stream.send_all(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await far.say(id=1, method="question")
        await far.next()
        assert connection._peer.heard == [("news", "cut ?")]
