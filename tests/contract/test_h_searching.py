"""Section H, the tools that search and that reach the web; F1, L21 and L47 as they show.

A row of the table is called by its tool: `H glob`. What each tool does in detail is in
`tests/tools/`.
"""

import logging
from functools import partial

import pytest
import trio

from crush_trio.tools.base import ToolError
from crush_trio.tools.info import CrushInfoTool, CrushLogsTool, InfoReport
from crush_trio.tools.recent_logs import RecentLogs
from crush_trio.tools.search.grep import GrepTool
from crush_trio.tools.search.listing import GlobTool, LsTool
from crush_trio.tools.web.download import DownloadTool
from crush_trio.tools.web.fetch import FetchTool
from crush_trio.wire.config import Config, ListingLimits, ProviderConfig, SearchLimits
from tests.tools.search_bench import search_bench
from tests.tools.web_server import open_web_server, page

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


def tools_of(bench):
    searching = [tool(bench.bench) for tool in (GlobTool, GrepTool, LsTool)]
    fetching = [tool(bench.bench) for tool in (FetchTool, DownloadTool)]
    report = InfoReport(version="1", directory="/", config=Config())
    return [*searching, *fetching, CrushInfoTool(lambda: report), CrushLogsTool(RecentLogs(), "w")]


# ── H1, H8: what the loop of steps relies on ────────────────────────────────────────────────────


@pytest.mark.item("H1")
async def test_a_missing_argument_is_told_to_the_model(tmp_path):
    bench = search_bench(tmp_path)
    for tool in tools_of(bench):
        wanted = tool.parameters["required"]
        for required in wanted:
            given = {key: "text" if key == "format" else "http://h/" for key in wanted}
            del given[required]
            with pytest.raises(ToolError, match=f"{required} is required") as caught:
                await bench.run(tool, given)
            assert caught.value.result.is_error
            assert not caught.value.result.stop_turn
    assert bench.asked.wanted == []


@pytest.mark.item("H1")
async def test_arguments_that_are_no_json_are_told_to_the_model(tmp_path):
    bench = search_bench(tmp_path)
    for tool in tools_of(bench):
        assert "not valid JSON" in await bench.error(tool, '{"pattern": ')


@pytest.mark.item("H1", "F5")
async def test_a_denial_stops_the_turn(tmp_path):
    bench = search_bench(tmp_path, refuses=True)
    calls = [
        (LsTool(bench.bench), {"path": ".."}),
        (FetchTool(bench.bench), {"url": "http://h/", "format": "text"}),
        (DownloadTool(bench.bench), {"url": "http://h/", "file_path": "x"}),
    ]
    for tool, arguments in calls:
        with pytest.raises(ToolError, match="User denied permission") as caught:
            await bench.run(tool, arguments)
        assert caught.value.result.stop_turn


@pytest.mark.item("H8")
def test_what_only_looks_and_what_fetches_runs_beside_others(tmp_path):
    assert all(tool.parallel for tool in tools_of(search_bench(tmp_path)))


@pytest.mark.item("H2")
def test_every_tool_tells_the_model_what_it_is_for(tmp_path):
    for tool in tools_of(search_bench(tmp_path)):
        assert len(tool.description) > 100
        assert all("description" in each for each in tool.parameters["properties"].values())


