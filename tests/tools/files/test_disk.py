"""Files are read within limits, and replaced whole or not at all."""

import os
import stat

import pytest

from crush_trio import nofollow
from crush_trio.tools.base import ToolError
from crush_trio.tools.files.disk import Snapshot, modified_at, open_regular, read_file, replace_file


def seen(path):
    return read_file(path, 1000)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────


def test_a_file_is_read_with_the_second_of_its_last_change(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"text")
    os.utime(path, ns=(0, 1_700_000_000_999_999_999))
    assert seen(path) == Snapshot(data=b"text", modified=1_700_000_000)
    with open_regular(path) as file:
        assert modified_at(file) == 1_700_000_000


def test_no_file_is_no_error(tmp_path):
    assert seen(tmp_path / "a") is None


def test_a_file_as_large_as_the_limit_is_read_and_a_larger_one_is_not(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * 2048)
    assert len(read_file(path, 2048).data) == 2048
    with pytest.raises(ToolError, match="too large"):
        read_file(path, 2047)


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ToolError, match="device or pipe"):
        seen(tmp_path / "pipe")


def test_a_device_is_refused():
    with pytest.raises(ToolError, match="device or pipe"):
        open_regular(os.path.realpath("/dev/zero"))


def test_a_directory_is_refused_and_closed(tmp_path, monkeypatch):
    opened, real = [], nofollow.open_path

    def watched(*arguments, **options):
        opened.append(real(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(nofollow, "open_path", watched)
    with pytest.raises(ToolError, match="is a directory"):
        seen(tmp_path)
    [descriptor] = opened
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_link_in_the_place_of_a_resolved_path_is_not_followed(tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ToolError, match="cannot read"):
        seen(tmp_path / "link")


# ── Replacing ───────────────────────────────────────────────────────────────────────────────────


def test_a_replaced_file_keeps_its_mode(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o751)
    modified = replace_file(path, b"new", seen(path))
    assert (path.read_bytes(), mode_of(path)) == (b"new", 0o751)
    assert modified == int(path.stat().st_mtime)
    assert names(tmp_path) == ["a"]


def test_a_new_file_has_the_mode_that_the_process_gives_new_files(tmp_path):
    path = tmp_path / "deep" / "er" / "a"
    old = os.umask(0o027)
    try:
        replace_file(path, b"new", None)
    finally:
        os.umask(old)
    assert (path.read_bytes(), mode_of(path)) == (b"new", 0o640)


def test_whoever_has_the_file_open_keeps_reading_the_old_one(tmp_path):
    path = tmp_path / "a"
    path.write_text("old and whole")
    with path.open() as reader:
        replace_file(path, b"new", seen(path))
        assert reader.read() == "old and whole"


@pytest.mark.parametrize("now", [b"other", b"", b"old and more", b"ol"])
def test_a_file_that_changed_since_it_was_seen_is_left_alone(tmp_path, now):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    expected = seen(path)
    path.write_bytes(now)
    with pytest.raises(ToolError, match="changed by another program"):
        replace_file(path, b"new", expected)
    assert path.read_bytes() == now
    assert names(tmp_path) == ["a"]


def test_a_file_that_was_deleted_since_it_was_seen_does_not_come_back(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    expected = seen(path)
    path.unlink()
    with pytest.raises(ToolError, match="changed by another program"):
        replace_file(path, b"new", expected)
    assert names(tmp_path) == []


@pytest.mark.parametrize("now", [b"", b"theirs"])
def test_a_file_that_appeared_since_is_not_overwritten(tmp_path, now):
    path = tmp_path / "a"
    path.write_bytes(now)
    with pytest.raises(ToolError, match="changed by another program"):
        replace_file(path, b"new", None)
    assert path.read_bytes() == now


def test_an_empty_file_is_not_a_missing_one(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"")
    replace_file(path, b"new", seen(path))
    assert path.read_bytes() == b"new"


def test_a_link_that_appeared_since_is_neither_followed_nor_replaced(tmp_path):
    path, outside = tmp_path / "a", tmp_path / "outside"
    path.write_bytes(b"same")
    outside.write_bytes(b"same")
    expected = seen(path)
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(ToolError, match="cannot write"):
        replace_file(path, b"new", expected)
    assert outside.read_bytes() == b"same"
    assert path.is_symlink()


def test_a_failed_write_leaves_the_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_text("old")
    expected = seen(path)

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ToolError, match=r"cannot write .*: No space left on device"):
        replace_file(path, b"new", expected)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_file_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(ToolError, match="cannot write"):
        replace_file(tmp_path / "a" / "b", b"new", None)


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda path, wanted, dir_fd: not wanted & os.W_OK)
    with pytest.raises(ToolError, match="Permission denied"):
        replace_file(path, b"new", seen(path))
    assert (path.read_text(), mode_of(path)) == ("old", 0o444)
    assert names(tmp_path) == ["a"]
