"""Opens workspaces again that were open when a server ended, for the first request that names them.

A workspace has the same id after every restart. With a store of its own, a server finds the directory of an
id in its `Register`; `server.cluster` asks the store that nodes share.

What clients sent along as environment is not kept. Where there was one, only what reads or stops opens the
workspace, for that request alone, and everything else is answered with "not found": clients then create the
workspace again, as it was.
"""

import logging
from typing import Protocol

from attrs import define, field
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable
from typing_extensions import override

from crush_trio.backend.backend import Backend
from crush_trio.backend.slot import Stage
from crush_trio.backend.stored_terms import StoredTerms
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.clock import IdSource, RandomIds
from crush_trio.errors import PathInvalid, WorkspaceNotFound
from crush_trio.server.bodies import check_id
from crush_trio.server.hosting.register import Register
from crush_trio.server.routing.call import Call, Here, checked_caller
from crush_trio.wire.ids import ClientId, WorkspaceId

log = logging.getLogger(__name__)


class Absent(Protocol):
    """What is asked first about a request that names a workspace."""

    async def answered(
        self,
        call: Call,
        workspace_id: WorkspaceId,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
    ) -> Here | None:
        """Have another server answer; or return what is to be known to answer the request here."""
        ...


def is_live(call: Call, backend: Backend[HostedWorkspace], workspace_id: WorkspaceId) -> bool:
    """Whether a workspace is open here; raises `WorkspaceNotFound` if it is open for a visit and this is none."""
    slot = backend.found(workspace_id)
    if slot is None or slot.stage is not Stage.LIVE:
        return False
    if slot.plan.terms.visit and not _visits(call):
        raise WorkspaceNotFound
    return True


def may_reopen(call: Call, terms: StoredTerms) -> bool:
    """Whether a request opens a workspace that had these terms."""
    return not terms.with_env or _visits(call)


def _visits(call: Call) -> bool:
    """Whether a request needs nothing of the environment of its workspace."""
    return call.route.stored or call.route.stops


async def reopen(
    call: Call, backend: Backend[HostedWorkspace], path: str, terms: StoredTerms, visitor: ClientId
) -> Here:
    """Open a workspace again on behalf of a client that has yet to come back.

    The claim of that client, *visitor*, lasts as long as that of any create, or for this request alone if
    only a client can open the workspace as it was: that is a visit.
    """
    workspace = await backend.create(terms.request(path, visitor), visit=terms.with_env)
    slot = backend.found(workspace.id)
    if slot is not None and slot.claims.clients[:1] == (visitor,):  # the first that waited for it
        log.info("workspace.reopened", extra={"workspace_id": workspace.id})
    if terms.with_env:
        call.cleanup.callback(backend.release, workspace.id, visitor)
    return Here(reopened=True)


@define(eq=False)
class Reopening(Absent):
    """Opens the workspaces again that the register of this server has."""

    _register: Register
    _backend: Backend[HostedWorkspace] = field(repr=False)
    _ids: IdSource = field(factory=RandomIds, repr=False)

    @override
    async def answered(
        self,
        call: Call,
        workspace_id: WorkspaceId,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
    ) -> Here:
        """Open the workspace if it was open when this server or another one of the user ended."""
        if is_live(call, self._backend, workspace_id) or self._backend.shutting_down:
            return Here()  # noqa: ASYNC910 - the usual case, which must cost nothing
        check_id(workspace_id, "wid")
        known = await self._register.find(workspace_id)
        if known is None or not may_reopen(call, known.terms):
            return Here()
        await checked_caller(call)
        try:
            visitor = ClientId(self._ids.new())
            return await reopen(call, self._backend, known.path, known.terms, visitor)
        except PathInvalid:  # the directory is gone
            return Here()
