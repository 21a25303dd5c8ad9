"""What a client can do to its own connection: whatever it is, it is answered in order or ended.

None of it is our failure, so none of it is logged as one.
"""

import logging
import socket
from contextlib import suppress

import pytest
import trio
import trio.testing

from crush_trio.server.http.connection import serve_connection
from crush_trio.server.http.outgoing import begin_stream
from crush_trio.testing import Call, CheckpointFaults, Fault
from tests.server.one_connection import open_pair

pytestmark = pytest.mark.real_clock

GET = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
WAITING = b"POST / HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
REFUSED = b"HTTP/1.1 400 \r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@pytest.fixture(autouse=True)
def nothing_failed(caplog):
    yield
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def begin(send, status=200, headers=()):
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def go_on(send, body):
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def answer(send, body=b"", status=200):
    await begin(send, status, [(b"content-length", b"%d" % len(body))])
    await send({"type": "http.response.body", "body": body})


async def echo(scope, receive, send):
    """Answer with the path and the body."""
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event["body"], event["more_body"]
    await answer(send, scope["path"].encode() + b" " + body)


def while_receiving(work):
    """Return an application that does *work* while another task of it receives, as Quart's do."""

    async def application(scope, receive, send):
        async def receive_all():
            while True:
                await receive()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive_all)
            await work(scope, send)
            nursery.cancel_scope.cancel()

    return application


# ── Requests that can be misunderstood ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "target",
    [b"?a=b", b"a", b"%2fa", b"t:80", b"ftp://t/a", b"http://", b"http:///a", b"http:a", b"**"],
)
async def test_a_target_without_a_path_is_refused(target):
    async with open_pair(echo) as client:
        await client.say(b"GET %b HTTP/1.1\r\nHost: t\r\n\r\n" % target)
        assert await client.rest() == REFUSED


@pytest.mark.parametrize("target", [b"http://u/a", b"HTTPS://t:80", b"http://[t/a", b"http://t@u/"])
async def test_a_target_of_another_host_is_refused(target):
    async with open_pair(echo) as client:
        await client.say(b"GET %b HTTP/1.1\r\nHost: t\r\n\r\n" % target)
        assert (await client.rest()).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://t/a%20b?c=http://d/", "/a b"),
        (b"HTTPS://T", "/"),
        (b"http://t?a/b", "/"),
        (b"//t/a", "//t/a"),
        (b"/http://t/a", "/http://t/a"),
        (b"*", "*"),
    ],
)
async def test_a_target_may_be_the_whole_address(target, path):
    seen = []

    async def note(scope, receive, send):
        seen.append(scope["path"])
        await answer(send)

    async with open_pair(note) as client:
        await client.say(b"GET %b HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n" % target)
        assert (await client.rest()).startswith(b"HTTP/1.1 200")
    assert seen == [path]


async def test_a_body_whose_end_is_told_in_two_ways_is_refused_with_all_that_follows():
    async with open_pair(echo) as client:
        both = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\n")
        await client.say(both + b"0\r\n\r\n" + GET)
        assert await client.rest() == REFUSED


@pytest.mark.parametrize("pieces", [1, 2, 20])
@pytest.mark.parametrize(("size", "status"), [(15_000, b"200"), (17_000, b"431"), (60_000, b"431")])
async def test_how_large_a_head_may_be_does_not_depend_on_how_it_arrives(pieces, size, status):
    head = LAST.replace(b"Host", b"X-Long: %b\r\nHost" % (b"x" * size))
    piece = len(head) // pieces + 1
    async with open_pair(echo) as client:
        for at in range(0, len(head), piece):
            with suppress(trio.BrokenResourceError):
                await client.say(head[at : at + piece])
        assert (await client.rest()).startswith(b"HTTP/1.1 " + status)


# ── Two tasks that want to send ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shield", [True, False])
async def test_a_body_that_makes_no_sense_is_the_end_whatever_the_handler_answers(shield):
    answered = trio.Event()

    async def answer_late(scope, send):
        with trio.CancelScope(shield=shield):
            await trio.testing.wait_all_tasks_blocked(0.05)
            await answer(send, b"late")
            answered.set()

    async with open_pair(while_receiving(answer_late)) as client:
        await client.say(CHUNKED)
        await client.say(b"no size\r\n")
        assert await client.rest() == REFUSED
        if shield:
            await answered.wait()


