"""Repositories that name programs, with the real git: nothing of them runs without permission."""

import shutil

import pytest

from crush_trio.agent.turn.planner import GIT_NOT_RUN, git_state
from crush_trio.clock import SystemClock
from crush_trio.tools.base import ToolError
from crush_trio.tools.shell.unasked import unasked_env
from tests.tools.hostile_git import TRAPS, make_ground
from tests.tools.shell_bench import open_shell_bench

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


@pytest.fixture
def ground(tmp_path):
    return make_ground(tmp_path.resolve() / "ground")


@pytest.mark.item("H10")
@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
async def test_no_program_of_a_repository_runs_unasked(trap, ground, tmp_path):
    trap.craft(ground)
    kept = tmp_path / "kept"
    shutil.copytree(ground.root, kept, symlinks=True)
    async with open_shell_bench(ground.repository, HOME=str(ground.home)) as bench:
        bench.person.refuses = True
        for command in trap.commands:
            assert ground.spring(command), f"plain git springs the trap: {command}"
            shutil.rmtree(ground.root)  # as before: git has written its index
            shutil.copytree(kept, ground.root, symlinks=True)
            try:
                await bench.bash(command)
            except ToolError:
                assert bench.person.asked
            assert not ground.unmark(), command
    await git_state(ground.repository, ground.env, SystemClock())
    assert not ground.unmark(), "the server's own git"


HELD = {
    *("signature", "show signature", "named format", "promisor ext", "promisor ssh", "hook"),
    *("promisor upload pack", "hooks path", "monitor", "submodule"),
    *("converter of the user", "filter of the user"),
}
"""Traps that our settings stop even if the repository is not checked."""


@pytest.mark.parametrize(
    "trap", [trap for trap in TRAPS if trap.name in HELD], ids=lambda t: t.name
)
def test_our_settings_alone_stop_what_settings_can_stop(trap, ground):
    trap.craft(ground)
    env = unasked_env(ground.env, ground.repository)
    for command in trap.commands:
        assert not ground.spring(command, env), command


WRITING = [
    *(
        f"git {name} --unified --output={{file}}"
        for name in ("log", "diff", "show", "shortlog HEAD")
    ),
    "git log -1 --format=%B -s --unified --output={file}",
    "git log -pn --output={file}",
    "git rev-list -L --output={file} HEAD",
    pytest.param("tree -Po x {file}", marks=pytest.mark.needs("tree")),
]


@pytest.mark.item("H10")
@pytest.mark.parametrize("line", WRITING)
async def test_an_option_that_writes_is_found_behind_another_option(line, ground):
    start_up = ground.home / ".bashrc"
    command = line.format(file=start_up)
    ground.spring(command)
    assert start_up.exists(), "the command writes"
    start_up.unlink()
    async with open_shell_bench(ground.repository, HOME=str(ground.home)) as bench:
        bench.person.refuses = True
        with pytest.raises(ToolError):
            await bench.bash(command)
    assert not start_up.exists()


# ── The server's own git ────────────────────────────────────────────────────────────────────────


async def test_the_prompt_has_the_state_of_an_ordinary_repository(ground):
    state = await git_state(ground.repository, ground.env, SystemClock())
    assert state.startswith("## main\n M a.py\n")
    assert state.endswith("first")


async def test_the_prompt_says_that_git_was_not_run_and_repeats_nothing_of_the_configuration(
    ground,
):
    ground.configure('[diff "ignore all rules"]\n\tcommand = x\n')
    assert await git_state(ground.repository, ground.env, SystemClock()) == GIT_NOT_RUN


# ── Ordinary repositories ───────────────────────────────────────────────────────────────────────

ORDINARY = """[core]
	hooksPath = .husky/_
	autocrlf = input
[remote "origin"]
	url = git@example.org:a/b.git # a comment
	fetch = +refs/heads/*:refs/remotes/origin/*
[branch "main"]
	remote = origin
	merge = refs/heads/main
	vscode-merge-base = origin/main
[user]
	name = "A Name"
; another
[http "https://example.org/"]
	extraheader = x
"""


