"""Contract E.5 and E.7: clients that say goodbye, the end of the server, and coming back."""

import math

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.errors import (
    ClientIdInvalid,
    ClientRetired,
    PathMissing,
    ServerNotIdle,
    ServerShuttingDown,
    ServerStays,
    UnknownCommand,
    WorkspaceNotFound,
)
from crush_trio.testing import Gate
from crush_trio.testing.server.turns import prompt
from crush_trio.wire.ids import SessionId
from tests.backend.hosts import (
    A,
    B,
    RecordedWorkspaces,
    Workspaces,
    ask,
    claims_on,
    creating,
    gone,
    open_test_backend,
)

S = SessionId("s")


# ── E18 to E23: retirement, idle shutdown, control ──────────────────────────────────────────────


@pytest.mark.item("E18")
async def test_retiring_drops_every_claim_and_closes_only_what_nobody_else_holds():
    async with open_test_backend() as backend:
        own = await backend.create(ask(A, path="/own"))
        shared = await backend.create(ask(A, path="/shared"))
        await backend.create(ask(B, path="/shared"))
        with backend.attach(own.id, A):
            backend.retire(A)
            backend.retire(A)
            assert backend.workspaces() == (shared,)
            assert claims_on(backend, shared).clients == (B,)


@pytest.mark.item("E18")
async def test_a_retired_client_cannot_create_but_may_attach():
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(B))
        backend.retire("{" + A.upper() + "}")
        with pytest.raises(ClientRetired):
            await backend.create(ask(A))
        with backend.attach(hosted.id, A):
            assert claims_on(backend, hosted).clients == (B, A)
        with pytest.raises(ClientIdInvalid):
            backend.retire("nobody")


@pytest.mark.item("L23")
async def test_a_retirement_is_forgotten_in_the_end():
    async with open_test_backend(retired_for=100.0) as backend:
        backend.retire(A)
        await trio.sleep(99.0)
        with pytest.raises(ClientRetired):
            await backend.create(ask(A))
        await trio.sleep(2.0)
        assert claims_on(backend, await backend.create(ask(A))).clients == (A,)


@pytest.mark.item("E19", "E20")
async def test_an_idle_server_lingers_and_then_ends_for_good():
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(A))
        backend.release(hosted.id, A)
        await trio.sleep(59.9)
        assert not backend.shutting_down
        await backend.wait_shutdown()
        assert trio.current_time() == pytest.approx(60.0)
        with pytest.raises(ServerShuttingDown):
            await backend.create(ask(A))


@pytest.mark.item("E19")
async def test_a_server_that_was_never_used_does_not_end_by_itself():
    async with open_test_backend() as backend:
        await trio.sleep(80_000.0)
        assert not backend.shutting_down


@pytest.mark.item("E19")
async def test_a_create_puts_the_end_off_also_if_it_fails():
    things = Workspaces()
    async with open_test_backend(things) as backend:
        hosted = await backend.create(ask(A))
        backend.release(hosted.id, A)
        await trio.sleep(59.0)
        things.open_failures.append(OSError("disk full"))
        with pytest.raises(OSError, match="disk full"):
            await backend.create(ask(A))
        await trio.sleep(59.0)
        hosted = await backend.create(ask(A))
        with backend.attach(hosted.id, A):
            await trio.sleep(1000.0)
        assert not backend.shutting_down


@pytest.mark.item("E19")
async def test_a_create_that_is_refused_does_not_put_the_end_off():
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(A))
        backend.retire(A)
        await trio.sleep(59.0)
        for request in (ask(A), ask(B, path=""), ask("nobody")):
            with pytest.raises((ClientRetired, PathMissing, ClientIdInvalid)):
                await backend.create(request)
        await backend.wait_shutdown()
        assert trio.current_time() == pytest.approx(60.0)
        assert gone(backend, hosted)


