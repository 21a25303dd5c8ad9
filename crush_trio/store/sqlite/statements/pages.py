"""Pages of long lists, assembled as JSON by SQLite itself.

The stored form of a part is the JSON that clients get. So a page is one row of one statement, made
without the Python interpreter: the reading thread needs the GIL a few times per page and not for
every row. A page has at most `PAGE_ITEMS` items, and fewer if they are larger than `PAGE_SIZE`
together, so the cost of a page does not grow with the list.

An item that needs more work is in the page as its id between two NUL characters, which JSON never
has: an unfinished message, whose text is in chunks, and one that cannot be read, so that reading it
properly raises the right error. The tests compare the bytes with those of the codec.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from attrs import define, field, frozen

from crush_trio.errors import MessageNotFound
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
from crush_trio.store.sqlite.statements.messages import read_message
from crush_trio.store.sqlite.writer import Work
from crush_trio.wire.codec import encode
from crush_trio.wire.ids import MessageId
from crush_trio.wire.messages import PARTS, Role

_END: Final = 2**63 - 1
"""A seq after every message."""

_KINDS: Final = ", ".join(f"'{kind}'" for kind in PARTS)
_ROLES: Final = ", ".join(f"'{role.value}'" for role in Role)

_MESSAGE: Final = f"""
    CASE WHEN finished_at IS NULL OR role NOT IN ({_ROLES}) OR EXISTS (
        SELECT 1 FROM parts WHERE message_id = page.id
        AND (type NOT IN ({_KINDS}) OR NOT json_valid(data))
    ) THEN char(0) || id || char(0)
    ELSE '{{"parts":[' || coalesce((
        SELECT group_concat('{{"type":"' || type || '","data":' || data || '}}', ',')
        FROM (SELECT type, data FROM parts WHERE message_id = page.id ORDER BY idx)
    ), '') || '],"id":' || json_quote(id) || ',"role":"' || role
        || '","session_id":' || json_quote(session_id) || ',"model":' || json_quote(model)
        || ',"provider":' || json_quote(provider)
        || ',"created_at":' || created_at || ',"updated_at":' || updated_at
        || CASE WHEN is_summary_message THEN ',"is_summary_message":true}}' ELSE '}}' END
    END
"""
_MESSAGE_SIZE: Final = "(SELECT total(length(data)) FROM parts WHERE message_id = page.id)"

_FILE: Final = """
    '{"id":' || json_quote(id) || ',"session_id":' || json_quote(session_id)
    || ',"path":' || json_quote(path) || ',"content":' || json_quote(content)
    || ',"version":' || version || ',"created_at":' || created_at
    || ',"updated_at":' || updated_at || '}'
"""

# SQLite writes fifteen digits of a number; where they do not give the same number, seventeen do.
_COST: Final = """
    CASE WHEN CAST(printf('%!.15g', cost) AS REAL) = cost
    THEN printf('%!.15g', cost) ELSE printf('%!.17g', cost) END
"""
_SESSION: Final = f"""
    '{{"id":' || json_quote(id)
    || ',"parent_session_id":' || json_quote(coalesce(parent_session_id, ''))
    || ',"title":' || json_quote(title) || ',"message_count":' || message_count
    || ',"prompt_tokens":' || prompt_tokens || ',"completion_tokens":' || completion_tokens
    || ',"summary_message_id":' || json_quote(coalesce(summary_message_id, ''))
    || ',"cost":' || {_COST}
    || CASE WHEN todos = '[]' THEN '' ELSE ',"todos":' || todos END
    || ',"created_at":' || created_at || ',"updated_at":' || updated_at
    || char(0) || id || char(0) || '}}'
"""


@frozen(kw_only=True)
class _ListQuery:
    """The SQL of one list: the JSON of a row, the size of its content, the order and the conditions."""

    table: str
    json: str
    size: str
    order: str
    where: str
    place: tuple[str, ...]
    """The columns of the sort key; a page begins after the values of the last page's last row."""
    start: tuple[object, ...]
    """The values before the first row."""
    items: int = 64
    """How many rows the first page may have."""
    page: str = field(init=False, repr=False)
    """SQL: the bytes of a page and its number of rows; NULL if it would be too large."""
    last: str = field(init=False, repr=False)
    """SQL: the sort key of the last row of a full page."""

    @page.default
    def _page(self) -> str:
        rows = f"(SELECT * FROM {self.table} WHERE {self.where} ORDER BY {self.order} LIMIT :items)"
        return (
            f"SELECT CAST(group_concat({self.json}, ',') AS BLOB), count(*) FROM {rows} page"
            f" WHERE :items = 1 OR (SELECT total({self.size}) FROM {rows} page) <= {PAGE_SIZE}"
        )

    @last.default
    def _last(self) -> str:
        return (
            f"SELECT {', '.join(self.place)} FROM {self.table} WHERE {self.where}"
            f" ORDER BY {self.order} LIMIT 1 OFFSET :items - 1"
        )


