"""Changes through a link that leads out of the workspace: always asked, with the real target."""

from pathlib import Path

import pytest
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from crush_trio.wire.asks import PermissionAction, PermissionMode, PermissionRequest
from crush_trio.wire.ids import AskId
from tests.agent.asking import WANTED, Office
from tests.tools.file_bench import open_bench


@pytest.mark.item("F1")
async def test_the_question_names_the_file_outside_and_the_link(tmp_path):
    async with open_bench(tmp_path) as bench:
        home = tmp_path / "home"
        home.mkdir()
        (home / ".bashrc").write_text("")
        (bench.root / "notes").symlink_to(home / ".bashrc")
        (bench.root / "dir").symlink_to(home)
        for named in ("notes", "dir/new", str(bench.root / "dir" / "x" / ".." / "other")):
            bench.person.asked.clear()
            await bench.history.record_read("s", home / ".bashrc", 2_000_000_000)
            await bench.write(named, f"{named}\n")
            wanted = bench.person.wanted
            assert wanted.always
            assert Path(wanted.params["file_path"]).parent == home
            assert wanted.params["file_path"] in wanted.description
            assert "to which the link" in wanted.description
            assert wanted.path == home


@pytest.mark.item("F1")
async def test_a_link_within_the_workspace_is_nothing_special(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("real/file", "old")
        (bench.root / "link").symlink_to("real")
        await bench.edit("link/file", "old", "new")
        assert bench.get("real/file") == "new"
        assert not bench.person.wanted.always
        bench.person.asked.clear()
        await bench.write(str(tmp_path / "outside"), "new")
        assert not bench.person.wanted.always


@pytest.mark.item("F.1")
async def test_neither_policy_nor_list_nor_hook_nor_grant_answers_what_is_always_asked(nursery):
    office = Office(allowed=["write"])
    office.permissions.auto_approve("s")
    wanted = evolve(WANTED, always=True)
    for number, mode in enumerate((PermissionMode.ALLOW, PermissionMode.ASK), 1):
        asking = office.want(nursery, f"c{number}", tool="write", wanted=wanted, policy=mode)
        await wait_all_tasks_blocked()
        assert asking.result is None
        office.permissions.answer(AskId(f"ask-{number}"), PermissionAction.ALLOW_SESSION)
        await wait_all_tasks_blocked()
        assert asking.result == "allowed"
    permit = office.permit("c3", tool="write")
    permit.approve()
    assert isinstance(office.permissions.judge(permit, wanted), PermissionRequest)
    office.permissions.skip = True
    assert await office.verdict("c4", tool="write", wanted=wanted) == "allowed"