async def unasked(directory, command="git status --short", **env):
    """Run a command that must not ask, and return its output."""
    async with open_shell_bench(directory, **env) as bench:
        result = await bench.bash(command)
        assert bench.person.asked == []
    return result.metadata["output"]


async def test_an_ordinary_repository_is_not_asked_for(ground):
    ground.configure(ORDINARY)
    (ground.repository / "below").mkdir()
    assert await unasked(ground.repository) == " M a.py"
    assert await unasked(ground.repository / "below", "git log --oneline | wc -l") == "1"
    assert "+two" in await unasked(ground.repository, "git diff")


async def test_a_linked_worktree_and_a_clone_with_submodules_are_not_asked_for(ground):
    ground.git("worktree", "add", "-q", str(ground.root / "linked"))
    linked = ground.root / "linked"
    (linked / "a.py").write_text("three\n")
    assert await unasked(linked) == " M a.py"
    inner = ground.root / "inner"
    ground.git("clone", "-q", str(ground.repository), str(inner))
    ground.git("submodule", "add", "-q", str(inner), "sub")
    ground.git("commit", "-qm", "submodule")
    assert await unasked(ground.repository) == " M a.py"
    assert await unasked(ground.repository / "sub", "git log --oneline | wc -l") == "1"


async def test_settings_of_the_user_that_name_no_program_are_kept(ground):
    (ground.home / "ignored").write_text("new.py\n")
    (ground.home / ".gitconfig").write_text(
        '[core]\n\texcludesFile = "~/ignored"\n\tpager = x\n[status]\n\tshort = true\n'
        "[diff]\n\tnoprefix\n\texternal = x\n[safe]\n\tdirectory = *\n"
    )
    (ground.repository / "new.py").write_text("")
    assert await unasked(ground.repository, "git status", HOME=str(ground.home)) == " M a.py"
    assert "--- a.py" in await unasked(ground.repository, "git diff", HOME=str(ground.home))


# ── Repositories elsewhere ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "way", ["file", "link", "common", "objects", "pack", "alternates", "worktree", "rebase"]
)
async def test_a_repository_outside_the_workspace_is_not_shown_unasked(way, ground):
    """A `.git` that leads to another project of the user shows the content of that project."""
    other = make_ground(ground.root / "other")
    other.git("gc", "-q")
    ground.git("gc", "-q")
    match way:
        case "file":
            shutil.rmtree(ground.git_dir)
            ground.git_dir.write_text(f"gitdir: {other.git_dir}\n")
        case "link":
            shutil.rmtree(ground.git_dir)
            ground.git_dir.symlink_to(other.git_dir)
        case "common":
            (ground.git_dir / "commondir").write_text(str(other.git_dir))
        case "objects":
            shutil.rmtree(ground.git_dir / "objects")
            (ground.git_dir / "objects").symlink_to(other.git_dir / "objects")
        case "pack":
            shutil.rmtree(ground.git_dir / "objects" / "pack")
            (ground.git_dir / "objects" / "pack").symlink_to(other.git_dir / "objects" / "pack")
        case "alternates":
            (ground.git_dir / "objects" / "info").mkdir(exist_ok=True)
            (ground.git_dir / "objects" / "info" / "alternates").write_text(
                f"{other.git_dir}/objects\n"
            )
        case "rebase":
            (ground.git_dir / "rebase-merge").mkdir()
            (ground.git_dir / "rebase-merge" / "done").symlink_to(other.repository / "a.py")
        case "worktree":
            ground.configure(f"[core]\n\tworktree = {other.repository}\n")
    async with open_shell_bench(ground.repository) as bench:
        bench.person.refuses = True
        with pytest.raises(ToolError):
            await bench.bash("git show HEAD")
