"""Contract E.2: creating workspaces, one per directory; and how they end.

Claims are in `test_e_claims.py`, the end of the server in `test_e_shutdown.py`. Races between all of
these are in `tests/backend/test_backend_races.py`.
"""

import logging

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.backend.backend import open_backend
from crush_trio.errors import (
    ChannelMismatch,
    ClientIdInvalid,
    ClientRetired,
    PathMissing,
    WorkspaceNotFound,
)
from crush_trio.testing import Gate
from crush_trio.testing.server.turns import prompt
from crush_trio.wire.runs import RunState
from tests.backend.hosts import (
    A,
    B,
    C,
    RecordedWorkspaces,
    Workspaces,
    ask,
    claims_on,
    creating,
    open_test_backend,
)


@pytest.mark.item("E1")
@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (ask(A, path=""), PathMissing),
        (ask("not a uuid"), ClientIdInvalid),
        (ask(""), ClientIdInvalid),
        (ask("", path=""), PathMissing),
    ],
)
async def test_a_create_needs_a_path_and_then_a_client_id(request_, error):
    things = Workspaces()
    async with open_test_backend(things) as backend:
        with pytest.raises(error):
            await backend.create(request_)
        assert backend.idle
    assert things.begun == []


@pytest.mark.item("E2", "E3")
@pytest.mark.real_clock
async def test_links_to_one_directory_lead_to_one_workspace(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    async with open_backend(Workspaces()) as backend:
        first = await backend.create(ask(A, path=str(tmp_path / "real")))
        second = await backend.create(ask(B, path=f"{tmp_path}/link/../link/"))
        other = await backend.create(ask(B, path=str(tmp_path)))
        assert second is first
        assert other is not first
        assert first.plan.path == str(tmp_path / "real")


@pytest.mark.item("E2")
@pytest.mark.real_clock
async def test_a_directory_that_does_not_exist_can_be_hosted(tmp_path):
    async with open_backend(Workspaces()) as backend:
        first = await backend.create(ask(A, path=str(tmp_path / "no" / "such")))
        assert await backend.create(ask(B, path=f"{tmp_path}/no//such/.")) is first


@pytest.mark.item("E3")
async def test_a_second_create_gets_the_same_workspace_on_the_first_ones_terms(caplog):
    caplog.set_level(logging.DEBUG, "crush_trio.backend")
    async with open_test_backend() as backend:
        first = await backend.create(ask(A, yolo=True, data_dir="/data", env=("KEY=secret",)))
        second = await backend.create(ask(B, debug=True, env=("KEY=other",)))
        assert second is first
        assert claims_on(backend, first).clients == (A, B)
        assert (first.plan.terms.yolo, first.plan.terms.debug) == (True, False)
        assert (first.plan.terms.data_dir, first.plan.terms.env) == ("/data", ("KEY=secret",))
    [record] = [r for r in caplog.records if r.msg == "workspace.terms_ignored"]
    assert record.levelno == logging.DEBUG
    assert record.differences == ("yolo", "debug", "data_dir", "env")
    assert "secret" not in str(vars(record))


@pytest.mark.item("E3")
async def test_nothing_is_logged_about_identical_terms(caplog):
    caplog.set_level(logging.DEBUG, "crush_trio.backend")
    async with open_test_backend() as backend:
        for client_id in (A, B, A):
            await backend.create(ask(client_id, yolo=True, env=("A=b",), channels=("x",)))
    assert [r for r in caplog.records if r.msg == "workspace.terms_ignored"] == []


@pytest.mark.item("E4", "L34")
@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [
        ((), (), True),
        (("a", "b"), ("a", "b"), True),
        (("a", "b"), ("b", "a"), False),
        ((), ("a",), False),
        (("a",), (), False),
    ],
)
async def test_channels_must_be_the_same_list(first, second, fits):
    async with open_test_backend() as backend:
        hosted = await backend.create(ask(A, channels=first))
        if fits:
            assert await backend.create(ask(B, channels=second)) is hosted
            assert claims_on(backend, hosted).clients == (A, B)
        else:
            with pytest.raises(ChannelMismatch):
                await backend.create(ask(B, channels=second))
            assert claims_on(backend, hosted).clients == (A,)


@pytest.mark.item("E5")
async def test_creates_that_come_together_share_one_opening():
    opening = Gate()
    things = Workspaces(opening=opening)
    async with open_test_backend(things) as backend:
        async with creating(backend, ask(A, yolo=True), ask(B), ask(C)) as answers:
            opening.open()
        [hosted] = set(answers.values())
        assert claims_on(backend, hosted).clients == (A, B, C)
        assert hosted.plan.terms.yolo
        assert len(things.begun) == 1


