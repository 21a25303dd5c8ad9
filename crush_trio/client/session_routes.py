"""Routes of sessions: messages and files, runs and the queue, permissions and questions, the agent."""

from collections.abc import Iterable

from attrs import evolve, frozen

from crush_trio.client.attachment import Calls
from crush_trio.client.http import segment
from crush_trio.wire.answers import QueueEdit, QueueItem, ReceiptView, Resolved, TimelineView
from crush_trio.wire.asks import (
    Grant,
    GrantScope,
    PermissionAction,
    PermissionRequest,
    PermissionRule,
    QuestionRequest,
    QuestionResponse,
    RuleView,
)
from crush_trio.wire.config import AgentInfo, SelectedModel
from crush_trio.wire.fields import Timestamp
from crush_trio.wire.ids import AskId, MessageId, RunId, SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.requests import (
    AgentInitRequest,
    AnswerRequest,
    FileReadRequest,
    GrantRequest,
    PermissionSkip,
    RefusalRequest,
)
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import File, Session


@frozen(eq=False)
class PermissionRoutes:
    """Permissions of tools. Of several answers to a request the first one counts."""

    _calls: Calls

    async def pending(self) -> tuple[PermissionRequest, ...]:
        """Return the requests that wait for an answer, the oldest first."""
        return await self._calls.get("/permissions", tuple[PermissionRequest, ...])

    async def answer(
        self,
        request: PermissionRequest,
        action: PermissionAction,
        scope: GrantScope | None = None,
        reason: str = "",
    ) -> bool:
        """Answer a request; return whether this was the answer that settled it."""
        body = GrantRequest(permission=request, action=action.value, scope=scope, reason=reason)
        return (await self._calls.post("/permissions/grant", Resolved, body)).resolved

    async def grant(self, request: PermissionRequest, scope: GrantScope = GrantScope.ONCE) -> bool:
        """Allow a request, and similar ones as far as *scope* reaches.

        With `GrantScope.ALWAYS`, raises `RuleNotPossible` for what no rule can allow.
        """
        return await self.answer(request, PermissionAction.ALLOW, scope)

    async def deny(self, request: PermissionRequest, reason: str = "") -> bool:
        """Deny a request. The model is told the *reason*, and goes on; without one, its turn ends."""
        return await self.answer(request, PermissionAction.DENY, reason=reason)

    async def grants(self) -> tuple[Grant, ...]:
        """Return the grants that allow more than one request."""
        return await self._calls.get("/permissions/grants", tuple[Grant, ...])

    async def revoke(self, grant: AskId) -> bool:
        """Revoke a grant; return whether there was one."""
        path = f"/permissions/grants/{segment(grant)}"
        return (await self._calls.ask("DELETE", path, Resolved)).resolved

    async def rules(self) -> tuple[RuleView, ...]:
        """Return the permission rules of the user's configuration."""
        return await self._calls.get("/permissions/rules", tuple[RuleView, ...])

    async def add_rule(self, rule: PermissionRule) -> RuleView:
        """Add a rule to the user's configuration; raises an error with code `config_invalid`."""
        return await self._calls.post("/permissions/rules", RuleView, rule)

    async def remove_rule(self, rule: str) -> bool:
        """Remove the rule with this id; return whether there was one.

        Raises `RuleElsewhere` if it is in a file that the server does not write.
        """
        path = f"/permissions/rules/{segment(rule)}"
        return (await self._calls.ask("DELETE", path, Resolved)).resolved

    async def skipping(self) -> bool:
        """Return whether everything is allowed without asking."""
        return (await self._calls.get("/permissions/skip", PermissionSkip)).skip

    async def skip(self, skip: bool) -> None:
        """Set whether everything is allowed without asking."""
        await self._calls.tell("POST", "/permissions/skip", PermissionSkip(skip=skip))


@frozen(eq=False)
class QuestionRoutes:
    """Questions of models. A batch of questions is answered together."""

    _calls: Calls

    async def pending(self) -> tuple[QuestionRequest, ...]:
        """Return the batches that wait, the oldest first."""
        return await self._calls.get("/questions", tuple[QuestionRequest, ...])

    async def answer(self, batch: AskId, responses: Iterable[QuestionResponse]) -> bool:
        """Answer a batch; return whether this was the answer that settled it."""
        body = AnswerRequest(batch_request_id=batch, responses=tuple(responses))
        return (await self._calls.post("/questions/answer", Resolved, body)).resolved

    async def cancel(self, batch: AskId) -> bool:
        """Refuse to answer a batch; return whether that settled it."""
        body = RefusalRequest(batch_request_id=batch)
        return (await self._calls.post("/questions/cancel", Resolved, body)).resolved


def session_path(session: SessionId, rest: str = "") -> str:
    """Return the path of a route about the runs of a session."""
    return f"/agent/sessions/{segment(session)}{rest}"


@frozen(eq=False)
class AgentRoutes:
    """The agent of the workspace."""

    _calls: Calls

    async def info(self) -> AgentInfo:
        """Return whether the agent is ready, and its model."""
        return await self._calls.get("/agent", AgentInfo)

    async def init(self, *, interactive: bool = False) -> None:
        """Tell the server whether a user can answer asks; opening a workspace does that already."""
        await self._calls.tell("POST", "/agent/init", AgentInitRequest(interactive=interactive))

    async def update(self) -> None:
        """Apply a changed configuration."""
        await self._calls.tell("POST", "/agent/update")

    async def default_small_model(self, provider: str = "") -> SelectedModel:
        """Return the default small model of a provider."""
        return await self._calls.get(
            "/agent/default-small-model", SelectedModel, provider_id=provider
        )

    async def session(self, session: SessionId) -> Session:
        """Return whether a session is busy: its id, title and `is_busy`, and nothing else."""
        return await self._calls.get(session_path(session), Session)


