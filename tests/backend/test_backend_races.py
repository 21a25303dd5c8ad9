"""The backend under every schedule within a bound.

Each scenario lets two or three clients loose on one workspace. Whatever the order, what can be found
is open and held, no directory is open twice (the factory sees to that), and what a client was told
is so. What a scenario returns says who came first; the tests assert the set of those, so that a
scenario which no longer reaches an interesting order fails.
"""

from contextlib import ExitStack, asynccontextmanager

import pytest
import trio
from attrs import evolve, frozen

from crush_trio.errors import (
    ClientNotAttached,
    ClientRetired,
    ServerNotIdle,
    ServerShuttingDown,
    WorkspaceNotFound,
)
from crush_trio.testing.explore import explore
from crush_trio.testing.server.turns import prompt
from crush_trio.wire.ids import SessionId
from crush_trio.wire.runs import RunState
from tests.backend.hosts import (
    A,
    B,
    RecordedWorkspaces,
    Workspaces,
    ask,
    claims_on,
    gone,
    open_test_backend,
)

S = SessionId("s")


async def soon(*actions):
    """Perform each action as a task of its own, so that the explorer can place it anywhere.

    Returns what each of them returned, or the name of the error it raised.
    """
    results = [None] * len(actions)

    async def act(number, action):
        await trio.lowlevel.checkpoint()
        try:
            result = action()
            results[number] = await result if hasattr(result, "__await__") else result
        except (ClientNotAttached, ClientRetired, ServerNotIdle) as exc:
            results[number] = type(exc).__name__
        except (ServerShuttingDown, WorkspaceNotFound) as exc:
            results[number] = type(exc).__name__

    async with trio.open_nursery() as nursery:
        for number, action in enumerate(actions):
            nursery.start_soon(act, number, action)
    return results


@asynccontextmanager
async def open_streams(backend):
    """Yield a function that attaches a client for the rest of the block."""
    with ExitStack() as streams:
        yield lambda hosted, client_id: stream_on(streams, backend, hosted, client_id)


def stream_on(streams, backend, hosted, client_id):
    streams.enter_context(backend.attach(hosted.id, client_id))


def check(backend, things=None):
    """Whatever can be found is open, and somebody holds it."""
    for hosted in backend.workspaces():
        assert claims_on(backend, hosted).clients, "a workspace without a claim can be found"
        assert things is None or hosted.plan.key in things.open
        assert not backend.shutting_down


# ── Claims and teardown ─────────────────────────────────────────────────────────────────────────


async def attach_vs_teardown():
    things = Workspaces()
    async with open_test_backend(things) as backend, open_streams(backend) as attach:
        hosted = await backend.create(ask(A))
        _, attached = await soon(lambda: backend.release(hosted.id, A), lambda: attach(hosted, B))
        check(backend, things)
        if attached is None:
            assert claims_on(backend, hosted).clients == (B,)
        else:
            assert gone(backend, hosted)
    assert things.closed == [hosted.plan], "closed once, whoever won"
    return attached


async def hold_expiry_vs_attach():
    """The stream opens in the very instant in which the create grace ends."""
    things = Workspaces()
    async with open_test_backend(things) as backend, open_streams(backend) as attach:
        hosted = await backend.create(ask(A))
        await trio.sleep_until(30.0)
        [attached] = await soon(lambda: attach(hosted, A))
        await trio.sleep(100.0)
        check(backend, things)
        assert gone(backend, hosted) == (attached is not None)
    return attached


async def hold_expiry_vs_create():
    """A duplicate create comes in the very instant in which the first one's window ends."""
    things = Workspaces()
    async with open_test_backend(things) as backend:
        first = await backend.create(ask(A))
        await trio.sleep_until(30.0)
        [second] = await soon(lambda: backend.create(ask(A)))
        check(backend, things)
        await trio.sleep(29.0)
        assert backend.workspaces() == (second,), "a new create gives a new full window"
        await trio.sleep(2.0)
        assert backend.workspaces() == ()
    return second is first