@pytest.mark.item("E6")
async def test_a_workspace_cannot_be_found_before_its_creator_holds_it():
    opening = Gate()
    async with open_test_backend(Workspaces(opening=opening)) as backend:
        place = await backend.id_of(ask(A).path)
        async with creating(backend, ask(A)) as answers:
            assert backend.workspaces() == ()
            with pytest.raises(WorkspaceNotFound):
                backend.workspace(place)
            opening.open()
        hosted = backend.workspace(place)
        assert answers[A] is hosted
        assert claims_on(backend, hosted).clients == (A,)


@pytest.mark.item("E7", "E19")
async def test_a_failed_create_registers_nothing_and_lets_the_server_go_idle():
    things = Workspaces(open_failures=[OSError("disk full")])
    async with open_test_backend(things) as backend:
        with pytest.raises(OSError, match="disk full"):
            await backend.create(ask(A))
        assert backend.workspaces() == ()
        assert backend.idle
        await backend.wait_shutdown()
        assert trio.current_time() == pytest.approx(60.0)


@pytest.mark.item("E7")
async def test_after_a_failed_create_the_directory_can_be_created_again():
    things = Workspaces(open_failures=[OSError("disk full")])
    async with open_test_backend(things) as backend:
        with pytest.raises(OSError, match="disk full"):
            await backend.create(ask(A))
        assert claims_on(backend, await backend.create(ask(A))).clients == (A,)


@pytest.mark.item("E8", "E18")
async def test_a_create_whose_client_retires_meanwhile_fails_and_its_workspace_is_closed():
    opening = Gate()
    things = Workspaces(opening=opening)
    async with open_test_backend(things) as backend:
        async with creating(backend, ask(A)) as answers:
            backend.retire(A)
            opening.open()
        assert isinstance(answers[A], ClientRetired)
        await wait_all_tasks_blocked()
        assert things.closed == things.begun
        assert backend.idle


@pytest.mark.item("E8", "E18")
async def test_a_retirement_is_not_forgotten_by_a_create_that_takes_longer_than_memory():
    opening = Gate()
    async with open_test_backend(Workspaces(opening=opening), retired_for=10.0) as backend:
        async with creating(backend, ask(A)) as answers:
            backend.retire(A)
            await trio.sleep(100.0)
            opening.open()
        assert isinstance(answers[A], ClientRetired)


@pytest.mark.item("E9", "L41")
async def test_another_version_is_logged_and_said_in_the_answer_to_the_create(caplog):
    async with open_test_backend(version="v2") as backend:
        await backend.create(ask(A, version="v2"))
        assert caplog.records == []
        await backend.create(ask(B, version="v1"))
    [record] = caplog.records
    assert (record.msg, record.client_id) == ("client.version_differs", B)
    assert "v1" in record.notice


# ── Better than the contract ────────────────────────────────────────────────────────────────────


@pytest.mark.item("L20")
async def test_closing_one_workspace_leaves_the_runs_of_the_others_alone():
    async with open_test_backend(RecordedWorkspaces(seconds=100.0)) as backend:
        one = await backend.create(ask(A, path="/one"))
        two = await backend.create(ask(B, path="/two"))
        with backend.attach(two.id, B):
            runs = [hosted.runs.accept(prompt("work")) for hosted in (one, two)]
            backend.retire(A)
            states = [(await run.wait()).state for run in runs]
        assert states == [RunState.CANCELLED, RunState.COMPLETED]


@pytest.mark.item("L33")
async def test_a_directory_that_is_being_closed_is_opened_anew_when_that_is_done():
    closing = Gate()
    things = Workspaces(closing=closing)
    async with open_test_backend(things) as backend:
        first = await backend.create(ask(A))
        backend.release(first.id, A)
        await wait_all_tasks_blocked()
        async with creating(backend, ask(A), ask(B)) as answers:
            assert len(things.begun) == 1
            closing.open()
        assert answers[A] is answers[B] is not first
        assert [plan.id for plan in things.begun] == [first.id, answers[A].id]


@pytest.mark.item("L32")
async def test_leaving_the_backend_is_bounded_by_the_limits_of_its_workspaces():
    async with open_test_backend(RecordedWorkspaces(seconds=80_000.0)) as backend:
        hosted = await backend.create(ask(A))
        run = hosted.runs.accept(prompt("work"))
        await run.journaled()
        began = trio.current_time()
    assert trio.current_time() - began < 20.0
    assert (await run.wait()).state is RunState.CANCELLED