# ── H4, L21: paths ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H4", "L21")
async def test_relative_paths_begin_at_the_workspace_wherever_the_server_was_started(
    tmp_path, monkeypatch
):
    bench = search_bench(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/wrong.py").write_text("hit\n")
    bench.put("src/right.py", "hit\n")
    glob = await bench.run(GlobTool(bench.bench), pattern="*.py", path="src")
    grep = await bench.run(GrepTool(bench.bench), pattern="hit", path="src")
    ls = await bench.run(LsTool(bench.bench), path="src")
    assert glob.content == "src/right.py"
    assert "src/right.py" in grep.content
    assert "right.py" in ls.content
    assert "wrong" not in glob.content + grep.content + ls.content
    async with open_web_server(f=page("x")) as server:
        await bench.run(DownloadTool(bench.bench), url=server.url("/f"), file_path="src/f")
    assert (bench.root / "src/f").exists()
    assert not (tmp_path / "src/f").exists()


@pytest.mark.item("F1", "H4")
async def test_a_link_is_followed_before_anybody_is_asked(tmp_path):
    bench = search_bench(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (bench.root / "link").symlink_to(outside)
    await bench.run(LsTool(bench.bench), path="link")
    await bench.run(GlobTool(bench.bench), pattern="link/*")
    await bench.run(GrepTool(bench.bench), pattern="x", path="link")
    assert [wanted.path for wanted in bench.asked.wanted] == [outside] * 3


# ── The rows ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H glob")
async def test_glob_shows_a_hundred_files_the_shortest_paths_first(tmp_path):
    bench = search_bench(tmp_path)
    for number in range(1200):
        bench.put(f"deep/{number:04}.py")
    for number in range(60):
        bench.put(f"{number:02}.py")
    for name in (".hidden.py", "node_modules/x.py", "ignored.py"):
        bench.put(name)
    bench.put(".gitignore", "ignored.py\n")
    (bench.root / "link").symlink_to("deep")
    result = await bench.run(GlobTool(bench.bench), pattern="**/*.py")
    shown = result.content.split("\n\n")[0].split("\n")
    assert shown[:60] == [f"{number:02}.py" for number in range(60)]
    assert shown[60:] == [".hidden.py", *(f"deep/{number:04}.py" for number in range(39))]
    assert result.metadata == {"number_of_files": 100, "truncated": True}
    assert bench.asked.wanted == []


@pytest.mark.item("H grep")
async def test_grep_shows_a_hundred_lines_the_newest_file_first(tmp_path):
    bench = search_bench(tmp_path)
    bench.put("old", "hit hit\n" * 90, at=1000)
    bench.put("new", "hit " + "x" * 1000 + "\n" + "hit\n" * 89, at=2000)
    bench.put("ignored", "hit\n")
    bench.put(".crushignore", "ignored\n")
    result = await bench.run(GrepTool(bench.bench), pattern="h.t")
    _, new, old = result.content.split("\n\n")
    assert (new.split("\n")[0], old.split("\n")[0]) == ("new", "old")
    assert (new.count("\n"), old.count("\n")) == (90, 10)
    assert max(map(len, new.split("\n"))) <= len("  1: …") + 500
    assert result.metadata == {"number_of_matches": 100, "truncated": True}


@pytest.mark.item("H grep", "H glob")
async def test_time_limits_come_from_the_configuration_in_nanoseconds(tmp_path):
    bench = search_bench(tmp_path)
    bench.put("a/b/trap", "a" * 60 + "\n")
    limits = SearchLimits(timeout=300_000_000)
    grep = GrepTool(bench.bench, limits=limits)
    assert "within 0.3 seconds" in await bench.error(grep, pattern="(a+)+$x")
    glob = GlobTool(bench.bench, limits=SearchLimits(timeout=1))
    assert "within 1e-09 seconds" in await bench.error(glob, pattern="**/trap")


@pytest.mark.item("H ls")
async def test_ls_shows_a_project_whole_and_other_directories_in_part(tmp_path):
    bench = search_bench(tmp_path)
    for number in range(1100):
        bench.put(f"a/b/c/{number}")
    other = await bench.run(LsTool(bench.bench))
    assert other.metadata == {"number_of_files": 2, "truncated": False}
    (bench.root / ".git").mkdir()
    project = await bench.run(LsTool(bench.bench))
    assert project.metadata == {"number_of_files": 1000, "truncated": True}
    limits = ListingLimits(max_depth=1, max_items=5)
    limited = await bench.run(LsTool(bench.bench, limits=limits))
    assert limited.metadata == {"number_of_files": 1, "truncated": False}
    assert bench.asked.wanted == []


@pytest.mark.item("H fetch")
async def test_fetch_asks_and_returns_a_hundred_kilobytes_at_most(tmp_path):
    bench = search_bench(tmp_path)
    pages = {
        "long": page("x" * 200_000, content_type="text/plain"),
        "latin": page(b"\xe9", content_type="text/plain"),
        "gone": page("x", status=410),
    }
    async with open_web_server(**pages) as server:
        tool = FetchTool(bench.bench)
        result = await bench.run(tool, url=server.url("/long"), format="text", timeout=999)
        assert result.content.count("x") == 100 * 1024
        assert "UTF-8" in await bench.error(tool, url=server.url("/latin"), format="text")
        assert "410" in await bench.error(tool, url=server.url("/gone"), format="text")
    assert [wanted.action for wanted in bench.asked.wanted] == ["fetch"] * 3
    assert bench.asked.wanted[0].params["timeout"] == 999


@pytest.mark.item("H download", "L47")
async def test_download_asks_in_the_name_of_its_call_and_saves_the_file_whole(tmp_path):
    bench = search_bench(tmp_path)
    async with open_web_server(f=page(b"\0" * 300_000)) as server:
        await bench.run(DownloadTool(bench.bench), url=server.url("/f"), file_path="sub/f")
    [wanted] = bench.asked.wanted  # by the permit of the call, which knows the call's id
    assert (wanted.action, wanted.path) == ("download", bench.root / "sub/f")
    assert (bench.root / "sub/f").stat().st_size == 300_000


@pytest.mark.item("H crush_info")
async def test_info_is_the_same_however_the_configuration_is_ordered_and_has_no_secrets(tmp_path):
    bench = search_bench(tmp_path)
    providers = {name: ProviderConfig(api_key=f"secret-of-{name}") for name in "zab"}

    def report(providers):
        return InfoReport(version="1", directory="/", config=Config(providers=providers))

    backwards = dict(reversed(providers.items()))
    one = await bench.run(CrushInfoTool(partial(report, providers)), {})
    two = await bench.run(CrushInfoTool(partial(report, backwards)), {})
    assert one.content == two.content
    assert "secret-of" not in one.content


@pytest.mark.item("H crush_logs", "L20")
async def test_logs_are_a_tail_without_secrets_and_without_other_workspaces(tmp_path):
    bench = search_bench(tmp_path)
    logs = RecentLogs()
    for number in range(300):
        fields = {"msg": f"n{number} API_KEY=abcdef", "workspace_id": f"w{number % 2}"}
        logs.handle(logging.makeLogRecord(fields))
    logs.handle(logging.makeLogRecord({"msg": "x" * 2_000_000}))
    tool = CrushLogsTool(logs, "w0")
    assert (await bench.run(tool, {})).content.count("\n") == 49
    content = (await bench.run(tool, lines=500)).content
    assert content.count("\n") == 99
    assert "abcdef" not in content
    assert "n299" not in content
    assert "n298" in content.split("\n")[-1]


# ── Cancel ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H1")
async def test_cancelled_tools_leave_nothing_running(tmp_path):
    bench = search_bench(tmp_path)
    bench.put("trap", "a" * 60 + "\n")
    slow = SearchLimits(timeout=60_000_000_000)
    before = trio.lowlevel.current_statistics().tasks_living
    with trio.move_on_after(0.5) as scope:
        await bench.run(GrepTool(bench.bench, limits=slow), pattern="(a+)+$x")
    assert scope.cancelled_caught
    assert trio.lowlevel.current_statistics().tasks_living == before
