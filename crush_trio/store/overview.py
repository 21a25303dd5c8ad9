"""Reads over many sessions at once: the overview that a roster shows, and the search for text.

A store gets both by default from its other reads, which is enough for one in memory. A store that can
do better replaces them.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final, Protocol

from attrs import frozen

from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import Message, Role, TextPart
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import ModelName, Session

SEARCHED: Final = frozenset({Role.USER, Role.ASSISTANT})
"""The roles whose messages are searched."""

SEARCH_SECONDS: Final = 2.0
"""Seconds after which a search returns what it has found."""

_RUNS: Final = 100
_AROUND: Final = 60
"""Characters of a snippet on each side of what was found."""


@frozen(kw_only=True)
class SessionOverview:
    """A session without a parent, how its last run ended or stands, and the model of its last answer.

    A run that was folded into another does not count.
    """

    session: Session
    last_run: RunState | None = None
    model: ModelName | None = None


@frozen(kw_only=True)
class FoundText:
    """A title or a message that contains a text; a title has no `message_id` and no `role`."""

    session_id: SessionId
    title: str
    snippet: str
    at: int
    message_id: MessageId | None = None
    role: Role = Role.UNSET


class OverviewReads(Protocol):
    """Reads about many sessions; those of subagents are left out."""

    async def sessions(self) -> list[Session]:
        """Return the sessions that have no parent; see `SessionReads`."""
        ...

    async def messages(self, session_id: SessionId) -> list[Message]:
        """Return a session's messages; see `MessageReads`."""
        ...

    async def runs(self, session_id: SessionId | None = None, limit: int = 100) -> list[RunView]:
        """Return the newest runs; see `RunReads`."""
        ...

    async def overview(
        self, session_ids: Collection[SessionId] | None = None
    ) -> list[SessionOverview]:
        """Return the sessions without a parent, or those of *session_ids*, the last used first."""
        found = []
        for session in await self.sessions():
            if session_ids is None or session.id in session_ids:
                runs = await self.runs(session.id, _RUNS)
                states = (run.state for run in runs if run.state is not RunState.FOLDED)
                model = last_model(await self.messages(session.id))
                found.append(
                    SessionOverview(session=session, last_run=next(states, None), model=model)
                )
        return found

    async def search(self, text: str, limit: int) -> list[FoundText]:
        """Return where *text* is, in any case of letters, the newest first.

        Titles, and what people and models wrote in finished messages. Takes a bounded time; then the
        oldest messages were not looked at.
        """
        found = []
        for session in await self.sessions():
            if (snippet := snippet_of(session.title, text)) is not None:
                found.append(titled(session, snippet))
            found += _in_messages(session, await self.messages(session.id), text)
        return newest(found, limit)


def last_model(messages: Iterable[Message]) -> ModelName | None:
    """Return the model of the last answer among *messages*."""
    found = None
    for message in messages:
        if message.role is Role.ASSISTANT and message.model:
            found = ModelName(provider=message.provider, model=message.model)
    return found


def titled(session: Session, snippet: str) -> FoundText:
    """Return that a session was found by its title."""
    return FoundText(
        session_id=session.id, title=session.title, snippet=snippet, at=session.updated_at
    )


def newest(found: Iterable[FoundText], limit: int) -> list[FoundText]:
    """Return the newest *limit* of *found*."""
    return sorted(found, key=lambda each: each.at, reverse=True)[:limit]


def snippet_of(content: str, text: str) -> str | None:
    """Return the surroundings of *text* in *content* on one line; None if it is not there.

    Upper and lower case are the same, in every alphabet.
    """
    place = content.lower().find(text.lower())
    if place < 0:
        return None
    start, stop = max(0, place - _AROUND), place + len(text) + _AROUND
    inner = " ".join(content[start:stop].split())
    return f"{'…' if start else ''}{inner}{'…' if stop < len(content) else ''}"


def _in_messages(session: Session, messages: Iterable[Message], text: str) -> Iterator[FoundText]:
    for message in messages:
        if message.role not in SEARCHED:
            continue
        texts = (part.text for part in message.parts if isinstance(part, TextPart))
        for content in texts:
            if (snippet := snippet_of(content, text)) is not None:
                yield FoundText(
                    session_id=session.id,
                    title=session.title,
                    message_id=message.id,
                    role=message.role,
                    snippet=snippet,
                    at=message.created_at,
                )
                break
