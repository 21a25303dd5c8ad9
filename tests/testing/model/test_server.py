"""The scripted model behind HTTP: when it says what, what it notices, and what befalls it."""

from contextlib import suppress

import h11
import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from crush_trio.net.address import origin_of
from crush_trio.testing import Gate
from crush_trio.testing.model.anthropic import AnthropicAnswer
from crush_trio.testing.model.openai import OpenAIAnswer
from crush_trio.testing.model.script import (
    CallTool,
    Cut,
    Fail,
    Garble,
    Pause,
    Ping,
    Refuse,
    Say,
    Sleep,
    Think,
    by_model,
    by_text,
    expand,
)
from crush_trio.testing.model.server import open_model_server
from tests.testing.raw_model_client import ANTHROPIC, OPENAI, Heard, ask, asking

FORMATS = pytest.mark.parametrize("path", [OPENAI, ANTHROPIC])


# ── When ───────────────────────────────────────────────────────────────────────────────────────


async def answer_to(script, path=OPENAI, body=None, **options):
    async with open_model_server(script, sockets=False, **options) as server:
        async with server.connect() as stream:
            return await ask(stream, path, body)


@FORMATS
async def test_an_answer_is_streamed_with_all_its_bytes(path):
    words = (OpenAIAnswer if path == OPENAI else AnthropicAnswer)(asking())
    heard = await answer_to([[Think("Hm"), Say("hi"), CallTool("ls")]], path)
    assert (heard.status, heard.headers["content-type"]) == (200, words.content_type.decode())
    parts = expand([Think("Hm"), Say("hi"), CallTool("ls")])
    assert heard.body == words.begin() + b"".join(map(words.part, parts))


@FORMATS
@pytest.mark.parametrize("split", [1, 7, (1, 17, 18, 300)])
async def test_an_answer_is_the_same_however_it_is_cut(path, split):
    script = [[Think("Hm"), Say("hä"), CallTool("ls", {"path": "ö"}, pieces=3)]]
    assert (await answer_to(script, path, split=split)).body == (await answer_to(script, path)).body


class Noted(trio.abc.SendStream):
    """Takes note of every write."""

    def __init__(self, stream):
        self.stream, self.writes = stream, []

    async def send_all(self, data):
        self.writes.append(bytes(data))
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self):
        await self.stream.wait_send_all_might_not_block()

    async def aclose(self):
        await self.stream.aclose()


async def writes_of(answer, **options):
    """Return the writes of a response, however it ends."""
    ours, theirs = memory_stream_pair()
    noted = Noted(ours.send_stream)
    async with open_model_server([answer], sockets=False, **options) as server:
        async with trio.open_nursery() as nursery, theirs:
            nursery.start_soon(server.serve, trio.StapledStream(noted, ours.receive_stream))
            with suppress(h11.RemoteProtocolError):
                await ask(theirs)
    return noted.writes


async def test_writes_are_cut_where_the_test_wants_them():
    assert {len(piece) for piece in await writes_of([Say("hi")], split=1)} == {1}
    whole = b"".join(await writes_of([Say("hi")]))
    cut_at = await writes_of([Say("hi")], split={9, len(whole) - 3})
    assert cut_at[0] == whole[:9]
    assert cut_at[-1] == whole[-3:]


async def test_pieces_come_when_the_script_says_so():
    heard = await answer_to([[Say("one"), Sleep(5), Say("two")]])
    assert [at for at, piece in heard.pieces if b"one" in piece] == [0]
    assert [at for at, piece in heard.pieces if b"two" in piece] == [5]


async def test_a_late_call_waits_at_its_gate():
    gate, heard = Gate(), Heard()
    script = [[Say("let me see"), Pause(gate), CallTool("ls")]]
    async with open_model_server(script, sockets=False) as server:
        async with trio.open_nursery() as nursery, server.connect() as stream:
            nursery.start_soon(lambda: ask(stream, heard=heard))
            await gate.reached()
            await wait_all_tasks_blocked()
            assert (b"let me see" in heard.body, b"tool_calls" in heard.body) == (True, False)
            gate.open()
            await wait_all_tasks_blocked()
            assert b"tool_calls" in heard.body


@pytest.mark.parametrize(("first", "status"), [(Pause(Gate()), 0), (Ping(), 200)])
async def test_the_head_is_sent_with_the_first_thing_there_is_to_say(first, status):
    heard, gate = Heard(), Gate()
    async with open_model_server([[first, Pause(gate)]], sockets=False) as server:
        async with trio.open_nursery() as nursery, server.connect() as stream:
            nursery.start_soon(lambda: ask(stream, ANTHROPIC, heard=heard))
            await wait_all_tasks_blocked()
            assert heard.status == status
            nursery.cancel_scope.cancel()


