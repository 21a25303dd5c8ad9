"""The rows of the roster: a value computed from a workspace and its store, whenever it is asked for."""

from collections.abc import Collection, Mapping
from typing import Final

from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.store.errors import StoreUnavailable
from crush_trio.store.overview import SessionOverview
from crush_trio.wire.ids import SessionId
from crush_trio.wire.runs import RunState
from crush_trio.wire.views import (
    Need,
    RosterRun,
    RosterSession,
    RosterWorkspace,
    SessionGroup,
)

_FAILED: Final = frozenset({RunState.ERRORED, RunState.INTERRUPTED})


def roster_workspace(workspace: HostedWorkspace) -> RosterWorkspace:
    """Return a workspace as the roster shows it."""
    path = workspace.directory
    return RosterWorkspace(id=workspace.id, path=str(path), name=path.name or str(path))


async def roster_rows(
    workspace: HostedWorkspace, session_ids: Collection[SessionId] | None = None
) -> list[RosterSession]:
    """Return the rows of a workspace's sessions, or of those of *session_ids* that exist.

    The store is read first; what is known in memory is added in one step after that.
    """
    permissions, questions = workspace.asks.permissions.pending, workspace.asks.questions.pending
    await workspace.family.learn(ask.session_id for ask in permissions)
    await workspace.family.learn(ask.session_id for ask in questions)
    found = await workspace.store.overview(session_ids)
    needs = asked_sessions(workspace)
    return [_row(workspace, each, needs.get(each.session.id, frozenset())) for each in found]


async def readable_rows(workspace: HostedWorkspace) -> list[RosterSession]:
    """Return the rows of a workspace's sessions; none if its store cannot be read."""
    try:
        return await roster_rows(workspace)
    except StoreUnavailable:
        return []  # noqa: ASYNC910 - the store was asked


def asked_sessions(workspace: HostedWorkspace) -> Mapping[SessionId, frozenset[Need]]:
    """Return the sessions in which asks wait; those of subagents count for their parents."""
    found: dict[SessionId, frozenset[Need]] = {}
    waiting = (
        (Need.PERMISSION, workspace.asks.permissions.pending),
        (Need.QUESTION, workspace.asks.questions.pending),
    )
    for need, asks in waiting:
        for ask in asks:
            root = workspace.family.root(ask.session_id)
            found[root] = found.get(root, frozenset()) | {need}
    return found


def _row(
    workspace: HostedWorkspace, overview: SessionOverview, asked: frozenset[Need]
) -> RosterSession:
    session = overview.session
    busy = workspace.runs.session_runs(session.id)
    active = next((run.view for run in busy if run.view.started_at), None)
    failed = not busy and overview.last_run in _FAILED
    needs = {*asked, Need.ERROR} if failed else asked
    return RosterSession(
        id=session.id,
        workspace_id=workspace.id,
        title=session.title,
        group=_group(needs, working=bool(busy)),
        needs=tuple(need for need in Need if need in needs),
        cost=session.cost,
        tokens=session.prompt_tokens + session.completion_tokens,
        model=overview.model,
        queue=len(workspace.runs.queue(session.id)),
        run=None
        if active is None
        else RosterRun(id=active.id, state=active.state, started_at=active.started_at),
        updated_at=session.updated_at,
        message_count=session.message_count,
    )


def _group(needs: Collection[Need], *, working: bool) -> SessionGroup:
    if needs:
        return SessionGroup.NEEDS_YOU
    return SessionGroup.WORKING if working else SessionGroup.IDLE
