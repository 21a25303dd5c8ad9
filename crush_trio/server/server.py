"""What the routes share: the backend, how streams end, and who we are.

A route is given the site of its request as its first argument. It travels in the ASGI scope, so
one set of routes serves any number of sites and keeps none of them alive.

What one server has counted: plain numbers, kept where things happen, printed by nobody here.

What can be seen by looking (how many runs are active, how far a stream is behind) is looked up when
somebody asks, in `server.metrics`. Only what is gone by then is counted here: endings, answers, and
what a workspace had done when it closed. Publishing an event counts nothing: its id is the count.

No number is kept by session, by workspace, by client or by path. Whatever has a name in here has it
from us, so there is a bound to how many there are.
"""

import platform
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, cast

import trio
from attrs import define, field
from hypercorn.typing import (
    ASGIFramework,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)

from crush_trio import __version__
from crush_trio.backend.backend import Backend
from crush_trio.backend.settings import OpenWorkspace, WorkspacePlan
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.server.bodies import BodyLimits
from crush_trio.server.pending_asks import AskFrames
from crush_trio.server.sse import HEARTBEAT, Drain, Streams
from crush_trio.store.base import COMMIT_BOUNDS, Timings
from crush_trio.wire.ids import WorkspaceId
from crush_trio.wire.runs import RunState
from crush_trio.wire.views import Version

RUN_BOUNDS: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0)
CANCEL_BOUNDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)
HTTP_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)

NO_ROUTE: Final = "none"
"""The route of a request that found none: refused at the door, or for a path that does not exist."""

NO_STATUS: Final = "none"
"""The status of a request whose client was gone before there was an answer."""

_OTHER: Final = "other"
_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_REQUEST: Final = "crush_trio.counted_request"


@define(eq=False)
class Meters:
    """The counts of one server. Satisfies the runtime's `RunMeter`."""

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
    """Those that are open, or still closing."""
    _closed_events: int = field(default=0, init=False)
    _closed_commits: Timings = field(factory=lambda: Timings(COMMIT_BOUNDS), init=False)

    # ── Runs ────────────────────────────────────────────────────────────────────────────────────

    def run_accepted(self, run: AcceptedRun) -> None:
        """Count an acceptance."""
        self.accepted += 1

    def run_ended(self, run: AcceptedRun) -> None:
        """Count an ending, and how long the run and its cancel took."""
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

    # ── Workspaces ──────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def following(self, workspace: HostedWorkspace) -> Iterator[None]:
        """Count what happens in *workspace*, and keep what it came to when it is closed."""
        self.workspaces[workspace] = None
        workspace.runs.meter = self
        try:
            yield
        finally:
            del self.workspaces[workspace]
            self._ended[RunState.INTERRUPTED] += len(workspace.recovered)
            self._closed_events += workspace.events.head
            self._closed_commits.absorb(workspace.store.load.commits)

    @property
    def ended(self) -> Counter[RunState]:
        """The endings, by their kind; those of runs that an earlier start has left are among them."""
        recovered = sum(len(each.recovered) for each in self.workspaces)
        return self._ended + Counter({RunState.INTERRUPTED: recovered})

    @property
    def events(self) -> int:
        """How many events were published, in every workspace there is or was."""
        return self._closed_events + sum(each.events.head for each in self.workspaces)

    @property
    def commits(self) -> Timings:
        """How long the commits of every store took, of those that are closed too."""
        found = Timings(COMMIT_BOUNDS)
        found.absorb(self._closed_commits)
        for workspace in self.workspaces:
            found.absorb(workspace.store.load.commits)
        return found


def metered(
    open_workspace: OpenWorkspace[HostedWorkspace], meters: Meters
) -> OpenWorkspace[HostedWorkspace]:
    """Return what opens the same workspaces, and has *meters* follow each until it has closed.

    Its runs end while it closes, so this goes on counting until that is over.
    """

    @asynccontextmanager
    async def opened(plan: WorkspacePlan) -> AsyncIterator[HostedWorkspace]:
        with ExitStack() as closed:
            async with open_workspace(plan) as workspace:
                closed.enter_context(meters.following(workspace))
                yield workspace

    return opened


# ── Requests ────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class _Request:
    """A request on its way to an answer. It is counted once, when the answer begins."""

    meters: Meters
    method: str
    route: str = field(default=NO_ROUTE, init=False)
    _since: float = field(factory=trio.current_time, init=False)
    _counted: bool = field(default=False, init=False)

    def answered(self, status: str) -> None:
        if self._counted:
            return
        self._counted = True
        place = self.method, self.route
        self.meters.requests[*place, status] += 1
        timings = self.meters.responses.get(place)
        if timings is None:
            timings = self.meters.responses[place] = Timings(HTTP_BOUNDS)
        timings.note(trio.current_time() - self._since)


def counted(app: ASGIFramework, meters: Meters) -> ASGIFramework:
    """Have *meters* count the requests of *app*, those included that it refuses.

    An answer counts when it begins: a stream that lasts for hours was answered in a moment.
    """

    async def wrapped(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        request = _Request(meters, method)

        async def noting(event: ASGISendEvent) -> None:
            if event["type"] == "http.response.start":
                request.answered(str(event["status"]))
            await send(event)

        try:
            await app(cast("Scope", {**scope, _REQUEST: request}), receive, noting)
        finally:
            request.answered(NO_STATUS)

    return wrapped


def note_route(scope: Mapping[str, Any], rule: str) -> None:
    """Say which route a request has found; *rule* is the path of the route, not of the request."""
    request = scope.get(_REQUEST)
    if isinstance(request, _Request):
        request.route = rule.replace("<", "{").replace(">", "}")


_SITE: Final = "crush_trio.site"
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@define(eq=False)
class Site:
    """One served backend."""

    backend: Backend[HostedWorkspace]
    drain: Drain = field(factory=Drain)
    heartbeat: float = HEARTBEAT
    meters: Meters = field(factory=Meters, kw_only=True)
    """What was counted; to count runs too, the backend opens its workspaces through `metered`."""
    streams: Streams = field(factory=Streams, init=False)
    asks: AskFrames = field(factory=AskFrames, init=False)
    bodies: BodyLimits = field(init=False, repr=False)
    """How much a request may ask of us."""

    @bodies.default
    def _bodies(self) -> BodyLimits:
        return BodyLimits.of(self.backend.sizes)

    def opened(self, workspace_id: str) -> HostedWorkspace:
        """Return a hosted workspace, or raise `WorkspaceNotFound`."""
        return self.backend.workspace(WorkspaceId(workspace_id))

    @property
    def version(self) -> Version:
        """What is serving."""
        machine = platform.machine()
        return Version(
            version=__version__,
            commit="",
            build_id=f"crush_trio-{__version__}",
            go_version="",
            platform=f"{platform.system().lower()}/{_MACHINES.get(machine, machine)}",
        )


def site_of(scope: Mapping[str, Any]) -> Site:
    """Return the site that a request is for."""
    site = scope[_SITE]
    assert isinstance(site, Site)
    return site


def at_site(site: Site, app: ASGIFramework) -> ASGIFramework:
    """Send every request to *app* as one for *site*.

    A lifespan does not get there: the framework would remember the last one it saw as the only one,
    and there is nothing to do in it but to say so.
    """

    async def wrapped(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        else:
            await app(cast("Scope", {**scope, _SITE: site}), receive, send)

    return wrapped


async def _live(receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})
