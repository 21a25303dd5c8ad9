"""A page in a test: reads `GET /v1/events` frame by frame and keeps the roster that it was told."""

from collections.abc import Callable

import orjson
import trio
from attrs import define, field

PATIENCE = 600.0


@define(eq=False)
class Page:
    """One page of a server under test. Leaving the context closes it."""

    exchange: object
    seen: list = field(factory=list)
    """Every frame so far, as (name, id, data)."""
    sessions: dict = field(factory=dict)
    workspaces: dict = field(factory=dict)
    _rest: bytes = b""
    _unread: list = field(factory=list)

    async def next(self):
        """Return the next frame; None at the end."""
        with trio.fail_after(PATIENCE):
            while not self._unread:
                piece = await self.exchange.receive()
                if not piece:
                    return None
                *blocks, self._rest = (self._rest + piece).split(b"\n\n")
                self._unread += map(parsed, blocks)
        self.seen.append(self._unread.pop(0))
        self._apply(*self.seen[-1])
        return self.seen[-1]

    def _apply(self, name, _place, data):
        if name == "roster":
            self.sessions = {row["id"]: row for row in data["sessions"]}
            self.workspaces = {row["id"]: row for row in data["workspaces"]}
        for kind, rows in (("session", self.sessions), ("workspace", self.workspaces)):
            if name == f"roster_{kind}":
                row = data["payload"]
                if data["type"] == "deleted":
                    rows.pop(row["id"])
                    gone = [
                        s for s, each in self.sessions.items() if each["workspace_id"] == row["id"]
                    ]
                    for session in gone:
                        del self.sessions[session]
                else:
                    rows[row["id"]] = row

    async def until(self, wanted: Callable):
        """Read until *wanted*(page) is true."""
        while not wanted(self):
            assert await self.next() is not None, self.seen

    async def event(self, name):
        """Read up to the next frame called *name*; return its data."""
        while (frame := await self.next()) is not None:
            if frame[0] == name:
                return frame[2]
        raise AssertionError(self.seen)

    async def shows(self, session, group, *needs):
        """Read until a session is in a group, with these needs."""
        await self.until(
            lambda page: (
                (row := page.sessions.get(session)) is not None
                and (row["group"], row["needs"]) == (group, list(needs))
            )
        )

    async def rest(self):
        while await self.next() is not None:
            pass
        return self.seen

    def names(self):
        return [name for name, _, _ in self.seen]

    def numbered(self):
        """Return the frames with an id, which belong to the workspace."""
        return [frame for frame in self.seen if frame[1] is not None and frame[0] != "ready"]

    @property
    def place(self):
        return next(place for _, place, _ in reversed(self.seen) if place is not None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.exchange.hang_up()


def parsed(block):
    lines = dict(line.split(b": ", 1) for line in block.split(b"\n"))
    place = lines.get(b"id")
    data = orjson.loads(lines[b"data"])
    return lines[b"event"].decode(), None if place is None else place.decode(), data


async def open_page(server, query="", after=None):
    """Open a page; its first frame, the whole roster, is read."""
    headers = () if after is None else (("last-event-id", after),)
    exchange = server.driver.open("GET", f"/v1/events?{query}", headers=headers)
    assert await exchange.head() == 200, exchange.status
    page = Page(exchange)
    assert (await page.next())[0] == "roster"
    return page
