"""The asks of a workspace: permissions, questions, trust, and who is there to answer them."""

from pathlib import Path
from typing import Protocol

from attrs import define, field

from crush_trio.agent.asks.attendance import DEFAULT_PATIENCE, Attendance
from crush_trio.agent.asks.pending import (
    AskKind,
    Publish,
    Resolution,
    permission_notice,
    question_notice,
)
from crush_trio.agent.asks.permissions import Permissions
from crush_trio.agent.asks.questions import Questions
from crush_trio.agent.asks.trust import TrustQuestion
from crush_trio.agent.record.capsule import Entry
from crush_trio.clock import Clock, IdSource
from crush_trio.config.live import Configuration
from crush_trio.config.snapshot import private_paths
from crush_trio.events.facts import Fact
from crush_trio.runtime.run import Run
from crush_trio.store.base import AskReads, Changes, PendingAsk
from crush_trio.store.changes import AskResolved
from crush_trio.wire.asks import GrantScope
from crush_trio.wire.codec import unstructure


@define(eq=False, kw_only=True)
class Asks:
    """What a workspace asks of people. Made by `make_asks`."""

    permissions: Permissions
    questions: Questions
    trust: TrustQuestion
    attendance: Attendance = field(repr=False)

    def described(self, run: Run) -> Entry:
        """Return what the recording of *run* says about permissions when it begins."""
        session_id, permissions = run.session_id, self.permissions
        granted = any(
            each.scope is GrantScope.PROJECT or each.session_id == session_id
            for each in permissions.grants
        )
        return {
            "rules": [unstructure(each.rule) for each in permissions.rules()],
            "skip_permissions": permissions.skip,
            "granted": granted or permissions.approves(session_id),
            "refuses": self.attendance.refuses(interactive=run.submission.interactive),
        }


def make_asks(
    *,
    directory: Path,
    config: Configuration,
    store: Changes,
    publish: Publish,
    clock: Clock,
    ids: IdSource,
    skip: bool = False,
    patience: float = DEFAULT_PATIENCE,
) -> Asks:
    """Return the asks of a workspace; its permissions follow *config*.

    With *skip*, every permission is granted. *patience* is how many seconds an ask waits while no
    event stream is open.
    """
    attendance = Attendance(patience)
    permissions = Permissions(
        directory=directory,
        store=store,
        publish=publish,
        clock=clock,
        ids=ids,
        attendance=attendance,
        allowed_tools=lambda: _allowed_tools(config),
        rules=lambda: config.current.rules,
        private=_PrivatePaths(config),
        skip=skip,
    )
    questions = Questions(store=store, publish=publish, clock=clock, ids=ids, attendance=attendance)
    trust = TrustQuestion(config=config, permissions=permissions, attendance=attendance, ids=ids)
    return Asks(permissions=permissions, questions=questions, trust=trust, attendance=attendance)


def _allowed_tools(config: Configuration) -> tuple[str, ...]:
    configured = config.current.config.permissions
    return () if configured is None else configured.allowed_tools


@define(eq=False)
class _PrivatePaths:
    """The private directories of a configuration, resolved once for each revision."""

    _config: Configuration
    _revision: int = field(default=-1, init=False)
    _paths: tuple[Path, ...] = field(default=(), init=False)

    def __call__(self) -> tuple[Path, ...]:
        current = self._config.current
        if current.revision != self._revision:
            self._revision, self._paths = current.revision, private_paths(current)
        return self._paths


# ── After a crash ───────────────────────────────────────────────────────────────────────────────


class AskStore(Changes, AskReads, Protocol):
    """What withdrawing asks needs from a store."""


async def withdraw_orphans(
    store: AskStore, publish: Publish, clock: Clock
) -> tuple[PendingAsk, ...]:
    """Withdraw every ask that an earlier start of the program left waiting; return them.

    Runs before any run is accepted, so every pending ask has lost its task.
    """
    orphans = await store.pending_asks()
    now = clock.unix()
    if orphans:
        await store.commit(
            *(AskResolved(id=o.id, resolution=Resolution.WITHDRAWN, at=now) for o in orphans)
        )
    for orphan in orphans:
        publish(_withdrawn(orphan))
    return tuple(orphans)


def _withdrawn(ask: PendingAsk) -> Fact:
    if ask.kind == AskKind.QUESTION:
        return question_notice(ask.id)
    return permission_notice(ask.tool_call_id, Resolution.WITHDRAWN)
