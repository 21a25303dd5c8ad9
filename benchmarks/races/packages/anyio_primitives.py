"""anyio: its own primitives under Trio. `pip install anyio`."""

from contextlib import suppress

import anyio
import anyio.functools
import trio
import trio.testing

from crush_trio.testing.explore import target

PACKAGE = "anyio"


async def cancelled_receive() -> str:
    """An item that was sent has been received: it is not lost with a cancelled receive."""
    send, receive = anyio.create_memory_object_stream[int](0)
    sent = False
    got: list[int] = []

    async def receiver() -> None:
        with target():
            got.append(await receive.receive())

    with send, receive:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receiver)
            with trio.move_on_after(10):
                await send.send(1)
                sent = True
        assert sent == bool(got), "sent, and nobody has it"
    return "kept"


async def cancelled_send() -> str:
    """A send that was cancelled has not sent its item, and one that was not has."""
    send, receive = anyio.create_memory_object_stream[int](0)
    sent = False
    got: list[int] = []

    async def sender() -> None:
        nonlocal sent
        with target():
            await send.send(1)
            sent = True

    async def receiver() -> None:
        with trio.move_on_after(10):
            got.append(await receive.receive())

    with send, receive:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender)
            nursery.start_soon(receiver)
        assert sent == bool(got), "received, and the send was cancelled"
    return "whole"


async def condition() -> str:
    """A notification reaches a task that waits, also when another that waits is cancelled."""
    state = anyio.Condition()
    woken = 0

    async def wait() -> None:
        nonlocal woken
        async with state:
            await state.wait()
            woken += 1

    async def impatient() -> None:
        with target():
            await wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(impatient)
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        async with state:
            state.notify(1)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == 1, "a notification is lost"
        nursery.cancel_scope.cancel()
    return "notified"


async def cached_calls() -> str:
    """Calls of a cached function return its value, also when another call of it is cancelled."""

    @anyio.functools.lru_cache(maxsize=1)
    async def double(number: int) -> int:
        await trio.sleep(1)
        return number * 2

    async def call(number: int) -> None:
        assert await double(number) == number * 2

    async def impatient() -> None:
        with target():
            await call(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(impatient)
        nursery.start_soon(call, 1)
        nursery.start_soon(call, 2)
    return "doubled"


async def closed_stream() -> str:
    """A task that waits for an item is told when the stream is closed, at either end."""
    send, receive = anyio.create_memory_object_stream[int](0)

    async def take() -> None:
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError):
            await receive.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        nursery.start_soon(take)
        nursery.start_soon(send.aclose)
    receive.close()
    return "told"


SCENARIOS = (cancelled_receive, cancelled_send, condition, cached_calls, closed_stream)
