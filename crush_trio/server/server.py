"""`Server`: what the routes of one server share. With its counters and the frames of pending asks.

`Meters` holds plain numbers, counted where things happen. What can be looked up (how many runs are
active, how far a stream is behind) is looked up when a scrape asks for it, in `server.prometheus`; only
what is gone by then is counted here: endings, answers, and what a workspace had done when it closed.
Publishing an event counts nothing, because its id is the count. No number is kept by session, workspace,
client or request path. All labels come from this program, so there is a bound on how many there are.

`AskFrames` encodes the pending asks of a workspace for a stream whose reader does not know them yet.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import trio
from attrs import define, field, frozen

from crush_trio.audit.log import AuditLog
from crush_trio.backend.backend import Backend
from crush_trio.backend.cluster.view import own_card
from crush_trio.backend.settings import OpenWorkspace, WorkspacePlan
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.events.frames import Form, crush_frame
from crush_trio.events.pieces import Chunk, Content, assemble
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.server.bodies import BodyLimits
from crush_trio.server.hosting.front import version_members
from crush_trio.server.page.login import Logins
from crush_trio.server.page.rendering import Rendering
from crush_trio.server.roster.desk import RosterDesk
from crush_trio.server.roster.recent import RecentDirectories
from crush_trio.server.sse import HEARTBEAT, Drain, Streams
from crush_trio.server.tokens import ClientTokens
from crush_trio.store.base import COMMIT_BOUNDS, Timings
from crush_trio.store.shared import NodeCard
from crush_trio.tools.sandbox.machine import MachineSandbox
from crush_trio.wire.answers import StreamAsks, Version
from crush_trio.wire.asks import PermissionRequest, QuestionRequest
from crush_trio.wire.codec import encode, encode_change
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import SessionId, WorkspaceId
from crush_trio.wire.runs import RunState

if TYPE_CHECKING:
    from crush_trio.server.cluster.forwarding import Forwarding
    from crush_trio.server.hosting.reopening import Absent

RUN_BOUNDS: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0)
CANCEL_BOUNDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)
HTTP_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)


# ── Counters ────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Meters:
    """The counters of one server. Satisfies the runtime's `RunMeter`."""

    accepted: int = field(default=0, init=False)
    not_stored: int = field(default=0, init=False)
    _ended: Counter[RunState] = field(factory=Counter, init=False)
    durations: dict[RunState, Timings] = field(factory=dict, init=False)
    """From the moment a run became active to its ending, by the kind of the ending."""
    cancels: Timings = field(factory=lambda: Timings(CANCEL_BOUNDS), init=False)
    """From the first cancel of a run to its ending, whatever that was."""
    requests: Counter[tuple[str, ...]] = field(factory=Counter, init=False)
    """Answers, by method, route and status."""
    responses: dict[tuple[str, ...], Timings] = field(factory=dict, init=False)
    """From a request to the beginning of its answer, by method and route."""
    workspaces: dict[HostedWorkspace, None] = field(factory=dict, init=False)
    """The workspaces that are open or closing."""
    machines: dict[MachineSandbox, None] = field(factory=dict, init=False)
    """The sandboxes of all workspaces that are or were open; usually one."""
    _ends: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )
    _closed_events: int = field(default=0, init=False)
    _closed_commits: Timings = field(factory=lambda: Timings(COMMIT_BOUNDS), init=False)

    # ── Runs ────────────────────────────────────────────────────────────────────────────────────

    def run_accepted(self, run: AcceptedRun) -> None:
        """Count an acceptance."""
        self.accepted += 1

    def run_ended(self, run: AcceptedRun) -> None:
        """Count an ending, and how long the run and its cancel took."""
        self._ends.unpark_all()
        if run.outcome is None:
            self.not_stored += 1
            return
        state = run.outcome.state
        self._ended[state] += 1
        at = run.ended_time
        assert at is not None
        if run.active_time is not None:
            self.durations.setdefault(state, Timings(RUN_BOUNDS)).note(at - run.active_time)
        if run.cancel_time is not None:
            self.cancels.note(at - run.cancel_time)

    @property
    def live_runs(self) -> int:
        """How many runs have not ended."""
        return sum(len(each.runs.runs) for each in self.workspaces)

    async def wait_no_runs(self) -> None:
        """Wait until every run has ended."""
        await trio.lowlevel.checkpoint()
        while self.live_runs:
            await self._ends.park()

    # ── Requests ────────────────────────────────────────────────────────────────────────────────

    def answered(self, method: str, route: str, status: str, seconds: float) -> None:
        """Count a request whose answer began after *seconds*."""
        place = method, route
        self.requests[*place, status] += 1
        timings = self.responses.get(place)
        if timings is None:
            timings = self.responses[place] = Timings(HTTP_BOUNDS)
        timings.note(seconds)

    # ── Workspaces ──────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def following(self, workspace: HostedWorkspace) -> Iterator[None]:
        """Count what happens in *workspace*, and keep its totals when it has closed."""
        self.workspaces[workspace] = None
        workspace.runs.meter = self
        self.machines[workspace.agent.sandbox.machine] = None
        try:
            yield
        finally:
            del self.workspaces[workspace]
            self._ends.unpark_all()
            self._ended[RunState.INTERRUPTED] += len(workspace.recovered)
            self._closed_events += workspace.events.head
            self._closed_commits.absorb(workspace.store.load.commits)

    @property
    def ended(self) -> Counter[RunState]:
        """The endings by kind, including those of runs that an earlier start left unfinished."""
        recovered = sum(len(each.recovered) for each in self.workspaces)
        return self._ended + Counter({RunState.INTERRUPTED: recovered})

    @property
    def events(self) -> int:
        """How many events were published, in all workspaces that are or were open."""
        return self._closed_events + sum(each.events.head for each in self.workspaces)

    @property
    def commits(self) -> Timings:
        """How long the commits of all stores took, including stores that are closed."""
        found = Timings(COMMIT_BOUNDS)
        found.absorb(self._closed_commits)
        for workspace in self.workspaces:
            found.absorb(workspace.store.load.commits)
        return found


