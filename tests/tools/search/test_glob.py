"""The tool `glob`, with and without ripgrep."""

import os
import shutil
from pathlib import Path

import pytest
import trio

from crush_trio.tools.search.listing import POOL, SHOWN, GlobTool
from crush_trio.wire.config import SearchLimits
from tests.tools.search_bench import fake_ripgrep, noted_arguments, search_bench


async def found(bench, pattern, **arguments):
    result = await bench.run(GlobTool(bench.bench), pattern=pattern, **arguments)
    return result.content.split("\n")


async def test_shortest_paths_come_first(tmp_path):
    bench = search_bench(tmp_path)
    for name in ("long/way/down/a.py", "b.py", "x/c.py", "a.py", "other.txt"):
        bench.put(name)
    assert await found(bench, "**/*.py") == ["a.py", "b.py", "x/c.py", "long/way/down/a.py"]


async def test_pattern_is_anchored_at_the_searched_directory(tmp_path):
    bench = search_bench(tmp_path)
    for name in ("a.py", "src/b.py", "src/sub/c.py"):
        bench.put(name)
    assert await found(bench, "*.py") == ["a.py"]
    assert await found(bench, "*.py", path="src") == ["src/b.py"]
    assert await found(bench, "src/**/*.py") == ["src/b.py", "src/sub/c.py"]
    assert await found(bench, "src/") == ["src/b.py", "src/sub/c.py"]
    assert await found(bench, "src/sub/c.py") == ["src/sub/c.py"]
    assert await found(bench, f"{bench.root}/src/*") == ["src/b.py"]
    assert await found(bench, "{a,src/b}.py") == ["a.py", "src/b.py"]


async def test_ignored_secret_and_linked_files_are_left_out_and_hidden_ones_found(tmp_path):
    bench = search_bench(tmp_path)
    bench.put(".gitignore", "gen/\n*.min.js\n")
    for name in (".env", "gen/a.js", "b.min.js", "node_modules/c.js", "d.js", ".h/e.js"):
        bench.put(name)
    (bench.root / "link.js").symlink_to(bench.root / "d.js")
    (bench.root / "tree").symlink_to(bench.root / "gen")
    assert await found(bench, "**/*") == ["d.js", ".h/e.js", ".gitignore"]
    assert await found(bench, "*.js", path="node_modules") == ["node_modules/c.js"]


async def test_nothing_found_is_no_error(tmp_path):
    bench = search_bench(tmp_path)
    result = await bench.run(GlobTool(bench.bench), pattern="*.py")
    assert (result.content, result.is_error) == ("No files found.", False)
    assert result.metadata == {"number_of_files": 0, "truncated": False}


async def test_answer_is_cut_at_a_hundred(tmp_path):
    bench = search_bench(tmp_path)
    for number in range(1, SHOWN + 20):
        bench.put(f"{'x' * number}.py")
    result = await bench.run(GlobTool(bench.bench), pattern="*.py")
    shown, _, note = result.content.rpartition("\n\n")
    assert shown.split("\n") == [f"{'x' * number}.py" for number in range(1, SHOWN + 1)]
    assert "more files" in note
    assert result.metadata == {"number_of_files": SHOWN, "truncated": True}


async def test_search_outside_the_workspace_asks_first(tmp_path):
    bench = search_bench(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.py").touch()
    (bench.root / "link").symlink_to(outside)
    for arguments in (
        {"pattern": "*.py", "path": "../outside"},
        {"pattern": "../outside/*.py"},
        {"pattern": f"{outside}/*.py"},
        {"pattern": "link/*.py"},
    ):
        assert await found(bench, **arguments) == [str(outside / "a.py")]
        wanted = bench.asked.wanted.pop()
        assert (wanted.action, wanted.path) == ("list", outside)
        assert wanted.params["pattern"] == arguments["pattern"]
    assert bench.asked.wanted == []


async def test_denied_search_stops_the_turn(tmp_path):
    bench = search_bench(tmp_path, refuses=True)
    assert await bench.error(GlobTool(bench.bench), pattern="/*") == "User denied permission"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({}, "pattern is required"),
        ({"pattern": ""}, "pattern is required"),
        ({"pattern": "[a"}, "invalid pattern"),
        ({"pattern": "*/../x"}, "invalid pattern"),
        ({"pattern": "a\0*"}, "invalid pattern"),
        ({"pattern": "*", "path": "missing"}, "does not exist"),
        ({"pattern": "*", "path": "file"}, "is not a directory"),
        ({"pattern": "*", "path": "a\0b"}, "not a usable path"),
        ("not json", "not valid JSON"),
    ],
)
async def test_mistakes_are_told(tmp_path, arguments, part):
    bench = search_bench(tmp_path)
    bench.put("file")
    assert part in await bench.error(GlobTool(bench.bench), arguments)


