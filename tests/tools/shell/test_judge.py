"""Which shell commands may run unasked, which are refused, and which a person must decide."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.config.rules.programs import NEVER
from crush_trio.tools.shell.judge import (
    LINE_RUNNERS,
    POSITIONS,
    WRAPPERS,
    Blocked,
    NeedsPermission,
    ReadOnly,
    judge,
)
from crush_trio.tools.shell.read_only import READ_ONLY_PROGRAMS
from tests.tools.command_tables import (
    ASKS,
    ASKS_WITHOUT_SANDBOX,
    BLOCKED,
    INERT,
    INERT_WITHOUT_SANDBOX,
    NOT_BLOCKED,
)


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
    return judge(command, workspace=workspace, working_dir=working_dir or workspace, sandboxed=True)


# ── Inert ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H10", "L18")
@pytest.mark.parametrize("command", INERT)
def test_a_command_that_only_looks_inside_the_workspace_needs_no_permission(command, workspace):
    assert verdict(command, workspace) == ReadOnly()


@pytest.mark.item("H10")
def test_without_a_sandbox_only_programs_that_cannot_write_need_no_permission(workspace):
    def judged(command):
        return judge(command, workspace=workspace, working_dir=workspace, sandboxed=False)

    assert {command: judged(command) for command in INERT_WITHOUT_SANDBOX} == dict.fromkeys(
        INERT_WITHOUT_SANDBOX, ReadOnly()
    )
    for command in ASKS_WITHOUT_SANDBOX:
        assert verdict(command, workspace) == ReadOnly(), command
        assert isinstance(judged(command), NeedsPermission), command
    assert isinstance(judged("cat a.py; curl x"), Blocked)


def test_an_absolute_path_into_the_workspace_is_inside(workspace):
    assert verdict(f"cat {workspace}/a.py", workspace) == ReadOnly()
    assert verdict(f"cd {workspace}/src && ls", workspace) == ReadOnly()


def test_paths_are_taken_from_the_working_directory(workspace):
    assert verdict("cat ../a.py", workspace, workspace / "src") == ReadOnly()
    assert isinstance(verdict("cat ../../a.py", workspace, workspace / "src"), NeedsPermission)


def test_nothing_is_inert_in_a_directory_outside_the_workspace(workspace):
    assert isinstance(verdict("ls", workspace, workspace.parent), NeedsPermission)
    assert isinstance(verdict("pwd", workspace, workspace / "out"), NeedsPermission)


# ── Asks ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H10", "L18")
@pytest.mark.parametrize("command", [command for commands in ASKS.values() for command in commands])
def test_a_command_that_may_do_more_asks(command, workspace):
    assert isinstance(verdict(command, workspace), NeedsPermission)


def test_a_pattern_that_matches_a_name_with_a_hyphen_asks(workspace):
    """`sort *` would take a file called `--compress-program=evil` for an option."""
    assert isinstance(verdict("sort *", workspace, workspace / "hyphens"), NeedsPermission)
    assert verdict("sort ./-*", workspace, workspace / "hyphens") == ReadOnly()


def test_a_pattern_that_can_mean_the_directory_above_asks_if_that_is_outside(workspace):
    for pattern in (".*", "..*", ".?", "./.*"):
        assert isinstance(verdict(f"grep -r root {pattern}", workspace), NeedsPermission), pattern
    assert verdict("ls src/.*", workspace) == ReadOnly()
    assert verdict("ls .g*", workspace) == ReadOnly()


# ── Private ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def kept(tmp_path):
    """Return a workspace with something private in it, and a link to that."""
    workspace = tmp_path.resolve() / "kept"
    (workspace / ".crush").mkdir(parents=True)
    (workspace / "src").mkdir()
    (workspace / ".crush" / "crush.json").write_text("{}")
    (workspace / "link").symlink_to(".crush")
    return workspace


@pytest.mark.parametrize(
    "command",
    [
        *(
            "cat .crush/crush.json",
            "cat .crush/*",
            "cat link/crush.json",
            "head < .crush/crush.json",
        ),
        *(
            "cd .crush && cat crush.json",
            "cd link && ls",
            "ls .crush",
            "cat src/../.crush/crush.json",
        ),
        *("grep -r key", "grep -r key .", "grep -d recurse key .", "grep -rn key *", "rg key"),
        *("rg --hidden key .", "rg -e key", "grep key .crush/crush.json", "grep -r key src/.*"),
    ],
)
def test_a_command_that_would_show_what_is_private_asks(command, kept):
    private = (kept / ".crush",)
    assert isinstance(
        judge(command, workspace=kept, working_dir=kept, private=private, sandboxed=True),
        NeedsPermission,
    )
    assert isinstance(
        judge(
            "cat crush.json",
            workspace=kept,
            working_dir=kept / ".crush",
            private=private,
            sandboxed=True,
        ),
        NeedsPermission,
    )


@pytest.mark.parametrize(
    "command", ["ls", "grep -r key src", "rg key src", "rg --files", "grep key a.py", "git status"]
)
def test_a_command_that_looks_beside_what_is_private_needs_no_permission(command, kept):
    private = (kept / ".crush",)
    assert (
        judge(command, workspace=kept, working_dir=kept, private=private, sandboxed=True)
        == ReadOnly()
    )


# ── Repositories ────────────────────────────────────────────────────────────────────────────────


def test_git_is_not_inert_where_a_directory_of_the_checkout_poses_as_a_repository(kept):
    posing = kept / "docs" / "sample"
    for name in ("objects", "refs", "below"):
        (posing / name).mkdir(parents=True)
    (posing / "HEAD").write_text("ref: refs/heads/main\n")
    for command in ("cd docs/sample && git status", "cd docs/sample/below && git status"):
        assert isinstance(verdict(command, kept), NeedsPermission)
    assert isinstance(verdict("git status", kept, posing), NeedsPermission)
    borrowing = kept / "borrowing"
    borrowing.mkdir()
    (borrowing / "HEAD").write_text("ref: refs/heads/main\n")
    assert verdict("cd borrowing && git status", kept) == ReadOnly()
    (borrowing / "commondir").write_text("../docs/sample\n")
    assert isinstance(verdict("cd borrowing && git status", kept), NeedsPermission)
    assert verdict("git status", kept) == ReadOnly()
    assert verdict("cd docs && git status", kept) == ReadOnly()


# ── Blocked ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H11")
@pytest.mark.parametrize("command", BLOCKED)
def test_a_command_of_the_network_or_the_system_is_refused_wherever_it_stands(command, workspace):
    assert isinstance(verdict(command, workspace), Blocked)


@pytest.mark.item("H11")
@pytest.mark.parametrize("command", NOT_BLOCKED)
def test_a_name_that_is_not_run_is_not_refused(command, workspace):
    assert not isinstance(verdict(command, workspace), Blocked)


def test_no_pattern_covers_a_program_that_the_judge_looks_through():
    assert {*WRAPPERS, *POSITIONS, *LINE_RUNNERS} <= NEVER


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
        judge(command, workspace=Path("/nowhere"), working_dir=Path("/nowhere"), sandboxed=True),
        ReadOnly | NeedsPermission | Blocked,
    )


@given(
    st.sampled_from(sorted(READ_ONLY_PROGRAMS)),
    st.sampled_from([" ; ", " && ", "\n", " | ", " || "]),
)
def test_an_inert_command_beside_one_that_is_not_is_not_inert(name, operator):
    for command in (f"{name}{operator}rm x", f"rm x{operator}{name}"):
        assert isinstance(
            judge(
                command, workspace=Path("/nowhere"), working_dir=Path("/nowhere"), sandboxed=True
            ),
            NeedsPermission,
        )


@given(
    st.sampled_from(sorted(READ_ONLY_PROGRAMS)),
    st.from_regex(r"--[a-z]{3,8}-unknown(=x)?", fullmatch=True),
)
def test_an_unknown_option_is_never_inert(name, option):
    place = Path("/nowhere")
    assert isinstance(
        judge(f"{name} {option}", workspace=place, working_dir=place, sandboxed=True),
        NeedsPermission,
    )