_MESSAGES: Final = _ListQuery(
    table="messages",
    json=_MESSAGE,
    size=_MESSAGE_SIZE,
    order="seq",
    where="session_id = :session_id AND seq > :seq AND seq < :end",
    place=("seq",),
    start=(0,),
)
_SESSION_PROMPTS: Final = _ListQuery(
    table="messages",
    json=_MESSAGE,
    size=_MESSAGE_SIZE,
    order="seq DESC",
    where="session_id = :session_id AND role = 'user' AND seq < :seq",
    place=("seq",),
    start=(2**63 - 1,),
)
_ALL_PROMPTS: Final = _ListQuery(
    table="messages",
    json=_MESSAGE,
    size=_MESSAGE_SIZE,
    order="created_at DESC, n DESC",
    where="role = 'user' AND (created_at, n) < (:created_at, :n)",
    place=("created_at", "n"),
    start=(2**63 - 1, 2**63 - 1),
)
_FILES: Final = _ListQuery(
    table="files",
    json=_FILE,
    size="length(content)",
    order="path, version",
    where="session_id = :session_id AND (path, version) > (:path, :version)",
    place=("path", "version"),
    start=("", 0),
    items=16,
)
_SESSIONS: Final = _ListQuery(
    table="sessions",
    json=_SESSION,
    size="length(title) + length(todos)",
    order="updated_at DESC, n DESC",
    where="parent_session_id IS NULL AND (updated_at, n) < (:updated_at, :n)",
    place=("updated_at", "n"),
    start=(2**63 - 1, 2**63 - 1),
    items=PAGE_ITEMS,
)


@define(eq=False)
class SqlitePages:
    """Satisfies `Pages` on read connections.

    The first page is read in a group with other short reads: many clients ask for the same lists at
    the same time, and most lists are one page. Later pages take turns with those of other long
    lists.
    """

    wanted: PagedList
    _read_soon: Callable[[Hashable, Work[Any]], Awaitable[Any]]
    _read_in_turn: Callable[[Work[Any]], Awaitable[Any]]
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
        if self._begun:
            page, self._next = await self._read_in_turn(self._page)
        else:
            page, self._next = await self._read_soon(self.wanted, self._page)
        self._begun = True
        return page  # type: ignore[no-any-return]  # what `_page` has returned

    def _page(self, connection: sqlite3.Connection) -> "tuple[list[PagePiece], _Next]":
        """Return a page, and where the next one begins.

        Called in a thread, so it sets no attribute.
        """
        place, items = self._next.place, self._next.items
        if isinstance(self.wanted, SessionMessages) and "end" not in place:
            place = place | _range(connection, self.wanted)
        data, given = _execute(connection, self._source.page, place, items)
        while data is None and items > 1:  # there are none, or they are too large
            items = max(items // 8, 1)
            data, given = _execute(connection, self._source.page, place, items)
        if data is None:
            return [], _Next(place=place, more=False)
        following = _Next(place=place, more=False)
        if given == items:
            following = self._after(connection, place, items)
        return self._pieces(connection, data), following

    def _after(self, connection: sqlite3.Connection, place: dict[str, Any], items: int) -> "_Next":
        """Return where the page after one of *items* rows from *place* begins."""
        last = _execute(connection, self._source.last, place, items)
        place = place | dict(zip(self._source.place, last, strict=True))
        if place.get("end") == _END:  # messages that are created from now on are not in this list
            newest = "SELECT max(seq) + 1 FROM messages WHERE session_id = :session_id"
            [place["end"]] = connection.execute(newest, place).fetchone()
        return _Next(place=place, items=min(2 * items, PAGE_ITEMS))

    def _pieces(self, connection: sqlite3.Connection, data: bytes) -> list[PagePiece]:
        """Return the page with its holes."""
        pieces: list[PagePiece] = []
        for index, text in enumerate(data.split(b"\0")):
            if index % 2 == 0:
                pieces.append(text)
            elif isinstance(self.wanted, SessionList):
                pieces.append(Hole(text.decode(), IDLE_SESSION))
            else:
                stored = read_message(connection, MessageId(text.decode()))
                pieces.append(Hole(stored.message.id, encode(stored.message)))
        return pieces


@frozen(kw_only=True)
class _Next:
    """Where the next page begins, and how many rows it may have: fewer after large rows."""

    place: dict[str, Any]
    items: int = 1
    more: bool = True


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


def _range(connection: sqlite3.Connection, wanted: SessionMessages) -> dict[str, object]:
    """Return the seq before the first wanted message, and the one after the last."""
    end, session = _END, wanted.session_id
    if wanted.before is not None:
        found = connection.execute(
            "SELECT seq FROM messages WHERE session_id = ? AND id = ?", (session, wanted.before)
        ).fetchone()
        if found is None:
            raise MessageNotFound(wanted.before)
        end = found[0]
    if wanted.limit is None:
        return {"end": end}
    [first] = connection.execute(
        "SELECT coalesce(min(seq), 1) FROM (SELECT seq FROM messages"
        " WHERE session_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?)",
        (session, end, wanted.limit),
    ).fetchone()
    return {"end": end, "seq": first - 1}


def _execute(
    connection: sqlite3.Connection, statement: str, place: Mapping[str, Any], items: int
) -> tuple[Any, ...]:
    row: tuple[Any, ...] = connection.execute(statement, {**place, "items": items}).fetchone()
    return row
