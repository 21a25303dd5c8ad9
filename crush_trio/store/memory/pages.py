"""Long lists of a store in memory, in pages like those of any other."""

from collections.abc import Callable, Iterable, Sequence

import trio
from attrs import define, field

from crush_trio.errors import MessageNotFound
from crush_trio.store.memory.tables import MessageRow, Tables
from crush_trio.store.pages import (
    IDLE_SESSION,
    PAGE_ITEMS,
    FileVersions,
    Hole,
    PagedList,
    Piece,
    SessionList,
    SessionMessages,
    UserMessages,
)
from crush_trio.wire.codec import encode
from crush_trio.wire.views import Session

_Item = Sequence[Piece]


@define(eq=False)
class MemoryPages:
    """Satisfies `Pages`; all of the list is of the moment of its first page."""

    wanted: PagedList
    _tables: Callable[[], Tables]
    """Returns the tables as they are now."""
    _items: list[_Item] | None = field(default=None, init=False)
    _at: int = field(default=0, init=False)
    more: bool = field(default=True, init=False)

    async def read(self) -> Sequence[Piece]:
        """Return the next page."""
        tables = self._tables()
        await trio.lowlevel.checkpoint()
        if self._items is None:
            self._items = list(_items(tables, self.wanted))
        page: list[Piece] = []
        for item in self._items[self._at : self._at + PAGE_ITEMS]:
            page.extend((b",", *item) if page else item)
        self._at += PAGE_ITEMS
        self.more = self._at < len(self._items)
        return page


def _items(tables: Tables, wanted: PagedList) -> Iterable[_Item]:
    match wanted:
        case SessionMessages():
            return map(_message, _messages(tables, wanted))
        case UserMessages(session_id=session_id):
            return map(_message, tables.user_messages(session_id))
        case FileVersions(session_id=session_id):
            return [(encode(file),) for file in tables.files_of(session_id)]
        case SessionList():
            return [_session(session) for session in tables.top_sessions()]


def _messages(tables: Tables, wanted: SessionMessages) -> list[MessageRow]:
    rows = tables.messages_of(wanted.session_id)
    if wanted.before is not None:
        places = [place for place, row in enumerate(rows) if row.head.id == wanted.before]
        if not places:
            raise MessageNotFound(wanted.before)
        rows = rows[: places[0]]
    return rows if wanted.limit is None else rows[-wanted.limit :]


def _message(row: MessageRow) -> _Item:
    encoded = encode(row.stored().message)
    return (encoded,) if row.finished else (Hole(row.head.id, encoded),)


def _session(session: Session) -> _Item:
    whole = encode(session)
    assert whole.endswith(IDLE_SESSION + b"}")
    return whole.removesuffix(IDLE_SESSION + b"}"), Hole(session.id, IDLE_SESSION), b"}"
