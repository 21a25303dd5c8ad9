"""Placeholders: made, shared between commands, and removed unless another program has filled them."""

import os
from pathlib import Path

import pytest

from crush_trio.tools.shell.guard.placeholder import (
    MODE,
    Placeholders,
    is_placeholder,
    look_for_made,
    remove_left,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / ".git"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_placeholder_is_recognised_whatever_the_umask_is(path, mask):
    before = os.umask(mask)
    try:
        placeholders = Placeholders([str(path)])
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert is_placeholder(path)
    placeholders.remove()
    placeholders.remove()
    assert not path.exists()


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_the_last_of_several_removes_it(path, order):
    shared = [Placeholders([str(path)]) for _ in range(3)]
    for number in order:
        assert is_placeholder(path)
        shared[number].remove()
    assert not path.exists()


def test_what_another_program_has_filled_or_replaced_stays(path):
    first = Placeholders([str(path)])
    (path / "HEAD").touch()
    first.remove()
    assert (path / "HEAD").exists()
    (path / "HEAD").unlink()
    second = Placeholders([str(path)])
    path.rmdir()
    path.mkdir(mode=0o755)
    second.remove()
    assert path.exists()


def test_a_name_that_is_taken_meanwhile_is_an_error_and_leaves_nothing(path, tmp_path):
    path.write_text("text")
    with pytest.raises(FileExistsError):
        Placeholders([str(tmp_path / ".crush"), str(path)])
    assert [*tmp_path.iterdir()] == [path]


def test_what_is_left_is_removed_if_it_is_ours_empty_and_not_in_use(tmp_path):
    def directory(name, mode=MODE):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        return tmp_path / name

    left, used, filled = directory("left"), tmp_path / "used", directory("filled")
    plain, foreign = directory("plain", 0o755), directory("foreign")
    (filled / "file").touch()
    if not os.geteuid():
        os.chown(foreign, 65534, 65534)
    running = Placeholders([str(used)])
    opened = len([*Path("/proc/self/fd").iterdir()])
    remove_left([left, used, filled, plain, tmp_path / "absent", tmp_path / "no" / "parent"])
    if not os.geteuid():
        remove_left([foreign])
        assert foreign.exists()
    assert len([*Path("/proc/self/fd").iterdir()]) == opened
    assert not left.exists()
    assert all(each.exists() for each in (used, filled, plain))
    running.remove()
    running.close()
    assert not used.exists()


def test_what_a_command_made_is_found_and_a_commondir_is_removed_but_not_through_a_link(tmp_path):
    git, elsewhere = tmp_path / ".git", tmp_path / "elsewhere"
    git.mkdir()
    elsewhere.mkdir()
    for path in (git / "commondir", elsewhere / "commondir", tmp_path / "crush.json"):
        path.touch()
    (tmp_path / "linked").symlink_to(elsewhere)
    names = ("absent", "crush.json", ".git/commondir", "linked/commondir")
    assert look_for_made([str(tmp_path / name) for name in names]) == [1, 2, 3]
    assert not (git / "commondir").exists()
    assert (elsewhere / "commondir").exists()
    assert (tmp_path / "crush.json").exists()
