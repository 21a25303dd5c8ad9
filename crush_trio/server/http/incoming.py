"""What one client sends: handed on piece by piece, until it has closed its side or has left.

A client that closes its sending side has said all it wants to say, and may still read the answer
(RFC 9112 §9.6). One that has left says the same on TCP: the two differ only in what becomes of the
bytes that are sent to it. So a request that has arrived is answered, and meanwhile the client is asked
now and then whether it is still there:

* on a Unix socket the kernel knows;
* over TCP an interim response is sent, which clients skip (RFC 9110 §15.2) and which the kernel of a
  client that has left answers with a reset. The first one is due when most answers are long out.
* HTTP/1.0 has no interim responses; such a client is believed for a while.
"""

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio
from attrs import define, field

PROBE_PAUSE: Final = 2.0
"""Seconds between two questions whether a client that has closed its side is still there."""

PROBE_RETURN: Final = 0.1
"""Seconds that the kernel of a client that has left has to say so."""

BELIEVED: Final = 30.0
"""Seconds for which a client that cannot be asked is taken to be still there."""

_RECEIVE_SIZE: Final = 2**16


@define(eq=False)
class Incoming:
    """The receiving half of a connection. It shares the *life* of the connection with the sending half.

    One task listens; another one receives what it hears, one piece at a time. A client is read ahead by
    one piece at most: what follows is the kernel's until it is wanted.
    """

    stream: trio.SocketStream
    life: trio.CancelScope
    ended: bool = field(default=False, init=False)
    """Whether the client has closed its side."""
    ignored: bool = field(default=False, init=False)
    """Whether what the client still sends is thrown away."""
    _piece: bytes = field(default=b"", init=False)
    """What was heard and not received; there is nothing else between the two tasks."""
    _heard: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _taken: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    @property
    def unread(self) -> bool:
        """Whether something was heard that was not received."""
        return bool(self._piece)

    # ASYNC910: there is no way around listening.
    async def listen(self, probe: Callable[[], bool]) -> None:  # noqa: ASYNC910
        """Hand on what the client sends; cancel the life of the connection when the client leaves.

        *probe* sends an interim response if the state of the connection allows one. It returns
        whether the kernel will say, now or when the answer is sent, that the client has left.
        """
        try:
            while data := await self._read():
                while self._piece and not self.ignored:
                    await self._taken.park()
                self._piece = b"" if self.ignored else data
                self._heard.unpark()
        except (OSError, trio.ClosedResourceError):
            pass
        else:
            self.ended = True
            self._heard.unpark()
            if not self.ignored:
                await self._wait_for_reset(probe)
        self.life.cancel()

    async def _read(self) -> bytes:
        """Return what the kernel has; it is asked when it has something, and not before."""
        socket = self.stream.socket
        while True:
            await trio.lowlevel.wait_readable(socket)
            with suppress(BlockingIOError):
                return os.read(socket.fileno(), _RECEIVE_SIZE)

    async def _wait_for_reset(self, probe: Callable[[], bool]) -> None:
        """Return when the client has left; what the connection is for may end it earlier."""
        believed_until = trio.current_time() + BELIEVED
        while not _has_left(self.stream.socket.fileno()) and trio.current_time() < believed_until:
            await trio.sleep(PROBE_PAUSE)
            if probe():
                believed_until = trio.current_time() + BELIEVED
            await trio.sleep(PROBE_RETURN)
        await trio.lowlevel.checkpoint()

    async def receive(self) -> bytes:
        """Return the next piece; nothing once the client has closed its side and all was received.

        Raises `trio.ClosedResourceError` if what the client sends is ignored. Cancelling loses nothing.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._piece and not self.ended and not self.ignored:
            await self._heard.park()
        if self.ignored:
            await trio.lowlevel.checkpoint()
            raise trio.ClosedResourceError
        piece, self._piece = self._piece, b""
        self._taken.unpark()
        return piece  # noqa: ASYNC910 - one piece may be here; for a second one the listener has to run

    def ignore(self) -> None:
        """Throw away what the client still sends; its closing its side is then its leaving."""
        self.ignored = True
        self._heard.unpark_all()
        self._taken.unpark_all()
        if self.ended:
            self.life.cancel()


def _has_left(fileno: int) -> bool:
    """Whether the kernel knows that nothing that is sent will arrive."""
    poll = select.poll()
    poll.register(fileno, 0)  # errors and hang-ups are reported in any case
    return bool(poll.poll(0))
