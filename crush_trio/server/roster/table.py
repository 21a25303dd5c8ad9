"""`RosterTable`: the rows of a roster as they are now, and what has changed in them.

In a cluster rows come from several sources: this server, and each other node. A workspace that moves to
another node comes from both for a moment, in any order, so what each source has told is kept. The rows of the
source that has told of the workspace last are shown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from attrs import define, evolve, field

from crush_trio.server.roster.changes import RosterChanges
from crush_trio.wire.codec import encode
from crush_trio.wire.ids import SessionId, WorkspaceId
from crush_trio.wire.views import (
    Roster,
    RosterChange,
    RosterSession,
    RosterSessionChange,
    RosterWorkspace,
    RosterWorkspaceChange,
)

HERE: Final = ""
"""The source of the rows of this server; other sources are the ids of nodes."""

Sessions = dict[SessionId, RosterSession]


@define(eq=False)
class _Place:
    """A workspace as one source has told of it."""

    shown: RosterWorkspace
    sessions: Sessions = field(factory=dict, init=False)


@define(eq=False)
class RosterTable:
    """The rows of a roster, and their newest frames for any number of readers."""

    changes: RosterChanges = field(factory=RosterChanges, init=False)
    _places: dict[WorkspaceId, dict[str, _Place]] = field(factory=dict, init=False, repr=False)
    """For each workspace its sources; the last one is shown."""
    _whole: tuple[int, Roster, bytes] | None = field(default=None, init=False, repr=False)
    """The last whole roster, with its version and what does not change."""

    # ── What a source tells ─────────────────────────────────────────────────────────────────────

    def put_workspace(self, source: str, shown: RosterWorkspace) -> None:
        """Note that a source has a workspace; its sessions are not known yet."""
        places = self._places.setdefault(shown.id, {})
        for session in () if not places else _last(places).sessions.values():
            self._tell_session(session, RosterChange.DELETED)
        places.pop(source, None)
        places[source] = _Place(shown)
        self._tell_workspace(shown, RosterChange.UPDATED)

    def drop_workspace(self, source: str, workspace_id: WorkspaceId) -> None:
        """Note that a source does not have a workspace any more."""
        places = self._places.get(workspace_id, {})
        if source not in places:
            return
        before = _last(places)
        place = places.pop(source)
        if not places:
            del self._places[workspace_id]
            for session_id in place.sessions:
                self.changes.forget((workspace_id, session_id))
            self._tell_workspace(place.shown, RosterChange.DELETED)
        elif place is before:
            for session in place.sessions.values():
                self._tell_session(session, RosterChange.DELETED)
            self._tell_workspace(_last(places).shown, RosterChange.UPDATED)
            for session in _last(places).sessions.values():
                self._tell_session(session, RosterChange.UPDATED)

    def put_sessions(
        self,
        source: str,
        workspace_id: WorkspaceId,
        rows: Iterable[RosterSession],
        wanted: Iterable[SessionId] | None = None,
    ) -> None:
        """Note the rows of the *wanted* sessions, None for all of a workspace; what differs is a change."""
        places = self._places.get(workspace_id, {})
        if source not in places:
            return
        place = places[source]
        shown, told = place.sessions, place is _last(places)
        asked = set(shown) if wanted is None else set(wanted) & shown.keys()
        for row in rows:
            asked.discard(row.id)
            if shown.get(row.id) != row:
                shown[row.id] = row
                if told:
                    self._tell_session(row, RosterChange.UPDATED)
        for session_id in asked:
            gone = shown.pop(session_id)
            if told:
                self._tell_session(gone, RosterChange.DELETED)

    def put_all(
        self, source: str, workspaces: Sequence[RosterWorkspace], rows: Iterable[RosterSession]
    ) -> None:
        """Note everything that a source has."""
        named = {shown.id for shown in workspaces}
        for workspace_id in [each for each, places in self._places.items() if source in places]:
            if workspace_id not in named:
                self.drop_workspace(source, workspace_id)
        found: dict[WorkspaceId, list[RosterSession]] = {each.id: [] for each in workspaces}
        for row in rows:
            found.setdefault(row.workspace_id, []).append(row)
        for shown in workspaces:
            if source not in self._places.get(shown.id, {}):
                self.put_workspace(source, shown)
            self.put_sessions(source, shown.id, found[shown.id])

    def told_by(self, source: str, workspace_id: WorkspaceId) -> Mapping[SessionId, RosterSession]:
        """Return the sessions of a workspace that a source has told of."""
        place = self._places.get(workspace_id, {}).get(source)
        return {} if place is None else place.sessions

    # ── What readers get ────────────────────────────────────────────────────────────────────────

    def workspaces(self) -> tuple[RosterWorkspace, ...]:
        """Return the workspaces."""
        return tuple(place.shown for place in self._shown())

    def rows(self) -> Iterator[RosterSession]:
        """Yield the rows of all sessions."""
        for place in self._shown():
            yield from place.sessions.values()

    def whole(self, fixed: Roster) -> bytes:
        """Return the event with the whole roster; readers who come together share it."""
        known = self._whole
        if known is None or known[:2] != (self.changes.version, fixed):
            frame = _frame(b"roster", self.roster(fixed))
            known = self._whole = self.changes.version, fixed, frame
        return known[2]

    def roster(self, fixed: Roster) -> Roster:
        """Return the whole roster; *fixed* has what does not change."""
        rows = sorted(self.rows(), key=lambda row: row.updated_at, reverse=True)
        return evolve(fixed, workspaces=self.workspaces(), sessions=tuple(rows))

    def _shown(self) -> Iterator[_Place]:
        return map(_last, self._places.values())

    def _tell_session(self, row: RosterSession, change: RosterChange) -> None:
        make = partial(_frame, b"roster_session", RosterSessionChange(type=change, payload=row))
        self.changes.put((row.workspace_id, row.id), make, gone=change is RosterChange.DELETED)

    def _tell_workspace(self, shown: RosterWorkspace, change: RosterChange) -> None:
        told = RosterWorkspaceChange(type=change, payload=shown)
        make = partial(_frame, b"roster_workspace", told)
        self.changes.put(shown.id, make, gone=change is RosterChange.DELETED)


def _last(places: dict[str, _Place]) -> _Place:
    return places[next(reversed(places))]


def _frame(name: bytes, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, encode(data))
