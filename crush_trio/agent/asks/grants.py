"""What has been allowed in advance: pure rules, no `await`, no file but one look at a path.

A grant is a person's answer that holds for later requests too. What it covers comes from the request
that was answered, never from the answer (L46). Grants live as long as their workspace is open (F7).
"""

from collections.abc import Callable, Collection
from pathlib import Path

from attrs import define, field

from crush_trio.wire.asks import Grant, GrantScope, PermissionRequest
from crush_trio.wire.ids import AskId, RunId, SessionId


def listed(entries: Collection[str], tool_name: str, action: str) -> bool:
    """Whether an allow-list has the tool, or this action of it."""
    return tool_name in entries or f"{tool_name}:{action}" in entries


def directory_of(path: Path, working_directory: Path) -> str:
    """Return the directory that an action on *path* is judged by (F1).

    A file that exists stands for the directory it is in; whatever else, for itself. The one look at
    the file system is not worth a thread: the tool has just resolved the path.
    """
    absolute = working_directory / path
    try:
        is_file = absolute.is_file()
    except OSError:  # behind a door that is closed to us
        is_file = False
    return str(absolute.parent if is_file else absolute)


def covers(grant: Grant, request: PermissionRequest, run_id: RunId) -> bool:
    """Whether *grant* settles a request of a run."""
    same = (grant.tool_name, grant.action, grant.path) == (
        request.tool_name,
        request.action,
        request.path,
    )
    match grant.scope:
        case GrantScope.ONCE:
            return False
        case GrantScope.RUN:
            return same and grant.run_id == run_id
        case GrantScope.SESSION:
            return same and grant.session_id == request.session_id
        case GrantScope.PROJECT:
            return same


@define(eq=False)
class Grants:
    """What is remembered in one workspace."""

    _by_id: dict[AskId, Grant] = field(factory=dict, init=False)

    @property
    def all(self) -> tuple[Grant, ...]:
        """Every grant that holds, oldest first."""
        return tuple(self._by_id.values())

    def cover(self, request: PermissionRequest, run_id: RunId) -> bool:
        """Whether any grant settles a request of a run."""
        return any(covers(grant, request, run_id) for grant in self._by_id.values())

    def remember(self, grant: Grant) -> None:
        """Let *grant* hold from now on."""
        self._by_id[grant.id] = grant

    def revoke(self, grant_id: AskId) -> bool:
        """Let a grant hold no longer; False if there is none of that id."""
        return self._by_id.pop(grant_id, None) is not None

    def forget_run(self, run_id: RunId) -> None:
        """Drop what was granted for a run that has ended."""
        self._keep(lambda grant: grant.scope is not GrantScope.RUN or grant.run_id != run_id)

    def forget_session(self, session_id: SessionId) -> None:
        """Drop what was granted for a session that is gone."""
        self._keep(
            lambda grant: grant.scope is not GrantScope.SESSION or grant.session_id != session_id
        )

    def _keep(self, wanted: Callable[[Grant], bool]) -> None:
        self._by_id = {grant.id: grant for grant in self.all if wanted(grant)}