async def test_a_connection_serves_many_requests_and_answers_come_in_order():
    async with open_model_server([[Say("one")], [Say("two")]], sockets=False) as server:
        async with server.connect() as stream:
            http = h11.Connection(h11.CLIENT)
            first = await ask(stream, http=http)
            http.start_next_cycle()
            second = await ask(stream, ANTHROPIC, http=http)
        assert (b"one" in first.body, b"two" in second.body) == (True, True)
        assert len(server.connections) == 1
        assert [request.path for request in server.requests] == [OPENAI, ANTHROPIC]


# ── What it keeps book of ──────────────────────────────────────────────────────────────────────


@FORMATS
async def test_requests_are_kept_as_they_came(path):
    async with open_model_server([[Say("hi")]], sockets=False) as server:
        async with server.connect() as stream:
            await trio.sleep(3)
            await ask(stream, path + "?api-version=1", headers=[("Authorization", "Bearer key")])
    [request] = server.requests
    assert (request.method, request.path, request.body) == ("POST", path, asking())
    assert request.headers["authorization"] == "Bearer key"
    assert (request.model_id, request.text, request.heard_at) == ("m1", "hi", 3)
    assert request.connection is server.connections[0]


async def test_results_of_tools_are_not_what_the_user_said():
    said = [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]
    result = [{"type": "tool_result", "tool_use_id": "c1", "content": "a"}]
    messages = [{"role": "user", "content": said}, {"role": "user", "content": result}]
    async with open_model_server([[Say("hi")]], sockets=False) as server:
        async with server.connect() as stream:
            await ask(stream, ANTHROPIC, asking(messages=messages))
    assert server.requests[0].text == "hello"


async def test_a_script_may_choose_by_model_and_by_text():
    for choose, body in [(by_model, asking(model="x")), (by_text, asking("x"))]:
        script = choose({"x": [[Say("right")]], "m1": [[Say("wrong")]], "hi": [[Say("wrong")]]})
        assert b"right" in (await answer_to(script, body=body)).body
    assert b"m1?" in (await answer_to(lambda request: [Say(f"{request.model_id}?")])).body


async def test_a_hang_up_in_the_middle_is_noticed_at_once_and_ends_the_answer():
    gate = Gate()
    async with open_model_server([[Say("hi"), Pause(gate)]], sockets=False) as server:
        async with trio.open_nursery() as nursery, server.connect() as stream:
            nursery.start_soon(lambda: ask(stream))
            await gate.reached()
            assert (server.open, gate.waiting) == (1, 1)
            await trio.sleep(7)
            nursery.cancel_scope.cancel()
        await server.all_closed()
        [connection] = server.connections
        assert (connection.opened_at, connection.closed_at) == (0, 7)
        assert (connection.closed_by_client, server.open, gate.waiting) == (True, 0, 0)


async def test_a_client_that_leaves_after_its_answer_or_without_a_request_is_noticed_too():
    async with open_model_server([[Say("hi")]], sockets=False) as server:
        async with server.connect() as stream:
            await ask(stream)
        async with server.connect() as stream:
            await stream.send_all(b"POST /v1/mess")
        await server.all_closed()
        assert [connection.closed_by_client for connection in server.connections] == [True, True]


async def test_leaving_the_block_closes_everything():
    gate = Gate()

    async def ask_in_vain(stream):
        with pytest.raises(h11.RemoteProtocolError, match="closed"):
            await ask(stream)

    async with trio.open_nursery() as nursery:
        async with open_model_server([[Say("hi"), Pause(gate)]], sockets=False) as server:
            nursery.start_soon(ask_in_vain, server.connect())
            await gate.reached()
        assert (server.open, gate.waiting) == (0, 0)
        assert not server.connections[0].closed_by_client


# ── Bad days ───────────────────────────────────────────────────────────────────────────────────


async def test_a_refusal_is_worded_as_each_provider_does():
    openai = await answer_to([[Refuse(401)]])
    assert (openai.status, openai.headers["content-type"]) == (401, "application/json")
    assert openai.json == {
        "error": {
            "message": "Incorrect API key provided.",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_api_key",
        }
    }
    anthropic = await answer_to([[Refuse(529, "busy")]], ANTHROPIC)
    assert anthropic.status == 529
    assert anthropic.json == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "busy"},
        "request_id": "req_1",
    }


@FORMATS
async def test_a_refusal_says_when_to_come_back_and_others_do_not(path):
    assert (await answer_to([[Refuse(429, retry_after=2)]], path)).headers["retry-after"] == "2"
    assert "retry-after" not in (await answer_to([[Refuse(500)]], path)).headers


