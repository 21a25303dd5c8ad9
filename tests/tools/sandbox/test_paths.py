"""Which paths a sandbox makes writable, protects and hides."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from crush_trio.tools.sandbox.paths import (
    GitPaths,
    caches,
    git_paths,
    hidden_paths,
    protected_paths,
    temporary_directories,
)


@pytest.fixture
def home(tmp_path):
    place = tmp_path.resolve() / "home"
    place.mkdir()
    return place


def directory(path):
    path.mkdir(parents=True, exist_ok=True)
    return path


def file(path, text=""):
    directory(path.parent)
    path.write_text(text)
    return path


# ── Caches ──────────────────────────────────────────────────────────────────────────────────────


def test_only_caches_that_exist_are_writable_and_no_programs_of_them(home):
    directory(home / ".cargo" / "registry")
    directory(home / ".cargo" / "bin")
    directory(home / "go" / "bin")
    directory(home / ".cache")
    assert set(caches({}, home)) == {home / ".cargo" / "registry", home / ".cache"}


@pytest.mark.parametrize("value", ["/", "relative", "~", "{home}", "{home}/.."])
def test_a_variable_does_not_make_more_writable_than_a_cache(home, value):
    env = dict.fromkeys(("XDG_CACHE_HOME", "TMPDIR"), value.format(home=home))
    assert list(caches(env, home)) == []
    assert {*temporary_directories(env, home)} <= {Path("/tmp"), Path("/var/tmp")}


# ── Git ─────────────────────────────────────────────────────────────────────────────────────────


def repository(path):
    for name in ("HEAD", "config"):
        file(path / name)
    directory(path / "hooks")
    return path


def test_the_configuration_and_hooks_of_a_repository_and_its_submodules_are_protected(tmp_path):
    git = repository(tmp_path / ".git")
    nested = repository(git / "modules" / "lib" / "inner")
    deeper = repository(nested / "modules" / "deep")
    tree = repository(git / "worktrees" / "other")
    found = git_paths(tmp_path)
    assert found.directories == (git,)
    for each in (git, nested, deeper):
        assert {each / "config", each / "hooks", each / "commondir"} <= {*found.protected}
    assert {tree / "commondir", tree / "gitdir"} <= {*found.protected}


def test_submodules_that_take_too_long_to_find_are_protected_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("crush_trio.tools.sandbox.paths.MOST_ENTRIES", 20)
    git = repository(tmp_path / ".git")
    for number in range(10):
        directory(git / "modules" / "deep" / "/".join("x" * (number + 1)))
        directory(git / "modules" / str(number))
    assert git / "modules" in git_paths(tmp_path).protected
    assert git / "worktrees" not in git_paths(tmp_path).protected


def linked(tmp_path, back):
    """Make a work tree whose `.git` file names a git directory elsewhere, which names *back*."""
    common = repository(tmp_path / "main" / ".git")
    for name in ("objects", "refs"):
        (common / name).mkdir()
    inner = repository(common / "worktrees" / "tree")
    file(inner / "commondir", "../..\n")
    file(inner / "gitdir", f"{back}\n")
    return file(tmp_path / "tree" / ".git", f"gitdir: {inner}\n"), common, inner


def test_a_linked_work_tree_can_write_its_git_directory_elsewhere(tmp_path):
    entry, common, inner = linked(tmp_path, tmp_path / "tree" / ".git")
    found = git_paths(entry.parent)
    assert found.directories == (common, inner)
    assert {entry, common / "config", common / "hooks", inner / "commondir"} <= {*found.protected}


def test_a_crafted_file_makes_no_other_directory_writable(tmp_path, home):
    entry, _, _ = linked(tmp_path, tmp_path / "somewhere" / ".git")
    assert git_paths(entry.parent).directories == ()
    repository(home)
    entry.write_text(f"gitdir: {home}\n")
    assert git_paths(entry.parent).directories == ()
    assert git_paths(entry.parent).protected == (entry,)


@pytest.mark.parametrize("common", ["/", "../../home", "..", "missing"])
def test_a_crafted_common_directory_makes_no_other_directory_writable(tmp_path, home, common):
    inner = repository(tmp_path / "work" / "inner")
    entry = file(tmp_path / "work" / ".git", "gitdir: inner\n")
    file(inner / "gitdir", f"{entry}\n")
    file(inner / "commondir", f"{common}\n")
    found = git_paths(entry.parent)
    assert (found.directories, found.protected) == ((), (entry,))


def test_a_work_tree_that_poses_as_a_git_directory_does_not_make_the_home_writable(home):
    work = repository(home / "worktrees" / "project")
    entry = file(work / ".git", "gitdir: .\n")
    file(work / "gitdir", f"{entry}\n")
    file(work / "commondir", "../..\n")
    assert git_paths(work).directories == ()


def test_a_link_to_modules_above_makes_no_other_repository_writable(tmp_path, home):
    other = repository(home / "other" / ".git")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "modules").symlink_to(home)
    entry = file(tmp_path / "work" / ".git", f"gitdir: {other}\n")
    assert git_paths(entry.parent).directories == ()


def test_a_submodule_can_write_its_part_of_the_repository_around_it(tmp_path):
    inner = repository(tmp_path / ".git" / "modules" / "lib")
    entry = file(tmp_path / "lib" / ".git", "gitdir: ../.git/modules/lib\n")
    assert git_paths(entry.parent).directories == (inner.resolve(),)


@pytest.mark.parametrize("text", ["", "gitdir:", "gitdir: \0", "x" * 10_000, "gitdir: loop"])
def test_a_file_that_names_no_repository_is_protected_and_nothing_else(tmp_path, text):
    (tmp_path / "loop").symlink_to("loop")
    entry = file(tmp_path / ".git", text)
    found = git_paths(tmp_path)
    assert (found.directories, found.protected) == ((), (entry,))


@pytest.mark.parametrize("name", [".git", "inner/gitdir", "inner/commondir"])
def test_a_named_pipe_is_not_waited_for(tmp_path, name):
    inner = repository(tmp_path / "inner")
    entry = file(tmp_path / ".git", "gitdir: inner\n")
    file(inner / "gitdir", f"{entry}\n")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    assert git_paths(tmp_path) == GitPaths(protected=(entry,))


def test_a_git_directory_behind_a_link_is_not_followed(tmp_path, home):
    repository(home)
    (tmp_path / ".git").symlink_to(home)
    assert git_paths(tmp_path).directories == ()


# ── Hidden ──────────────────────────────────────────────────────────────────────────────────────


def test_private_files_and_sockets_that_lead_out_are_hidden(home, tmp_path):
    keys, config = directory(home / ".ssh"), file(home / ".docker" / "config.json")
    agent, state = file(tmp_path / "agent.sock"), directory(home / ".local" / "state" / "crush")
    runtime, tmux = directory(tmp_path / "run"), file(tmp_path / "tmux")
    env = {"SSH_AUTH_SOCK": str(agent), "XDG_RUNTIME_DIR": str(runtime), "TMUX": f"{tmux},12,0"}
    env["TMPDIR"], ours = str(tmp_path), directory(tmp_path / "crush-trio-4711")
    own = directory(home / ".config" / "crush")
    hidden = {*hidden_paths(env, home, 4711, [own])}
    assert {keys, config, agent, runtime, tmux, own, state, ours} <= hidden
    assert all(path.exists() for path in hidden)


def test_private_files_of_the_account_are_hidden_also_without_a_home(home, tmp_path, monkeypatch):
    key = directory(home / ".ssh")
    account = SimpleNamespace(pw_dir=str(home))
    monkeypatch.setattr("pwd.getpwuid", lambda uid: account)
    assert key in hidden_paths({}, Path("/"), 1000, ())
    protected, watched = protected_paths(Path("/"), (), tmp_path, GitPaths())
    assert {home / ".bashrc", home / ".zshrc"} <= {*watched}
    file(home / ".bashrc")
    file(home / ".zshrc")
    protected, _ = protected_paths(Path("/"), (), tmp_path, GitPaths())
    assert {home / ".bashrc", home / ".zshrc"} <= {*protected}


def test_new_configuration_is_protected_in_a_trusted_project_and_watched_in_another(tmp_path):
    git = git_paths(tmp_path)
    protected, watched = protected_paths(Path("/h"), [tmp_path], tmp_path / "data", git, [tmp_path])
    assert {tmp_path / "crush.json", tmp_path / ".crush.json"} <= {*protected}
    assert {tmp_path / ".git", tmp_path / ".crush"} <= {*watched}
    _, watched = protected_paths(Path("/h"), [tmp_path], tmp_path / "data", git, [tmp_path / "x"])
    assert {tmp_path / "crush.json", tmp_path / ".crush.json"} <= {*watched}


def test_a_variable_cannot_hide_the_home_directory(home):
    env = {"XDG_RUNTIME_DIR": str(home.parent), "SSH_AUTH_SOCK": str(home)}
    assert not {home, home.parent} & {*hidden_paths(env, home, 4711, [])}
