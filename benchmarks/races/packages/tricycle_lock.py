"""tricycle: its readers-writer lock and service nursery. `pip install tricycle`."""

import tricycle
import trio
import trio.testing

from crush_trio.testing.explore import target

PACKAGE = "tricycle"


async def one_writer_or_many_readers() -> str:
    """The lock is held by one writer and no readers, or by readers and no writer."""
    lock = tricycle.RWLock()
    reading = writing = 0

    async def read() -> None:
        nonlocal reading
        async with lock.read_locked():
            reading += 1
            assert not writing
            await trio.lowlevel.checkpoint()
            reading -= 1

    async def write() -> None:
        nonlocal writing
        async with lock.write_locked():
            writing += 1
            assert writing == 1
            assert not reading
            await trio.lowlevel.checkpoint()
            writing -= 1

    with target():
        async with trio.open_nursery() as nursery:
            for use in (read, write, read, write):
                nursery.start_soon(use)
    assert not lock.locked()
    return "free"


async def readers_behind_a_cancelled_writer() -> str:
    """Fair: "if task A tried to acquire the lock before task B did, task B won't get it first"."""
    lock = tricycle.RWLock()
    got: list[str] = []

    async def reader(name: str) -> None:
        async with lock.read_locked():
            got.append(name)

    async def writer() -> None:
        with target():
            async with lock.write_locked():
                pass

    async with trio.open_nursery() as nursery:
        async with lock.read_locked():
            nursery.start_soon(writer)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(reader, "first")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(reader, "second")
            await trio.testing.wait_all_tasks_blocked()
            assert got != ["second"], "the second reader has the lock, the first still waits"
    return "in order"


async def service_nursery() -> str:
    """Tasks of a service nursery are cancelled only when the body has finished using them."""
    done: list[str] = []

    async def serve(requests: trio.MemoryReceiveChannel[trio.Event]) -> None:
        async for request in requests:
            request.set()

    send, receive = trio.open_memory_channel[trio.Event](0)
    with target():
        async with tricycle.open_service_nursery() as nursery:
            nursery.start_soon(serve, receive)
            try:
                await trio.sleep(1)
            finally:
                with trio.CancelScope(shield=True):
                    answered = trio.Event()
                    await send.send(answered)
                    await answered.wait()
                    done.append("asked")
            nursery.cancel_scope.cancel()
    assert done == ["asked"]
    return "served"


SCENARIOS = (one_writer_or_many_readers, readers_behind_a_cancelled_writer, service_nursery)
