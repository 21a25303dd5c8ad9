"""The HTTP client: what is sent, when a connection is used again, and what goes wrong."""

import gzip
import socket

import pytest
import trio
from attrs import define, field
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from crush_trio.net.address import Origin
from crush_trio.net.client import SETTLE_LIMIT, HttpClient, Request, open_http_client
from crush_trio.net.dial import Proxy, ViaProxy
from crush_trio.net.errors import BadEncoding, ConnectionLost, NotHttp, ResponseTooLarge
from crush_trio.nursery import open_hidden_nursery

ORIGIN = Origin("model.test", 443, secure=True)
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"


@define(eq=False)
class Wire:
    """Connections whose other ends are in the hands of the test."""

    ends: list = field(factory=list)
    proxy: Proxy | None = None

    async def __call__(self, origin):
        await trio.lowlevel.checkpoint()
        ours, theirs = memory_stream_pair()
        self.ends.append(theirs)
        return ours if self.proxy is None else ViaProxy(ours, self.proxy)

    async def say(self, data, end=-1):
        await wait_all_tasks_blocked()
        await self.ends[end].send_all(data)


def connections(**more):
    wire = Wire(**more)
    return wire, HttpClient(wire)


def post(body=b"{}", method="POST", target="/v1/x?y=z", **more):
    headers = {"x-own": "1"}
    return Request(method=method, origin=ORIGIN, target=target, headers=headers, body=body, **more)


async def whole(answer):
    body = b""
    while more := await answer.receive():
        body += more
    return body


async def ask(to, request=None):
    """Return the status and the body of an answer."""
    async with to.open(request or post()) as answer:
        return answer.status, await whole(answer)


async def test_a_post_is_sent_as_it_should_be():
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, HEAD + b"\r\n2\r\nok\r\n0\r\n\r\n")
        assert await ask(to) == (200, b"ok")
    sent = bytes(await wire.ends[0].receive_some())
    assert sent == (
        b"POST /v1/x?y=z HTTP/1.1\r\nhost: model.test\r\ncontent-length: 2\r\nx-own: 1\r\n\r\n{}"
    )


async def answer_with(wire, *pieces):
    for piece in pieces:
        await wire.say(piece)


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (HEAD + b"\r\n2\r\nok\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", True),
        (HEAD + b"x-long: " + b"x" * 30_000 + b"\r\n\r\n2\r\nok\r\n0\r\n\r\n", True),
        (HEAD + b"connection: close\r\n\r\n2\r\nok\r\n0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 unasked", False),
    ],
)
async def test_a_connection_is_kept_if_both_sides_are_done(answer, kept):
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, answer)
        assert await ask(to) == (200, b"ok")
    assert to.idle == kept


async def test_a_body_without_a_length_ends_with_the_connection():
    wire, to = connections()

    async def serve():
        await wire.say(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        await wire.ends[0].send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        assert await ask(to) == (200, b"all of it")
    assert to.idle == 0


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("framing", "bare"),
    [(b"", True), (b"content-length: 9\r\n", False), (b"transfer-encoding: chunked\r\n", False)],
)
async def test_only_a_body_that_nothing_frames_can_be_read_from_the_socket(framing, bare):
    ours, theirs = socket.socketpair()

    async def dial(_origin):
        await trio.lowlevel.checkpoint()
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    with theirs:
        theirs.sendall(b"HTTP/1.1 200 OK\r\n%b\r\n" % framing)
        async with HttpClient(dial).open(post()) as answer:
            assert (answer.socket is not None) is bare


async def test_what_is_left_of_a_body_is_waited_for_only_a_moment():
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, HEAD + b"\r\n2\r\nok\r\n")
        before = trio.current_time()
        async with to.open(post()) as answer:
            assert await answer.receive() == b"ok"
            await answer.settle()
        assert trio.current_time() - before == pytest.approx(SETTLE_LIMIT)
    assert to.idle == 0


async def test_an_end_that_comes_in_that_moment_saves_the_connection():
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, HEAD + b"\r\n2\r\nok\r\n")
        async with to.open(post()) as answer:
            assert await answer.receive() == b"ok"
            nursery.start_soon(wire.say, b"0\r\n\r\n")
            await answer.settle()
    assert to.idle == 1


async def test_a_body_is_over_when_it_is_over():
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, HEAD + b"\r\n0\r\n\r\n")
        async with to.open(post()) as answer:
            assert [await answer.receive(), await answer.receive()] == [b"", b""]


