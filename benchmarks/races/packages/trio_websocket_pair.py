"""trio-websocket: a client and a server over streams in memory. `pip install trio-websocket`."""

from contextlib import suppress

import trio
import trio.testing
import trio_websocket

from crush_trio.testing.explore import target

PACKAGE = "trio-websocket"


async def echo(stream: trio.abc.Stream, nursery: trio.Nursery) -> None:
    """Serve one connection: send every message back."""
    request = await trio_websocket.wrap_server_stream(nursery, stream)
    connection = await request.accept()
    with suppress(trio_websocket.ConnectionClosed):
        while True:
            await connection.send_message(await connection.get_message())


async def conversation() -> str:
    """A message comes back, and the connection closes."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo, theirs, nursery)
        connection = await trio_websocket.wrap_client_stream(nursery, ours, "example.com", "/")
        async with connection:
            await connection.send_message("hello")
            assert await connection.get_message() == "hello"
    return "closed"


async def cancelled_client() -> str:
    """A client that is cancelled leaves; the server is told, and everything ends."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            with suppress(trio_websocket.HandshakeError, trio_websocket.ConnectionClosed):
                await echo(theirs, nursery)

        nursery.start_soon(serve)
        with target():
            async with trio.open_nursery() as inner:
                connection = await trio_websocket.wrap_client_stream(
                    inner, ours, "example.com", "/"
                )
                async with connection:
                    await connection.send_message("hello")
                    assert await connection.get_message() == "hello"
        await ours.aclose()
        with trio.move_on_after(60):
            await trio.sleep(30)
        nursery.cancel_scope.cancel()
    return "ended"


SCENARIOS = (conversation, cancelled_client)
