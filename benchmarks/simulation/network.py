"""`Network`: requests from clients and nodes to nodes, with delays, refused and broken connections.

It takes the place of `net.client` and of sockets: a request is handed to the ASGI application of the process
at that address, and its answer is passed back piece by piece. A process that was suspended has its requests
lie there; of one that has crashed nothing comes any more, with or without a word.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf
from typing import Protocol, TypeVar

import trio
from attrs import define, field, frozen

from crush_trio.net.client import Request, Response
from crush_trio.net.errors import ConnectFailed, ConnectionLost
from crush_trio.testing.server.asgi import Exchange, NoAnswer

T = TypeVar("T")


class Listener(Protocol):
    """A process that listens at an address."""

    def accept(self, request: Request) -> Exchange:
        """Have a request answered; raises `ConnectFailed`."""
        ...


@define(eq=False)
class Wire:
    """A connection with one request. The body of its response."""

    ends: tuple[str, str]
    _network: "Network" = field(repr=False)
    _exchange: Exchange = field(repr=False)
    _patience: float = inf
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    _broken: bool = field(default=False, init=False)
    _silent: bool = field(default=False, init=False)

    async def head(self) -> int:
        """Wait for the status."""
        return await self._wait(self._exchange.head)

    async def receive(self) -> bytes:
        """Return more of the body; no bytes at its end."""
        return await self._wait(self._exchange.receive)

    def cut(self, *, silent: bool) -> None:
        """Break the connection; a *silent* end is one that the caller is not told of."""
        self._broken, self._silent = True, silent
        self._scope.cancel()

    async def _wait(self, receive: Callable[[], Awaitable[T]]) -> T:
        if not self._broken:
            deadline = trio.current_time() + self._patience
            with trio.CancelScope(deadline=deadline) as self._scope:
                try:
                    result = await receive()
                except NoAnswer:
                    raise ConnectionLost from None
                await trio.sleep(self._network.delay())
                return result
        if self._silent:
            await trio.sleep(self._patience)
        await trio.lowlevel.checkpoint()
        raise ConnectionLost("cut")


@define(eq=False)
class Network:
    """Everything between clients and nodes."""

    chance: random.Random
    latency: float
    """Seconds that most messages take at most."""
    slow: float = 0.0
    """How much longer one in twenty may take."""
    listeners: dict[str, Listener] = field(factory=dict, init=False)
    apart: set[frozenset[str]] = field(factory=set, init=False)
    """Pairs that cannot reach each other."""
    _wires: dict[Wire, None] = field(factory=dict, init=False)

    def delay(self) -> float:
        """Return the seconds that a message takes."""
        slow = self.slow if self.chance.random() < 0.05 else 0.0
        return self.chance.uniform(0, self.latency + slow)

    def cut(self, *names: str, silent: bool) -> None:
        """Break the connections between nodes, or all of one node."""
        for wire in list(self._wires):
            if set(names) <= set(wire.ends):
                wire.cut(silent=silent)

    @asynccontextmanager
    async def open(self, sender: str, request: Request, patience: float) -> AsyncIterator[Response]:
        """Send a request of *sender* to the host that it names."""
        host = request.origin.host
        await trio.sleep(self.delay())
        listener = self.listeners.get(host)
        if listener is None or frozenset((sender, host)) in self.apart:
            raise ConnectFailed(reason="refused")
        exchange = listener.accept(request)
        wire = Wire((sender, host), self, exchange, patience)
        self._wires[wire] = None
        try:
            with exchange:
                status = await wire.head()
                yield Response(status, exchange.headers, wire)
        finally:
            del self._wires[wire]


@frozen
class Route:
    """The network as one sender uses it; a `Transport`."""

    network: Network
    sender: str
    patience: float = inf
    """Seconds without a word after which a connection counts as lost."""

    def open(self, request: Request) -> AbstractAsyncContextManager[Response]:
        """Send a request."""
        return self.network.open(self.sender, request, self.patience)
