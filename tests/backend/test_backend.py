"""The backend's machinery: openings that are shared or given up, closings that fail or hang."""

from contextlib import asynccontextmanager
from functools import partial
from math import inf

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.backend import Terms
from crush_trio.errors import ClientRetired, ServerShuttingDown, WorkspaceClosing
from crush_trio.testing import Call, CheckpointFaults, Fault, Gate, checkpoints_of
from crush_trio.testing.scripted import prompt
from crush_trio.wire.native import RunState
from tests.backend.hosts import (
    A,
    B,
    C,
    DurableWorkspaces,
    Workspaces,
    ask,
    creating,
    gone,
    open_test_backend,
)


def messages(caplog):
    return [record.msg for record in caplog.records]


# ── Openings ────────────────────────────────────────────────────────────────────────────────────


async def test_an_opening_that_nobody_waits_for_any_more_is_given_up():
    things = Workspaces(opening=Gate("never"))
    async with open_test_backend(things) as backend:
        with trio.move_on_after(5.0):
            await backend.create(ask(A))
        await wait_all_tasks_blocked()
        assert trio.current_time() == pytest.approx(5.0)
        assert things.open == []
        assert backend.idle
        things.opening.open()
        assert (await backend.create(ask(B))).claims.clients == (B,)


async def test_an_opening_goes_on_without_the_client_that_began_it():
    opening = Gate()
    things = Workspaces(opening=opening)
    async with open_test_backend(things) as backend, trio.open_nursery() as hanging_up:
        hanging_up.start_soon(backend.create, ask(A))
        await opening.reached()
        async with creating(backend, ask(B)) as answers:
            hanging_up.cancel_scope.cancel()
            await wait_all_tasks_blocked()
            opening.open()
        assert answers[B].claims.clients == (B,)
        assert len(things.begun) == 1


async def test_nobody_is_bound_by_the_terms_of_a_client_that_hung_up():
    opening = Gate()
    things = Workspaces(opening=opening)
    async with open_test_backend(things) as backend, trio.open_nursery() as hanging_up:
        hanging_up.start_soon(backend.create, ask(A, yolo=True, channels=("x",)))
        await opening.reached()
        async with creating(backend, ask(B), ask(C)) as answers:
            hanging_up.cancel_scope.cancel()
            await wait_all_tasks_blocked()
            opening.open()
        assert answers[B] is answers[C]
        assert answers[B].terms == Terms()
        assert len(things.begun) == 2


async def test_nobody_is_bound_by_the_terms_of_a_client_that_retired():
    opening = Gate()
    things = Workspaces(opening=opening)
    async with open_test_backend(things) as backend:
        async with creating(backend, ask(A, yolo=True, channels=("x",)), ask(B)) as answers:
            backend.retire(A)
            opening.open()
        assert isinstance(answers[A], ClientRetired)
        assert answers[B].terms == Terms()
        assert things.closed == things.begun[:1]


async def test_a_failed_opening_is_the_same_answer_to_all_who_asked_for_the_same():
    opening, error = Gate(), OSError("disk full")
    things = Workspaces(opening=opening, open_failures=[error])
    async with open_test_backend(things) as backend:
        async with creating(backend, ask(A), ask(B), ask(C, data_dir="/elsewhere")) as answers:
            opening.open()
        assert answers[A] is answers[B] is error
        assert answers[C].terms.data_dir == "/elsewhere"
        assert len(things.begun) == 2


async def test_an_opening_that_fails_after_it_was_given_up_is_logged(caplog):
    @asynccontextmanager
    async def sour(_):
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("while giving up")
        yield

    async with open_test_backend(sour) as backend:
        with trio.move_on_after(5.0):
            await backend.create(ask(A))
        await wait_all_tasks_blocked()
        assert messages(caplog) == ["workspace.failed"]
        assert backend.idle


async def test_a_create_leaves_nothing_behind_wherever_it_is_cancelled():
    async def create_cancelled_at(checkpoint):
        things = Workspaces()
        async with open_test_backend(things, idle_linger=inf) as backend:
            with trio.CancelScope() as scope:
                fault = Fault(checkpoint, Call(scope.cancel))
                await CheckpointFaults([fault]).drive(backend.create(ask(A)))
            assert fault.fired
            await trio.sleep(31.0)  # it may have got its claim, and never have read the answer
            assert backend.idle
            assert things.open == []

    async def undisturbed():
        async with open_test_backend() as backend:
            total.append(await checkpoints_of(partial(backend.create, ask(A))))

    total = []
    await undisturbed()
    assert total[0] >= 2
    for checkpoint in range(total[0]):
        await create_cancelled_at(checkpoint)


