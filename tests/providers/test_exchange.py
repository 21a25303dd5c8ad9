"""Connections: what is said on them, and when one is used again."""

import pytest
import trio
from attrs import define, field
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from crush_trio.providers.dialing import Origin
from crush_trio.providers.errors import ProviderGarbled, ProviderUnreachable
from crush_trio.providers.exchange import SETTLE_LIMIT, Connections, open_answer

ORIGIN = Origin("model.test", 443, secure=True)
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"


@define(eq=False)
class Wire:
    """Connections whose other ends are in the hands of the test."""

    ends: list = field(factory=list)

    async def __call__(self, origin):
        await trio.lowlevel.checkpoint()
        ours, theirs = memory_stream_pair()
        self.ends.append(theirs)
        return ours

    async def say(self, data, end=-1):
        await wait_all_tasks_blocked()
        await self.ends[end].send_all(data)


def connections():
    wire = Wire()
    return wire, Connections(ORIGIN, wire)


async def whole(answer):
    body = b""
    while more := await answer.receive():
        body += more
    return body


async def ask(to, body=b"{}"):
    """Return the status and the body of an answer."""
    async with open_answer(to, "/v1/x?y=z", [("x-own", "1")], body) as answer:
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


async def test_what_is_left_of_a_body_is_waited_for_only_a_moment():
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, HEAD + b"\r\n2\r\nok\r\n")
        before = trio.current_time()
        async with open_answer(to, "/", [], b"") as answer:
            assert await answer.receive() == b"ok"
        assert trio.current_time() - before == pytest.approx(SETTLE_LIMIT)
    assert to.idle == 0


async def test_an_end_that_comes_in_that_moment_saves_the_connection():
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, HEAD + b"\r\n2\r\nok\r\n")
        async with open_answer(to, "/", [], b"") as answer:
            assert await answer.receive() == b"ok"
            nursery.start_soon(wire.say, b"0\r\n\r\n")
    assert to.idle == 1


async def test_a_body_is_over_when_it_is_over():
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, HEAD + b"\r\n0\r\n\r\n")
        async with open_answer(to, "/", [], b"") as answer:
            assert [await answer.receive(), await answer.receive()] == [b"", b""]


async def test_all_of_a_body_that_has_come_is_received_at_once():
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            answer_with, wire, HEAD + b"\r\n2\r\nab\r\n1\r\nc\r\n3\r\nd", b"ef\r\n0\r\n\r\n"
        )
        async with open_answer(to, "/", [], b"") as answer:
            assert [await answer.receive() for _ in range(3)] == [b"abcd", b"ef", b""]
    assert to.idle == 1


async def test_what_is_no_http_is_complained_of_after_what_came_before_it():
    wire, to = connections()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_with, wire, HEAD + b"\r\n2\r\nok\r\nnonsense\r\n")
        async with open_answer(to, "/", [], b"") as answer:
            assert await answer.receive() == b"ok"
            for _ in range(2):
                with pytest.raises(ProviderGarbled):
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

    assert await ask(Connections(ORIGIN, dial)) == (413, b"no")


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", ProviderUnreachable),
        (b"HTTP/1.1 200 OK\r\n", ProviderUnreachable),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc", ProviderUnreachable),
        (HEAD + b"\r\n5\r\nab", ProviderUnreachable),
        (b"SSH-2.0-OpenSSH\r\n\r\n", ProviderGarbled),
        (HEAD + b"\r\nnonsense\r\n", ProviderGarbled),
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
        async with open_answer(to, "/", [], b"") as answer:
            assert await answer.receive() == b""
            await to.aclose()
    assert to.idle == 0
    with pytest.raises(trio.BrokenResourceError):
        await wire.ends[0].send_all(b"x")
