"""`view` shows files, and remembers who has seen them."""

import pytest

from crush_trio.tools.base import Tool, ToolError
from crush_trio.tools.files.view import ViewTool, number_lines
from tests.store.stores import S
from tests.tools.file_bench import NOW, open_bench

pytestmark = pytest.mark.real_clock

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


async def last_read(bench, path):
    return await bench.bench.store.last_read(S, str(path))


async def test_lines_are_numbered(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = bench.put("a.txt", "one\n\ttwo\n")
        result = await bench.view("a.txt")
        assert result.content == "<file>\n     1|one\n     2|\ttwo\n</file>"
        assert result.metadata == {"file_path": str(path), "content": "one\n\ttwo"}
        assert not result.is_error
        assert bench.person.asked == []


def test_numbers_are_aligned_to_six_columns_and_may_grow_beyond():
    assert number_lines(["a", "b"], 999_999) == "999999|a\n1000000|b"


async def test_two_hundred_lines_are_shown_unless_the_model_says_how_many(tmp_path):
    async with open_bench(tmp_path) as bench:
        bench.put("a.txt", "".join(f"{n}\n" for n in range(1, 302)))
        for options in ({}, {"limit": 0}, {"limit": -1}):
            result = await bench.view("a.txt", **options)
            assert "   200|200\n</file>" in result.content
            assert result.content.endswith("To see those after line 200, set offset to 200.)")
        result = await bench.view("a.txt", offset=200)
        assert result.content.startswith("<file>\n   201|201\n")
        result = await bench.view("a.txt", offset=300, limit=1)
        assert result.content == "<file>\n   301|301\n</file>"


async def test_an_empty_file_is_said_to_be_empty(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = bench.put("a.txt")
        assert (await bench.view("a.txt")).content == "(The file is empty.)"
        assert await last_read(bench, path) == NOW


async def test_a_negative_offset_is_refused(tmp_path):
    async with open_bench(tmp_path) as bench:
        bench.put("a.txt", "one\n")
        with pytest.raises(ToolError, match="cannot be negative"):
            await bench.view("a.txt", offset=-1)


async def test_a_directory_is_refused(tmp_path):
    async with open_bench(tmp_path) as bench:
        (bench.root / "sub").mkdir()
        with pytest.raises(ToolError, match="is a directory"):
            await bench.view("sub")


# ── Missing files ───────────────────────────────────────────────────────────────────────────────


async def test_a_missing_file_is_answered_with_up_to_three_similar_ones(tmp_path):
    async with open_bench(tmp_path) as bench:
        for name in ("README.md", "readme.txt", "README.rst", "readme.html", "setup.py"):
            bench.put(name)
        with pytest.raises(ToolError) as caught:
            await bench.view("readme")
        [head, *names] = str(caught.value).splitlines()
        assert head.endswith("readme does not exist. Did you mean one of these?")
        assert len(names) == 3
        assert all("readme" in name.lower() for name in names)


@pytest.mark.parametrize(
    ("wanted", "there"), [("conifg.py", "config.py"), ("User.ts", "user.tsx"), ("a.c", "A.c")]
)
async def test_names_are_similar_if_letters_are_swapped_or_cased_otherwise(tmp_path, wanted, there):
    async with open_bench(tmp_path) as bench:
        bench.put(there)
        with pytest.raises(ToolError, match=there):
            await bench.view(wanted)


async def test_a_missing_file_without_similar_ones_is_just_missing(tmp_path):
    async with open_bench(tmp_path) as bench:
        bench.put("setup.py")
        for name in ("zzz", "nowhere/zzz"):
            with pytest.raises(ToolError, match=r"does not exist$"):
                await bench.view(name)


# ── Outside the workspace ───────────────────────────────────────────────────────────────────────


async def test_outside_the_workspace_a_person_is_asked_before_anything_is_touched(tmp_path):
    async with open_bench(tmp_path) as bench:
        outside = tmp_path / "elsewhere" / "secret.txt"
        bench.person.refuses = True
        with pytest.raises(ToolError, match="User denied permission"):
            await bench.view(outside, limit=5)
        wanted = bench.person.wanted
        assert (wanted.action, wanted.path) == ("read", outside.parent)
        assert wanted.params == {"file_path": str(outside), "offset": 0, "limit": 5}
        assert await last_read(bench, outside) is None


async def test_a_link_that_leads_out_of_the_workspace_is_outside(tmp_path):
    async with open_bench(tmp_path) as bench:
        (tmp_path / "secret.txt").write_text("secret\n")
        (bench.root / "link").symlink_to(tmp_path / "secret.txt")
        for name in ("link", "../secret.txt", "sub/../../secret.txt"):
            assert "secret" in (await bench.view(name)).content
        assert [wanted.path for wanted in bench.person.asked] == [tmp_path.resolve()] * 3


async def test_a_sibling_whose_name_begins_like_the_workspace_is_outside(tmp_path):
    async with open_bench(tmp_path) as bench:
        sibling = tmp_path / f"{bench.root.name}-2"
        sibling.mkdir()
        (sibling / "a").write_text("a\n")
        await bench.view(sibling / "a")
        assert bench.person.wanted.path == sibling.resolve()


async def test_directories_that_are_readable_need_no_permission(tmp_path):
    async with open_bench(tmp_path) as bench:
        skills = (tmp_path / "skills").resolve()
        skills.mkdir()
        (skills / "SKILL.md").write_text("do it\n")
        assert "do it" in (await bench.view(skills / "SKILL.md", readable=(skills,))).content
        assert bench.person.asked == []


# ── Read marks ──────────────────────────────────────────────────────────────────────────────────


async def test_a_read_is_recorded_by_the_path_that_a_link_leads_to(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = bench.put("real.txt", "one\n")
        (bench.root / "link.txt").symlink_to("real.txt")
        await bench.view("link.txt")
        assert await bench.bench.store.read_paths(S) == [str(path)]


async def test_a_file_from_the_future_has_been_seen_as_it_is(tmp_path):
    """The clock of a file server may be ahead of ours; its files must not be locked by that."""
    async with open_bench(tmp_path) as bench:
        path = bench.put("a.txt", "one\n")
        bench.touch("a.txt", NOW + 100)
        await bench.view("a.txt")
        assert await last_read(bench, path) == NOW + 100
        await bench.edit("a.txt", "one", "two")


async def test_what_could_not_be_shown_was_not_read(tmp_path):
    async with open_bench(tmp_path) as bench:
        bench.put("binary", b"\0\1")
        bench.put("a.png", PNG)
        for name in ("binary", "a.png", "missing"):
            with pytest.raises(ToolError):
                await bench.view(name)
        assert await bench.bench.store.read_paths(S) == []


# ── Pictures and diagnostics ────────────────────────────────────────────────────────────────────


async def test_a_picture_is_for_models_that_can_see(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = bench.put("photo.jpg", PNG)
        with pytest.raises(ToolError, match="does not accept images"):
            await bench.view("photo.jpg")
        result = await bench.view("photo.jpg", images=True)
        assert (result.media.data, result.media.mime_type) == (PNG, "image/png")
        assert await last_read(bench, path) == NOW


async def test_diagnostics_follow_the_text(tmp_path):
    async def diagnose(path):
        return f"2 errors in {path.name}"

    async with open_bench(tmp_path) as bench:
        bench.put("a.txt", "one\n")
        result = await bench.view("a.txt", diagnose=diagnose)
        assert result.content.endswith("</file>\n\n2 errors in a.txt")


async def test_the_tool_describes_itself(tmp_path):
    async with open_bench(tmp_path) as bench:
        tool: Tool = ViewTool(bench.bench, bench.history)
        assert "line numbers" in tool.description
        assert tool.parameters["required"] == ["file_path"]
        assert set(tool.parameters["properties"]) == {"file_path", "offset", "limit"}
        with pytest.raises(ToolError, match="file_path is required"):
            await tool.run(bench.call("view", {}))
