"""The agent of a workspace, the runs it has made, and those that wait."""

from attrs import frozen

from crush_trio.client.calls import Calls
from crush_trio.client.link import segment
from crush_trio.wire.catalog import SelectedModel
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.native import QueueEdit, QueueItem, ReceiptView, RunView
from crush_trio.wire.requests import AgentInitRequest
from crush_trio.wire.views import Session
from crush_trio.wire.workspaces import AgentInfo


def session_path(session: SessionId, rest: str = "") -> str:
    """Return the path of a route about the runs of a session."""
    return f"/agent/sessions/{segment(session)}{rest}"


@frozen(eq=False)
class AgentRoutes:
    """What answers prompts."""

    _calls: Calls

    async def info(self) -> AgentInfo:
        """Return whether the agent can be asked, and what would answer."""
        return await self._calls.get("/agent", AgentInfo)

    async def init(self, *, interactive: bool = False) -> None:
        """Make the agent ready; opening a workspace has done that."""
        await self._calls.tell("POST", "/agent/init", AgentInitRequest(interactive=interactive))

    async def update(self) -> None:
        """Take over a changed configuration."""
        await self._calls.tell("POST", "/agent/update")

    async def default_small_model(self, provider: str = "") -> SelectedModel:
        """Return the model of a provider that is good for side work."""
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

    async def cancel(self, run: RunId) -> ReceiptView:
        """Cancel a run, and say how it ended; a run that has ended is not hit."""
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
    ) -> tuple[QueueItem, ...]:
        """Change the text of a waiting run, or its place, or both; return the queue as it is then.

        Raises `RunNotQueued` if it waits no longer.
        """
        path = session_path(session, f"/queue/{segment(run)}")
        body = QueueEdit(prompt=prompt, index=index)
        return await self._calls.ask("PATCH", path, tuple[QueueItem, ...], body=body)

    async def move(self, session: SessionId, run: RunId, index: int) -> tuple[QueueItem, ...]:
        """Put a waiting run at a place of the queue, 0 being the next; past the end is the end."""
        return await self.edit(session, run, index=index)

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