async def test_all_of_a_body_that_has_come_is_received_at_once():
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            answer_with, wire, HEAD + b"\r\n2\r\nab\r\n1\r\nc\r\n3\r\nd", b"ef\r\n0\r\n\r\n"
        )
        async with to.open(post()) as answer:
            assert [await answer.receive() for _ in range(3)] == [b"abcd", b"ef", b""]
    assert to.idle == 1


async def test_what_is_no_http_is_complained_of_after_what_came_before_it():
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, HEAD + b"\r\n2\r\nok\r\nnonsense\r\n")
        async with to.open(post()) as answer:
            assert await answer.receive() == b"ok"
            for _ in range(2):
                with pytest.raises(NotHttp):
                    await answer.receive()
    assert to.idle == 0


async def test_a_server_that_refuses_before_it_has_heard_everything_is_heard():
    said = [b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno", b""]

    class Deaf(trio.abc.Stream):
        """Takes nothing, and has said its word already."""

        async def send_all(self, data):
            raise trio.BrokenResourceError

        async def wait_send_all_might_not_block(self):
            raise trio.BrokenResourceError

        async def receive_some(self, most=None):
            await trio.lowlevel.checkpoint()
            return said.pop(0)

        async def aclose(self):
            await trio.lowlevel.checkpoint()

    async def dial(origin):
        return Deaf()

    assert await ask(HttpClient(dial)) == (413, b"no")


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", ConnectionLost),
        (b"HTTP/1.1 200 OK\r\n", ConnectionLost),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc", ConnectionLost),
        (HEAD + b"\r\n5\r\nab", ConnectionLost),
        (b"SSH-2.0-OpenSSH\r\n\r\n", NotHttp),
        (HEAD + b"\r\nnonsense\r\n", NotHttp),
    ],
)
async def test_what_breaks_is_told_apart_from_what_is_no_http(said, error):
    wire, to = connections()

    async def serve():
        await wire.say(said)
        await wire.ends[0].send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with pytest.raises(error):
            await ask(to)
    assert to.idle == 0


async def test_connections_that_come_back_after_closing_are_not_kept():
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, HEAD + b"\r\n0\r\n\r\n")
        async with to.open(post()) as answer:
            assert await answer.receive() == b""
            await to.aclose()
    assert to.idle == 0
    with pytest.raises(trio.BrokenResourceError):
        await wire.ends[0].send_all(b"x")
    with pytest.raises(trio.ClosedResourceError):
        await ask(to)


# ── Requests ────────────────────────────────────────────────────────────────────────────────────


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def sent_for(request, **more):
    """Return the bytes that are sent for *request*."""
    wire, to = connections(**more)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, OK)
        assert await ask(to, request) == (200, b"ok")
    return bytes(await wire.ends[0].receive_some())


@pytest.mark.parametrize(
    ("method", "body", "framing"),
    [
        ("GET", b"", b""),
        ("DELETE", b"", b""),
        ("POST", b"", b"content-length: 0\r\n"),
        ("DELETE", b"x", b"content-length: 1\r\n"),
    ],
)
async def test_a_body_is_framed_where_there_is_one_or_should_be(method, body, framing):
    assert await sent_for(post(body, method, "/")) == (
        b"%b / HTTP/1.1\r\nhost: model.test\r\n%bx-own: 1\r\n\r\n%b"
        % (method.encode(), framing, body)
    )


@define
class Pieces:
    """A body that comes in pieces."""

    pieces: list

    def __aiter__(self):
        return self

    async def __anext__(self):
        await trio.lowlevel.checkpoint()
        if not self.pieces:
            raise StopAsyncIteration
        return self.pieces.pop(0)


async def test_a_body_in_pieces_is_sent_chunked():
    sent = await sent_for(post(Pieces([b"ab", b"", b"cde"])))
    head, _, body = sent.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert body == b"2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"


async def test_a_proxy_that_forwards_is_told_the_whole_url_and_the_login():
    origin = Origin("plain.test", 8080, secure=False)
    request = Request(method="GET", origin=origin, target="/a?b")
    proxy = Proxy(Origin("proxy", 3128, secure=False), "me:word")
    assert await sent_for(request, proxy=proxy) == (
        b"GET http://plain.test:8080/a?b HTTP/1.1\r\nhost: plain.test:8080\r\n"
        b"proxy-authorization: Basic bWU6d29yZA==\r\n\r\n"
    )


