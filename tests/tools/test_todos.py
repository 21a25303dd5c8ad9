"""`todos` replaces the list of a session and tells how far it has come."""

import pytest
import trio

from crush_trio.errors import SessionNotFound
from crush_trio.testing.explore.checkpoints import Call, CheckpointFaults, Fault, checkpoints_of
from crush_trio.tools.base import Tool, ToolError
from crush_trio.tools.todos import TodosTool
from crush_trio.wire.views import Todo, TodoStatus
from tests.store.stores import S
from tests.tools.file_bench import open_bench

PENDING = ("plan", "pending", "planning")
ACTIVE = ("build", "in_progress", "building")
DONE = ("test", "completed", "testing")


async def test_the_list_is_stored_and_published(tmp_path):
    async with open_bench(tmp_path) as bench:
        result = await bench.todos(PENDING, ACTIVE)
        stored = (await bench.bench.store.session(S)).todos
        assert stored == (
            Todo(content="plan", status=TodoStatus.PENDING, active_form="planning"),
            Todo(content="build", status=TodoStatus.IN_PROGRESS, active_form="building"),
        )
        [fact] = bench.published
        assert (fact.payload_type, fact.change, fact.entity.todos) == ("session", "updated", stored)
        assert "2 entries now: 0 completed, 1 in progress, 1 pending" in result.content
        assert result.metadata == {
            "is_new": True,
            "todos": [
                {"content": "plan", "status": "pending", "active_form": "planning"},
                {"content": "build", "status": "in_progress", "active_form": "building"},
            ],
            "just_started": "building",
            "completed": 0,
            "total": 2,
        }


async def test_what_was_finished_and_what_was_begun_is_told(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.todos(PENDING, ACTIVE, DONE)
        after = [("plan", "in_progress", ""), ("build", "completed", "building"), DONE]
        metadata = (await bench.todos(*after, ("new", "completed", ""))).metadata
        assert metadata["just_completed"] == ["build"]
        assert metadata["just_started"] == "plan"
        assert (metadata["is_new"], metadata["completed"], metadata["total"]) == (False, 3, 4)


async def test_what_goes_on_was_not_just_begun(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.todos(ACTIVE)
        metadata = (await bench.todos(ACTIVE, PENDING)).metadata
        assert "just_started" not in metadata
        assert "just_completed" not in metadata


async def test_an_empty_list_clears_the_list(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.todos(PENDING)
        result = await bench.todos()
        assert (await bench.bench.store.session(S)).todos == ()
        assert (result.metadata["todos"], result.metadata["total"]) == ([], 0)


@pytest.mark.parametrize("status", ["done", "", "PENDING"])
async def test_a_status_that_does_not_exist_fails_the_run(tmp_path, status):
    async with open_bench(tmp_path) as bench:
        await bench.todos(PENDING)
        with pytest.raises(ValueError, match="cannot have the status"):
            await bench.todos(DONE, ("build", status, ""))
        assert [todo.content for todo in (await bench.bench.store.session(S)).todos] == ["plan"]


@pytest.mark.parametrize("content", ["", "  "])
async def test_a_task_without_content_is_refused(tmp_path, content):
    async with open_bench(tmp_path) as bench:
        with pytest.raises(ToolError, match=r"todos\[1\].content is required"):
            await bench.todos(PENDING, (content, "pending", ""))


async def test_a_session_that_is_gone_fails_the_run(tmp_path):
    async with open_bench(tmp_path) as bench:
        with pytest.raises(SessionNotFound):
            await bench.todos(PENDING, session_id="gone")


async def test_a_cancel_never_leaves_a_list_stored_and_not_published(tmp_path):
    async with open_bench(tmp_path) as bench:
        checkpoints = await checkpoints_of(lambda: bench.todos(PENDING))
    for at in range(checkpoints):
        directory = tmp_path / str(at)
        directory.mkdir()
        async with open_bench(directory) as bench:
            with trio.CancelScope() as scope:
                await CheckpointFaults([Fault(at, Call(scope.cancel))]).drive(bench.todos(PENDING))
            stored = (await bench.bench.store.session(S)).todos
            assert bool(stored) == bool(bench.published)


async def test_the_tool_describes_itself(tmp_path):
    async with open_bench(tmp_path) as bench:
        tool: Tool = TodosTool(bench.bench)
        assert "whole list" in tool.description
        item = tool.parameters["properties"]["todos"]["items"]
        assert item["properties"]["status"]["enum"] == ["pending", "in_progress", "completed"]
        with pytest.raises(ToolError, match="todos is required"):
            await tool.run(bench.call("todos", {}))
