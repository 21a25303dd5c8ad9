"""The tool `grep`, with its own program and with ripgrep."""

import os
import shutil
from pathlib import Path
from time import monotonic

import pytest
import trio

from crush_trio.tools.base import ToolError
from crush_trio.tools.search import _grep_worker as worker
from crush_trio.tools.search import grep
from crush_trio.tools.search.grep import COLUMNS, SHOWN, WORKER_MATCHES, GrepTool, clip
from crush_trio.wire.config import SearchLimits
from tests.tools.search_bench import fake_ripgrep, noted_arguments, search_bench

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


async def found(bench, pattern, *, limits=None, **arguments):
    tool = GrepTool(bench.bench, limits=limits)
    return (await bench.run(tool, pattern=pattern, **arguments)).content


async def test_matches_are_grouped_by_file_the_newest_first(tmp_path):
    bench = search_bench(tmp_path)
    bench.put("old.py", "x = 1\ny = x\nz = 0\n", at=1000)
    bench.put("src/new.py", "nothing\n  x = 2\r\n", at=2000)
    bench.put("none.py", "y = 3\n", at=3000)
    assert await found(bench, "x") == "\n\n".join(
        ["3 matches", "src/new.py\n  2:   x = 2", "old.py\n  1: x = 1\n  2: y = x"]
    )


async def test_line_with_two_matches_is_shown_once(tmp_path):
    bench = search_bench(tmp_path)
    bench.put("a", "x x x\n")
    assert await found(bench, "x") == "1 match\n\na\n  1: x x x"


async def test_pattern_is_an_expression_unless_it_is_said_to_be_text(tmp_path):
    bench = search_bench(tmp_path)
    bench.put("a", "f(x)[0]\nfx0\nF(X)[0]\n")
    assert "1: f(x)[0]" in await found(bench, "f(x)[0]", literal_text=True)
    assert "2: fx0" in await found(bench, "f(x)[0]")
    assert "3: F" in await found(bench, r"(?i)^F\(x")
    assert "2: fx0" in await found(bench, r"f(?!\()")


async def test_include_chooses_the_files(tmp_path):
    bench = search_bench(tmp_path)
    for name in ("a.py", "src/b.py", "src/c.ts", "src/d.tsx"):
        bench.put(name, "hit\n", at=1000)
    assert (
        await found(bench, "hit", include="*.py")
        == "2 matches\n\na.py\n  1: hit\n\nsrc/b.py\n  1: hit"
    )
    assert "2 matches" in await found(bench, "hit", include="*.{ts,tsx}")
    assert "src/b.py" in await found(bench, "hit", include="src/*.py")
    assert "a.py" not in await found(bench, "hit", include="src/*.py")


async def test_ignored_secret_binary_and_linked_files_are_left_out(tmp_path):
    bench = search_bench(tmp_path)
    bench.put(".gitignore", "*.log\n")
    bench.put(".crushignore", "private/\n")
    for name in ("a.log", "private/x", "node_modules/x", ".env", ".env.local", ".venv/x"):
        bench.put(name, "hit")
    bench.put("binary", b"hit\0hit")
    bench.put("latin", b"hit \xe9\n")
    outside = tmp_path / "secret"
    outside.write_text("hit")
    (bench.root / "link").symlink_to(outside)
    os.mkfifo(bench.root / "pipe")
    assert await found(bench, "hit") == "1 match\n\nlatin\n  1: hit é"


async def test_hidden_files_of_a_project_are_searched_and_those_of_a_home_are_not(tmp_path):
    bench = search_bench(tmp_path)
    for name in (".github/ci.yml", ".env.example", ".git/x"):
        bench.put(name, "hit\n", at=1000)
    expected = "2 matches\n\n.env.example\n  1: hit\n\n.github/ci.yml\n  1: hit"
    assert await found(bench, "hit") == expected
    home = search_bench(tmp_path, env={"HOME": str(bench.root)})
    assert await found(home, "hit") == "No matches found."
    assert "1: hit" in await found(home, "hit", path=".github")


async def test_files_that_are_too_large_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(grep, "LARGEST", 10)
    bench = search_bench(tmp_path)
    bench.put("large", "hit\n" * 3)
    bench.put("small", "hit\n")
    said = await found(bench, "hit")
    assert said.startswith(
        "1 match\n\nsmall\n  1: hit\n\n(Not searched, because they are larger than"
    )
    assert said.endswith("ripgrep is not installed: large.)")


