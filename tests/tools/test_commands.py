"""Which shell commands may run unasked, which are refused, and which a person must decide."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.tools.commands import Asks, Blocked, Inert, judge
from crush_trio.tools.inert import LOOKING
from tests.tools.command_tables import ASKS, BLOCKED, INERT, NOT_BLOCKED


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Return a workspace with links that lead out of it, and a neighbour."""
    root = tmp_path_factory.mktemp("judged").resolve()
    workspace = root / "workspace"
    (workspace / "src" / "deep").mkdir(parents=True)
    (workspace / "links").mkdir()
    (workspace / "hyphens").mkdir()
    (root / "neighbour").mkdir()
    (root / "neighbour" / "secret").write_text("secret")
    for name in ("a.py", "b.py", "src/c.py", "src/deep/d.txt", "README.md", "[a]x", "a b"):
        (workspace / name).write_text("text\n")
    (workspace / "hyphens" / "--compress-program=evil").write_text("")
    (workspace / "out").symlink_to(root / "neighbour")
    (workspace / "inner").symlink_to(workspace / "src" / "deep")
    (workspace / "links" / "escape.py").symlink_to(root / "neighbour" / "secret")
    (workspace / "links" / "[a]y").symlink_to(root / "neighbour" / "secret")
    (workspace / "loop").symlink_to(workspace / "loop")
    return workspace


def verdict(command, workspace, working_dir=None):
    return judge(command, workspace=workspace, working_dir=working_dir or workspace)


# ── Inert ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H10", "L18")
@pytest.mark.parametrize("command", INERT)
def test_a_command_that_only_looks_inside_the_workspace_needs_no_permission(command, workspace):
    assert verdict(command, workspace) == Inert()


def test_an_absolute_path_into_the_workspace_is_inside(workspace):
    assert verdict(f"cat {workspace}/a.py", workspace) == Inert()
    assert verdict(f"cd {workspace}/src && ls", workspace) == Inert()


def test_paths_are_taken_from_the_working_directory(workspace):
    assert verdict("cat ../a.py", workspace, workspace / "src") == Inert()
    assert isinstance(verdict("cat ../../a.py", workspace, workspace / "src"), Asks)


def test_nothing_is_inert_in_a_directory_outside_the_workspace(workspace):
    assert isinstance(verdict("ls", workspace, workspace.parent), Asks)
    assert isinstance(verdict("pwd", workspace, workspace / "out"), Asks)


# ── Asks ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H10", "L18")
@pytest.mark.parametrize("command", [command for commands in ASKS.values() for command in commands])
def test_a_command_that_may_do_more_asks(command, workspace):
    assert isinstance(verdict(command, workspace), Asks)


def test_a_pattern_that_matches_a_name_with_a_hyphen_asks(workspace):
    """`sort *` would take a file called `--compress-program=evil` for an option."""
    assert isinstance(verdict("sort *", workspace, workspace / "hyphens"), Asks)
    assert verdict("sort ./-*", workspace, workspace / "hyphens") == Inert()


# ── Blocked ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H11")
@pytest.mark.parametrize("command", BLOCKED)
def test_a_command_of_the_network_or_the_system_is_refused_wherever_it_stands(command, workspace):
    assert isinstance(verdict(command, workspace), Blocked)


@pytest.mark.item("H11")
@pytest.mark.parametrize("command", NOT_BLOCKED)
def test_a_name_that_is_not_run_is_not_refused(command, workspace):
    assert not isinstance(verdict(command, workspace), Blocked)


def test_a_refusal_says_what_and_why(workspace):
    assert verdict("ls | curl x", workspace) == Blocked("curl: it reaches the network")


# ── In general ──────────────────────────────────────────────────────────────────────────────────

PIECES = st.sampled_from(
    [
        *(
            "ls",
            "cat",
            "a.py",
            "-l",
            "rm",
            "curl",
            "git",
            "status",
            "..",
            "/etc",
            "x",
            "cd",
            "sort",
        ),
        *("&&", "||", "$(", "<<EOF\n", "EOF\n", ">/dev/null", "2>&1", "if ", "then ", "esac"),
        *" \t\r\n;&|()<>$`'\"\\*?[]{}~#!=-1",
    ]
)


@given(st.lists(PIECES, max_size=20).map("".join) | st.text(max_size=40))
def test_every_text_gets_a_verdict(command):
    assert isinstance(
        judge(command, workspace=Path("/nowhere"), working_dir=Path("/nowhere")),
        Inert | Asks | Blocked,
    )


@given(st.sampled_from(sorted(LOOKING)), st.sampled_from([" ; ", " && ", "\n", " | ", " || "]))
def test_an_inert_command_beside_one_that_is_not_is_not_inert(name, operator):
    for command in (f"{name}{operator}rm x", f"rm x{operator}{name}"):
        assert isinstance(
            judge(command, workspace=Path("/nowhere"), working_dir=Path("/nowhere")), Asks
        )


@given(
    st.sampled_from(sorted(LOOKING)), st.from_regex(r"--[a-z]{3,8}-unknown(=x)?", fullmatch=True)
)
def test_an_unknown_option_is_never_inert(name, option):
    place = Path("/nowhere")
    assert isinstance(judge(f"{name} {option}", workspace=place, working_dir=place), Asks)
