"""The tool `ls`."""

import pytest

from crush_trio.tools.search.listing import ENTRIES, UNTRACKED_ENTRIES, LsTool
from crush_trio.wire.config import ListingLimits
from tests.tools.search_bench import search_bench


async def listed(bench, *, limits=None, **arguments):
    result = await bench.run(LsTool(bench.bench, limits=limits), **arguments)
    return result.content.split("\n")


def work_tree(tmp_path):
    bench = search_bench(tmp_path)
    (bench.root / ".git").mkdir()
    return bench


async def test_directory_is_drawn_as_a_tree(tmp_path):
    bench = work_tree(tmp_path)
    for name in ("src/a.py", "src/deep/down/b.py", "README.md", ".github/ci.yml", "a.txt"):
        bench.put(name)
    (bench.root / "link").symlink_to("src")
    assert await listed(bench) == [
        f"{bench.root}/",
        "  .github/",
        "    ci.yml",
        "  README.md",
        "  a.txt",
        "  link",
        "  src/",
        "    a.py",
        "    deep/",
        "      down/",
        "        b.py",
    ]


async def test_ignored_files_and_noise_are_left_out(tmp_path):
    bench = work_tree(tmp_path)
    bench.put(".gitignore", "*.log\n")
    for name in ("a.log", "node_modules/x", "keep/x.min.js", "dist/y", "b.py", "c.js"):
        bench.put(name)
    shown = await listed(bench, path=".", ignore=["dist/", "*.{min.js,py}"])
    assert shown == [f"{bench.root}/", "  .gitignore", "  c.js", "  keep/"]


async def test_depth_limits_the_levels(tmp_path):
    bench = work_tree(tmp_path)
    bench.put("a/b/c")
    assert await listed(bench, depth=1) == [f"{bench.root}/", "  a/"]
    limits = ListingLimits(max_depth=2)
    assert await listed(bench, limits=limits) == [f"{bench.root}/", "  a/", "    b/"]
    assert await listed(bench, limits=limits, depth=1) == [f"{bench.root}/", "  a/"]


async def test_listing_that_is_cut_shows_the_upper_levels(tmp_path):
    bench = work_tree(tmp_path)
    for number in range(3):
        bench.put(f"a/{number}")
        bench.put(f"{number}")
    result = await bench.run(LsTool(bench.bench, limits=ListingLimits(max_items=5)))
    assert result.content.split("\n\n")[0].split("\n")[1:] == ["  0", "  1", "  2", "  a/", "    0"]
    assert "Only the first 5 entries" in result.content
    assert result.metadata == {"number_of_files": 5, "truncated": True}


@pytest.mark.heavy
async def test_a_thousand_entries_are_shown_of_a_project(tmp_path):
    bench = work_tree(tmp_path)
    for number in range(ENTRIES + 1):
        bench.put(f"{number}")
    result = await bench.run(LsTool(bench.bench))
    assert result.metadata == {"number_of_files": ENTRIES, "truncated": True}


async def test_little_is_shown_of_a_directory_that_is_no_project(tmp_path):
    bench = search_bench(tmp_path)
    bench.put("a/b/c/d")
    assert await listed(bench) == [f"{bench.root}/", "  a/", "    b/"]
    assert "        d" in await listed(bench, depth=9)
    for number in range(UNTRACKED_ENTRIES + 1):
        bench.put(f"{number}")
    result = await bench.run(LsTool(bench.bench))
    assert result.metadata == {"number_of_files": UNTRACKED_ENTRIES, "truncated": True}


async def test_empty_directory_says_so(tmp_path):
    bench = search_bench(tmp_path)
    result = await bench.run(LsTool(bench.bench), "")
    assert result.content == f"{bench.root}/\n  (nothing)"
    assert result.metadata == {"number_of_files": 0, "truncated": False}


@pytest.mark.item("F1")
async def test_listing_inside_the_workspace_asks_nobody_and_outside_asks_for_the_real_place(
    tmp_path,
):
    bench = search_bench(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (bench.root / "link").symlink_to(outside)
    bench.put("a/b")
    await listed(bench, path="a")
    assert bench.asked.wanted == []
    for path in ("../outside", str(outside), "link", "a/../link"):
        await listed(bench, path=path, ignore=["x"], depth=3)
        wanted = bench.asked.wanted.pop()
        assert (wanted.action, wanted.path) == ("list", outside)
        assert wanted.params == {"path": str(outside), "ignore": ["x"], "depth": 3}


async def test_denied_listing_shows_nothing(tmp_path):
    bench = search_bench(tmp_path, refuses=True)
    assert await bench.error(LsTool(bench.bench), path="/") == "User denied permission"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"path": "missing"}, "does not exist"),
        ({"path": "file"}, "is not a directory"),
        ({"ignore": ["{a,b}" * 20]}, "invalid ignore"),
        ({"depth": "deep"}, "invalid arguments"),
    ],
)
async def test_mistakes_are_told(tmp_path, arguments, part):
    bench = search_bench(tmp_path)
    bench.put("file")
    assert part in await bench.error(LsTool(bench.bench), arguments)
