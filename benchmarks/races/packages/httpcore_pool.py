"""httpcore: the connection pool under Trio, with a network in memory. `pip install httpcore`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpcore
import trio

from crush_trio.testing.explore import target

PACKAGE = "httpcore"

_RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Switch:
    """Completes operations of the network, each in a step of its own task, as the kernel does."""

    def __init__(self) -> None:
        self._wanted, self._jobs = trio.open_memory_channel[trio.Event](100)

    async def run(self) -> None:
        async for done in self._jobs:
            done.set()

    async def operation(self) -> None:
        done = trio.Event()
        self._wanted.send_nowait(done)
        await done.wait()


class Stream(httpcore.AsyncNetworkStream):
    """A connection whose server answers every request with "ok"."""

    def __init__(self, switch: Switch, opened: list["Stream"]) -> None:
        self.answer = b""
        self.operation = switch.operation
        opened.append(self)
        self.opened = opened

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        await self.operation()
        data, self.answer = self.answer, b""
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self.operation()
        if buffer:
            self.answer = _RESPONSE

    async def aclose(self) -> None:
        if self in self.opened:
            self.opened.remove(self)
        await trio.lowlevel.checkpoint()

    def get_extra_info(self, info: str) -> object:
        return None


class Network(httpcore.AsyncNetworkBackend):
    """Opens connections in memory."""

    def __init__(self, switch: Switch) -> None:
        self.switch = switch
        self.opened: list[Stream] = []

    async def connect_tcp(self, *args: object, **kwargs: object) -> Stream:  # type: ignore[override]
        await self.switch.operation()
        return Stream(self.switch, self.opened)


@asynccontextmanager
async def open_pool(connections: int) -> AsyncIterator[httpcore.AsyncConnectionPool]:
    """Open a pool on a network in memory; in the end every connection must be closed."""
    switch = Switch()
    network = Network(switch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(switch.run)
        async with httpcore.AsyncConnectionPool(
            max_connections=connections, network_backend=network
        ) as pool:
            yield pool
        nursery.cancel_scope.cancel()
    assert not network.opened, f"{len(network.opened)} connections are open"


async def get(pool: httpcore.AsyncConnectionPool) -> int:
    """Make a request, and return the status."""
    with trio.fail_after(10):
        response = await pool.request("GET", "http://example.com/")
    return int(response.status)


async def cancelled_request() -> int:
    """A pool of one connection serves the next request after one that was cancelled."""
    async with open_pool(1) as pool:
        with target():
            await get(pool)
        return await get(pool)


async def cancelled_while_another_waits() -> int:
    """A request that waits for the only connection gets it when the one before it is cancelled."""
    async with open_pool(1) as pool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(get, pool)
            with target():
                await get(pool)
        return await get(pool)


async def closed_pool() -> int:
    """When the pool is closed, every connection that it opened is closed."""
    async with open_pool(2) as pool:
        with target():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(get, pool)
                nursery.start_soon(get, pool)
    return 0


SCENARIOS = (cancelled_request, cancelled_while_another_waits, closed_pool)
