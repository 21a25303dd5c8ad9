"""The backend's machinery: openings that are shared or given up, and workspaces while they live.

How they end is in `test_backend_closing.py`.
"""

from contextlib import asynccontextmanager
from functools import partial
from math import inf

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.backend.settings import Terms
from crush_trio.errors import ClientRetired
from crush_trio.testing import Call, CheckpointFaults, Fault, Gate, checkpoints_of
from crush_trio.testing.server.turns import prompt
from crush_trio.wire.runs import RunState
from tests.backend.hosts import (
    A,
    B,
    C,
    RecordedWorkspaces,
    Thing,
    Workspaces,
    ask,
    claims_on,
    creating,
    gone,
    open_test_backend,
)


def messages(caplog):
    return [record.msg for record in caplog.records]


async def create_until_told(backend, request, task_status):
    """Create; what `start` returns is called to hang up."""
    with trio.CancelScope() as scope:
        task_status.started(scope.cancel)
        await backend.create(request)


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
        assert claims_on(backend, await backend.create(ask(B))).clients == (B,)


async def test_an_opening_goes_on_without_the_client_that_began_it():
    opening = Gate()
    things = Workspaces(opening=opening)
    async with open_test_backend(things) as backend, trio.open_nursery() as requests:
        hang_up = await requests.start(create_until_told, backend, ask(A))
        await opening.reached()
        async with creating(backend, ask(B)) as answers:
            hang_up()
            await wait_all_tasks_blocked()
            opening.open()
        assert claims_on(backend, answers[B]).clients == (B,)
        assert len(things.begun) == 1


async def test_nobody_is_bound_by_the_terms_of_a_client_that_hung_up():
    opening = Gate()
    things = Workspaces(opening=opening)
    async with open_test_backend(things) as backend, trio.open_nursery() as requests:
        request = ask(A, yolo=True, channels=("x",))
        hang_up = await requests.start(create_until_told, backend, request)
        await opening.reached()
        async with creating(backend, ask(B), ask(C)) as answers:
            hang_up()
            with trio.fail_after(5.0):  # the first opening is not waited for
                await opening.reached(2)
            opening.open()
        assert answers[B] is answers[C]
        assert answers[B].plan.terms == Terms()
        assert [plan.terms.yolo for plan in things.begun] == [True, False]


async def test_nobody_is_bound_by_the_terms_of_a_client_that_retired():
    opening = Gate()
    things = Workspaces(opening=opening)
    async with open_test_backend(things) as backend:
        async with creating(backend, ask(A, yolo=True, channels=("x",)), ask(B)) as answers:
            backend.retire(A)
            opening.open()
        assert isinstance(answers[A], ClientRetired)
        assert answers[B].plan.terms == Terms()
        assert things.closed == things.begun[:1]


async def test_a_failed_opening_is_the_same_answer_to_all_who_asked_for_the_same():
    opening, error = Gate(), OSError("disk full")
    things = Workspaces(opening=opening, open_failures=[error])
    async with open_test_backend(things) as backend:
        async with creating(backend, ask(A), ask(B), ask(C, data_dir="/elsewhere")) as answers:
            opening.open()
        assert answers[A] is answers[B] is error
        assert answers[C].plan.terms.data_dir == "/elsewhere"
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
            one.fall_over(ValueError("boom"))
            await wait_all_tasks_blocked()
            assert gone(backend, one)
            assert backend.workspaces() == (two,)
            again = await backend.create(ask(B, path="/one"))
            assert again is not one
        assert claims_on(backend, again).clients == (B,)
    [record] = [r for r in caplog.records if r.msg == "workspace.failed"]
    assert record.workspace_id == one.id
    assert "boom" in caplog.text


async def test_a_workspace_that_fell_over_cannot_be_found_while_it_is_cleared_away():
    clearing = Gate()

    @asynccontextmanager
    async def fragile(plan):
        async with trio.open_nursery() as inside:
            inside.start_soon(fall_over_at, crash)
            try:
                yield Thing(plan)
            finally:
                with trio.CancelScope(shield=True):
                    await clearing.wait()

    async def fall_over_at(event):
        await event.wait()
        raise ValueError("boom")

    crash = trio.Event()
    async with open_test_backend(fragile) as backend:
        hosted = await backend.create(ask(A))
        crash.set()
        await clearing.reached()
        lost = gone(backend, hosted)
        clearing.open()
        assert lost


async def test_a_run_may_bring_down_its_own_workspace():
    async with open_test_backend(durable := RecordedWorkspaces()) as backend:
        hosted = await backend.create(ask(A))
        durable.at_start = partial(backend.retire, A)
        run = hosted.runs.accept(prompt("goodbye"))
        assert (await run.wait()).state is RunState.CANCELLED
        await wait_all_tasks_blocked()
        assert backend.idle


async def test_a_workspace_can_be_kept_open_for_something_other_than_a_claim():
    reasons = {"a run that goes on"}
    things = Workspaces()
    async with open_test_backend(things, keeps_open=lambda _: bool(reasons)) as backend:
        hosted = await backend.create(ask(A))
        await trio.sleep(1000.0)
        assert claims_on(backend, hosted).clients == ()
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
