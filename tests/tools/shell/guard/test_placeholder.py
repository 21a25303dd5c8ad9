"""Placeholders: made, shared between commands, and removed unless another program has filled them."""

import os

import pytest

from crush_trio.tools.shell.guard.placeholder import Placeholders, is_placeholder


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
