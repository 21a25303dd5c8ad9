"""The documentation is true: its programs run, its output is real, its links and names exist.

A ```python block is executed, all blocks of a page in one namespace and in order. A ```text block
that follows one with nothing in between is what that block prints. The blocks of `docs/testing.md`
are a test file and are run as one.
"""

import ast
import io
import re
import tomllib
from contextlib import redirect_stdout
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from attrs import frozen

from crush_trio.events import EventLog, Form, GrowingMessage, MessageChange, Position, RunChange
from crush_trio.events.log import Window
from crush_trio.server.openapi import POSTPONED
from crush_trio.testing.server.client import Replica
from crush_trio.wire.events import EventType
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.runs import RunState, RunView

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]
TEST_PAGE = ROOT / "docs" / "testing.md"

# Where the package is installed its entry point loads the plugin; in a bare checkout the option does.
INSTALLED = bool(entry_points(group="pytest11", name="crush_trio"))
LOAD = [] if INSTALLED else ["-p", "crush_trio.testing.plugin"]


@frozen
class Block:
    """One fenced block of a page; `alone` if something stands between it and the block before."""

    language: str
    text: str
    line: int
    alone: bool


def blocks_of(page):
    source = page.read_text("utf-8")
    found, end = [], 0
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", source, re.MULTILINE | re.DOTALL):
        line = source.count("\n", 0, match.start(2))
        alone = bool(source[end : match.start()].strip())
        found.append(Block(match[1], match[2], line, alone))
        end = match.end()
    return found


def python_of(page):
    return [block for block in blocks_of(page) if block.language == "python"]


def relative(page):
    return str(page.relative_to(ROOT))


PROGRAMS = [page for page in PAGES if python_of(page) and page != TEST_PAGE]


# ── Programs ────────────────────────────────────────────────────────────────────────────────────────


def run_block(page, block, namespace):
    """Execute *block* under its own line numbers and return what it printed."""
    code = compile("\n" * block.line + block.text, str(page), "exec")
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, namespace)
    return printed.getvalue()


@pytest.mark.heavy
@pytest.mark.parametrize("page", PROGRAMS, ids=relative)
def test_the_programs_of_a_page_run_and_print_what_it_says(page):
    namespace = {"__name__": "__main__"}
    printed = None
    for block in blocks_of(page):
        if block.language == "python":
            printed = run_block(page, block, namespace)
        elif block.language == "text":
            assert not block.alone, f"line {block.line}: nothing printed this"
            assert printed == block.text, f"line {block.line}: the program prints something else"


def test_the_pages_that_should_have_programs_have_some():
    assert {relative(page) for page in PROGRAMS} >= {
        "README.md",
        "docs/architecture.md",
        "docs/events.md",
    }


def test_the_program_of_the_readme_is_short():
    [program] = python_of(ROOT / "README.md")
    assert len([line for line in program.text.splitlines() if line.strip()]) <= 20


@pytest.mark.heavy
def test_the_tests_of_the_testing_page_pass(pytester):
    pytester.makeini(
        "[pytest]\ntrio_mode = true\ncrush_trio_mode = true\nfilterwarnings = error\n"
        "addopts = -p no:anyio --strict-markers\n"
    )
    pytester.makepyfile(test_page="\n\n".join(block.text for block in python_of(TEST_PAGE)))
    result = pytester.runpytest_inprocess(*LOAD, "-q")
    assert result.ret == 0
    assert result.parseoutcomes().keys() == {"passed"}


# ── Names, links, commands ──────────────────────────────────────────────────────────────────────────


def prose_of(page):
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_the_links_of_a_page_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", prose_of(page))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_the_files_that_a_page_names_exist(page):
    named = set(re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|toml))`", prose_of(page)))
    missing = [
        name
        for name in named
        if not ((ROOT / name).exists() or (ROOT / "crush_trio" / name).exists())
    ]
    assert missing == []


def functions_in(path):
    """Return `function` and `Class.method` for everything defined at the top of a module."""
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{member.name}"
                for member in node.body
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


def test_the_functions_in_the_tables_of_the_architecture_page_exist():
    rows = re.findall(
        r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|",
        (ROOT / "docs" / "architecture.md").read_text("utf-8"),
        re.MULTILINE,
    )
    assert len(rows) > 15
    wrong = [row for row in rows if row[1] not in functions_in(ROOT / "crush_trio" / row[0])]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_the_make_targets_that_a_page_names_exist(page):
    shell = [block.text for block in blocks_of(page) if block.language == "sh"]
    commands = "\n".join([*re.findall(r"`[^`]+`", prose_of(page)), *shell])
    makefile = (ROOT / "Makefile").read_text("utf-8")
    named = set(re.findall(r"\bmake ([a-z-]+)", commands))
    assert [name for name in named if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


def test_every_dependency_has_its_reason_and_every_reason_its_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += [requirement for extra in extras for requirement in extra]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in wanted} - {"crush-trio"}
    page = (ROOT / "docs" / "decisions" / "001-dependencies.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([\w-]+)`", page, re.MULTILINE)) == names


