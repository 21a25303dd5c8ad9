"""Long lists, read page by page as JSON that is ready to be sent.

A session can have a hundred thousand messages. Sending them needs no values, only bytes, and few of
them at a time. So a list is read as pages of JSON, with commas between the items. Each page is a
snapshot of its own; a list has the items that existed when its first page was read.

A page may have holes, for what a store does not know: whether a session is busy, or the text of a
message that is still being written. Each hole has a default, which is what is stored.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from attrs import frozen

from crush_trio.wire.ids import MessageId, SessionId

PAGE_ITEMS: Final = 256
"""The most items of a page."""

PAGE_SIZE: Final = 2**18
"""Bytes of content after which a page ends; its last item may be longer."""


@frozen
class Hole:
    """A gap in a page, to be filled for the item *id*; *default* is what is stored."""

    id: str
    default: bytes


PagePiece = bytes | Hole


class Pages(Protocol):
    """A list that is being read."""

    @property
    def more(self) -> bool:
        """Whether there is another page: true until the last one has been read."""
        ...

    async def read(self) -> Sequence[PagePiece]:
        """Return the pieces of the next page; none if there are no items.

        Raises `MessageNotFound` if the list ends before a message that does not exist.
        """
        ...


@frozen(kw_only=True)
class SessionMessages:
    """The messages of a session in their order; the newest *limit* of those *before* one of them.

    An unfinished message is a hole.
    """

    session_id: SessionId
    limit: int | None = None
    before: MessageId | None = None


@frozen(kw_only=True)
class UserMessages:
    """The user's messages of a session, or of all, the newest first."""

    session_id: SessionId | None = None


@frozen(kw_only=True)
class FileVersions:
    """Every version of every file of a session, by path and version."""

    session_id: SessionId


@frozen(kw_only=True)
class SessionList:
    """The sessions that have no parent, the most recently updated first.

    Each has a hole for its members from `is_busy` on.
    """


PagedList = SessionMessages | UserMessages | FileVersions | SessionList
"""The lists that can be read in pages."""

SESSION_REST: Final = b',"is_busy":%b,"attached_clients":%d'
"""The format of what fills the hole of a session."""

IDLE_SESSION: Final = SESSION_REST % (b"false", 0)


def fill_holes(page: Sequence[PagePiece], fill: Callable[[Hole], bytes]) -> bytes:
    """Return a page with its holes filled."""
    return b"".join(piece if isinstance(piece, bytes) else fill(piece) for piece in page)
