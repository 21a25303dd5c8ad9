"""Section H, the tools that read and change files, on both stores; F1, F5, J5 and L21 as they show.

A row of the table is called by its tool: `H view`. What each tool does in detail is in
`tests/tools/`.
"""

import os
from contextlib import asynccontextmanager

import pytest

from crush_trio.errors import SessionNotFound
from crush_trio.tools.base import ToolError
from crush_trio.tools.files.edit import EditTool, MultiEditTool, WriteTool
from crush_trio.tools.files.view import ViewTool
from crush_trio.tools.todos import TodosTool
from tests.store.stores import OPENINGS, S
from tests.tools.file_bench import NOW, open_bench

pytestmark = pytest.mark.real_clock


@pytest.fixture(params=OPENINGS)
def opened(request, tmp_path):
    """Return what opens a bench on each of the stores."""
    openings = OPENINGS[request.param](tmp_path / "data")

    @asynccontextmanager
    async def open_one():
        async with openings.open() as store, open_bench(tmp_path, store) as bench:
            yield bench

    return open_one


def tools_of(bench):
    view = ViewTool(bench.bench, bench.history)
    changing = [tool(bench.changes) for tool in (EditTool, MultiEditTool, WriteTool)]
    return [view, *changing, TodosTool(bench.bench)]


CHANGES = {
    "edit": lambda bench, path: bench.edit(path, "one", "two"),
    "multiedit": lambda bench, path: bench.multiedit(path, ("one", "two")),
    "write": lambda bench, path: bench.write(path, "two\n"),
}


@pytest.fixture(params=CHANGES)
def change(request):
    return CHANGES[request.param]


# ── H1: content, an error the model sees, or a failed run ───────────────────────────────────────


@pytest.mark.item("H1")
async def test_a_missing_argument_is_told_to_the_model(opened):
    async with opened() as bench:
        for tool in tools_of(bench):
            for required in tool.parameters["required"]:
                whole = dict.fromkeys(tool.parameters["required"], "x")
                arguments = {key: value for key, value in whole.items() if key != required}
                with pytest.raises(ToolError, match=f"{required} is required") as caught:
                    await tool.run(bench.call(tool.name, arguments))
                assert caught.value.result.is_error
                assert not caught.value.result.stop_turn


@pytest.mark.item("H1")
async def test_arguments_that_are_no_json_are_told_to_the_model(opened):
    async with opened() as bench:
        for tool in tools_of(bench):
            with pytest.raises(ToolError, match="not valid JSON"):
                await tool.run(bench.call(tool.name, '{"file_path": '))


@pytest.mark.item("H1")
async def test_a_session_that_does_not_exist_fails_the_run(opened):
    async with opened() as bench:
        with pytest.raises(SessionNotFound):
            await bench.write("a", "one\n", session_id="gone")
        with pytest.raises(SessionNotFound):
            await bench.todos(("a", "pending", ""), session_id="gone")


# ── H4, L21: paths ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H4", "L21")
async def test_relative_paths_begin_at_the_workspace_wherever_the_server_was_started(
    opened, tmp_path, monkeypatch
):
    async with opened() as bench:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a").write_text("not this one\n")
        path = bench.put("a", "one\n")
        assert "|one" in (await bench.view("a")).content
        await bench.edit("a", "one", "two")
        assert path.read_text() == "two\n"
        assert await bench.bench.store.read_paths(S) == [str(path)]
        assert {file.path for file in await bench.bench.store.files(S)} == {str(path)}


# ── H5: read before edit ────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H5")
async def test_a_file_must_have_been_read_before_it_is_changed(opened, change):
    async with opened() as bench:
        path = bench.put("a", "one\n")
        with pytest.raises(ToolError, match="has not been read"):
            await change(bench, "a")
        assert path.read_text() == "one\n"
        await bench.view("a")
        await change(bench, "a")
        assert path.read_text() == "two\n"


@pytest.mark.item("H5")
async def test_a_read_in_another_session_does_not_count(opened, change):
    async with opened() as bench:
        bench.put("a", "one\n")
        await bench.view("a", session_id="other")
        with pytest.raises(ToolError, match="has not been read"):
            await change(bench, "a")


@pytest.mark.item("H5")
@pytest.mark.parametrize(
    ("nanoseconds", "fresh"), [(0, True), (999_999_999, True), (1_000_000_000, False)]
)
async def test_modified_since_compares_whole_seconds(opened, change, nanoseconds, fresh):
    async with opened() as bench:
        path = bench.put("a", "one\n")
        await bench.view("a")
        os.utime(path, ns=(0, NOW * 10**9 + nanoseconds))
        if fresh:
            await change(bench, "a")
            assert path.read_text() == "two\n"
        else:
            with pytest.raises(ToolError, match="changed since"):
                await change(bench, "a")
            assert path.read_text() == "one\n"


@pytest.mark.item("H5")
async def test_a_change_records_a_read(opened, change):
    async with opened() as bench:
        path = bench.put("a", "one\n")
        bench.touch("a", 1000)
        await bench.history.record_read(S, path, 1000)
        await change(bench, "a")
        assert await bench.bench.store.last_read(S, str(path)) == int(path.stat().st_mtime)
        await bench.edit("a", "two", "three")
        assert path.read_text() == "three\n"


# ── H6, J5: versions ────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H6")
async def test_the_first_change_keeps_what_was_there_and_what_is_there(opened, change):
    async with opened() as bench:
        path = await bench.put_seen("a", "one\n")
        await change(bench, "a")
        assert await bench.versions(path) == [(0, "one\n"), (1, "two\n")]
        assert bench.announced() == [("created", 0, "one\n"), ("created", 1, "two\n")]