async def create_vs_teardown():
    things = Workspaces()
    async with open_test_backend(things) as backend:
        first = await backend.create(ask(A))
        _, second = await soon(lambda: backend.release(first.id, A), lambda: backend.create(ask(B)))
        check(backend, things)
        assert claims_on(backend, second).clients == (B,)
        assert things.open == ["/srv"]
    return second is first


async def detach_release_retire():
    """Three ways to let go, at once: the workspace is closed, once."""
    things = Workspaces()
    async with open_test_backend(things) as backend:
        hosted = await backend.create(ask(A))
        with ExitStack() as streams:
            streams.enter_context(backend.attach(hosted.id, A))
            await soon(
                streams.close,
                lambda: backend.release(hosted.id, A),
                lambda: backend.retire(A),
            )
        assert gone(backend, hosted)
    assert things.closed == [hosted.plan]


async def select_vs_detach():
    async with open_test_backend(Workspaces(), detach_grace=0.0) as backend:
        hosted = await backend.create(ask(B))
        with ExitStack() as streams:
            streams.enter_context(backend.attach(hosted.id, A))
            _, selected = await soon(
                streams.close, lambda: backend.set_current_session(hosted.id, A, S)
            )
        assert backend.attached_clients(hosted.id, S) == 0
        assert claims_on(backend, hosted).clients == (B,)
    return selected


async def teardown_of_a_busy_workspace_vs_attach():
    """With a real workspace: its run ends once, cancelled if nobody came, completed otherwise."""
    durable = RecordedWorkspaces(seconds=1.0)
    async with open_test_backend(durable) as backend, open_streams(backend) as attach:
        hosted = await backend.create(ask(A))
        run = hosted.runs.accept(prompt("work"))
        await run.journaled()
        _, attached = await soon(lambda: backend.retire(A), lambda: attach(hosted, B))
        state = (await run.wait()).state
        assert state is (RunState.COMPLETED if attached is None else RunState.CANCELLED)
    assert (await durable.stores["/srv"].run(run.id)).view.state is state
    return attached


# ── Creates ─────────────────────────────────────────────────────────────────────────────────────


async def two_creates():
    things = Workspaces()
    async with open_test_backend(things) as backend:
        one, two = await soon(
            lambda: backend.create(ask(A, yolo=True)), lambda: backend.create(ask(B))
        )
        check(backend, things)
        assert one is two
        assert set(claims_on(backend, one).clients) == {A, B}
        assert len(things.begun) == 1
        assert one.plan.terms.yolo == (one.plan.created_by == A)
    return one.plan.created_by


async def two_creates_of_which_one_hangs_up():
    things = Workspaces()
    async with open_test_backend(things) as backend:
        scope = trio.CancelScope()

        async def hang_up_sometime():
            with scope:
                return await backend.create(ask(A, yolo=True))
            return None

        one, two, _ = await soon(hang_up_sometime, lambda: backend.create(ask(B)), scope.cancel)
        check(backend, things)
        assert things.open == ["/srv"]
        assert claims_on(backend, two).claim(B) is not None
        if two.plan.terms.yolo:
            assert claims_on(backend, two).claim(A) is not None, (
                "bound by the terms of one who is not there"
            )
    return one is not None, two.plan.terms.yolo


async def retire_vs_create():
    things = Workspaces()
    async with open_test_backend(things) as backend:
        created, _ = await soon(lambda: backend.create(ask(A)), lambda: backend.retire(A))
        await trio.testing.wait_all_tasks_blocked()
        assert backend.workspaces() == ()
        assert backend.idle, "a retired client holds a workspace"
        assert things.open == []
    return created if isinstance(created, str) else "created before"


async def failing_create_vs_create():
    """An opening fails while another client, with other terms, waits or comes."""
    things = Workspaces(open_failures=[ServerNotIdle("stands for any failure")])
    async with open_test_backend(things) as backend:
        results = await soon(
            lambda: backend.create(ask(A)), lambda: backend.create(ask(B, debug=True))
        )
        check(backend, things)
        assert results.count("ServerNotIdle") == 1
        [hosted] = backend.workspaces()
        assert hosted in results
    return hosted.plan.created_by