async def test_search_without_time_tells_so(tmp_path):
    bench = search_bench(tmp_path)
    bench.put("a/b/c/d.py")
    tool = GlobTool(bench.bench, limits=SearchLimits(timeout=1))
    assert "within 1e-09 seconds" in await bench.error(tool, pattern="**/*.py")
    bench.put("x.py")
    result = await bench.run(tool, pattern="**/*.py")
    assert result.content.startswith("x.py\n")
    assert "stopped after" in result.content
    assert result.metadata["truncated"]


async def test_file_name_that_is_not_text_is_shown_as_far_as_it_is(tmp_path):
    bench = search_bench(tmp_path)
    os.close(os.open(os.fsencode(bench.root) + b"/a\xff.py", os.O_CREAT))
    assert await found(bench, "*.py") == ["a\ufffd.py"]


# ── With ripgrep ────────────────────────────────────────────────────────────────────────────────


def marked(test):
    return pytest.mark.slow(pytest.mark.real_clock(test))


@marked
async def test_ripgrep_is_used_where_there_is_one(tmp_path):
    env = fake_ripgrep(tmp_path, r"sys.stdout.write('./b/c.py\0./a.py\0./a.txt\0./.x/h.py\0')")
    bench = search_bench(tmp_path, env=env)
    for name in ("b/c.py", "a.py", "a.txt", ".x/h.py"):
        bench.put(name)
    assert await found(bench, "**/*.py") == ["a.py", "b/c.py", ".x/h.py"]
    *options, last = noted_arguments(tmp_path)
    assert {"--files", "--null", "--no-config", "--glob=/**/*.py", "--hidden"} < set(options)
    assert options.index("--glob=!.git") > options.index("--glob=/**/*.py")
    assert last == "./"


@marked
async def test_pattern_that_ripgrep_reads_differently_is_not_given_to_it(tmp_path):
    bench = search_bench(tmp_path, env=fake_ripgrep(tmp_path, r"sys.stdout.write('./v1\0./vx\0')"))
    bench.put("v1")
    assert await found(bench, "v[[:digit:]]") == ["v1"]
    assert not any(each.startswith("--glob=/") for each in noted_arguments(tmp_path))


@marked
async def test_what_ripgrep_lists_in_ignored_places_is_left_out(tmp_path):
    env = fake_ripgrep(tmp_path, r"sys.stdout.write('./gen/a.js\0./b.js\0./node_modules/c.js\0')")
    bench = search_bench(tmp_path, env=env)
    bench.put(".crushignore", "gen/\n")
    for name in ("gen/a.js", "b.js", "node_modules/c.js"):
        bench.put(name)
    assert await found(bench, "**/*.js") == ["b.js"]


@marked
async def test_ripgrep_that_fails_is_replaced(tmp_path):
    bench = search_bench(tmp_path, env=fake_ripgrep(tmp_path, "sys.exit(2)"))
    bench.put("a.py")
    assert await found(bench, "*.py") == ["a.py"]


@marked
async def test_ripgrep_that_never_ends_is_stopped_and_what_it_found_counts(tmp_path):
    env = fake_ripgrep(
        tmp_path, r"sys.stdout.write('./a.py\0'); sys.stdout.flush(); time.sleep(60)"
    )
    bench = search_bench(tmp_path, env=env)
    bench.put("a.py")
    tool = GlobTool(bench.bench, limits=SearchLimits(timeout=500_000_000))
    with trio.fail_after(10):
        result = await bench.run(tool, pattern="*.py")
    assert result.content.startswith("a.py\n")
    assert result.metadata == {"number_of_files": 1, "truncated": True}


@marked
async def test_ripgrep_is_not_heard_to_the_end_if_it_finds_too_much(tmp_path):
    body = r"""
    for number in range(10**9):
        sys.stdout.write(f'./{number}.py\0')
    """
    bench = search_bench(tmp_path, env=fake_ripgrep(tmp_path, body))
    for number in range(SHOWN):
        bench.put(f"{number}.py")
    result = await bench.run(GlobTool(bench.bench), pattern="*.py")
    assert result.metadata == {"number_of_files": SHOWN, "truncated": True}
    assert POOL >= 1000


async def test_relative_entries_of_the_search_path_are_not_trusted(tmp_path, monkeypatch):
    fake_ripgrep(tmp_path, "sys.exit('used')")
    monkeypatch.chdir(tmp_path)
    bench = search_bench(tmp_path, env={"PATH": "bin:./bin:"})
    bench.put("a.py")
    assert await found(bench, "*.py") == ["a.py"]
    assert not (tmp_path / "argv").exists()


@marked
@pytest.mark.needs("rg")
async def test_answers_with_and_without_ripgrep_are_the_same(tmp_path):
    bench = search_bench(tmp_path)
    bench.put(".gitignore", "gen/\n*.min.js\n")
    for name in (".env", "gen/a.js", "b.min.js", "node_modules/c.js", "d.js", "x/y/e.js", "z.ts"):
        bench.put(name)
    quick = search_bench(tmp_path, env={"PATH": str(Path(shutil.which("rg")).parent)})
    for pattern in ("**/*", "*.js", "**/*.{js,ts}", "x/**", "[dz].*", "**/y/*"):
        assert await found(quick, pattern) == await found(bench, pattern)