async def test_an_error_in_the_midst_of_an_answer_is_its_last_event():
    openai = await answer_to([[Say("so"), Refuse(500, "oh"), Say("never")]])
    assert (openai.status, openai.complete) == (200, True)
    last = b'data: {"error":{"message":"oh","type":"server_error","param":null,"code":null}}\n\n'
    assert openai.body.endswith(last)
    anthropic = await answer_to([[Say("so"), Refuse(529)]], ANTHROPIC)
    assert anthropic.body.endswith(
        b"event: error\n"
        b'data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
    )


@FORMATS
@pytest.mark.parametrize("before", [[], [Say("so")]])
async def test_a_cut_closes_the_connection_in_the_middle(path, before):
    async with open_model_server([[*before, Cut()]], sockets=False) as server:
        async with server.connect() as stream:
            with pytest.raises(h11.RemoteProtocolError):
                await ask(stream, path)
        [connection] = server.connections
        assert connection.closed_at is not None
        assert not connection.closed_by_client


async def test_a_cut_is_in_the_middle_of_a_chunk():
    *_, last = await writes_of([Say("so"), Cut()])
    length, _, rest = last.partition(b"\r\n")
    assert 0 < len(rest) < int(length, 16)


async def test_a_tidy_cut_ends_the_response_without_the_end_of_the_answer():
    heard = await answer_to([[Say("so"), Cut(tidy=True)]])
    assert heard.complete
    assert heard.body.endswith(
        b'"delta":{"content":"so"},"logprobs":null,"finish_reason":null}]}\n\n'
    )


async def test_nonsense_is_sent_as_it_is_and_the_answer_goes_on():
    openai = await answer_to([[Garble("{no"), Say("so")]])
    assert b"\n\ndata: {no\n\ndata: " in openai.body
    anthropic = await answer_to([[Garble("{no")]], ANTHROPIC)
    assert b"\n\nevent: content_block_delta\ndata: {no\n\n" in anthropic.body


async def test_a_script_that_is_over_refuses_in_a_way_nobody_repeats():
    heard = await answer_to([])
    assert heard.status == 400
    assert "the script has 0 answers" in heard.json["error"]["message"]


async def test_only_streams_are_played_and_only_where_models_are():
    assert (await answer_to([[Say("hi")]], body=asking(stream=False))).status == 400
    assert (await answer_to([[Say("hi")]], "/v1/responses")).status == 404


async def test_an_error_of_the_script_reaches_the_test():
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True, allow_unwrapped=True):
        await answer_to([[Fail(ZeroDivisionError())]])


async def test_both_kinds_of_model_lists():
    async with open_model_server(models=["a", "b"], sockets=False) as server:
        async with server.connect() as stream:
            openai = await ask(stream, "/v1/models", method="GET")
        async with server.connect() as stream:
            version = [("anthropic-version", "2023-06-01")]
            anthropic = await ask(stream, "/v1/models", method="GET", headers=version)
    assert [model["id"] for model in openai.json["data"]] == ["a", "b"]
    assert openai.json["object"] == "list"
    assert (anthropic.json["first_id"], anthropic.json["last_id"]) == ("a", "b")


# ── Connections ────────────────────────────────────────────────────────────────────────────────


async def test_every_address_leads_here():
    async with open_model_server([[Say("hi")]], sockets=False) as server:
        dial = server.dial
        async with await dial(origin_of("https://api.example.test")) as stream:
            assert b"hi" in (await ask(stream)).body
        await server.all_closed()


async def connect(server):
    return await trio.open_tcp_stream("127.0.0.1", int(server.base_url.rpartition(":")[2]))


@pytest.mark.slow
@pytest.mark.real_clock
@FORMATS
@pytest.mark.parametrize("split", [None, 1])
async def test_over_sockets_it_is_the_same(path, split):
    script = [[Say("so"), CallTool("ls")]]
    async with open_model_server(script, split=split) as server:
        async with await connect(server) as stream:
            heard = await ask(stream, path)
        await server.all_closed()
        assert server.connections[0].closed_by_client
    assert heard.body == (await answer_to(script, path)).body


@pytest.mark.slow
@pytest.mark.real_clock
async def test_over_sockets_a_hang_up_is_noticed_and_nothing_listens_afterwards():
    gate = Gate()
    async with open_model_server([[Say("so"), Pause(gate)]]) as server:
        async with trio.open_nursery() as nursery, await connect(server) as stream:
            nursery.start_soon(lambda: ask(stream))
            await gate.reached()
            nursery.cancel_scope.cancel()
        await server.all_closed()
        assert server.connections[0].closed_by_client
    with pytest.raises(OSError, match="connect"):
        await connect(server)
