"""Retention: deletes sessions that were not used for as long as the user's `crush_trio.retention` says.

A workspace that is open prunes itself: soon after it was opened and every hour, one session per commit and
with a pause after each, so that runs wait for no more than one of them. A session with a run that has not
ended is never deleted. By default everything is kept.

`crush-trio prune` does the same in a directory that no server has open.
"""

import logging
from collections.abc import Sequence
from typing import Final

import trio

from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.errors import SessionNotFound
from crush_trio.store.base import Store
from crush_trio.store.changes import SessionPruned
from crush_trio.store.errors import StoreUnavailable
from crush_trio.wire.views import DAY, Session

FIRST_PAUSE: Final = 60.0
"""Seconds after the opening of a workspace before it prunes itself for the first time."""

PERIOD: Final = 3600.0
"""Seconds between two times."""

STEP_PAUSE: Final = 0.1
"""Seconds after each session that was deleted."""

log = logging.getLogger(__name__)


def unused_since(sessions: Sequence[Session], before: int) -> list[Session]:
    """Return the *sessions* that were last used before the time *before*, the oldest first."""
    return sorted(
        (session for session in sessions if session.updated_at < before),
        key=lambda session: session.updated_at,
    )


def limit_of(days: int, now: int) -> int:
    """Return the time before which a session must have been used last to be deleted after *days*."""
    return now - days * DAY


async def keep_retention(workspace: HostedWorkspace) -> None:
    """Prune *workspace* from time to time, until cancelled."""
    await trio.sleep(FIRST_PAUSE)
    while True:
        try:
            await prune_workspace(workspace)
        except StoreUnavailable as error:  # tried again after the next period
            log.warning("retention.failed", extra={"error": str(error)})
        await trio.sleep(PERIOD)


async def prune_workspace(workspace: HostedWorkspace) -> int:
    """Delete the sessions that are too old for the configuration; return how many."""
    await trio.lowlevel.checkpoint()
    days = workspace.config.current.retention.sessions
    if not days:
        return 0
    before, deleted = limit_of(days, workspace.clock.unix()), 0
    for session in unused_since(await workspace.store.sessions(), before):
        deleted += await workspace.prune_session(session, before)
        await trio.sleep(STEP_PAUSE)
    if deleted:
        log.info("retention.applied", extra={"sessions": deleted, "days": days})
    return deleted


async def prune_store(store: Store, before: int) -> list[Session]:
    """Delete the sessions of a store that only we have open; return those that are gone."""
    gone = []
    for session in unused_since(await store.sessions(), before):
        await store.commit(SessionPruned(id=session.id, before=before))
        try:
            await store.session(session.id)
        except SessionNotFound:
            gone.append(session)
    return gone
