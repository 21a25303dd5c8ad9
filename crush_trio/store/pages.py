"""Lists that are too long to be held at once: read a page at a time, as JSON that is ready to be sent.

A session can have a hundred thousand messages. To send them on takes no values, only bytes, and few of
them at a time. So a list is given as pages of JSON, with commas between the items. Each page
is of a moment of its own; a list has the items that were there when its first page was read.

A page may have holes, for what a store does not know: whether a session is busy, or how far an answer
has grown that is still being written. Each hole has what the store would put there.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from attrs import frozen

from crush_trio.wire.ids import MessageId, SessionId

PAGE_ITEMS: Final = 256
"""Items of a page at most."""

PAGE_SIZE: Final = 2**18
"""Bytes of content after which a page ends; its last item may be longer."""


@frozen
class Hole:
    """A place in a page for something that belongs to the item *id*; *default* is what is stored."""

    id: str
    default: bytes


Piece = bytes | Hole


class Pages(Protocol):
    """A list that is being read."""

    @property
    def more(self) -> bool:
        """Whether there is another page: true until the last one has been read."""
        ...

    async def read(self) -> Sequence[Piece]:
        """Return the next page, whose pieces are to be joined; it is empty if there are no items.

        Raises `MessageNotFound` for a list that is to end before a message which is not there.
        """
        ...


@frozen(kw_only=True)
class SessionMessages:
    """The messages of a session in their order; the newest *limit* of those *before* one of them.

    A message that was never finished is a hole.
    """

    session_id: SessionId
    limit: int | None = None
    before: MessageId | None = None


@frozen(kw_only=True)
class UserMessages:
    """What people said in a session, or in all, the newest first."""

    session_id: SessionId | None = None


@frozen(kw_only=True)
class FileVersions:
    """Every version of every file of a session, by path and version."""

    session_id: SessionId


@frozen(kw_only=True)
class SessionList:
    """The sessions that have no parent, the most recently updated first.

    In each is a hole for its members from `is_busy` on.
    """


PagedList = SessionMessages | UserMessages | FileVersions | SessionList
"""What can be read in pages."""

SESSION_REST: Final = b',"is_busy":%b,"attached_clients":%d'
"""What fills the hole in a session."""

IDLE_SESSION: Final = SESSION_REST % (b"false", 0)


def filled(page: Sequence[Piece], fill: Callable[[Hole], bytes]) -> bytes:
    """Return a page with its holes filled."""
    return b"".join(piece if isinstance(piece, bytes) else fill(piece) for piece in page)
