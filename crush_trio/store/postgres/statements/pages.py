"""Pages of long lists, whose messages are put together from the stored JSON.

The stored form of a part is the JSON that clients get, so a page of messages is made without decoding
any part. A page has at most `PAGE_ITEMS` items, and it ends when they have `PAGE_SIZE` bytes together;
larger rows are counted before any of them is read, so the cost of a page does not grow with the list.

An unfinished message, whose text is in chunks, is read properly, and so is one that cannot be read,
which raises the right error. The tests compare the bytes with those of the codec.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import orjson
from attrs import define, field, frozen

from crush_trio.errors import MessageNotFound
from crush_trio.store.columns import Row
from crush_trio.store.pages import (
    IDLE_SESSION,
    PAGE_ITEMS,
    PAGE_SIZE,
    FileVersions,
    Hole,
    PagedList,
    PagePiece,
    SessionList,
    SessionMessages,
    UserMessages,
)
from crush_trio.store.postgres.statements.messages import read_message
from crush_trio.store.postgres.statements.sessions import (
    COLUMNS,
    FILE_COLUMNS,
    file_of,
    session_of,
)
from crush_trio.store.postgres.transaction import ReadWork, Transaction
from crush_trio.wire.codec import encode
from crush_trio.wire.ids import MessageId
from crush_trio.wire.messages import PARTS, Role

_LAST: Final = 2**63 - 1

_KINDS: Final = ", ".join(f"'{kind}'" for kind in PARTS)
_ROLES: Final = ", ".join(f"'{role.value}'" for role in Role)

_MESSAGE_COLUMNS: Final = f"""
    id, role, session_id, model, provider, created_at, updated_at, is_summary_message,
    finished_at IS NOT NULL AND role IN ({_ROLES}) AND NOT EXISTS (
        SELECT 1 FROM parts
        WHERE parts.workspace = %(w)s AND message_id = page.id AND type NOT IN ({_KINDS})
    ), (
        SELECT string_agg('{{"type":"' || type || '","data":' || data || '}}', ',' ORDER BY idx)
        FROM parts WHERE parts.workspace = %(w)s AND message_id = page.id
    )
"""
_MESSAGE_SIZE: Final = """(
    SELECT coalesce(sum(octet_length(data)), 0) FROM parts
    WHERE parts.workspace = %(w)s AND message_id = messages.id
)"""


@frozen(kw_only=True)
class _ListQuery:
    """The SQL of one list: the columns of a row, the size of its content, order and conditions."""

    table: str
    columns: str
    size: str
    order: str
    where: str
    place: tuple[str, ...]
    """The columns of the sort key; a page begins after the values of the last page's last row."""
    start: tuple[object, ...]
    """The values before the first row."""
    items: int = 64
    """How many rows the first page may have."""
    sql: str = field(init=False, repr=False)
    """The rows of a page, each with its sort key and whether another one follows."""

    @sql.default
    def _sql(self) -> str:
        places = ", ".join(self.place)
        return (
            f"SELECT {self.columns}, {places}, follows FROM ("
            f" SELECT *, sum(size) OVER (ORDER BY {self.order}) - size AS before,"
            f" lead(true, 1, false) OVER (ORDER BY {self.order}) AS follows FROM ("
            f" SELECT *, {self.size} AS size FROM {self.table}"
            f" WHERE workspace = %(w)s AND {self.where}"
            f" ORDER BY {self.order} LIMIT %(items)s + 1"
            f" ) AS sized ) AS page WHERE before < {PAGE_SIZE} ORDER BY {self.order}"
            " LIMIT %(items)s"
        )


_MESSAGES: Final = _ListQuery(
    table="messages",
    columns=_MESSAGE_COLUMNS,
    size=_MESSAGE_SIZE,
    order="seq",
    where="session_id = %(session_id)s AND seq > %(seq)s AND seq < %(end)s",
    place=("seq",),
    start=(0,),
)
_SESSION_PROMPTS: Final = _ListQuery(
    table="messages",
    columns=_MESSAGE_COLUMNS,
    size=_MESSAGE_SIZE,
    order="seq DESC",
    where="session_id = %(session_id)s AND role = 'user' AND seq < %(seq)s",
    place=("seq",),
    start=(_LAST,),
)
_ALL_PROMPTS: Final = _ListQuery(
    table="messages",
    columns=_MESSAGE_COLUMNS,
    size=_MESSAGE_SIZE,
    order="created_at DESC, n DESC",
    where="role = 'user' AND (created_at, n) < (%(created_at)s, %(n)s)",
    place=("created_at", "n"),
    start=(_LAST, _LAST),
)
_FILES: Final = _ListQuery(
    table="files",
    columns=FILE_COLUMNS,
    size="octet_length(content)",
    order="path, version",
    where="session_id = %(session_id)s AND (path, version) > (%(path)s, %(version)s)",
    place=("path", "version"),
    start=("", 0),
    items=16,
)
_SESSIONS: Final = _ListQuery(
    table="sessions",
    columns=COLUMNS,
    size="octet_length(title) + octet_length(todos)",
    order="updated_at DESC, n DESC",
    where="parent_session_id IS NULL AND (updated_at, n) < (%(updated_at)s, %(n)s)",
    place=("updated_at", "n"),
    start=(_LAST, _LAST),
    items=PAGE_ITEMS,
)