def test_the_lowest_version_of_every_dependency_is_tested():
    """`make lowest` installs what this file pins: the lower end of each range."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["testing"], *extras["otel"], *extras["mcp"]]
    wanted += [*extras["lsp"], *extras["postgres"]]
    ranges = (re.match(r"([\w-]+)>=([\d.]+),<", requirement) for requirement in wanted)
    pinned = re.findall(r"^([\w-]+)==([\d.]+)$", LOWEST.read_text("utf-8"), re.MULTILINE)
    assert [(name, full(version)) for name, version in pinned] == [
        (found[1], full(found[2])) for found in ranges
    ]


def full(version):
    """Return a version with all three of its numbers."""
    return ".".join([*version.split("."), "0", "0"][:3])


LOWEST = ROOT / "tests" / "lowest.txt"
CONTRACT = ROOT / "docs" / "contract" / "README.md"
ITEMS = {
    *(f"A{number}" for number in range(1, 41)),
    *(f"B{number}" for number in range(1, 21)),
    *(f"C{number}" for number in range(1, 11)),
    *(f"D{number}" for number in range(1, 36)),
    *("D14a", "D14b", "D14c", "D23a", "D23b", "D23c", "D27a"),
    *(f"E{number}" for number in range(1, 25)),
    *(f"F{number}" for number in range(1, 18)),
    *(f"G{number}" for number in range(1, 16)),
    *(f"H{number}" for number in range(1, 15)),
    *(f"I{number}" for number in range(1, 12)),
    *(f"J{number}" for number in range(1, 9)),
}


@cache
def items_with_a_test():
    """Return what stands in `pytest.mark.item(…)` anywhere in the suite."""
    return {
        argument.value
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "item"
        if ast.unparse(node.func) == "pytest.mark.item"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }


def items_answered_elsewhere():
    section = CONTRACT.read_text("utf-8").partition("## Items answered elsewhere")[2]
    rows = re.findall(r"^\| ([A-Z]\d.*?) \|", section.partition("## ")[0], re.MULTILINE)
    return {item for row in rows for item in row.split(", ")}


def items_not_built():
    """Return what the page about the wire says is postponed; a part of an item may be."""
    return {item for items in POSTPONED for item in items.split(", ")}


@pytest.mark.heavy
def test_every_contract_item_has_a_test_or_a_reason_not_to():
    assert items_answered_elsewhere()
    reasons = items_answered_elsewhere() | items_not_built()
    assert ITEMS - items_with_a_test() - reasons == set()


@pytest.mark.heavy
def test_no_item_with_a_test_is_said_to_be_answered_elsewhere():
    assert items_with_a_test() & items_answered_elsewhere() == set()


def test_the_changelog_keeps_the_place_where_releases_go():
    assert "<!-- towncrier release notes start -->" in (ROOT / "CHANGELOG.md").read_text("utf-8")


# ── What docs/events.md promises about cuts ─────────────────────────────────────────────────────────


def run_change(name, state):
    return RunChange(run=RunView(id=name, session_id="s", state=state))


def log_with_a_message_in_progress(window):
    """Return a log in which runs have begun and ended around a message that is still growing."""
    log = EventLog("boot", window=window)
    message = GrowingMessage(Message(id="m", role=Role.ASSISTANT, session_id="s"))
    for name in ("a", "b", "c"):
        log.publish(run_change(name, RunState.ACTIVE))
    log.publish(MessageChange(change=EventType.CREATED, view=message.view()))
    log.publish(run_change("a", RunState.COMPLETED))
    message.append_text("one")
    log.publish(MessageChange(change=EventType.UPDATED, view=message.view()))
    log.publish(run_change("b", RunState.COMPLETED))
    return log, message


def read_on(log, replica):
    """Reconnect with the last id seen, and read everything there is."""
    place = Position.parse(replica.last_id) if replica.last_id else Position(boot="boot", seq=0)
    replica.feed(log.cursor(Form.NATIVE, after=place).take().encode(Form.NATIVE))


WHOLE, RESYNC = Window(), Window(events=2)


@pytest.mark.parametrize(
    ("window", "frames"),
    [*((WHOLE, frames) for frames in range(8)), *((RESYNC, frames) for frames in range(4))],
    ids=[
        *(f"in the window, after {n}" for n in range(8)),
        *(f"out of it, after {n}" for n in range(4)),
    ],
)
def test_a_stream_cut_after_any_frame_is_resumed_without_a_loss(window, frames):
    log, message = log_with_a_message_in_progress(window)
    stream = log.cursor(Form.NATIVE, after=Position(boot="boot", seq=0)).take().encode(Form.NATIVE)
    pieces = stream.split(b"\n\n")[:frames]
    replica = Replica()
    replica.feed(b"".join(piece + b"\n\n" for piece in pieces if piece))
    message.append_text(" and two")
    log.publish(MessageChange(change=EventType.UPDATED, view=message.view(), plain=True))
    read_on(log, replica)
    assert replica.messages["m"]["parts"] == [{"type": "text", "data": {"text": "one and two"}}]
    assert set(replica.endings) == {"a", "b"}
