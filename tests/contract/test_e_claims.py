"""Contract E.3 and E.4: who holds a workspace, for how long, and what they look at.

The transitions of a single claim are in `tests/backend/test_claims.py`, cell by cell; here they are
seen from outside, through a backend.
"""

from contextlib import ExitStack

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.errors import ClientIdInvalid, ClientNotAttached, WorkspaceNotFound
from crush_trio.testing import Gate
from crush_trio.testing.server.turns import prompt
from crush_trio.wire.ids import NO_SESSION, SessionId, WorkspaceId
from crush_trio.wire.runs import RunState
from tests.backend.hosts import (
    A,
    B,
    C,
    RecordedWorkspaces,
    Workspaces,
    ask,
    claims_on,
    gone,
    open_test_backend,
)

S, T = SessionId("s"), SessionId("t")
NOWHERE = WorkspaceId("nowhere")


# ── E10 to E14: claims ──────────────────────────────────────────────────────────────────────────


@pytest.mark.item("E10", "E11")
async def test_a_creator_that_opens_no_stream_loses_the_workspace_after_the_create_grace():
    things = Workspaces()
    async with open_test_backend(things) as backend:
        hosted = await backend.create(ask(A))
        await trio.sleep(29.9)
        assert not gone(backend, hosted)
        await trio.sleep(0.2)
        assert gone(backend, hosted)
        assert things.closed == [hosted.plan]


@pytest.mark.item("E10")
async def test_a_duplicate_create_gives_a_new_full_window():
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(A))
        await trio.sleep(29.9)
        assert await backend.create(ask(A)) is hosted
        await trio.sleep(29.9)
        assert not gone(backend, hosted)
        await trio.sleep(0.2)
        assert gone(backend, hosted)


@pytest.mark.item("E10")
async def test_a_stream_holds_the_workspace_for_as_long_as_it_is_open_and_a_grace_longer():
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(A))
        with backend.attach(hosted.id, A) as attached:
            assert attached is hosted
            await trio.sleep(1000.0)
            assert not gone(backend, hosted)
        await trio.sleep(9.9)
        assert not gone(backend, hosted)
        await trio.sleep(0.2)
        assert gone(backend, hosted)


@pytest.mark.item("E10")
async def test_a_stream_that_comes_back_within_the_grace_finds_its_workspace():
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(A))
        for _ in range(5):
            with backend.attach(hosted.id, A):
                await trio.sleep(50.0)
            await trio.sleep(9.0)
        assert not gone(backend, hosted)


@pytest.mark.item("E10")
async def test_without_a_grace_the_last_stream_takes_the_workspace_along():
    async with open_test_backend(detach_grace=0.0) as backend:
        hosted = await backend.create(ask(A))
        with backend.attach(hosted.id, A):
            with backend.attach(hosted.id, A):
                pass
            assert not gone(backend, hosted)
        assert gone(backend, hosted)


@pytest.mark.item("E10")
async def test_a_client_needs_no_create_to_attach():
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(A))
        with backend.attach(hosted.id, B):
            backend.release(hosted.id, A)
            assert claims_on(backend, hosted).clients == (B,)
            assert not gone(backend, hosted)


@pytest.mark.item("E10", "E13")
async def test_an_explicit_release_skips_the_grace():
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(A))
        with backend.attach(hosted.id, A):
            backend.release(hosted.id, A)
            assert not gone(backend, hosted)
        assert gone(backend, hosted)


@pytest.mark.item("E10", "E13")
async def test_a_create_takes_a_release_back():
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(A))
        with backend.attach(hosted.id, A):
            backend.release(hosted.id, A)
            await backend.create(ask(A))
        assert not gone(backend, hosted)


@pytest.mark.item("E11")
async def test_a_workspace_is_closed_once_and_unknown_afterwards():
    closing = Gate()
    things = Workspaces(closing=closing)
    async with open_test_backend(things) as backend:
        hosted = await backend.create(ask(A))
        backend.release(hosted.id, A)
        backend.retire(A)
        for _ in range(2):  # while it is closing, and when it has closed
            assert backend.workspaces() == ()
            with pytest.raises(WorkspaceNotFound):
                backend.workspace(hosted.id)
            with pytest.raises(WorkspaceNotFound), backend.attach(hosted.id, A):
                pass
            with pytest.raises(WorkspaceNotFound):
                backend.set_current_session(hosted.id, A, S)
            with pytest.raises(WorkspaceNotFound):
                backend.attached_clients(hosted.id, S)
            closing.open()
            await wait_all_tasks_blocked()
        assert things.closed == [hosted.plan]