async def test_one_file_can_be_searched_even_if_it_is_ignored(tmp_path):
    bench = search_bench(tmp_path)
    bench.put(".gitignore", "*.log\n")
    bench.put("a.log", "hit\n")
    bench.put("b.txt", "hit\n")
    answer = "1 match\n\na.log\n  1: hit"
    assert await found(bench, "hit", path="a.log") == answer
    assert await found(bench, "hit", path="a.log", include="*.txt") == answer


async def test_long_lines_are_cut(tmp_path):
    bench = search_bench(tmp_path)
    bench.put("a", "x" * 2000 + "\n")
    assert (await found(bench, "x")).endswith("1: " + "x" * COLUMNS + "…")
    assert clip("語" * 300) == "語" * 250 + "…"
    assert clip("e\u0301" * COLUMNS) == "e\u0301" * COLUMNS


async def test_answer_is_cut_at_a_hundred_matches(tmp_path):
    bench = search_bench(tmp_path)
    bench.put("a", "hit\n" * 1000)
    result = await bench.run(GrepTool(bench.bench), pattern="hit")
    assert result.content.count(": hit") == SHOWN
    assert "there may be more" in result.content
    assert result.metadata == {"number_of_matches": SHOWN, "truncated": True}


async def test_nothing_found_is_no_error(tmp_path):
    bench = search_bench(tmp_path)
    result = await bench.run(GrepTool(bench.bench), pattern="hit")
    assert result.content == "No matches found."
    assert result.metadata == {"number_of_matches": 0, "truncated": False}


async def test_expression_that_would_take_for_ever_ends_with_the_time(tmp_path):
    bench = search_bench(tmp_path)
    bench.put("found", "aaaa!\n", at=2000)
    bench.put("trap", "a" * 60 + "\n", at=1000)
    tool = GrepTool(bench.bench, limits=SearchLimits(timeout=1_500_000_000))
    begun = monotonic()
    result = await bench.run(tool, pattern="(a+)+!")
    assert monotonic() - begun < 4
    assert bench.reaped.stopped == []
    assert "found\n  1: aaaa!" in result.content
    assert "stopped after 1.5 seconds" in result.content
    assert result.metadata == {"number_of_matches": 1, "truncated": True}
    assert "within 1.5 seconds" in await bench.error(tool, pattern="(a+)+!", path="trap")


async def test_cancelled_search_leaves_no_process(tmp_path):
    env = fake_ripgrep(
        tmp_path,
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); print(flush=True); time.sleep(60)",
    )
    os.mkfifo(tmp_path / "pid")
    bench = search_bench(tmp_path, env=env)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.error, GrepTool(bench.bench), {"pattern": "x"})
        pid = int(await trio.Path(tmp_path / "pid").read_text())
        nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert bench.reaped.stopped == [pid]


async def test_search_outside_the_workspace_asks_first(tmp_path):
    bench = search_bench(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("hit\n")
    (bench.root / "link").symlink_to(outside)
    for path in ("../outside", str(outside), "link"):
        assert f"{outside}/a\n  1: hit" in await found(bench, "hit", path=path)
        wanted = bench.asked.wanted.pop()
        assert (wanted.action, wanted.path) == ("read", outside)
        assert wanted.params == {"pattern": "hit", "path": path}
    denied = search_bench(tmp_path, refuses=True)
    assert await denied.error(GrepTool(denied.bench), pattern="hit", path="link") == (
        "User denied permission"
    )


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({}, "pattern is required"),
        ({"pattern": ""}, "pattern is required"),
        ({"pattern": "(a"}, "invalid pattern: missing )"),
        ({"pattern": "(" * 5000 + ")" * 5000}, "invalid pattern"),
        ({"pattern": "a{99999999999}"}, "invalid pattern"),
        ({"pattern": "x", "include": "[a"}, "invalid include"),
        ({"pattern": r"\p{Lu}x"}, r"\p{…} works only with ripgrep, which is not installed"),
        ({"pattern": "a\nb", "literal_text": True}, "a pattern never spans lines"),
        ({"pattern": "x", "path": "missing"}, "does not exist"),
    ],
)
async def test_mistakes_are_told(tmp_path, arguments, part):
    bench = search_bench(tmp_path)
    bench.put("a", "a")
    assert part in await bench.error(GrepTool(bench.bench), arguments)


# ── The program itself ──────────────────────────────────────────────────────────────────────────


def test_files_that_are_too_large_are_not_looked_into(tmp_path):
    path = tmp_path / "a"
    path.write_text("hit\n")
    root = worker.open_root(os.fsencode(tmp_path))
    name = os.fsencode(path.relative_to(tmp_path))
    assert list(worker.lines_of(name, 4, root)) == [(1, "hit")]
    assert list(worker.lines_of(name, 3, root)) == [(worker.TOO_LARGE, "")]
    assert list(worker.lines_of(b".", 10, root)) == []
    os.close(root)


