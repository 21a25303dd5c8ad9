"""The receiving half of a connection: what a client sends, until it closes its side or disconnects.

A client that closes its sending side may still read the answer (RFC 9112 §9.6). On TCP a client that has
disconnected looks the same: the two differ only in what happens to the bytes that are sent to it. So a
request that has arrived is answered, and meanwhile the client is probed now and then:

* on a Unix socket the kernel knows;
* over TCP an interim response is sent, which clients skip (RFC 9110 §15.2) and which the kernel of a
  client that has disconnected answers with a reset. Most answers are sent before the first probe.
* HTTP/1.0 has no interim responses; such a client counts as connected for a while.
"""

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio
from attrs import define, field

PROBE_PAUSE: Final = 2.0
"""Seconds between two probes of a client that has closed its side."""

PROBE_RETURN: Final = 0.1
"""Seconds that the kernel of a disconnected client has to answer a probe."""

BELIEVED: Final = 30.0
"""Seconds for which a client that cannot be probed counts as connected."""

_RECEIVE_SIZE: Final = 2**16


@define(eq=False)
class Incoming:
    """The receiving half of a connection. It shares the *life* of the connection with the sending half.

    One task listens; another one takes what it received, one piece at a time. At most one piece is read
    ahead: what follows stays in the kernel until it is wanted.
    """

    stream: trio.SocketStream
    life: trio.CancelScope
    ended: bool = field(default=False, init=False)
    """Whether the client has closed its side."""
    ignored: bool = field(default=False, init=False)
    """Whether what the client still sends is dropped."""
    _piece: bytes = field(default=b"", init=False)
    """What was read and not taken yet; nothing else is shared by the two tasks."""
    _heard: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _taken: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    @property
    def unread(self) -> bool:
        """Whether a piece was read that was not taken yet."""
        return bool(self._piece)

    # ASYNC910: there is no way around listening.
    async def listen(self, probe: Callable[[], bool]) -> None:  # noqa: ASYNC910
        """Pass on what the client sends; cancel the life of the connection when it disconnects.

        *probe* sends an interim response if the state of the connection allows one. It returns whether
        the kernel will report a disconnect, now or when the answer is sent.
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
        """Return what the kernel has received; it is asked only when it has something."""
        socket = self.stream.socket
        while True:
            await trio.lowlevel.wait_readable(socket)
            with suppress(BlockingIOError):
                return os.read(socket.fileno(), _RECEIVE_SIZE)

    async def _wait_for_reset(self, probe: Callable[[], bool]) -> None:
        """Return when the client has disconnected; the end of the connection may cancel this earlier."""
        believed_until = trio.current_time() + BELIEVED
        while not _has_left(self.stream.socket.fileno()) and trio.current_time() < believed_until:
            await trio.sleep(PROBE_PAUSE)
            if probe():
                believed_until = trio.current_time() + BELIEVED
            await trio.sleep(PROBE_RETURN)
        await trio.lowlevel.checkpoint()

    async def receive(self) -> bytes:
        """Return the next piece; empty once the client has closed its side and all was taken.

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
        """Drop what the client still sends; closing its side then counts as a disconnect."""
        self.ignored = True
        self._heard.unpark_all()
        self._taken.unpark_all()
        if self.ended:
            self.life.cancel()


def _has_left(fileno: int) -> bool:
    """Whether the kernel knows that nothing that is sent can arrive."""
    poll = select.poll()
    poll.register(fileno, 0)  # errors and hang-ups are reported in any case
    return bool(poll.poll(0))