# ── While it is open ────────────────────────────────────────────────────────────────────────────


async def test_a_workspace_does_not_belong_to_the_request_that_created_it():
    async with open_test_backend() as backend:
        async with trio.open_nursery() as request:
            hosted = await backend.create(ask(A))
            request.start_soon(trio.sleep_forever)
            request.cancel_scope.cancel()
        await trio.sleep(1.0)
        assert not gone(backend, hosted)


async def test_a_handler_that_is_cancelled_counts_its_stream_out():
    async with open_test_backend(detach_grace=0.0) as backend:
        hosted = await backend.create(ask(A))
        with trio.move_on_after(5.0), backend.attach(hosted.id, A):
            await trio.sleep_forever()
        assert gone(backend, hosted)


async def test_a_workspace_that_falls_over_is_gone_and_the_others_are_not(caplog):
    things = Workspaces(fragile=True)
    async with open_test_backend(things) as backend:
        one = await backend.create(ask(A, path="/one"))
        two = await backend.create(ask(A, path="/two"))
        with backend.attach(one.id, A), backend.attach(two.id, A):
            one.opened.fall_over(ValueError("boom"))
            await wait_all_tasks_blocked()
            assert gone(backend, one)
            assert backend.workspaces() == (two,)
            again = await backend.create(ask(B, path="/one"))
            assert again is not one
        assert again.claims.clients == (B,)
    [record] = [r for r in caplog.records if r.msg == "workspace.failed"]
    assert record.workspace_id == one.id
    assert "boom" in caplog.text


async def test_a_run_may_bring_down_its_own_workspace():
    async with open_test_backend(durable := DurableWorkspaces()) as backend:
        hosted = await backend.create(ask(A))
        durable.at_start = partial(backend.retire, A)
        run = hosted.opened.runs.accept(prompt("goodbye"))
        assert (await run.wait()).state is RunState.CANCELLED
        await wait_all_tasks_blocked()
        assert backend.idle


async def test_a_workspace_can_be_kept_open_for_something_other_than_a_claim():
    reasons = {"a run that goes on"}
    things = Workspaces()
    async with open_test_backend(things, keeps_open=lambda _: bool(reasons)) as backend:
        hosted = await backend.create(ask(A))
        await trio.sleep(1000.0)
        assert hosted.claims.clients == ()
        assert not gone(backend, hosted)
        with backend.attach(hosted.id, B):
            reasons.clear()
            backend.reconsider(hosted.id)
            assert not gone(backend, hosted)
            reasons.add("another")
        await trio.sleep(1000.0)
        backend.reconsider(hosted.id)
        assert not gone(backend, hosted)
        reasons.clear()
        backend.reconsider(hosted.id)
        assert gone(backend, hosted)
        backend.reconsider(hosted.id)


async def test_what_keeps_a_workspace_open_does_not_keep_one_that_nobody_got_into():
    opening = Gate()
    async with open_test_backend(
        Workspaces(opening=opening), keeps_open=lambda _: True, idle_linger=inf
    ) as backend:
        async with creating(backend, ask(A)):
            backend.retire(A)
            opening.open()
        await wait_all_tasks_blocked()
        assert backend.idle


async def test_workspaces_are_listed_oldest_first_and_name_their_creator():
    async with open_test_backend() as backend:
        one = await backend.create(ask(A, path="/one/"))
        two = await backend.create(ask(B, path="/two", env=("TOKEN=secret",)))
        assert backend.workspaces() == (one, two)
        assert (one.plan.path, one.plan.key, one.plan.created_by) == ("/one/", "/one", A)
        assert "secret" not in repr(two)


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
        assert things.open == ["/work"]
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
    assert (len(things.begun), things.open) == (1, [])


@pytest.mark.parametrize("leave", [lambda _: None, lambda scope: scope.cancel()])
async def test_creates_in_progress_are_told_when_the_backend_ends(leave):
    """One waits for an opening, one for a closing."""
    things = Workspaces(closing=Gate("never"))
    answers = {}

    async def create(backend, request):
        with pytest.raises(ServerShuttingDown) as caught:
            await backend.create(request)
        answers[request.client_id] = caught.value

    async with trio.open_nursery() as requests:
        with trio.CancelScope() as scope:
            async with open_test_backend(things) as backend:
                hosted = await backend.create(ask(A, path="/closing"))
                backend.release(hosted.id, A)
                things.opening = Gate("never")
                requests.start_soon(create, backend, ask(A, path="/opening"))
                requests.start_soon(create, backend, ask(B, path="/closing"))
                await things.opening.reached()
                await wait_all_tasks_blocked()
                leave(scope)
    assert set(answers) == {A, B}
    assert things.open == []
