"""Ignore files: what Git ignores is left out, and so is the noise."""

import os
import random
import subprocess
from time import perf_counter

import pytest

from crush_trio.tools.search.walk import (
    IgnoreFilter,
    IgnoreRules,
    project_root,
    read_rules,
    work_tree,
)


def left_out(rules, path, *, is_dir=False):
    parsed = IgnoreRules.parse(rules)
    assert parsed is not None
    return parsed.verdict(path.split("/"), is_dir=is_dir)


@pytest.mark.parametrize(
    ("rules", "path", "is_dir"),
    [
        (["*.log"], "a.log", False),
        (["*.log"], "x/y/a.log", False),
        (["/a"], "a", False),
        (["x/y"], "x/y", False),
        (["build/"], "build", True),
        (["build/"], "x/build", True),
        (["**/x"], "a/b/x", False),
        (["a/**"], "a/b/c", False),
        (["a/**/b"], "a/b", False),
        (["!x", "x"], "x", False),
        (["\\#x"], "#x", False),
        (["\\!x"], "!x", False),
        (["x\\ "], "x ", False),
        (["x  "], "x", False),
        (["x\r\n"], "x", False),
        (["[ab].c"], "a.c", False),
    ],
)
def test_rule_ignores(rules, path, is_dir):
    assert left_out(rules, path, is_dir=is_dir) is True


@pytest.mark.parametrize(
    ("rules", "path", "is_dir"),
    [
        (["/a"], "x/a", False),
        (["x/y"], "z/x/y", False),
        (["build/"], "build", False),
        (["a/**"], "a", True),
        (["a/*"], "a/b/c", False),
        (["a[b"], "a[b", False),
    ],
)
def test_rule_says_nothing(rules, path, is_dir):
    assert left_out([*rules, "unrelated"], path, is_dir=is_dir) is None


def test_last_rule_that_fits_decides():
    assert left_out(["*.log", "!keep.log"], "keep.log") is False
    assert left_out(["!keep.log", "*.log"], "keep.log") is True


def test_comments_and_blank_lines_are_no_rules():
    assert IgnoreRules.parse(["# x", "", "   ", "/", "!", "//", ".", "./a", "a//b"]) is None


# ── In directories ──────────────────────────────────────────────────────────────────────────────


def put(root, name, content=""):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def ignoring(root, **options):
    return IgnoreFilter(root, root, **options)


def test_nearest_ignore_file_decides(tmp_path):
    put(tmp_path, ".gitignore", "*.log\n")
    put(tmp_path, "a/.gitignore", "!*.log\n")
    search = ignoring(tmp_path)
    assert search.leaves_out_file(("x.log",))
    assert not search.leaves_out_file(("a", "x.log"))
    assert not search.leaves_out_file(("a", "b", "x.log"))


def test_nothing_in_an_ignored_directory_comes_back(tmp_path):
    put(tmp_path, ".gitignore", "a/\n")
    put(tmp_path, "a/.gitignore", "!x\n")
    assert ignoring(tmp_path).leaves_out_file(("a", "x"))


def test_crushignore_overrules_gitignore(tmp_path):
    put(tmp_path, ".gitignore", "*.gen\n")
    put(tmp_path, ".crushignore", "!keep.gen\nsecret.txt\n")
    search = ignoring(tmp_path)
    assert not search.leaves_out_file(("keep.gen",))
    assert search.leaves_out_file(("other.gen",))
    assert search.leaves_out_file(("secret.txt",))


def test_rules_above_the_search_hold_in_it(tmp_path):
    put(tmp_path, ".gitignore", "/a/x\n*.log\n")
    search = IgnoreFilter(tmp_path / "a", tmp_path)
    assert search.leaves_out_file(("x",))
    assert search.leaves_out_file(("b", "y.log"))
    assert not search.leaves_out_file(("b", "x"))


def test_an_ignored_directory_can_be_searched_by_name(tmp_path):
    put(tmp_path, ".gitignore", "vendor/\n")
    assert not IgnoreFilter(tmp_path / "vendor", tmp_path).leaves_out_file(("a.py",))


