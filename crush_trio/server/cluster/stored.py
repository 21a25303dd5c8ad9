"""`StoredWorkspace`: a workspace that no node runs, as its store has it. It can be read, and nothing else."""

from collections.abc import Sequence
from pathlib import Path

from attrs import evolve, field, frozen

from crush_trio.agent.record.message import OpenMessage
from crush_trio.errors import RunNotFound
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.store.base import Store
from crush_trio.wire.ids import RunId, SessionId, WorkspaceId
from crush_trio.wire.views import Session


class NoRuns:
    """The live runs of a workspace that does not run."""

    def session_busy(self, _session_id: SessionId) -> bool:
        """Whether a session has an active run: none has."""
        return False

    def knows(self, _run_id: RunId) -> bool:
        """Whether a run is live or ended lately: none is."""
        return False

    def find(self, run_id: RunId) -> AcceptedRun:
        """Raise `RunNotFound`: the store may know the run."""
        raise RunNotFound(run_id)


class NoTranscript:
    """The messages that are being written in a workspace that does not run."""

    def open_messages(self) -> Sequence[OpenMessage]:
        """Return no message."""
        return ()


@frozen(eq=False)
class StoredWorkspace:
    """What the rows that only read need of a workspace."""

    id: WorkspaceId
    directory: Path
    store: Store = field(repr=False)
    runs: NoRuns = field(factory=NoRuns, init=False, repr=False)
    transcript: NoTranscript = field(factory=NoTranscript, init=False, repr=False)

    def seen(self, session: Session, _attached_clients: int) -> Session:
        """Return *session*: it is not busy, and no client looks at it."""
        return evolve(session, is_busy=False, attached_clients=0)
