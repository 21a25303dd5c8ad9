"""`multiedit` applies what applies, in order, and asks once."""

import pytest

from crush_trio.tools.base import Tool, ToolError
from crush_trio.tools.files.edit import MultiEditTool
from tests.tools.file_bench import open_bench

pytestmark = pytest.mark.real_clock


async def test_each_edit_sees_what_the_ones_before_have_left(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = await bench.put_seen("a.txt", "one\ntwo\n")
        result = await bench.multiedit("a.txt", ("one", "1"), ("1\ntwo", "1\n2"), ("1", "uno"))
        assert bench.get("a.txt") == "uno\n2\n"
        assert result.content == f"Applied 3 of 3 edits to {path} (+2 -2 lines)."
        assert result.metadata == {
            "additions": 2,
            "removals": 2,
            "old_content": "one\ntwo\n",
            "new_content": "uno\n2\n",
            "edits_applied": 3,
        }
        assert bench.person.wanted.description == "Apply 3 of 3 edits to a.txt"
        assert await bench.versions(path) == [(0, "one\ntwo\n"), (1, "uno\n2\n")]


async def test_edits_that_fail_are_collected_and_the_others_are_made(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "one\ntwo\ntwo\n")
        edits = [("two", "2"), ("one", "1"), ("", "x"), ("none", "y", True)]
        result = await bench.multiedit("a.txt", *edits)
        assert bench.get("a.txt") == "1\ntwo\ntwo\n"
        assert not result.is_error
        assert result.metadata["edits_applied"] == 1
        failed = result.metadata["edits_failed"]
        assert [each["index"] for each in failed] == [1, 3, 4]
        assert failed[0]["edit"] == {"old_string": "two", "new_string": "2"}
        assert failed[2]["edit"] == {"old_string": "none", "new_string": "y", "replace_all": True}
        assert "found 2 times" in failed[0]["error"]
        assert "Edit 1 failed: old_string is found 2 times" in result.content
        assert "Edit 3 failed: old_string is empty" in result.content


async def test_if_no_edit_applies_nothing_is_written_and_nobody_asked(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "one\n")
        with pytest.raises(ToolError) as caught:
            await bench.multiedit("a.txt", ("two", "2"), ("three", "3"))
        assert "Edit 1 failed" in str(caught.value)
        assert "Edit 2 failed" in str(caught.value)
        assert bench.get("a.txt") == "one\n"
        assert bench.person.asked == []


async def test_edits_that_undo_each_other_are_refused(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "one\n")
        with pytest.raises(ToolError, match="nothing would change"):
            await bench.multiedit("a.txt", ("one", "two"), ("two", "one"))


async def test_the_first_edit_may_create_the_file(tmp_path):
    async with open_bench(tmp_path) as bench:
        result = await bench.multiedit("sub/a.txt", ("", "one\ntwo\n"), ("two", "2"), ("no", "x"))
        assert bench.get("sub/a.txt") == "one\n2\n"
        assert result.metadata["edits_applied"] == 2
        assert [each["index"] for each in result.metadata["edits_failed"]] == [3]


async def test_a_file_that_exists_is_not_created(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "one\n")
        with pytest.raises(ToolError, match="exists already"):
            await bench.multiedit("a.txt", ("", "new"), ("one", "1"))
        assert bench.get("a.txt") == "one\n"


async def test_line_endings_stay_through_all_edits(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "one\r\ntwo\r\n")
        await bench.multiedit("a.txt", ("one", "one\nmore"), ("more\ntwo", "less\ntwo"))
        assert bench.get("a.txt") == "one\r\nless\r\ntwo\r\n"


async def test_loose_matches_are_told_by_number(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "\tone\n\ttwo\n")
        result = await bench.multiedit("a.txt", ("one", "1"), ("    two\n", "    2\n"))
        assert bench.get("a.txt") == "\t1\n\t2\n"
        assert "Edit 2: old_string was found only without regard" in result.content


async def test_a_file_must_have_been_read(tmp_path):
    async with open_bench(tmp_path) as bench:
        bench.put("a.txt", "one\n")
        with pytest.raises(ToolError, match="has not been read"):
            await bench.multiedit("a.txt", ("one", "two"))
        with pytest.raises(ToolError, match="does not exist"):
            await bench.multiedit("b.txt", ("one", "two"))


async def test_a_refused_call_shows_what_it_would_have_been(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "one\n")
        bench.person.refuses = True
        with pytest.raises(ToolError) as caught:
            await bench.multiedit("a.txt", ("one", "1"), ("two", "2"))
        metadata = caught.value.result.metadata
        assert (metadata["edits_applied"], metadata["new_content"]) == (1, "1\n")
        assert bench.get("a.txt") == "one\n"


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([], "edits is empty"),
        ([{"old_string": "one"}], r"edits\[0\].new_string is required"),
        ([{"old_string": "one", "new_string": "1"}, None], r"edits\[1\].old_string is required"),
        ("one", "invalid arguments"),
    ],
)
async def test_an_edit_with_a_text_left_out_is_not_taken_for_a_deletion(tmp_path, edits, message):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a.txt", "one\n")
        tool = MultiEditTool(bench.changes)
        with pytest.raises(ToolError, match=message):
            await tool.run(bench.call("multiedit", {"file_path": "a.txt", "edits": edits}))
        assert bench.get("a.txt") == "one\n"


async def test_the_tool_describes_itself(tmp_path):
    async with open_bench(tmp_path) as bench:
        tool: Tool = MultiEditTool(bench.changes)
        assert "edits" in tool.description
        operation = tool.parameters["properties"]["edits"]["items"]
        assert operation["required"] == ["old_string", "new_string"]