@frozen(eq=False)
class RunRoutes:
    """The runs of a workspace. Every route takes the server's id of a run or the caller's."""

    _calls: Calls

    async def list(self, session: SessionId | None = None, limit: int = 100) -> tuple[RunView, ...]:
        """Return the newest runs, of one session or of all; at most 1000."""
        query = {"limit": str(limit), **({} if session is None else {"session_id": session})}
        return await self._calls.ask("GET", "/runs", tuple[RunView, ...], query=query)

    async def get(self, run: RunId) -> RunView:
        """Return a run as it is now; raises `RunNotFound`."""
        return await self._calls.get(f"/runs/{segment(run)}", RunView)

    async def capsule(self, run: RunId) -> bytes:
        """Return the recording of a run that was submitted with *record*, as the content of a file.

        Raises an `ApiError` with the code `not_recorded` for any other run.
        """
        return await self._calls.tell("GET", f"/runs/{segment(run)}/capsule")

    async def timeline(self, run: RunId) -> TimelineView:
        """Return what a run did when; for a run of long ago only roughly."""
        return await self._calls.get(f"/runs/{segment(run)}/timeline", TimelineView)

    async def cancel(self, run: RunId) -> ReceiptView:
        """Cancel a run and return the receipt; a run that has ended is not hit."""
        path = f"/runs/{segment(run)}/cancel"
        return await self._calls.ask("POST", path, ReceiptView, query={"receipt": "1"})


@frozen(eq=False)
class QueueRoutes:
    """The runs of a session that wait behind the active one."""

    _calls: Calls

    async def list(self, session: SessionId) -> tuple[QueueItem, ...]:
        """Return the runs that wait, the next one first."""
        return await self._calls.get(session_path(session, "/queue"), tuple[QueueItem, ...])

    async def edit(
        self,
        session: SessionId,
        run: RunId,
        *,
        prompt: str | None = None,
        index: int | None = None,
        interrupt: bool = False,
    ) -> tuple[QueueItem, ...]:
        """Change the text of a waiting run, or its place, or both; return the queue as it is then.

        With *interrupt*, which goes with index 0, the active run is cancelled: this one runs now. Raises `RunNotQueued` if it waits no longer.
        """
        path = session_path(session, f"/queue/{segment(run)}")
        body = QueueEdit(prompt=prompt, index=index, interrupt=interrupt)
        return await self._calls.ask("PATCH", path, tuple[QueueItem, ...], body=body)

    async def move(self, session: SessionId, run: RunId, index: int) -> tuple[QueueItem, ...]:
        """Put a waiting run at a place of the queue, 0 being the next; past the end is the end."""
        return await self.edit(session, run, index=index)

    async def run_now(self, session: SessionId, run: RunId) -> tuple[QueueItem, ...]:
        """Have a waiting run run now: it is the next, and the active run is cancelled."""
        return await self.edit(session, run, index=0, interrupt=True)

    async def delete(self, session: SessionId, run: RunId) -> None:
        """Take a waiting run out of the queue: it ends as cancelled."""
        await self._calls.tell("DELETE", session_path(session, f"/queue/{segment(run)}"))

    async def clear(self, session: SessionId) -> None:
        """Cancel every run that waits; the active one goes on."""
        await self._calls.tell("POST", session_path(session, "/prompts/clear"))

    async def count(self, session: SessionId) -> int:
        """Return how many runs wait."""
        return await self._calls.get(session_path(session, "/prompts/queued"), int)

    async def prompts(self, session: SessionId) -> tuple[str, ...]:
        """Return the prompts of the runs that wait."""
        return await self._calls.get(session_path(session, "/prompts/list"), tuple[str, ...])


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

        *limit* returns only the newest ones, *before* those before a message: pass the first message of an
        answer to get the page before it.
        """
        query = {"limit": None if limit is None else str(limit), "before": before}
        given = {name: value for name, value in query.items() if value is not None}
        path = _path(session, "/messages")
        return await self._calls.ask("GET", path, tuple[Message, ...], query=given)

    async def prompts(self, session: SessionId) -> tuple[Message, ...]:
        """Return the prompts of a session, the newest first."""
        return await self._calls.get(_path(session, "/messages/user"), tuple[Message, ...])

    async def history(self, session: SessionId) -> tuple[File, ...]:
        """Return every version of every file that a session has changed."""
        return await self._calls.get(_path(session, "/history"), tuple[File, ...])

    async def files_read(self, session: SessionId) -> tuple[str, ...]:
        """Return the paths of the files that a session has read."""
        return await self._calls.get(_path(session, "/filetracker/files"), tuple[str, ...])

    async def note_read(self, session: SessionId, path: str) -> None:
        """Record that a session has read a file as it is now."""
        body = FileReadRequest(session_id=session, path=path)
        await self._calls.tell("POST", "/filetracker/read", body)

    async def last_read(self, session: SessionId, path: str) -> Timestamp:
        """Return when a session read a file last; the zero time for never."""
        query = {"session_id": session, "path": path}
        return await self._calls.ask("GET", "/filetracker/lastread", Timestamp, query=query)
