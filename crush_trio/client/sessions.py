"""Sessions, their messages, and the files they touched."""

from attrs import evolve, frozen

from crush_trio.client.calls import Calls
from crush_trio.client.link import segment
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.requests import FileReadRequest
from crush_trio.wire.times import Timestamp
from crush_trio.wire.views import File, Session


def _path(session: SessionId, rest: str = "") -> str:
    return f"/sessions/{segment(session)}{rest}"


@frozen(eq=False)
class SessionRoutes:
    """The conversations of a workspace."""

    _calls: Calls

    async def list(self) -> tuple[Session, ...]:
        """Return the sessions, the last used first; those of sub-agents are not among them."""
        return await self._calls.get("/sessions", tuple[Session, ...])

    async def create(self, title: str = "") -> Session:
        """Create a session."""
        new = Session(id=SessionId(""), title=title)
        return await self._calls.post("/sessions", Session, new)

    async def get(self, session: SessionId) -> Session:
        """Return a session; raises `SessionNotFound`."""
        return await self._calls.get(_path(session), Session)

    async def save(self, session: Session) -> Session:
        """Store what may be changed of a session: title, tokens, cost, summary, todos."""
        return await self._calls.ask("PUT", _path(session.id), Session, body=session)

    async def rename(self, session: SessionId, title: str) -> Session:
        """Give a session another title; reads it first, because a session is saved as a whole."""
        return await self.save(evolve(await self.get(session), title=title))

    async def delete(self, session: SessionId) -> None:
        """Stop the runs of a session, and delete it with everything in it."""
        await self._calls.tell("DELETE", _path(session))

    async def messages(
        self, session: SessionId, *, limit: int | None = None, before: MessageId | None = None
    ) -> tuple[Message, ...]:
        """Return the messages of a session, the oldest first.

        Of a long session, *limit* gives the newest so many, and *before* those that came before a
        message: the first of an answer leads to the one before it.
        """
        query = {"limit": None if limit is None else str(limit), "before": before}
        given = {name: value for name, value in query.items() if value is not None}
        path = _path(session, "/messages")
        return await self._calls.ask("GET", path, tuple[Message, ...], query=given)

    async def prompts(self, session: SessionId) -> tuple[Message, ...]:
        """Return what people said in a session, the newest first."""
        return await self._calls.get(_path(session, "/messages/user"), tuple[Message, ...])

    async def history(self, session: SessionId) -> tuple[File, ...]:
        """Return every version of every file that a session has changed."""
        return await self._calls.get(_path(session, "/history"), tuple[File, ...])

    async def files_read(self, session: SessionId) -> tuple[str, ...]:
        """Return the paths of the files that a session has read."""
        return await self._calls.get(_path(session, "/filetracker/files"), tuple[str, ...])

    async def note_read(self, session: SessionId, path: str) -> None:
        """Say that a session has seen a file as it is now."""
        body = FileReadRequest(session_id=session, path=path)
        await self._calls.tell("POST", "/filetracker/read", body)

    async def last_read(self, session: SessionId, path: str) -> Timestamp:
        """Return when a session read a file last; the zero time for never."""
        query = {"session_id": session, "path": path}
        return await self._calls.ask("GET", "/filetracker/lastread", Timestamp, query=query)