def metered(
    open_workspace: OpenWorkspace[HostedWorkspace], meters: Meters
) -> OpenWorkspace[HostedWorkspace]:
    """Return an opener of the same workspaces that has *meters* follow each until it has closed.

    The runs of a workspace end while it closes, so counting stops only after that.
    """

    @asynccontextmanager
    async def opened(plan: WorkspacePlan) -> AsyncIterator[HostedWorkspace]:
        with ExitStack() as closed:
            async with open_workspace(plan) as workspace:
                closed.enter_context(meters.following(workspace))
                yield workspace

    return opened


# ── Pending asks ────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class AskFrames:
    """The frames of pending asks, made once and shared until the pending asks change.

    A request may be long: it contains what a tool is about to write.
    """

    _last: "WeakKeyDictionary[HostedWorkspace, _Pending]" = field(
        factory=WeakKeyDictionary, init=False, repr=False
    )

    def frames(self, workspace: HostedWorkspace, form: Form) -> Content:
        """Return the frames of all asks that can be answered now.

        In the native form that is one event, sent even if it is empty: an ask that it does not name is
        resolved. It has no id, because it is not in the log. The crush form has no such event; its
        clients get each request again, and replace a dialog they show by the same one.
        """
        pending = _Pending(workspace.asks.permissions.pending, workspace.asks.questions.pending)
        last = self._last.get(workspace)
        if last is not None and last.is_same(pending):
            pending = last
        else:
            self._last[workspace] = pending
        if form not in pending.frames:
            frames = _native(pending) if form is Form.NATIVE else _crush(pending)
            pending.frames[form] = assemble(frames)
        return pending.frames[form]


