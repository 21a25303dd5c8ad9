"""Our own connection speaks HTTP/1.1 as a client may expect, and answers with few words.

What it has in common with a safe Hypercorn is tested in `test_transport.py`, for both.
"""

import logging
from contextlib import asynccontextmanager

import h11
import pytest
import trio
import trio.testing

from crush_trio.server.http import connection as incoming
from crush_trio.server.http import outgoing
from crush_trio.server.http.exchange import take_whole_body
from tests.server.raw_client import SMALL, header, open_client
from tests.server.tiny_app import TinyApp, live, open_own_server

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

SOON = 2.0


@asynccontextmanager
async def open_connection(answer, **options):
    """Serve *answer*, an application without its lifespan, and connect to it."""

    async def application(scope, receive, send):
        if scope["type"] == "lifespan":
            await live(receive, send)
        else:
            await answer(scope, receive, send)

    with trio.fail_after(10 * SOON):
        async with open_own_server(application, **options) as server:
            async with open_client(server.address) as client:
                client.server = server
                yield client


async def say(send, body=b"", status=200, headers=()):
    head = [(b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def read(receive):
    """Return the pieces of a body."""
    pieces, more = [], True
    while more:
        event = await receive()
        pieces.append(event["body"])
        more = event["more_body"]
    return pieces


async def echo(scope, receive, send):
    await say(send, b"".join(await read(receive)))


# ── Requests ────────────────────────────────────────────────────────────────────────────────────


async def test_the_application_is_told_what_was_asked():
    seen = []

    async def note(scope, receive, send):
        seen.append(scope)
        await say(send)

    async with open_connection(note) as client:
        await client.request("/a%20b/c?d=%20e", method="PUT", headers=[("X-Name", "value")])
        await client.answer()
        us = client.stream.socket.getsockname()
    [scope] = seen
    assert (scope["type"], scope["scheme"], scope["http_version"]) == ("http", "http", "1.1")
    assert (scope["method"], scope["path"], scope["raw_path"]) == ("PUT", "/a b/c", b"/a%20b/c")
    assert scope["query_string"] == b"d=%20e"
    assert (b"x-name", b"value") in scope["headers"]
    assert scope["server"] == ("127.0.0.1", client.server.address.port)
    assert scope["client"] == us


@pytest.mark.parametrize("body", [b"", b"short", bytes(1_000_000)], ids=len)
async def test_a_body_arrives_as_it_was_sent(body):
    async with open_connection(echo) as client:
        for _ in range(2):
            await client.request("/", method="POST", body=body)
            assert (await client.answer())[1] == body
            client.parser.start_next_cycle()


async def test_a_body_in_chunks_arrives_as_it_was_sent():
    async with open_connection(echo) as client:
        head = b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
        await client.stream.send_all(head + b"3\r\none\r\n")
        await trio.testing.wait_all_tasks_blocked(0.02)
        await client.stream.send_all(b"4\r\n two\r\n0\r\n\r\n")
        client.parser.send(h11.Request(method="POST", target="/", headers=[("Host", "t")]))
        assert (await client.answer())[1] == b"one two"


async def test_a_request_that_has_arrived_can_be_taken_whole_and_once():
    bodies = []

    async def take(scope, receive, send):
        bodies.extend([take_whole_body(scope), take_whole_body(scope)])
        await say(send)

    async with open_connection(take) as client:
        await client.request("/", method="POST", body=b"whole")
        await client.answer()
    assert bodies == [b"whole", None]


async def test_a_request_that_is_still_arriving_cannot_be_taken_whole():
    taken, pieces = [], []

    async def take(scope, receive, send):
        taken.append(take_whole_body(scope))
        pieces.extend(await read(receive))
        await say(send)

    async with open_connection(take) as client:
        head = b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\n"
        await client.stream.send_all(head + b"ha")
        await trio.testing.wait_all_tasks_blocked(0.02)
        await client.stream.send_all(b"lf")
        assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 200")
    assert taken == [None]
    assert pieces[:2] == [b"ha", b"lf"]


def test_requests_of_other_servers_are_never_whole():
    assert take_whole_body({"type": "http"}) is None
    assert take_whole_body({"type": "http", "state": {}}) is None


async def test_a_client_that_waits_to_be_asked_for_the_body_is_asked_when_it_is_wanted():
    async with open_connection(echo) as client:
        await client.stream.send_all(
            b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        )
        assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 100")
        await client.stream.send_all(b"body")
        assert (await client.stream.receive_some()).endswith(b"\r\n\r\nbody")


async def test_a_client_that_waits_to_be_asked_may_be_refused_instead():
    async def refuse(scope, receive, send):
        await say(send, b"too large", 413)

    async with open_connection(refuse) as client:
        await client.stream.send_all(
            b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        )
        answer = await client.wait_closed()
        assert answer.startswith(b"HTTP/1.1 413")
        assert answer.endswith(b"too large")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
        (b"GET /\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: t\r\n" + b"a: b\r\n" * 9000, b"431"),
        (b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
    ],
    ids=["http2", "no version", "no host", "headers without end", "unknown coding"],
)
async def test_what_is_no_request_is_refused_and_the_connection_closed(request_, status, caplog):
    async with open_connection(echo) as client:
        await client.stream.send_all(request_)
        answer = await client.wait_closed()
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        assert answer.count(b"HTTP/1.1") == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("later", [True, False])
async def test_a_body_that_makes_no_sense_in_the_end_is_refused(later):
    async with open_connection(echo) as client:
        head = b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
        await client.stream.send_all(head + (b"" if later else b"x\r\n"))
        if later:
            await trio.testing.wait_all_tasks_blocked(0.02)
            await client.stream.send_all(b"x\r\n")
        assert (await client.wait_closed()).startswith(b"HTTP/1.1 400")


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


async def test_an_ordinary_answer_is_one_write(monkeypatch):
    written = []
    write = outgoing._write
    monkeypatch.setattr(outgoing, "_write", lambda stream, data: count(write(stream, data)))

    def count(size):
        if size:
            written.append(size)
        return size

    async with open_connection(echo) as client:
        await client.request("/", method="POST", body=b"body")
        await client.answer()
    assert len(written) == 1


async def test_an_answer_has_the_head_that_the_application_gave_it_and_a_date():
    async def answer(scope, receive, send):
        await say(send, b"body", 202, [(b"x-name", b"value")])

    async with open_connection(answer) as client:
        await client.request("/")
        head, body = await client.answer()
    assert (head.status_code, body) == (202, b"body")
    assert header(head, "x-name") == "value"
    assert header(head, "date").endswith(" GMT")


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 304), ("GET", 204)])
async def test_an_answer_without_a_body_leaves_the_connection_usable(method, status):
    async def answer(scope, receive, send):
        body = b"unwanted"
        head = [] if status == 204 else [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    async with open_connection(answer) as client:
        for _ in range(2):
            await client.request("/", method=method)
            head, body = await client.answer()
            assert (head.status_code, body) == (status, b"")
            client.parser.start_next_cycle()


async def test_an_answer_of_unknown_length_comes_in_chunks():
    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for word in (b"one", b" two"):
            await send({"type": "http.response.body", "body": word, "more_body": True})
        await send({"type": "http.response.body"})

    async with open_connection(answer) as client:
        await client.request("/")
        head, body = await client.answer()
        assert header(head, "Transfer-Encoding") == "chunked"
        assert body == b"one two"


async def test_a_client_of_http_1_0_is_answered_and_left():
    async with open_connection(echo) as client:
        await client.stream.send_all(b"GET / HTTP/1.0\r\n\r\n")
        assert b"connection: close" in (await client.wait_closed()).lower()


@pytest.mark.parametrize("begun", [True, False])
async def test_an_application_that_crashes_is_logged_without_what_the_client_sent(begun, caplog):
    async def crash(scope, receive, send):
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError(scope["path"])

    async with open_connection(crash) as client:
        await client.request("/secret")
        if begun:
            answer = await client.wait_closed()
            assert answer.startswith(b"HTTP/1.1 200")
            assert not answer.endswith(b"0\r\n\r\n"), "half an answer passed for a whole one"
        else:
            assert (await client.answer())[0].status_code == 500
    [record] = [entry for entry in caplog.records if entry.levelno >= logging.ERROR]
    assert record.message == "request.crashed"
    assert record.failures[0].startswith("RuntimeError at ")
    assert "secret" not in str(vars(record))


async def test_an_application_that_does_not_answer_is_answered_for():
    async def ignore(scope, receive, send):
        await trio.lowlevel.checkpoint()

    async with open_connection(ignore) as client:
        await client.request("/")
        assert (await client.answer())[0].status_code == 500


async def test_the_last_answer_of_a_server_that_stops_says_that_it_is_the_last():
    asked, go_on = trio.Event(), trio.Event()

    async def wait(scope, receive, send):
        asked.set()
        await go_on.wait()
        await say(send, b"late")

    async with open_connection(wait) as client:
        await client.request("/")
        await asked.wait()
        client.server.stop.set()
        await trio.testing.wait_all_tasks_blocked(0.02)
        go_on.set()
        head, body = await client.answer()
        assert (header(head, "connection"), body) == ("close", b"late")
        await client.server.stopped.wait()


# ── Clients that leave ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("receiving", [True, False])
async def test_a_handler_is_cancelled_when_its_client_leaves(receiving):
    asked, cancelled = trio.Event(), trio.Event()

    async def wait(scope, receive, send):
        asked.set()
        try:
            while receiving:
                await receive()
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.set()
            raise

    async with open_connection(wait) as client:
        await client.request("/")
        await asked.wait()
        await client.stream.aclose()
        await cancelled.wait()


@pytest.mark.parametrize("request_", [b"", b"6\r\nsecond\r\n0\r\n\r\n"])
async def test_a_client_that_closes_its_side_gets_its_answer(request_):
    """What it has sent is complete; that nothing follows is no reason not to answer it."""
    head = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"5\r\nfirst\r\n" + (request_ or b"0\r\n\r\n")

    async def slow_echo(scope, receive, send):
        pieces = await read(receive)
        await trio.sleep(0.1)
        await say(send, b"".join(pieces))

    async with open_connection(slow_echo) as client:
        await client.stream.send_all(head + body)
        await client.stream.send_eof()
        assert (await client.wait_closed()).endswith(b"firstsecond" if request_ else b"first")


async def test_a_client_that_closed_its_side_is_asked_whether_it_is_still_there(monkeypatch):
    monkeypatch.setattr(incoming, "PROBE_PAUSE", 0.02)

    async def slow(scope, receive, send):
        await trio.sleep(0.3)
        await say(send, b"late")

    async with open_connection(slow) as client:
        await client.request("/")
        await client.stream.send_eof()
        assert isinstance(await client.next_event(), h11.InformationalResponse)
        rest = await client.wait_closed()
        assert rest.endswith(b"late")
        assert rest.count(b"HTTP/1.1 200") == 1


async def test_a_client_of_http_1_0_that_closed_its_side_is_believed_for_a_while(monkeypatch):
    monkeypatch.setattr(incoming, "PROBE_PAUSE", 0.02)
    monkeypatch.setattr(incoming, "BELIEVED", 0.4)

    async def answer(scope, receive, send):
        await trio.sleep(0 if scope["path"] == "/soon" else 60)
        await say(send, b"answer")

    async with open_connection(answer) as client:
        async with open_client(client.server.address) as other:
            await client.stream.send_all(b"GET /soon HTTP/1.0\r\n\r\n")
            await client.stream.send_eof()
            assert (await client.wait_closed()).endswith(b"answer")
            await other.stream.send_all(b"GET /late HTTP/1.0\r\n\r\n")
            await other.stream.send_eof()
            assert await other.wait_closed() == b""


async def test_a_client_that_sends_far_ahead_is_not_read_ahead():
    """What it sends is the kernel's business until its turn comes."""
    asked = trio.Event()

    async def wait(scope, receive, send):
        asked.set()
        await trio.sleep_forever()

    async with open_connection(wait, grace=0) as client:
        client.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, SMALL)
        await client.request("/")
        await asked.wait()
        with trio.move_on_after(0.3) as sending:
            await client.stream.send_all(bytes(50_000_000))
        assert sending.cancelled_caught
        client.server.stop.set()


async def test_a_stream_is_written_without_the_framework(monkeypatch):
    """What fits goes to the socket at once; what does not waits in the framework, in order."""
    app = TinyApp()
    sent = []

    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        send_now = scope["state"]["crush_trio.carrier"].begin_stream()
        await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        data = b"x" * 20_000_000
        sent.append(send_now(data))
        rest = data[sent[0] :]
        await send({"type": "http.response.body", "body": rest, "more_body": True})
        sent.append(send_now(b" last"))
        await send({"type": "http.response.body", "body": b""})
        app.ended.set()

    async with open_connection(answer) as client:
        await client.request("/")
        head, body = await client.answer()
        assert header(head, "Transfer-Encoding") is None
        assert body == b"first " + b"x" * 20_000_000 + b" last"
    assert 0 < sent[0] < 20_000_000
    assert app.ended.is_set()