def test_noise_and_hidden_files_are_left_out_unless_a_rule_brings_them_back(tmp_path):
    put(tmp_path, ".gitignore", "!.keep\n!venv/\n")
    search = ignoring(tmp_path, hidden=True)
    assert search.leaves_out((".env",), is_dir=False)
    assert search.leaves_out(("node_modules",), is_dir=True)
    assert search.leaves_out(("__pycache__",), is_dir=True)
    assert search.leaves_out(("a", "x.pyc"), is_dir=False)
    assert not search.leaves_out((".keep",), is_dir=False)
    assert not search.leaves_out(("venv",), is_dir=True)
    assert not ignoring(tmp_path).leaves_out((".env",), is_dir=False)
    assert ignoring(tmp_path).leaves_out((".git",), is_dir=True)


def test_rules_of_the_caller_come_first(tmp_path):
    put(tmp_path, ".gitignore", "!x\n")
    assert ignoring(tmp_path, more=IgnoreRules.parse(["x"])).leaves_out(("x",), is_dir=False)


def test_ignore_file_that_is_a_link_or_a_pipe_is_not_read(tmp_path):
    put(tmp_path, "rules", "x\n")
    (tmp_path / ".gitignore").symlink_to("rules")
    os.mkfifo(tmp_path / ".crushignore")
    assert read_rules(str(tmp_path)) is None


def test_directory_with_the_name_of_an_ignore_file_is_none(tmp_path):
    (tmp_path / ".gitignore").mkdir()
    assert read_rules(str(tmp_path)) is None


def test_ignore_file_of_a_stranger_costs_no_time(tmp_path):
    put(tmp_path, ".gitignore", "\n".join(["*a*a*a*a*a*a*a*a*b"] * 200))
    search = ignoring(tmp_path)
    begun = perf_counter()
    assert not any(search.leaves_out(("a" * 200 + str(n),), is_dir=False) for n in range(20))
    assert perf_counter() - begun < 2


def test_a_tree_may_be_deeper_than_the_call_stack(tmp_path):
    assert not ignoring(tmp_path).leaves_out_file(("a",) * 1500)


def test_project_is_the_work_tree_or_the_workspace_or_the_directory_itself(tmp_path):
    inner = tmp_path / "a/b"
    inner.mkdir(parents=True)
    assert project_root(inner, tmp_path) == tmp_path
    assert project_root(inner, tmp_path / "z") == inner
    put(tmp_path, "a/.git", "gitdir: elsewhere\n")
    assert project_root(inner, tmp_path) == work_tree(inner) == tmp_path / "a"


# ── Against Git itself ──────────────────────────────────────────────────────────────────────────

NAMES = ("a", "b", "ab", "a.b", "b.a", "aa b")
PIECES = ("a", "b", "*", "?", "[ab]", "[!a]", ".", "\\a", " ")


def random_rules(rng):
    """Return rules in which `**` stands alone: elsewhere Git does not do what its manual says."""

    def part():
        name = "".join(rng.choices(PIECES, k=rng.randint(1, 3))).replace("**", "*")
        return rng.choice(["**", name, name, name])

    def line():
        path = "/".join(part() for _ in range(rng.randint(1, 3)))
        return rng.choice(["", "", "!"]) + rng.choice(["", "/"]) + path + rng.choice(["", "", "/"])

    return "\n".join(line() for _ in range(rng.randint(1, 5))) + "\n"


def random_paths(rng):
    """Return paths of files; those that are directories here are left out."""
    paths = {"/".join(rng.choices(NAMES, k=rng.randint(1, 4))) for _ in range(60)}
    return paths - {"a", "a/b"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_what_is_ignored_is_what_git_ignores(tmp_path, seed):
    rng = random.Random(seed)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q", tmp_path], env=env, check=True)
    put(tmp_path, ".gitignore", random_rules(rng))
    put(tmp_path, "a/.gitignore", random_rules(rng))
    put(tmp_path, "a/b/.gitignore", random_rules(rng))
    paths = sorted(random_paths(rng))
    answer = subprocess.run(
        ["git", "-C", tmp_path, "check-ignore", "--no-index", "-z", "--stdin"],
        input="\0".join(paths).encode(),
        env=env,
        stdout=subprocess.PIPE,
        check=False,
    )
    search = ignoring(tmp_path)
    ours = [path for path in paths if search.leaves_out_file(tuple(path.split("/")))]
    assert ours == [path for path in answer.stdout.decode().split("\0") if path]