@frozen(eq=False)
class _Pending:
    """The pending asks of a workspace at one moment, and their frames in each form."""

    permissions: tuple[PermissionRequest, ...]
    questions: tuple[QuestionRequest, ...]
    frames: dict[Form, Content] = field(factory=dict, init=False)

    def is_same(self, other: "_Pending") -> bool:
        """Whether *other* has the same request objects."""
        mine, theirs = (*self.permissions, *self.questions), (*other.permissions, *other.questions)
        return len(mine) == len(theirs) and all(map(is_, mine, theirs))


def _native(pending: _Pending) -> Iterator[Chunk]:
    asks = StreamAsks(permissions=pending.permissions, questions=pending.questions)
    yield b"event: asks\ndata: %b\n\n" % encode(asks)


def _crush(pending: _Pending) -> Iterator[Chunk]:
    for request in pending.permissions:
        change = encode_change(EventType.CREATED, request)
        yield from crush_frame(PayloadType.PERMISSION_REQUEST, change)
    for batch in pending.questions:
        change = encode_change(EventType.CREATED, batch)
        yield from crush_frame(PayloadType.QUESTION_BATCH_REQUEST, change)


# ── The server ──────────────────────────────────────────────────────────────────────────────────


def _own_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was deleted
        return ""


@define(eq=False)
class Server:
    """The HTTP and SSE surface over one backend: what its routes share."""

    backend: Backend[HostedWorkspace]
    drain: Drain = field(factory=Drain)
    heartbeat: float = HEARTBEAT
    meters: Meters = field(factory=Meters, kw_only=True)
    """The counters; for runs to be counted, the backend must open its workspaces through `metered`."""
    audit: AuditLog = field(factory=AuditLog, kw_only=True)
    """The audit; by default one that records nothing."""
    recent: RecentDirectories = field(factory=RecentDirectories, kw_only=True)
    """The directories that the user has used lately; by default none."""
    directory: str = field(factory=_own_directory, kw_only=True)
    """The directory in which the server runs, which its page offers first."""
    cluster: "Forwarding | None" = field(default=None, kw_only=True)
    """The other nodes, for a store that several servers share."""
    absent: "Absent | None" = field(default=None, kw_only=True)
    """What is asked about workspaces that are not open here; None if nothing is known of them."""
    card: NodeCard = field(factory=own_card, kw_only=True)
    """What the server tells about itself."""
    streams: Streams = field(factory=Streams, init=False)
    roster: RosterDesk = field(init=False, repr=False)
    asks: AskFrames = field(factory=AskFrames, init=False)
    logins: Logins = field(factory=Logins, init=False, repr=False)
    """The logins of browsers; those of the guard, once there is an application."""
    rendering: Rendering = field(factory=Rendering, init=False, repr=False)
    """Messages and changes as HTML, for pages."""
    public_url: str | None = field(default=None, init=False)
    """The address of the page behind a proxy, from the guard's settings."""
    bodies: BodyLimits = field(init=False, repr=False)
    """Limits on request bodies."""
    clients: ClientTokens = field(init=False, repr=False)
    """The tokens that clients came with."""

    @bodies.default
    def _bodies(self) -> BodyLimits:
        return BodyLimits.of(self.backend.sizes)

    @roster.default
    def _roster(self) -> RosterDesk:
        return RosterDesk(self.backend)

    @clients.default
    def _clients(self) -> ClientTokens:
        return ClientTokens(self.backend.clients)

    def workspace(self, workspace_id: str) -> HostedWorkspace:
        """Return a hosted workspace, or raise `WorkspaceNotFound`."""
        return self.backend.workspace(WorkspaceId(workspace_id))

    def workspaces(self) -> tuple[HostedWorkspace, ...]:
        """Return the workspaces that are open."""
        return self.backend.workspaces()

    @property
    def ending(self) -> bool:
        """Whether the server takes no new work, because it ends soon."""
        return self.backend.draining or self.backend.shutting_down

    def attached_clients(self, workspace_id: str) -> Counter[SessionId]:
        """Return how many clients look at each session of a workspace; 0 for those not named (E16)."""
        return self.backend.attached_by_session(WorkspaceId(workspace_id))

    @property
    def version(self) -> Version:
        """What is serving."""
        return Version(**version_members())
