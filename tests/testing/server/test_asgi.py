import pytest
import trio
import trio.testing

from crush_trio.testing.server.asgi import AsgiDriver, NoAnswer

START = {"type": "http.response.start", "status": 200, "headers": [(b"X-Kind", b"test")]}


def piece(data, *, more=True):
    return {"type": "http.response.body", "body": data, "more_body": more}


async def echo(scope, receive, send):
    """Answer with what was asked."""
    event = await receive()
    await send(START)
    asked = [scope["method"], scope["path"], scope["query_string"].decode(), event["body"].decode()]
    await send(piece(" ".join(asked).encode(), more=False))


async def until_hang_up(scope, receive, send):
    """Stream a frame a second until the client has gone."""
    await receive()
    await send(START)
    async with trio.open_nursery() as nursery:

        async def tick():
            for number in range(1_000_000):
                await send(piece(b"%d" % number))
                await trio.sleep(1)

        nursery.start_soon(tick)
        assert await receive() == {"type": "http.disconnect"}
        nursery.cancel_scope.cancel()


async def test_a_request_gets_its_whole_answer():
    async with trio.open_nursery() as nursery:
        answer = await AsgiDriver(echo, nursery).request("PUT", "/a%20b?x=1", b"body")
    assert (answer.status, answer.body) == (200, b"PUT /a b x=1 body")
    assert answer.headers == {"x-kind": "test"}


async def test_a_body_that_is_no_bytes_is_sent_as_json():
    async with trio.open_nursery() as nursery:
        answer = await AsgiDriver(echo, nursery).request("POST", "/", {"a": [1]})
    assert answer.body == b'POST /  {"a":[1]}'


async def test_an_answer_of_many_pieces_that_nobody_reads_does_not_hold_up_the_application():
    async def many(scope, receive, send):
        await send(START)
        for _ in range(100):
            await send(piece(b"x"))
        await send(piece(b"", more=False))

    async with trio.open_nursery() as nursery:
        exchange = AsgiDriver(many, nursery).open("GET", "/")
        await exchange.ended()
        assert (await exchange.answer()).body == b"x" * 100


async def test_a_stream_is_read_piece_by_piece_in_virtual_time():
    async with trio.open_nursery() as nursery:
        with AsgiDriver(until_hang_up, nursery).open("GET", "/") as stream:
            began = trio.current_time()
            assert [await stream.receive() for _ in range(3)] == [b"0", b"1", b"2"]
            assert trio.current_time() - began == 2
    assert nursery.child_tasks == frozenset()


async def test_hanging_up_ends_the_request_and_what_is_sent_afterwards_is_lost():
    sent_after = []

    async def deaf(scope, receive, send):
        await receive()
        await send(START)
        await receive()
        await send(piece(b"too late"))
        sent_after.append(True)

    async with trio.open_nursery() as nursery:
        exchange = AsgiDriver(deaf, nursery).open("GET", "/")
        assert await exchange.head() == 200
        exchange.hang_up()
        exchange.hang_up()
        await exchange.ended()
        with pytest.raises(trio.ClosedResourceError):
            await exchange.receive()
    assert sent_after == [True]


async def test_a_client_can_leave_before_its_body_is_complete():
    heard = []

    async def listening(scope, receive, send):
        heard.extend([await receive(), await receive()])

    async with trio.open_nursery() as nursery:
        exchange = AsgiDriver(listening, nursery).open("POST", "/", b"half", complete=False)
        await trio.testing.wait_all_tasks_blocked()
        exchange.hang_up()
    assert [event.get("more_body") for event in heard] == [True, None]
    assert heard[1]["type"] == "http.disconnect"


async def test_cancelling_a_request_hangs_up():
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(5) as patience:
            await AsgiDriver(until_hang_up, nursery).request("GET", "/")
        assert patience.cancelled_caught


async def test_an_application_that_does_not_answer_is_found_out():
    async def silent(scope, receive, send):
        await receive()

    async with trio.open_nursery() as nursery:
        with pytest.raises(NoAnswer):
            await AsgiDriver(silent, nursery).request("GET", "/")


async def test_what_the_application_raises_leaves_through_the_nursery():
    async def broken(scope, receive, send):
        raise KeyError("a bug")

    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            await AsgiDriver(broken, nursery).request("GET", "/")
    assert caught.group_contains(KeyError)
