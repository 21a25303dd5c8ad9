"""Files as the package touches them."""

import os
import stat
from pathlib import Path

import pytest

from crush_trio.config.errors import ConfigInvalid
from crush_trio.config.files import parse_tree
from crush_trio.private_files import LockHeld, locked, read_file, replace_file


def test_a_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read_file(path, 10) == b"12345"
    assert read_file(path, 3) == b"123"


def test_a_file_that_is_not_there_is_nothing(tmp_path):
    (tmp_path / "file").touch()
    assert read_file(tmp_path / "none", 10) is None
    assert read_file(tmp_path / "file" / "below", 10) is None


def test_a_pipe_does_not_keep_the_reader_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_file(tmp_path / "pipe", 10)


def test_a_replaced_file_belongs_to_the_user_alone_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")
    path.chmod(0o644)
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_what_it_led_to_stays(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("untouched")
    link.symlink_to(target)
    replace_file(link, b"new")
    assert not link.is_symlink()
    assert target.read_text() == "untouched"


def test_a_failed_replacement_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_text("old")

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_is_held_by_one_at_a_time_and_its_file_stays(tmp_path):
    path = tmp_path / "deep" / "f"
    with locked(path):
        with pytest.raises(LockHeld), locked(path):
            pass
    with locked(path):
        pass
    assert [each.name for each in path.parent.iterdir()] == ["f.lock"]


def test_a_lock_file_that_is_a_link_is_refused(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    Path(tmp_path / "f.lock").symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"\[Errno"), locked(tmp_path / "f"):
        pass
    assert not elsewhere.exists()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (r'{"options": {"context_paths": ["a", "b\u0000"]}}', "options.context_paths: "),
        (r'{"options": {"data_directory": "\u0000"}}', "options.data_directory: "),
        (r'{"mcp": {"a\u0000b": {}}}', "mcp: "),
    ],
)
def test_a_null_character_is_refused_with_its_place(text, key):
    with pytest.raises(ConfigInvalid) as refused:
        parse_tree(text.encode(), Path("crush.json"))
    assert refused.value.detail == f"crush.json: {key}expected text without a null character"


def test_what_only_looks_like_a_null_character_is_text():
    assert parse_tree(rb'{"a": "\\u0000"}', Path("crush.json")) == {"a": r"\u0000"}