@pytest.mark.item("E12")
async def test_a_run_outlives_its_client_while_another_holds_the_workspace():
    async with open_test_backend(RecordedWorkspaces(seconds=100.0)) as backend:
        hosted = await backend.create(ask(A))
        with backend.attach(hosted.id, B):
            run = hosted.runs.accept(prompt("work"))
            backend.retire(A)
            assert (await run.wait()).state is RunState.COMPLETED


@pytest.mark.item("E12")
async def test_a_run_is_cancelled_when_the_last_client_goes_and_has_its_ending_stored():
    durable = RecordedWorkspaces(seconds=100.0)
    async with open_test_backend(durable) as backend:
        hosted = await backend.create(ask(A))
        run = hosted.runs.accept(prompt("work"))
        await run.journaled()
        backend.retire(A)
        assert (await run.wait()).state is RunState.CANCELLED
        assert trio.current_time() < 10.0
        await wait_all_tasks_blocked()
        assert backend.idle
    assert (await durable.stores["/srv"].run(run.id)).view.state is RunState.CANCELLED


@pytest.mark.item("E13")
async def test_releasing_what_is_not_there_is_fine_but_the_client_id_must_be_one():
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(A))
        backend.release(NOWHERE, A)
        backend.release(hosted.id, B)
        with pytest.raises(ClientIdInvalid):
            backend.release(NOWHERE, "nobody")
        assert claims_on(backend, hosted).clients == (A,)
        backend.release(hosted.id, A)
        backend.release(hosted.id, A)
        assert gone(backend, hosted)


@pytest.mark.item("E13")
async def test_a_stream_may_end_long_after_its_workspace():
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(A))
        with backend.attach(hosted.id, A):
            backend.retire(A)
            await wait_all_tasks_blocked()
            assert gone(backend, hosted)
            again = await backend.create(ask(B))
        assert claims_on(backend, again).clients == (B,)


@pytest.mark.item("E14")
async def test_one_clients_stream_does_not_disturb_anothers():
    async with open_test_backend(detach_grace=0.0) as backend:
        hosted = await backend.create(ask(A))
        with backend.attach(hosted.id, B), backend.attach(hosted.id, B):
            backend.set_current_session(hosted.id, B, S)
            with backend.attach(hosted.id, A):
                pass
            backend.retire(A)
            assert claims_on(backend, hosted).clients == (B,)
            assert claims_on(backend, hosted).claim(B).streams == 2
            assert backend.attached_clients(hosted.id, S) == 1


# ── E15 and E16: current session and presence ───────────────────────────────────────────────────


@pytest.mark.item("E15")
async def test_selecting_a_session_needs_an_open_stream():
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(A))
        for client_id in (A, B):
            with pytest.raises(ClientNotAttached):
                backend.set_current_session(hosted.id, client_id, S)
        with pytest.raises(WorkspaceNotFound):
            backend.set_current_session(NOWHERE, A, S)
        with pytest.raises(ClientIdInvalid):
            backend.set_current_session(hosted.id, "nobody", S)
        with backend.attach(hosted.id, A):
            backend.set_current_session(hosted.id, A, S)
        with pytest.raises(ClientNotAttached):
            backend.set_current_session(hosted.id, A, T)
        assert claims_on(backend, hosted).claim(A).current_session == S


@pytest.mark.item("E16")
async def test_clients_count_for_the_session_they_look_at():
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(A))
        with ExitStack() as streams:
            for client_id in (A, B, C):
                streams.enter_context(backend.attach(hosted.id, client_id))
            backend.set_current_session(hosted.id, A, S)
            backend.set_current_session(hosted.id, B, S)
            assert backend.attached_clients(hosted.id, S) == 2
            backend.set_current_session(hosted.id, B, NO_SESSION)
            assert backend.attached_clients(hosted.id, S) == 1
            assert backend.attached_clients(hosted.id, NO_SESSION) == 0
        assert backend.attached_clients(hosted.id, S) == 0