# ── With ripgrep ────────────────────────────────────────────────────────────────────────────────


async def test_ripgrep_is_used_where_there_is_one(tmp_path):
    lines = r"./old.py\x007:0:-\n./new.py\x003:4:-\n./gen/z\x001:0:-\nnoise\n"
    bench = search_bench(tmp_path, env=fake_ripgrep(tmp_path, f"sys.stdout.write('{lines}')"))
    bench.put(".crushignore", "gen/")
    bench.put("old.py", "x = 1\n", at=1000)
    bench.put("new.py", "one\n  x:y\n", at=2000)
    assert await found(bench, "-x", literal_text=True, include="!*.py") == "No matches found."
    options = noted_arguments(tmp_path)
    assert {"--fixed-strings", "--regexp=-x", "--glob=\\!*.py", "--no-config"} < set(options)
    assert await found(bench, "x") == "2 matches\n\nnew.py\n  3:   x:y\n\nold.py\n  7: x = 1"
    assert "--fixed-strings" not in noted_arguments(tmp_path)


async def test_what_ripgrep_cannot_do_our_own_program_does(tmp_path):
    env = fake_ripgrep(tmp_path, "sys.exit(2)")
    bench = search_bench(tmp_path, env=env)
    bench.put("a", "ab\nac\n")
    assert await found(bench, "a(?!b)") == "1 match\n\na\n  2: ac"
    assert "invalid pattern" in await bench.error(GrepTool(bench.bench), pattern="(")


async def test_ripgrep_that_never_ends_is_stopped_and_what_it_found_counts(tmp_path):
    body = r"sys.stdout.write('./a\x001:0:-\n'); sys.stdout.flush(); time.sleep(60)"
    bench = search_bench(tmp_path, env=fake_ripgrep(tmp_path, body))
    bench.put("a", "hit")
    with trio.fail_after(10):
        content = await found(bench, "hit", limits=SearchLimits(timeout=500_000_000))
    assert "a\n  1: hit" in content
    assert "stopped after 0.5 seconds" in content


@pytest.mark.needs("rg")
@pytest.mark.long
async def test_answers_with_and_without_ripgrep_are_the_same(tmp_path):
    bench = search_bench(tmp_path)
    bench.put(".gitignore", "*.log\n")
    bench.put("a.log", "hit")
    bench.put("b/c.py", "one hit\ntwo hits\n" + "x" * 3000 + "hit\n\n", at=1000)
    bench.put("d.py", "hit (literal)\n", at=2000)
    bench.put("binary", b"\0hit")
    bench.put("marked.py", b"\xef\xbb\xbfone\r\n\xc3\xa9 hit\r\n", at=3000)
    bench.put("wide.txt", "one\r\ntwo hits, été\r\n".encode("utf-16"), at=4000)
    bench.put("narrow.txt", "one\nhit en été\n".encode("latin-1"), at=5000)
    bench.put(".github/ci.yml", "on: hit\n", at=6000)
    bench.put(".env", "hit\n")
    bench.put(".venv/x", "hit\n")
    quick = search_bench(tmp_path, env={"PATH": str(Path(shutil.which("rg")).parent)})
    cases = [
        *({"pattern": "hit", "include": "*.py"}, {"pattern": "(literal)", "literal_text": True}),
        *({"pattern": r"\bhit\b", "path": "b"}, {"pattern": "hit", "path": "a.log"}),
        *({"pattern": "hit", "path": ".env"}, {"pattern": "été", "literal_text": True}),
    ]
    expressions = (
        *("hit", "h(?=it)", "hits?$", "^$", "^one", "été", "ÉT", "(?i)ÉT", "O(?i)N|h(?-i)IT|HIT"),
        *("[[:alpha:]]+ [[:^digit:]]", "[^[:space:]]{4}", r"\x{68}it\b", r"\<hit\>", r"hit\z"),
        *(
            "(?<name>hi)t",
            "[a&&b]",
            r"o\ne",
            r"[^\n]it",
            "(?P<a>o)n(?P=a)?e",
            "[]x]",
            "[[]",
            "(?U)h+",
        ),
    )
    for arguments in (*cases, *({"pattern": each} for each in expressions)):
        answers = []
        for each in (quick, bench):
            try:
                answers.append(await found(each, **arguments))
            except ToolError as error:
                answers.append(str(error))
        if "not installed" in answers[1]:  # it says what it cannot do
            assert arguments["pattern"] in {"[a&&b]", "[[]", "(?U)h+"}
        else:
            assert answers[0] == answers[1], arguments


def test_more_is_taken_than_is_shown():
    assert WORKER_MATCHES == 2 * SHOWN
