"""How workspaces close, well or badly, and how the backend ends."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.errors import ServerNotIdle, ServerShuttingDown, WorkspaceClosing
from crush_trio.testing import Gate
from crush_trio.testing.server.turns import prompt
from crush_trio.wire.runs import RunState
from tests.backend.hosts import (
    A,
    B,
    RecordedWorkspaces,
    Workspaces,
    ask,
    open_test_backend,
    plain_key,
)


def messages(caplog):
    return [record.msg for record in caplog.records]


async def refused(backend, request):
    """Create, and be told that the server is shutting down."""
    with pytest.raises(ServerShuttingDown):
        await backend.create(request)


# ── Closings ────────────────────────────────────────────────────────────────────────────────────


async def test_a_closing_that_fails_is_logged_and_frees_the_directory(caplog):
    things = Workspaces(close_failures=[OSError("disk full")])
    async with open_test_backend(things) as backend:
        hosted = await backend.create(ask(A))
        backend.release(hosted.id, A)
        assert (await backend.create(ask(A))) is not hosted
    assert messages(caplog) == ["workspace.failed"]


@pytest.mark.item("L32")
async def test_what_a_closing_waits_for_is_cancelled_when_it_takes_too_long(caplog):
    things = Workspaces(closing=Gate("never"))
    async with open_test_backend(things, close_limit=30.0) as backend:
        hosted = await backend.create(ask(A))
        backend.release(hosted.id, A)
        assert (await backend.create(ask(B))) is not hosted
        assert trio.current_time() == pytest.approx(30.0)
        things.closing.open()
    [record] = caplog.records
    assert (record.msg, record.workspace_id) == ("workspace.close_forced", hosted.id)
    assert record.seconds == pytest.approx(30.0)


@pytest.mark.item("L32", "L33")
async def test_a_create_does_not_wait_for_ever_behind_a_closing_that_cannot_be_stopped():
    things = Workspaces(stubborn=1000.0)
    async with open_test_backend(things, close_limit=30.0) as backend:
        hosted = await backend.create(ask(A))
        backend.release(hosted.id, A)
        with pytest.raises(WorkspaceClosing):
            await backend.create(ask(B))
        assert trio.current_time() == pytest.approx(60.0)
        assert things.open == ["/srv"]
        await trio.sleep_until(1001.0)
        assert (await backend.create(ask(B))) is not hosted
        things.stubborn = 0.0


# ── The end of the backend ──────────────────────────────────────────────────────────────────────


async def test_leaving_the_backend_closes_every_workspace_whoever_holds_it():
    things = Workspaces()
    async with open_test_backend(things) as backend:
        hosted = await backend.create(ask(A, path="/one"))
        await backend.create(ask(B, path="/two"))
        with backend.attach(hosted.id, A):
            backend.close()
            assert backend.workspaces() == ()
            backend.close()
    assert {plan.key for plan in things.closed} == {"/one", "/two"}
    assert backend.idle
    with pytest.raises(ServerShuttingDown):
        await backend.create(ask(A))


async def test_an_exception_of_the_callers_leaves_the_backend_as_it_is():
    things = Workspaces()

    async def fail_with_a_workspace_open():
        async with open_test_backend(things) as backend:
            await backend.create(ask(A))
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await fail_with_a_workspace_open()
    assert len(things.begun) == 1
    assert things.closed == things.begun


async def test_a_cancelled_backend_lets_its_workspaces_end_in_order():
    durable = RecordedWorkspaces(seconds=1000.0)
    with trio.move_on_after(5.0):
        async with open_test_backend(durable) as backend:
            hosted = await backend.create(ask(A))
            run = hosted.runs.accept(prompt("work"))
            await trio.sleep_forever()
    assert (await durable.stores["/srv"].run(run.id)).view.state is RunState.CANCELLED
    assert trio.current_time() < 10.0


async def test_leaving_the_backend_does_not_wait_for_openings():
    async with trio.open_nursery() as requests:
        async with open_test_backend(Workspaces(opening=Gate("never"))) as backend:
            requests.start_soon(refused, backend, ask(A))
            await wait_all_tasks_blocked()
        assert trio.current_time() == pytest.approx(0.0)


@pytest.mark.parametrize("leave", [lambda _: None, lambda scope: scope.cancel()])
async def test_creates_in_progress_are_told_when_the_backend_ends(leave):
    """One waits for an opening, one for a closing."""
    things = Workspaces(closing=Gate("never"))
    async with trio.open_nursery() as requests:
        with trio.CancelScope() as scope:
            async with open_test_backend(things) as backend:
                hosted = await backend.create(ask(A, path="/closing"))
                backend.release(hosted.id, A)
                things.opening = Gate("never")
                requests.start_soon(refused, backend, ask(A, path="/opening"))
                requests.start_soon(refused, backend, ask(B, path="/closing"))
                await things.opening.reached()
                await wait_all_tasks_blocked()
                leave(scope)
    assert things.open == []


@pytest.mark.item("E21", "E22")
async def test_a_create_counts_from_its_first_step_although_there_is_no_workspace_yet():
    resolving = Gate()

    async def slow(path):
        await resolving.wait()
        return await plain_key(path)

    async with open_test_backend(resolve=slow) as backend, trio.open_nursery() as requests:
        requests.start_soon(backend.create, ask(A))
        await resolving.reached()
        assert not backend.idle
        with pytest.raises(ServerNotIdle):
            backend.shutdown_if_idle()
        resolving.open()
        await wait_all_tasks_blocked()
        assert len(backend.workspaces()) == 1