@pytest.mark.item("E19")
async def test_without_a_linger_the_server_ends_with_its_last_workspace():
    closing = Gate()
    async with open_test_backend(Workspaces(closing=closing), idle_linger=0.0) as backend:
        first = await backend.create(ask(A, path="/one"))
        second = await backend.create(ask(A, path="/two"))
        backend.release(first.id, A)
        backend.release(second.id, A)
        await wait_all_tasks_blocked()
        assert not backend.shutting_down
        closing.open()
        await wait_all_tasks_blocked()
        assert backend.shutting_down
        assert trio.current_time() == pytest.approx(0.0)


@pytest.mark.item("E20", "E21")
@pytest.mark.parametrize("command", ["shutdown", "shutdown_if_idle"])
async def test_a_control_command_ends_an_idle_server_for_good(command):
    async with open_test_backend(replaceable=True) as backend:
        backend.control(command)
        assert backend.shutting_down
        with pytest.raises(ServerShuttingDown):
            await backend.create(ask(A))
        backend.control(command)


@pytest.mark.item("E21")
@pytest.mark.parametrize("idle_linger", [math.inf, 60.0])
async def test_a_server_that_a_person_started_does_not_give_way_to_a_client(idle_linger):
    async with open_test_backend(idle_linger=idle_linger) as backend:
        with pytest.raises(ServerStays):
            backend.control("shutdown_if_idle")
        assert not backend.shutting_down
        backend.control("shutdown")
        assert backend.shutting_down


@pytest.mark.item("E21")
@pytest.mark.parametrize("command", ["shutdown", "shutdown_if_idle"])
async def test_a_control_command_changes_nothing_while_a_workspace_is_there(command):
    closing = Gate()
    async with open_test_backend(Workspaces(closing=closing), replaceable=True) as backend:
        hosted = await backend.create(ask(A))
        with pytest.raises(ServerNotIdle):
            backend.control(command)
        assert not backend.shutting_down
        backend.release(hosted.id, A)
        with pytest.raises(ServerNotIdle):  # it has not let go of its directory
            backend.control(command)
        closing.open()
        await wait_all_tasks_blocked()
        backend.control(command)


@pytest.mark.item("E21")
async def test_an_unknown_command_is_refused():
    async with open_test_backend() as backend:
        with pytest.raises(UnknownCommand):
            backend.control("explode")
        assert not backend.shutting_down


@pytest.mark.item("E21", "E22")
async def test_a_create_in_progress_keeps_the_server_from_ending():
    opening = Gate()
    opening.open()
    things = Workspaces(opening=opening)
    async with open_test_backend(things, idle_linger=0.0) as backend:
        hosted = await backend.create(ask(A, path="/one"))
        things.opening = opening = Gate()
        async with creating(backend, ask(B, path="/two")) as answers:
            backend.release(hosted.id, A)
            await wait_all_tasks_blocked()
            with pytest.raises(ServerNotIdle):
                backend.shutdown_if_idle()
            assert not backend.shutting_down
            opening.open()
        assert backend.workspaces() == (answers[B],)


@pytest.mark.item("E23")
async def test_a_server_that_ends_says_so_also_to_a_retired_client():
    async with open_test_backend() as backend:
        backend.retire(A)
        backend.shutdown_if_idle()
        with pytest.raises(ServerShuttingDown):
            await backend.create(ask(A))


# ── E24: what a client relies on to recover ─────────────────────────────────────────────────────


@pytest.mark.item("E24")
async def test_a_client_that_lost_its_workspace_can_create_it_again_and_resume():
    durable = RecordedWorkspaces(seconds=1.0)
    async with open_test_backend(durable) as backend:
        first = await backend.create(ask(A, yolo=True))
        with backend.attach(first.id, A):
            run = first.runs.accept(prompt("work"))
            await run.wait()
        await trio.sleep(11.0)
        with pytest.raises(WorkspaceNotFound), backend.attach(first.id, A):
            pass
        second = await backend.create(ask(A, yolo=True))
        assert second is not first
        assert second.id == first.id
        with backend.attach(second.id, A):
            backend.set_current_session(second.id, A, S)
            assert [view.id for view in await second.store.runs()] == [run.id]
