"""What is private in a workspace: no tool shows it without asking, and no search finds it."""

import os
import shutil

import pytest
from attrs import evolve

from crush_trio.tools.base import ToolError
from crush_trio.tools.search.grep import GrepTool
from crush_trio.tools.search.listing import GlobTool, LsTool
from crush_trio.tools.search.walk import IgnoreFilter, IgnoreRules
from tests.tools.file_bench import make_bench
from tests.tools.search_bench import search_bench
from tests.tools.shell_bench import open_shell_bench

# Searches start processes.
pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

SEARCHERS = ["ours"] + (["ripgrep"] if shutil.which("rg") else [])


@pytest.fixture(params=SEARCHERS)
def bench(request, tmp_path):
    """Return a workspace whose data is not hidden at all, and whose ignore file wants it shown."""
    env = {"PATH": os.environ["PATH"]} if request.param == "ripgrep" else {}
    bench = search_bench(tmp_path, env=env)
    bench.put(".gitignore", "!data/\n!.crush/\n")
    for name in ("data/crush.json", ".crush/crush.json", "src/a.json"):
        bench.put(name, '{"api_key": "needle"}\n')
    bench.bench = evolve(bench.bench, private=(bench.root / "data", bench.root / ".crush"))
    return bench


async def test_a_search_of_the_workspace_leaves_out_what_is_private(bench):
    found = await bench.run(GrepTool(bench.bench), pattern="needle")
    listed = await bench.run(GlobTool(bench.bench), pattern="**/*.json")
    tree = await bench.run(LsTool(bench.bench))
    assert "src/a.json" in found.content
    assert listed.content == "src/a.json"
    assert "a.json" in tree.content
    for answer in (found, listed, tree):
        assert "crush" not in answer.content
        assert "data" not in answer.content
    assert bench.asked.wanted == []


@pytest.mark.parametrize("path", ["data", "data/crush.json", ".crush", "link"])
async def test_a_search_in_what_is_private_asks_first(bench, path):
    (bench.root / "link").symlink_to("data")
    bench.asked.refuses = True
    with pytest.raises(ToolError):
        await bench.run(GrepTool(bench.bench), pattern="needle", path=path)
    [wanted] = bench.asked.wanted
    assert "private" in wanted.description


async def test_what_is_private_can_be_listed_and_searched_with_permission(bench):
    assert "crush.json" in (await bench.run(LsTool(bench.bench), path="data")).content
    assert (
        "needle" in (await bench.run(GrepTool(bench.bench), pattern="needle", path="data")).content
    )
    assert "crush.json" in (await bench.run(GlobTool(bench.bench), pattern="data/*")).content
    assert [wanted.action for wanted in bench.asked.wanted] == ["list", "read", "list"]


async def test_viewing_what_is_private_asks_first_and_for_that_directory_only(tmp_path):
    files = make_bench(tmp_path, None)
    files.bench.private = (files.root / ".crush",)
    files.put(".crush/crush.json", "needle")
    files.person.refuses = True
    with pytest.raises(ToolError):
        await files.view(".crush/crush.json")
    assert files.person.wanted.action == "read"
    assert files.person.wanted.path == files.root / ".crush"


def test_no_rule_brings_back_what_is_private(tmp_path):
    (tmp_path / ".gitignore").write_text("!data/\n")
    more = IgnoreRules.parse(["!data/"])
    ignoring = IgnoreFilter(tmp_path, tmp_path, more=more, private=(tmp_path / "data",))
    assert ignoring.leaves_out_file(("data", "crush.json"))
    assert not ignoring.leaves_out_file(("data2", "crush.json"))
    assert not ignoring.leaves_out_file(("src", "data", "crush.json"))


async def test_a_command_that_shows_what_is_private_asks_first(tmp_path):
    (tmp_path / ".crush").mkdir()
    (tmp_path / ".crush" / "crush.json").write_text("needle")
    async with open_shell_bench(tmp_path) as shell:
        shell.bench.private = (tmp_path.resolve() / ".crush",)
        await shell.bash("cat .crush/crush.json")
        assert len(shell.person.asked) == 1
