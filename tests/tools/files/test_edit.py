"""`edit` replaces, deletes and creates; everything else about the file stays."""

import stat

import pytest

from crush_trio.tools.base import Tool, ToolError
from crush_trio.tools.files.edit import EditTool
from tests.tools.file_bench import open_bench

pytestmark = pytest.mark.real_clock


# ── Replacing ───────────────────────────────────────────────────────────────────────────────────


async def test_a_text_is_replaced(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = await bench.put_seen("a.txt", "one\ntwo\nthree\n")
        result = await bench.edit("a.txt", "two", "2\n2")
        assert bench.get("a.txt") == "one\n2\n2\nthree\n"
        assert result.content == f"Edited {path} (+2 -1 lines)."
        assert result.metadata == {
            "additions": 2,
            "removals": 1,
            "old_content": "one\ntwo\nthree\n",
            "new_content": "one\n2\n2\nthree\n",
        }


async def test_an_empty_new_text_deletes(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "one\ntwo\nthree\n")
        await bench.edit("a.txt", "two\n", "")
        assert bench.get("a.txt") == "one\nthree\n"


async def test_replacing_all_replaces_all(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "x\ny\nx\n")
        with pytest.raises(ToolError, match="found 2 times"):
            await bench.edit("a.txt", "x", "z")
        assert bench.get("a.txt") == "x\ny\nx\n"
        await bench.edit("a.txt", "x", "z", replace_all=True)
        assert bench.get("a.txt") == "z\ny\nz\n"


async def test_several_edits_in_a_row_need_no_new_look(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "0\n")
        for n in range(4):
            await bench.edit("a.txt", f"{n}", f"{n + 1}")
        assert bench.get("a.txt") == "4\n"


async def test_windows_line_endings_stay_and_nobody_sees_them(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "one\r\ntwo\r\nthree")
        result = await bench.edit("a.txt", "one\ntwo\n", "one\nand\ntwo\n")
        assert bench.get("a.txt") == "one\r\nand\r\ntwo\r\nthree"
        assert result.metadata["old_content"] == "one\ntwo\nthree"
        assert result.metadata["new_content"] == "one\nand\ntwo\nthree"
        await bench.edit("a.txt", "and\r\ntwo\r\n", "")
        assert bench.get("a.txt") == "one\r\nthree"


async def test_the_history_has_the_line_endings(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = await bench.put_seen("a.txt", "\ufeffone\r\n")
        await bench.edit("a.txt", "one", "two")
        assert await bench.versions(path) == [(0, "\ufeffone\r\n"), (1, "\ufefftwo\r\n")]


async def test_a_byte_order_mark_stays_and_is_not_matched(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "\ufeffone\n")
        await bench.edit("a.txt", "one\n", "two\n")
        assert bench.get("a.txt") == "\ufefftwo\n"


async def test_a_loose_match_is_made_and_told(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.py", "class A:\r\n\tdef f(self):\r\n\t\tpass\r\n")
        new = "    def f(self):\n        return 1\n"
        result = await bench.edit("a.py", "    def f(self):\n        pass\n", new)
        assert bench.get("a.py") == "class A:\r\n\tdef f(self):\r\n\t\treturn 1\r\n"
        assert "without regard to white space, at lines 2 to 3" in result.content


async def test_an_edit_that_would_change_nothing_is_refused(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "\tone\n")
        for old, new in (("one", "one"), ("    one\n", "\tone\n"), ("one\r\n", "one\n")):
            with pytest.raises(ToolError, match="nothing would change"):
                await bench.edit("a.txt", old, new)
        assert bench.person.asked == []


async def test_the_mode_of_the_file_stays(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = await bench.put_seen("run.sh", "one\n")
        path.chmod(0o755)
        await bench.edit("run.sh", "one", "two")
        assert stat.S_IMODE(path.stat().st_mode) == 0o755


# ── Links ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_link_inside_the_workspace_stays_a_link(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = await bench.put_seen("real.txt", "one\n")
        link = bench.root / "link.txt"
        link.symlink_to("real.txt")
        await bench.edit("link.txt", "one", "two")
        assert link.is_symlink()
        assert path.read_text() == "two\n"
        assert bench.person.wanted.path == bench.root


async def test_writing_through_a_link_that_leaves_the_workspace_is_outside(tmp_path):
    async with open_bench(tmp_path) as bench:
        outside = tmp_path.resolve() / "outside.txt"
        (bench.root / "link.txt").symlink_to(outside)
        await bench.edit("link.txt", "", "new\n")
        assert outside.read_text() == "new\n"
        wanted = bench.person.wanted
        assert (wanted.path, wanted.params["file_path"]) == (outside.parent, str(outside))


# ── Creating ────────────────────────────────────────────────────────────────────────────────────


async def test_an_empty_old_text_creates_the_file_and_its_directories(tmp_path):
    async with open_bench(tmp_path) as bench:
        result = await bench.edit("deep/er/a.txt", "", "one\r\ntwo\n")
        path = bench.root / "deep/er/a.txt"
        assert bench.get("deep/er/a.txt") == "one\r\ntwo\n"
        assert result.content == f"Created {path} (+2 -0 lines)."
        assert await bench.versions(path) == [(0, ""), (1, "one\r\ntwo\n")]


@pytest.mark.parametrize("content", ["", "there\n"])
async def test_a_file_that_exists_is_not_created(tmp_path, content):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", content)
        with pytest.raises(ToolError, match="exists already"):
            await bench.edit("a.txt", "", "new")
        assert bench.get("a.txt") == content


async def test_a_missing_file_is_not_edited(tmp_path):
    async with open_bench(tmp_path) as bench:
        with pytest.raises(ToolError, match="does not exist"):
            await bench.edit("a.txt", "old", "new")


async def test_a_file_just_created_can_be_edited(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.edit("a.txt", "", "one\n")
        await bench.edit("a.txt", "one", "two")
        assert bench.get("a.txt") == "two\n"


# ── Permission and diagnostics ──────────────────────────────────────────────────────────────────


async def test_a_person_sees_the_whole_text_before_and_after(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = await bench.put_seen("sub/a.txt", "one\n")
        await bench.edit("sub/a.txt", "one", "two")
        wanted = bench.person.wanted
        assert (wanted.action, wanted.path) == ("write", bench.root)
        assert wanted.description == "Edit sub/a.txt"
        assert wanted.params == {
            "file_path": str(path),
            "old_content": "one\n",
            "new_content": "two\n",
        }


async def test_a_refused_edit_is_not_made_and_shows_what_it_would_have_been(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = await bench.put_seen("a.txt", "one\n")
        bench.person.refuses = True
        with pytest.raises(ToolError) as caught:
            await bench.edit("a.txt", "one", "two")
        result = caught.value.result
        assert result.stop_turn
        assert (result.metadata["old_content"], result.metadata["new_content"]) == (
            "one\n",
            "two\n",
        )
        assert bench.get("a.txt") == "one\n"
        assert await bench.versions(path) == []


async def test_diagnostics_follow_the_answer(tmp_path):
    async def diagnose(path):
        return f"1 error in {path.read_text()!r}"

    async with open_bench(tmp_path) as bench:
        bench.changes.diagnose = diagnose
        await bench.put_seen("a.txt", "one\n")
        result = await bench.edit("a.txt", "one", "two")
        assert result.content.endswith("lines).\n\n1 error in 'two\\n'")


async def test_the_tool_describes_itself(tmp_path):
    async with open_bench(tmp_path) as bench:
        tool: Tool = EditTool(bench.changes)
        assert "old_string" in tool.description
        assert tool.parameters["required"] == ["file_path", "old_string", "new_string"]
        with pytest.raises(ToolError, match="new_string is required"):
            await tool.run(bench.call("edit", {"file_path": "a", "old_string": "b"}))
