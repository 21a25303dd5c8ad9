"""Permissions and questions: what waits for a person, and answering it."""

from collections.abc import Iterable

from attrs import frozen

from crush_trio.client.calls import Calls
from crush_trio.client.link import segment
from crush_trio.wire.asks import (
    Grant,
    GrantScope,
    PermissionAction,
    PermissionRequest,
    QuestionRequest,
    QuestionResponse,
)
from crush_trio.wire.ids import AskId
from crush_trio.wire.requests import (
    AnswerRequest,
    GrantRequest,
    PermissionSkip,
    RefusalRequest,
)
from crush_trio.wire.views import Resolved


@frozen(eq=False)
class PermissionRoutes:
    """What tools may do. Of all answers to a request the first one counts."""

    _calls: Calls

    async def pending(self) -> tuple[PermissionRequest, ...]:
        """Return the requests that wait for an answer, the oldest first."""
        return await self._calls.get("/permissions", tuple[PermissionRequest, ...])

    async def answer(
        self,
        request: PermissionRequest,
        action: PermissionAction,
        scope: GrantScope | None = None,
    ) -> bool:
        """Answer a request; return whether this was the answer that settled it."""
        body = GrantRequest(permission=request, action=action.value, scope=scope)
        return (await self._calls.post("/permissions/grant", Resolved, body)).resolved

    async def grant(self, request: PermissionRequest, scope: GrantScope = GrantScope.ONCE) -> bool:
        """Allow it, and what is like it as far as *scope* reaches."""
        return await self.answer(request, PermissionAction.ALLOW, scope)

    async def deny(self, request: PermissionRequest) -> bool:
        """Forbid it."""
        return await self.answer(request, PermissionAction.DENY)

    async def grants(self) -> tuple[Grant, ...]:
        """Return what was allowed beyond the request it was asked for."""
        return await self._calls.get("/permissions/grants", tuple[Grant, ...])

    async def revoke(self, grant: AskId) -> bool:
        """Allow it no longer; return whether there was such a grant."""
        path = f"/permissions/grants/{segment(grant)}"
        return (await self._calls.ask("DELETE", path, Resolved)).resolved

    async def skipping(self) -> bool:
        """Return whether nobody is asked and everything is allowed."""
        return (await self._calls.get("/permissions/skip", PermissionSkip)).skip

    async def skip(self, skip: bool) -> None:
        """Decide whether anybody is asked."""
        await self._calls.tell("POST", "/permissions/skip", PermissionSkip(skip=skip))


@frozen(eq=False)
class QuestionRoutes:
    """What models want to know. A batch of questions is answered together."""

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
