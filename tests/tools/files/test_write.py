"""`write` replaces a whole file that the session knows, or creates one."""

import pytest

from crush_trio.tools.base import Tool, ToolError
from crush_trio.tools.files.edit import WriteTool
from tests.tools.file_bench import NOW, open_bench

pytestmark = pytest.mark.real_clock


async def test_a_new_file_is_written_as_it_is_with_its_directories(tmp_path):
    async with open_bench(tmp_path) as bench:
        result = await bench.write("deep/er/a.txt", "\ufeffone\r\ntwo\n")
        path = bench.root / "deep/er/a.txt"
        assert bench.get("deep/er/a.txt") == "\ufeffone\r\ntwo\n"
        assert result.content == f"Wrote {path} (+2 -0 lines)."
        assert await bench.versions(path) == [(0, ""), (1, "\ufeffone\r\ntwo\n")]
        assert bench.person.wanted.description == "Create deep/er/a.txt"
        assert bench.person.wanted.params.keys() == {"file_path", "new_content"}


async def test_an_empty_file_can_be_created(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.write("a.txt", "")
        assert bench.get("a.txt") == ""


async def test_a_file_that_was_read_is_replaced(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "one\ntwo\n")
        result = await bench.write("a.txt", "one\n2\n")
        assert bench.get("a.txt") == "one\n2\n"
        assert result.metadata == {
            "diff": "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n",
            "additions": 1,
            "removals": 1,
        }
        assert bench.person.wanted.description == "Replace all of a.txt"


async def test_a_file_keeps_its_line_endings_and_its_mark(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "\ufeffone\r\ntwo\r\n")
        await bench.write("a.txt", "one\n2\n")
        assert bench.get("a.txt") == "\ufeffone\r\n2\r\n"


@pytest.mark.parametrize(
    "there", ["one\ntwo\n", "one\r\ntwo\r\n", "one\r\ntwo\n", "\ufeffone\ntwo\n"]
)
async def test_what_is_there_already_is_refused(tmp_path, there):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", there)
        with pytest.raises(ToolError, match="nothing would change"):
            await bench.write("a.txt", "one\ntwo\n")
        assert bench.get("a.txt") == there
        assert bench.person.asked == []


async def test_a_file_that_was_never_read_is_refused(tmp_path):
    async with open_bench(tmp_path) as bench:
        bench.put("a.txt", "one\n")
        with pytest.raises(ToolError, match="has not been read"):
            await bench.write("a.txt", "two\n")
        assert bench.get("a.txt") == "one\n"


async def test_a_file_that_changed_since_is_refused(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "one\n")
        bench.touch("a.txt", NOW + 1)
        with pytest.raises(ToolError, match="changed since"):
            await bench.write("a.txt", "two\n")
        assert bench.get("a.txt") == "one\n"


async def test_a_directory_is_refused(tmp_path):
    async with open_bench(tmp_path) as bench:
        (bench.root / "sub").mkdir()
        with pytest.raises(ToolError, match="is a directory"):
            await bench.write("sub", "two\n")


async def test_outside_the_workspace_its_directory_is_judged(tmp_path):
    async with open_bench(tmp_path) as bench:
        outside = tmp_path.resolve() / "elsewhere" / "a.txt"
        result = await bench.write(outside, "one\n")
        assert bench.person.wanted.path == outside.parent
        assert f"+++ b/{outside}" in result.metadata["diff"]


async def test_a_refused_write_creates_nothing_and_shows_the_diff(tmp_path):
    async with open_bench(tmp_path) as bench:
        bench.person.refuses = True
        with pytest.raises(ToolError) as caught:
            await bench.write("sub/a.txt", "one\n")
        assert "+one" in caught.value.result.metadata["diff"]
        assert list(bench.root.iterdir()) == []


async def test_the_tool_describes_itself(tmp_path):
    async with open_bench(tmp_path) as bench:
        tool: Tool = WriteTool(bench.changes)
        assert "whole file" in tool.description
        assert tool.parameters["required"] == ["file_path", "content"]
        with pytest.raises(ToolError, match="content is required"):
            await tool.run(bench.call("write", {"file_path": "a"}))