ReadIn = Callable[[ReadWork[Any]], Awaitable[Any]]


@define(eq=False)
class PostgresPages:
    """Satisfies `Pages` on read connections.

    Later pages take turns with those of other long lists, so that these leave connections for short
    reads.
    """

    wanted: PagedList
    _read: ReadIn
    _read_in_turn: ReadIn
    _begun: bool = field(default=False, init=False)
    _source: _ListQuery = field(init=False)
    _next: "_Next" = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._source = _query_of(self.wanted)
        place = dict(zip(self._source.place, self._source.start, strict=True))
        place["session_id"] = getattr(self.wanted, "session_id", None)
        self._next = _Next(place=place, items=self._source.items)

    @property
    def more(self) -> bool:
        """Whether there is another page."""
        return self._next.more

    async def read(self) -> Sequence[PagePiece]:
        """Return the next page."""
        read = self._read_in_turn if self._begun else self._read
        page, self._next = await read(self._page)
        self._begun = True
        return page  # type: ignore[no-any-return]  # what `_page` has returned

    def _page(self, transaction: Transaction) -> "tuple[list[PagePiece], _Next]":
        """Return a page, and where the next one begins.

        Called in a thread, so it sets no attribute.
        """
        source, place, items = self._source, self._next.place, self._next.items
        if isinstance(self.wanted, SessionMessages) and "end" not in place:
            place = place | _range(transaction, self.wanted)
        rows = transaction.run(source.sql, **place, items=items).fetchall()
        keys = len(source.place)
        pieces: list[PagePiece] = []
        for row in rows:
            pieces += [b","] if pieces else []
            pieces += self._item(transaction, row[: -keys - 1])
        if not rows:
            return pieces, _Next(place=place, more=False)
        after = dict(zip(source.place, rows[-1][-keys - 1 : -1], strict=True))
        place, more = place | after, rows[-1][-1]
        if more and place.get("end") == _LAST:  # what is created from now on is not in this list
            newest = transaction.one(
                "SELECT max(seq) + 1 FROM messages"
                " WHERE workspace = %(w)s AND session_id = %(session_id)s",
                session_id=place["session_id"],
            )
            place["end"] = _LAST if newest is None else newest[0]
        return pieces, _Next(place=place, items=min(2 * items, PAGE_ITEMS), more=more)

    def _item(self, transaction: Transaction, row: Row) -> Iterator[PagePiece]:
        match self.wanted:
            case SessionList():
                session = session_of(row)
                whole = encode(session)
                yield whole.removesuffix(IDLE_SESSION + b"}")
                yield Hole(session.id, IDLE_SESSION)
                yield b"}"
            case FileVersions():
                yield encode(file_of(row))
            case _:
                yield _message_piece(transaction, row)


@frozen(kw_only=True)
class _Next:
    """Where the next page begins, and how many rows it may have."""

    place: dict[str, Any]
    items: int = 1
    more: bool = True


def _message_piece(transaction: Transaction, row: Row) -> PagePiece:
    id_, role, session_id, model, provider, created, updated, is_summary, plain, parts = row
    if not plain:
        stored = read_message(transaction, MessageId(id_))
        return Hole(stored.message.id, encode(stored.message))
    rest: dict[str, object] = {
        "id": id_,
        "role": role,
        "session_id": session_id,
        "model": model,
        "provider": provider,
        "created_at": created,
        "updated_at": updated,
    }
    if is_summary:
        rest["is_summary_message"] = True
    return b'{"parts":[%b],%b' % ((parts or "").encode(), orjson.dumps(rest)[1:])


def _query_of(wanted: PagedList) -> _ListQuery:
    match wanted:
        case SessionMessages():
            return _MESSAGES
        case UserMessages(session_id=None):
            return _ALL_PROMPTS
        case UserMessages():
            return _SESSION_PROMPTS
        case FileVersions():
            return _FILES
        case SessionList():
            return _SESSIONS


def _range(transaction: Transaction, wanted: SessionMessages) -> dict[str, object]:
    """Return the seq before the first wanted message, and the one after the last."""
    end, session = _LAST, wanted.session_id
    if wanted.before is not None:
        place = transaction.one(
            "SELECT seq FROM messages"
            " WHERE workspace = %(w)s AND session_id = %(session)s AND id = %(id)s",
            session=session,
            id=wanted.before,
        )
        if place is None:
            raise MessageNotFound(wanted.before)
        end = place[0]
    if wanted.limit is None:
        return {"end": end}
    first = transaction.one(
        "SELECT coalesce(min(seq), 1) FROM ("
        " SELECT seq FROM messages WHERE workspace = %(w)s AND session_id = %(session)s"
        " AND seq < %(end)s ORDER BY seq DESC LIMIT %(limit)s) AS newest",
        session=session,
        end=end,
        limit=wanted.limit,
    )
    assert first is not None
    return {"end": end, "seq": first[0] - 1}