@pytest.mark.parametrize("spare", range(5))
async def test_asking_for_a_body_does_not_wait_behind_what_the_client_does_not_read(spare):
    """The handler may answer at any moment, and only one of the two can wait to send."""

    async def refuse(scope, send):
        await trio.testing.wait_all_tasks_blocked(0.02)
        await answer(send, b"no", 413)

    async def fill_or_refuse(scope, receive, send):
        if scope["method"] == "POST":
            await while_receiving(refuse)(scope, receive, send)
            return
        await begin(send)
        for _ in range(writes_that_fit() - spare):
            await go_on(send, b"x")
        await send({"type": "http.response.body"})

    async with open_pair(fill_or_refuse) as client:
        await client.stream.send_all(GET + WAITING)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert (await client.rest()).endswith(b"\r\n\r\nno")


def writes_that_fit():
    """Return how many small pieces a socket takes whose other end does not read."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        count = 0
        with suppress(BlockingIOError):
            while ours.send(b"1\r\nx\r\n"):
                count += 1
    return count


# ── Streams ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("expected", [True, False])
async def test_a_stream_goes_on_although_the_body_of_its_request_does_not_come(expected):
    go = trio.Event()

    async def stream(scope, send):
        await trio.testing.wait_all_tasks_blocked()
        send_now = begin_stream(scope)
        await begin(send)
        await go_on(send, b"first ")
        await go.wait()
        assert send_now(b"second ") == 7
        await send({"type": "http.response.body", "body": b"third"})

    async with open_pair(while_receiving(stream)) as client:
        await client.say(WAITING if expected else WAITING.replace(b"Expect", b"X-Not"))
        await client.say(b"bo")
        go.set()
        said = await client.rest()
        assert said.endswith(b"\r\n\r\nfirst second third")
        assert said.startswith(b"HTTP/1.1 100" if expected else b"HTTP/1.1 200")


async def test_a_connection_that_was_given_to_a_stream_serves_nothing_else():
    async def regret(scope, receive, send):
        begin_stream(scope)
        await answer(send, b"no stream here", 404)

    async with open_pair(regret) as client:
        await client.say(GET + GET)
        said = await client.rest()
        assert said.startswith(b"HTTP/1.1 404")
        assert b"connection: close" in said.lower()
        assert said.endswith(b"\r\n\r\nno stream here")
        assert said.count(b"HTTP/1.1") == 1


async def test_a_stream_of_which_only_the_head_was_asked_for_has_no_body():
    async def stream(scope, receive, send):
        send_now = begin_stream(scope)
        await begin(send)
        await go_on(send, b"first")
        await go_on(send, b"second"[send_now(b"second") :])
        await send({"type": "http.response.body"})

    async with open_pair(stream) as client:
        await client.say(GET.replace(b"GET", b"HEAD"))
        said = await client.rest()
        assert said.startswith(b"HTTP/1.1 200")
        assert said.endswith(b"\r\n\r\n")


# ── Other clients ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "said",
    [GET * 200 + LAST, CHUNKED + b"1\r\nx\r\n" * 200 + b"0\r\n\r\n" + LAST],
    ids=["requests", "chunks"],
)
async def test_who_sends_much_ahead_lets_others_have_their_turn(said):
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def answer_at_once(scope, receive, send):
        more = scope["method"] == "POST"
        while more:
            more = (await receive())["more_body"]
        await answer(send)

    async with open_pair(answer_at_once) as client, trio.open_nursery() as nursery:
        await client.stream.send_all(said)
        nursery.start_soon(others)
        await client.rest()
        nursery.cancel_scope.cancel()
    assert turns > 150


# ── Ends ────────────────────────────────────────────────────────────────────────────────────────

STORY = GET + WAITING + b"body" + CHUNKED + b"3\r\none\r\n0\r\n\r\n" + LAST


@pytest.mark.heavy
@pytest.mark.parametrize("half", [True, False])
async def test_a_client_may_leave_after_any_byte(half):
    for length in range(len(STORY)):
        async with open_pair(echo) as client:
            if length:
                await client.say(STORY[:length])
            if half:
                await client.stream.send_eof()
            else:
                await client.stream.aclose()
            await client.ended.wait()


async def test_a_client_that_closes_its_side_is_answered_all_that_it_has_asked():
    async with open_pair(echo) as client:
        await client.stream.send_all(GET + GET + STORY)
        await client.stream.send_eof()
        assert (await client.rest()).count(b"HTTP/1.1 200") == 6
        await client.ended.wait()


async def test_half_a_request_from_a_client_that_closes_its_side_is_refused():
    async with open_pair(echo) as client:
        await client.stream.send_all(GET + GET[:-2])
        await client.stream.send_eof()
        said = await client.rest()
        assert (said.count(b"HTTP/1.1 200"), said.count(b"HTTP/1.1 400")) == (1, 1)


async def test_a_handler_is_cancelled_when_a_client_that_closed_its_side_leaves():
    cancelled = trio.Event()

    async def wait(scope, receive, send):
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with open_pair(wait) as client:
        await client.stream.send_all(GET)
        await client.stream.send_eof()
        await trio.testing.wait_all_tasks_blocked()
        assert not cancelled.is_set()
        await client.stream.aclose()
        await cancelled.wait()


async def test_a_reader_of_a_stream_that_closes_its_side_before_it_begins_has_left():
    async def quiet(scope, receive, send):
        await trio.testing.wait_all_tasks_blocked()
        begin_stream(scope)
        await begin(send)
        await go_on(send, b"first")
        await trio.sleep_forever()

    async with open_pair(quiet) as client:
        await client.stream.send_all(GET)
        await client.stream.send_eof()
        await client.ended.wait()


async def test_a_server_that_stops_answers_whom_it_has_begun_to_listen_to_and_nobody_else():
    ends = [STORY.index(head) + len(head) for head in (GET, WAITING, CHUNKED, LAST)]
    for length in range(len(STORY)):
        async with open_pair(echo) as client:
            if length:
                await client.say(STORY[:length])
            client.stopping.call()
            with suppress(trio.BrokenResourceError):
                await client.say(STORY[length:])
            said = await client.rest()
            assert said.count(b"HTTP/1.1 200") == sum(end <= length for end in ends)


async def story(serving=serve_connection, app=echo):
    """Tell the whole story and return what is answered; who serves may have to stop in between."""
    async with open_pair(app, serving) as client:
        for at in range(0, len(STORY), 60):
            with suppress(trio.BrokenResourceError):
                await client.say(STORY[at : at + 60])
        said = await client.rest()
        await client.stream.aclose()
        await client.ended.wait()
    return said


@pytest.mark.parametrize("part", ["connection", "application"])
async def test_a_connection_can_be_cancelled_at_any_checkpoint(part):
    def told(faults, scope):
        async def serve(*args):
            with scope:
                whole = faults.wrap(serve_connection) if part == "connection" else serve_connection
                await whole(*args)

        return story(serve, faults.wrap(echo) if part == "application" else echo)

    clean = CheckpointFaults()
    assert (await told(clean, trio.CancelScope())).count(b"HTTP/1.1 200") == 4
    assert clean.count > 4
    for at in range(clean.count):
        scope = trio.CancelScope()
        fault = Fault(at, Call(scope.cancel))
        await told(CheckpointFaults([fault]), scope)
        assert fault.fired


async def test_a_handler_that_must_not_be_disturbed_may_go_on_after_its_client_has_left():
    asked, go, sent = trio.Event(), trio.Event(), trio.Event()

    async def shielded(scope, receive, send):
        with trio.CancelScope(shield=True):
            asked.set()
            await go.wait()
            await begin(send)
            for _ in range(3):
                await go_on(send, b"for nobody")
            sent.set()

    async with open_pair(shielded) as client:
        await client.say(GET)
        await asked.wait()
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert not client.ended.is_set()
        go.set()
        await client.ended.wait()
    assert sent.is_set()