# ── The end ─────────────────────────────────────────────────────────────────────────────────────


async def linger_vs_create():
    """A create comes in the very instant in which the server's idle time is over."""
    things = Workspaces()
    async with open_test_backend(things) as backend:
        backend.release((await backend.create(ask(A))).id, A)
        await trio.sleep_until(60.0)
        [created] = await soon(lambda: backend.create(ask(A)))
        await trio.sleep(10.0)
        check(backend, things)
        assert backend.shutting_down == (created == "ServerShuttingDown")
    return created if isinstance(created, str) else "created"


async def shutdown_vs_create():
    things = Workspaces()
    async with open_test_backend(things) as backend:
        granted, created = await soon(backend.shutdown_if_idle, lambda: backend.create(ask(A)))
        check(backend, things)
        assert (granted is None) == (created == "ServerShuttingDown") == backend.shutting_down
    return granted


async def close_vs_create():
    things = Workspaces()
    async with open_test_backend(things) as backend:
        created, _ = await soon(lambda: backend.create(ask(A)), backend.close)
        assert backend.workspaces() == ()
    assert things.open == []
    return created if isinstance(created, str) else "created before"


async def cancel_vs_create():
    """Everything around the backend is cancelled while somebody else waits for a create."""
    things = Workspaces()
    async with trio.open_nursery() as outside:
        scope, ready, results = trio.CancelScope(), trio.Event(), []

        async def serve():
            with scope:
                async with open_test_backend(things) as backend:
                    outside.start_soon(create, backend)
                    ready.set()
                    await trio.sleep_forever()

        async def create(backend):
            results.extend(await soon(lambda: backend.create(ask(A))))

        outside.start_soon(serve)
        await ready.wait()
        await soon(scope.cancel)
    assert things.open == []
    return results[0] if isinstance(results[0], str) else "created before"


@frozen
class Race:
    """A scenario, how far to explore it, and the outcomes that must come about on the way."""

    scenario: object
    outcomes: set
    deviations: int = 3


RACES = [
    Race(attach_vs_teardown, {None, "WorkspaceNotFound"}),
    Race(hold_expiry_vs_attach, {None, "WorkspaceNotFound"}),
    Race(hold_expiry_vs_create, {True, False}),
    Race(create_vs_teardown, {True, False}),
    Race(detach_release_retire, {None}),
    Race(select_vs_detach, {None, "ClientNotAttached"}),
    Race(teardown_of_a_busy_workspace_vs_attach, {None, "WorkspaceNotFound"}, deviations=1),
    Race(two_creates, {A, B}),
    Race(
        two_creates_of_which_one_hangs_up,
        {(True, True), (True, False), (False, False), (False, True)},
        deviations=2,
    ),
    Race(retire_vs_create, {"ClientRetired", "created before"}),
    Race(failing_create_vs_create, {A, B}),
    Race(linger_vs_create, {"ServerShuttingDown", "created"}),
    Race(shutdown_vs_create, {None, "ServerNotIdle"}),
    Race(close_vs_create, {"ServerShuttingDown", "created before"}),
    Race(cancel_vs_create, {"ServerShuttingDown", "created before"}, deviations=2),
]
FURTHER = [
    pytest.param(evolve(race, deviations=2), marks=pytest.mark.long)
    for race in RACES
    if race.deviations == 1
]


@pytest.mark.item("E5", "E8", "E10", "E11", "E18", "E19", "E20", "L33")
@pytest.mark.parametrize(
    "race", [*RACES, *FURTHER], ids=lambda race: f"{race.scenario.__name__}-{race.deviations}"
)
def test_every_schedule_has_one_winner(race, report_exploration):
    exploration = explore(race.scenario, deviations=race.deviations)
    report_exploration(exploration)
    assert exploration.exhaustive
    assert exploration.outcomes.keys() == race.outcomes
