"""`Pump`: passes the bytes of many event streams on, all of them in one task.

A task of its own would cost each stream a scheduler step, an entry in Trio's epoll and a parser for every
event. Here the sockets of all streams are in one epoll, whose readiness wakes the task: an event of a stream
costs a read and a write. A client that does not take everything at once leaves the pump until it has.
"""

import os
import select
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Final

import trio
from attrs import define, field

from crush_trio.net.errors import ConnectionLost
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.http.outgoing import SendNow

READ_MOST: Final = 16384
"""Bytes that are read of a stream before it is the turn of the next one."""


@define(eq=False)
class _Carried:
    """A stream in the pump."""

    send_now: SendNow
    valid: Callable[[], bool]
    """Whether the client may still read."""
    over: trio.Event = field(factory=trio.Event, init=False)
    rest: bytes = field(default=b"", init=False)
    error: OSError | None = field(default=None, init=False)


@define(eq=False)
class Pump:
    """The streams that are passed on. `open_pump` makes one."""

    _poll: select.epoll
    _carried: dict[int, _Carried] = field(factory=dict, init=False)
    """By the descriptor of the socket that is read."""

    async def carry(
        self, source: trio.SocketStream, send_now: SendNow, valid: Callable[[], bool]
    ) -> bytes:
        """Pass on what comes from *source* for as long as the client takes it and is *valid*.

        Return what has been read and not sent; no bytes at the end of the stream. Nothing else may read
        from *source* meanwhile. Raises `ConnectionLost`.
        """
        number = source.socket.fileno()
        carried = self._carried[number] = _Carried(send_now, valid)
        self._poll.register(number, select.EPOLLIN)
        try:
            await carried.over.wait()
        finally:
            self._leave(number)
        if carried.error is not None:
            raise ConnectionLost("the connection broke") from carried.error
        return carried.rest

    async def run(self) -> None:
        """Pass bytes on until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._poll.fileno())
            for number, _ in self._poll.poll(0):
                carried = self._carried[number]
                if not self._pass_on(number, carried):
                    self._leave(number)
                    carried.over.set()

    def _pass_on(self, number: int, carried: _Carried) -> bool:
        """Pass on what is here; return False if the stream has to leave the pump."""
        try:
            data = os.read(number, READ_MOST)
        except BlockingIOError:
            return True
        except OSError as error:
            carried.error = error
            return False
        sent = carried.send_now(data) if data and carried.valid() else 0
        carried.rest = data[sent:]
        return sent > 0 and not carried.rest

    def _leave(self, number: int) -> None:
        if self._carried.pop(number, None) is not None:
            self._poll.unregister(number)


@asynccontextmanager
async def open_pump() -> AsyncIterator[Pump | None]:
    """Run a pump during the block; None on a system without epoll."""
    if not hasattr(select, "epoll"):
        yield None
        return
    with closing(select.epoll()) as poll:
        pump = Pump(poll)
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(pump.run)
            yield pump
            nursery.cancel_scope.cancel()