# ── Bodies ──────────────────────────────────────────────────────────────────────────────────────


def zipped(data, encoding=b"gzip"):
    return b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        encoding,
        len(data),
        data,
    )


async def test_a_compressed_body_is_inflated_and_its_connection_kept():
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, zipped(gzip.compress(b"hello" * 1000)))
        assert await ask(to) == (200, b"hello" * 1000)
    assert to.idle == 1


async def test_a_small_body_that_would_be_huge_is_not_inflated_beyond_the_limit():
    wire, to = connections()
    bomb = gzip.compress(bytes(50_000_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, zipped(bomb))
        async with to.open(post()) as answer:
            with pytest.raises(ResponseTooLarge, match="1000"):
                await answer.read(1000)
    assert to.idle == 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (zipped(gzip.compress(b"x" * 99)[:-9]), "in the middle"),
        (zipped(b"junk"), "cannot be decompressed"),
        (zipped(b"x", b"br"), "not asked for: br"),
    ],
    ids=["torn", "junk", "br"],
)
async def test_a_compressed_body_that_cannot_be_read_is_an_error(answer, reason):
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, answer)
        with pytest.raises(BadEncoding, match=reason):
            await ask(to)


@pytest.mark.parametrize(("most", "read"), [(1, (b"o", True)), (2, (b"ok", False))])
async def test_the_beginning_of_a_body_can_be_read(most, read):
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, OK)
        async with to.open(post()) as answer:
            assert await answer.read_first(most) == read


# ── Connections that were closed while they were idle ───────────────────────────────────────────


async def lose_idle(request, *, deaf=False, said=b"", after=0.0):
    """Send *request* on a used connection that the server closes after *said*; then answer on a new one.

    It does so *after* seconds.
    With *deaf* the server does not take the request either.
    """
    wire, to = connections()

    async def serve():
        old = wire.ends[0]
        if deaf:
            old.receive_stream.close()
        await wait_all_tasks_blocked()
        await trio.sleep(after)
        if said:
            await old.send_all(said)
        await old.aclose()
        await wait_all_tasks_blocked()
        if len(wire.ends) > 1:
            await wire.say(OK)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, OK)
        await ask(to)
    await wire.ends[0].receive_some()
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(serve)
        return await ask(to, request)


async def test_a_safe_request_is_sent_again_on_a_new_connection():
    assert await lose_idle(post(b"", "GET")) == (200, b"ok")


async def test_a_request_that_may_be_repeated_is_sent_again():
    assert await lose_idle(post(repeatable=True)) == (200, b"ok")


async def test_a_request_that_was_worked_on_for_a_while_is_not_sent_again_in_silence():
    with pytest.raises(ConnectionLost):
        await lose_idle(post(repeatable=True), after=60.0)


async def test_a_request_that_may_have_been_carried_out_is_not_sent_again():
    with pytest.raises(ConnectionLost):
        await lose_idle(post())


async def test_a_request_that_was_not_sent_is_sent_again():
    assert await lose_idle(post(), deaf=True) == (200, b"ok")


async def test_a_body_in_pieces_is_not_sent_again():
    with pytest.raises(ConnectionLost):
        await lose_idle(post(Pieces([b"a"])), deaf=True)


async def test_nothing_is_sent_again_after_a_byte_of_a_response():
    with pytest.raises(ConnectionLost):
        await lose_idle(post(b"", "GET"), said=b"H")


async def test_a_new_connection_that_breaks_is_not_replaced():
    wire, to = connections()

    async def serve():
        await wait_all_tasks_blocked()
        await wire.ends[0].aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with pytest.raises(ConnectionLost):
            await ask(to, post(b"", "GET"))
    assert len(wire.ends) == 1


async def test_an_idle_connection_is_used_again_for_a_while_only():
    wire, to = connections()
    for pause, dialed in [(0, 1), (45, 1), (46, 2)]:
        await trio.sleep(pause)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_with, wire, OK)
            await ask(to)
        assert len(wire.ends) == dialed


async def test_only_so_many_connections_are_kept():
    wire = Wire()
    async with open_http_client(wire, idle_most=2) as to:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask, to)
            await wait_all_tasks_blocked()
            for end in range(5):
                await wire.say(OK, end)
        assert to.idle == 2
    assert to.idle == 0