@pytest.mark.item("H6")
async def test_the_next_change_keeps_only_what_is_new(opened):
    async with opened() as bench:
        path = await bench.put_seen("a", "one\n")
        await bench.edit("a", "one", "two")
        await bench.edit("a", "two", "three")
        assert [content for _, content in await bench.versions(path)] == [
            "one\n",
            "two\n",
            "three\n",
        ]


@pytest.mark.item("H6")
async def test_what_somebody_else_made_of_the_file_is_a_version_too(opened):
    async with opened() as bench:
        path = await bench.put_seen("a", "one\n")
        await bench.edit("a", "one", "two")
        path.write_text("theirs\n")
        await bench.view("a")
        await bench.edit("a", "theirs", "three")
        expected = ["one\n", "two\n", "theirs\n", "three\n"]
        assert [content for _, content in await bench.versions(path)] == expected


@pytest.mark.item("H6")
async def test_a_new_file_was_empty_before(opened):
    async with opened() as bench:
        await bench.write("a", "one\n")
        assert await bench.versions(bench.root / "a") == [(0, ""), (1, "one\n")]


@pytest.mark.item("H6", "J5")
async def test_versions_count_on_from_those_of_other_sessions(opened):
    async with opened() as bench:
        path = await bench.put_seen("a", "one\n", session_id="other")
        await bench.edit("a", "one", "two", session_id="other")
        await bench.view("a")
        await bench.edit("a", "two", "three")
        assert await bench.versions(path) == [(2, "two\n"), (3, "three\n")]


# ── F1, F5: permission ──────────────────────────────────────────────────────────────────────────


@pytest.mark.item("F1")
async def test_inside_the_workspace_all_of_it_is_judged_and_outside_the_directory(
    opened, change, tmp_path
):
    async with opened() as bench:
        inside = await bench.put_seen("deep/er/a", "one\n")
        outside = await bench.put_seen(tmp_path.resolve() / "elsewhere" / "a", "one\n")
        for path in (inside, outside):
            await change(bench, path)
        assert [wanted.action for wanted in bench.person.asked] == ["write", "write"]
        assert [wanted.path for wanted in bench.person.asked] == [bench.root, outside.parent]


@pytest.mark.item("F5")
async def test_a_denied_change_stops_the_turn_and_shows_what_it_would_have_been(opened, change):
    async with opened() as bench:
        path = await bench.put_seen("a", "one\n")
        bench.person.refuses = True
        with pytest.raises(ToolError) as caught:
            await change(bench, "a")
        result = caught.value.result
        assert (result.content, result.stop_turn) == ("User denied permission", True)
        assert (result.metadata["additions"], result.metadata["removals"]) == (1, 1)
        assert path.read_text() == "one\n"
        assert await bench.versions(path) == []
        assert bench.published == []


# ── H8: what changes files runs alone ───────────────────────────────────────────────────────────


@pytest.mark.item("H8")
async def test_only_looking_may_run_beside_others(opened):
    async with opened() as bench:
        assert [tool.name for tool in tools_of(bench) if tool.parallel] == ["view"]


# ── The rows ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H view")
async def test_view_shows_two_hundred_numbered_lines_and_says_that_there_are_more(opened):
    async with opened() as bench:
        bench.put("a", "".join(f"{n}\n" for n in range(500)))
        content = (await bench.view("a")).content
        assert "     1|0\n" in content
        assert "   200|199\n" in content
        assert "   201|" not in content
        assert "The file has more lines" in content


@pytest.mark.item("H edit")
async def test_edit_wants_one_match_and_takes_one_that_differs_in_white_space(opened):
    async with opened() as bench:
        await bench.put_seen("a", "if x:\r\n\tone\r\n\ttwo\r\n\tone\r\n")
        with pytest.raises(ToolError, match="found 2 times"):
            await bench.edit("a", "one", "1")
        result = await bench.edit("a", "if x:\n    one\n", "if x:\n    1\n")
        assert "white space" in result.content
        assert bench.get("a") == "if x:\r\n\t1\r\n\ttwo\r\n\tone\r\n"


@pytest.mark.item("H multiedit")
async def test_multiedit_makes_the_edits_that_apply_with_one_permission(opened):
    async with opened() as bench:
        await bench.put_seen("a", "one\ntwo\n")
        result = await bench.multiedit("a", ("one", "1"), ("none", "0"), ("two", "2"))
        assert bench.get("a") == "1\n2\n"
        assert len(bench.person.asked) == 1
        assert result.metadata["edits_applied"] == 2
        assert [failed["index"] for failed in result.metadata["edits_failed"]] == [2]


@pytest.mark.item("H write")
async def test_write_creates_parents_and_refuses_what_is_there_already(opened):
    async with opened() as bench:
        await bench.write("deep/er/a", "one\n")
        assert bench.get("deep/er/a") == "one\n"
        with pytest.raises(ToolError, match="nothing would change"):
            await bench.write("deep/er/a", "one\n")


@pytest.mark.item("H todos")
async def test_todos_replace_the_list_and_an_unknown_status_fails_the_run(opened):
    async with opened() as bench:
        await bench.todos(("plan", "in_progress", "planning"), ("build", "pending", "building"))
        result = await bench.todos(("plan", "completed", "planning"))
        assert [todo.content for todo in (await bench.bench.store.session(S)).todos] == ["plan"]
        assert result.metadata["just_completed"] == ["plan"]
        with pytest.raises(ValueError, match="status"):
            await bench.todos(("plan", "finished", "planning"))
