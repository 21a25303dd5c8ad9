"""The environment of commands: git is told not to run what a checkout brought along."""

import os
import subprocess

import pytest
import trio

from crush_trio.tools.sandbox.confinement import SandboxKind
from crush_trio.tools.shell.environment import GIT_SETTINGS, unattended_env
from tests.tools.shell_bench import open_shell_bench

HOSTILE = """[core]
	repositoryformatversion = 0
	bare = false
	worktree = .
	fsmonitor = "touch {mark}; false"
"""


def settings(env):
    """Return the settings that an environment has for git, in their order."""
    count = int(env["GIT_CONFIG_COUNT"])
    return [(env[f"GIT_CONFIG_KEY_{n}"], env[f"GIT_CONFIG_VALUE_{n}"]) for n in range(count)]


def test_git_gets_our_settings():
    assert settings(unattended_env({})) == list(GIT_SETTINGS)


def test_settings_that_are_there_already_stay_and_ours_come_last():
    env = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.fsmonitor",
        "GIT_CONFIG_VALUE_0": "evil",
    }
    assert settings(unattended_env(env)) == [("core.fsmonitor", "evil"), *GIT_SETTINGS]


@pytest.mark.parametrize("count", ["", "many", "-1", "²"])
def test_a_count_that_is_none_counts_as_nothing(count):
    assert settings(unattended_env({"GIT_CONFIG_COUNT": count})) == list(GIT_SETTINGS)


# ── With the real git ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def checkout(tmp_path):
    """Return a repository with a directory in it that poses as another one."""
    directory = tmp_path / "checkout"
    directory.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    subprocess.run(["git", "init", "-q", str(directory)], check=True, env=env)
    posing = directory / "docs" / "sample"
    for name in ("objects", "refs"):
        (posing / name).mkdir(parents=True)
        (posing / name / "keep").write_text("")
    (posing / "HEAD").write_text("ref: refs/heads/main\n")
    (posing / "config").write_text(HOSTILE.format(mark=tmp_path / "mark"))
    return directory


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_directory_that_poses_as_a_repository_runs_nothing(checkout, tmp_path):
    posing = checkout / "docs" / "sample"
    bare = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    await trio.run_process(
        ["git", "status"],
        cwd=posing,
        env=bare,
        check=False,
        capture_stdout=True,
        capture_stderr=True,
    )
    assert (tmp_path / "mark").exists(), "the trap works"
    (tmp_path / "mark").unlink()
    async with open_shell_bench(checkout, HOME=str(tmp_path)) as bench:
        for arguments in (
            {"command": "git status", "working_dir": "docs/sample"},
            {"command": "cd docs/sample && git status"},
        ):
            assert "safe.bareRepository" in (await bench.bash(**arguments)).content
        assert len(bench.person.asked) == 2
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
@pytest.mark.real_clock
async def test_git_status_runs_no_monitor_that_the_repository_names(checkout, tmp_path):
    with (checkout / ".git" / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = "touch {tmp_path / "mark"}; false"\n')
    async with open_shell_bench(checkout, HOME=str(tmp_path)) as bench:
        result = await bench.bash("git status --short")
        assert bool(bench.person.asked) is (bench.bench.sandbox.kind is SandboxKind.NONE)
    assert "docs/" in result.content
    assert not (tmp_path / "mark").exists()
