"""A backend over workspaces that a test can hold still: at opening, while open, at closing.

`Workspaces` is the factory given to the backend. It keeps book of what it opened, and fails at once
if two workspaces are ever open on one directory.
"""

from contextlib import asynccontextmanager

import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from crush_trio.agent.record.journal import open_recorded_runs
from crush_trio.backend.backend import open_backend
from crush_trio.backend.settings import BackendSettings, WorkspaceKey
from crush_trio.clock import CountingIds, TrioClock
from crush_trio.errors import WorkspaceNotFound
from crush_trio.runtime import Completion
from crush_trio.store.changes import SessionCreated
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing import Gate
from crush_trio.wire.ids import ClientId, SessionId
from crush_trio.wire.requests import WorkspaceRequest
from crush_trio.wire.views import Session


def client(number):
    """Return a client id that says which one it is."""
    return ClientId(f"00000000-0000-4000-8000-{number:012d}")


A, B, C = client(1), client(2), client(3)


def ask(client_id=A, path="/srv", **more):
    """Return the body of a create."""
    return WorkspaceRequest(path=path, client_id=client_id, **more)


def opened_gate():
    gate = Gate()
    gate.open()
    return gate


@define(eq=False)
class Thing:
    """What stands for an open workspace."""

    plan: object
    crash: trio.Event = field(factory=trio.Event, init=False)
    failure: Exception | None = field(default=None, init=False)

    @property
    def id(self):
        return self.plan.id

    def fall_over(self, failure):
        self.failure = failure
        self.crash.set()


@define(eq=False)
class Workspaces:
    """Opens things; may be told to stand still, to fail, or to be slow in giving way."""

    opening: Gate = field(factory=opened_gate)
    closing: Gate = field(factory=opened_gate)
    open_failures: list = field(factory=list)
    close_failures: list = field(factory=list)
    fragile: bool = False
    """Whether things can fall over by themselves."""
    stubborn: float = 0.0
    """For how many seconds a closing ignores everything, cancellation included."""
    begun: list = field(factory=list, init=False)
    closed: list = field(factory=list, init=False)
    _open: dict = field(factory=dict, init=False)

    @asynccontextmanager
    async def __call__(self, plan):
        self.begun.append(plan)
        assert plan.key not in self._open, "two workspaces on one directory"
        self._open[plan.key] = plan
        try:
            await self.opening.wait()
            if self.open_failures:
                raise self.open_failures.pop(0)
            thing = Thing(plan)
            async with trio.open_nursery() as inner:
                if self.fragile:
                    inner.start_soon(self._crash, thing)
                yield thing
                await self._close(plan)
                inner.cancel_scope.cancel()
        finally:
            del self._open[plan.key]

    async def _crash(self, thing):
        await thing.crash.wait()
        raise thing.failure

    async def _close(self, plan):
        if self.stubborn:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.stubborn)
        await self.closing.wait()
        if self.close_failures:
            raise self.close_failures.pop(0)
        self.closed.append(plan)

    @property
    def open(self):
        """The directories that are in use, those being opened or closed included."""
        return list(self._open)


async def plain_key(path):
    """Resolve without a file system."""
    await trio.lowlevel.checkpoint()
    return WorkspaceKey(path.rstrip("/"))


@asynccontextmanager
async def open_test_backend(
    open_workspace=None, *, keeps_open=None, version="", resolve=plain_key, **times
):
    """Open a backend on virtual time; *times* are settings."""
    extra = {} if keeps_open is None else {"keeps_open": keeps_open}
    async with open_backend(
        Workspaces() if open_workspace is None else open_workspace,
        settings=BackendSettings(**times),
        version=version,
        resolve=resolve,
        clock=TrioClock(),
        **extra,
    ) as backend:
        yield backend


# ── What tests ask and do ───────────────────────────────────────────────────────────────────────


def gone(backend, hosted):
    """Whether nobody can find the workspace any more."""
    try:
        return backend.workspace(hosted.id) is not hosted
    except WorkspaceNotFound:
        return True


def claims_on(backend, hosted):
    """Return the claims on a workspace that is open."""
    return backend._live_slot(hosted.id).claims


@asynccontextmanager
async def creating(backend, *requests):
    """Have creates in progress; yields the answers, which are all there after the block."""
    answers = {}

    async def create(request):
        try:
            answers[request.client_id] = await backend.create(request)
        except Exception as exc:  # noqa: BLE001 - an answer like any other
            answers[request.client_id] = exc

    async with trio.open_nursery() as nursery:
        for request in requests:
            nursery.start_soon(create, request)
            await wait_all_tasks_blocked()
        yield answers


# ── Real workspaces ─────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Recorded:
    """A workspace with real runs."""

    plan: object
    store: MemoryStore
    runs: object

    @property
    def id(self):
        return self.plan.id


@define(eq=False)
class RecordedWorkspaces:
    """Opens workspaces with real runs, each on a store in memory that outlives it.

    A turn does what it is told to do and then takes *seconds*.
    """

    seconds: float = 1.0
    at_start: object = lambda: None
    stores: dict = field(factory=dict, init=False)

    @asynccontextmanager
    async def __call__(self, plan):
        known = self.stores.get(plan.key)
        store = MemoryStore("boot-1") if known is None else known.reopened("boot-2")
        self.stores[plan.key] = store
        if known is None:
            session = Session(id=SessionId("s"), title="s", created_at=1, updated_at=1)
            await store.commit(SessionCreated(session=session))
        async with open_recorded_runs(
            store, lambda _: self._turn, clock=TrioClock(), ids=CountingIds(plan.id)
        ) as recorded:
            yield Recorded(plan, store, recorded.runs)

    async def _turn(self, run):
        await trio.lowlevel.checkpoint()
        self.at_start()
        await trio.sleep(self.seconds)
        return Completion()
