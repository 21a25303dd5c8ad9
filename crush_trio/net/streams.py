"""The byte streams of the HTTP client, and the async library that they belong to.

Streams are Trio's (`trio.abc.Stream`), and so is everything in this package that opens them. A program that
runs under another library passes a `Library` and a `Dial` of its own to `open_http_client`; its streams are
`ForeignStream`s. `client/asyncio_streams.py` does so through anyio. HTTP itself is the same code.
"""

from abc import abstractmethod
from collections.abc import Awaitable
from contextlib import AbstractContextManager
from typing import Protocol

import trio


class Library(Protocol):
    """What the HTTP client needs of an async library. The modules `trio` and `anyio` have all of it."""

    def current_time(self) -> float:
        """Return the time of the library's clock."""
        ...

    def sleep(self, seconds: float, /) -> Awaitable[None]:
        """Sleep; zero seconds are a checkpoint."""
        ...

    def move_on_after(
        self, seconds: float, /, *, shield: bool = False
    ) -> AbstractContextManager[object, bool]:
        """Return a block that is cancelled after *seconds*."""
        ...


class ForeignStream(trio.abc.Stream):
    """A stream of another async library.

    It raises `trio.BrokenResourceError` as Trio's streams do. `aclose` does not wait for the other end.
    """

    @abstractmethod
    def has_input(self) -> bool:
        """Whether something waits to be read."""


async def close_at_once(stream: trio.abc.Stream) -> None:
    """Close *stream* without a TLS farewell: the socket is closed even if this is cancelled."""
    if isinstance(stream, ForeignStream):
        await stream.aclose()
    else:
        await trio.aclose_forcefully(stream)


def has_input(stream: trio.abc.Stream) -> bool:
    """Whether something waits to be read from *stream*, or its end: in the socket, or received in a TLS stream."""
    if isinstance(stream, ForeignStream):
        return stream.has_input()
    while isinstance(stream, trio.SSLStream):
        # `pending()` counts only the rest of a record that was decrypted. Later records of the same segment wait
        # undecrypted in a buffer of Trio's, an `ssl.MemoryBIO`. Trio has no public name for the buffer. If a later
        # version renames it, those records are not seen.
        incoming = getattr(stream, "_incoming", None)
        if stream.pending() or getattr(incoming, "pending", 0):
            return True
        stream = stream.transport_stream
    return isinstance(stream, trio.SocketStream) and stream.socket.is_readable()
