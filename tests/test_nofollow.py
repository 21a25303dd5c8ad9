"""Opening without following links: the system call, and the walk that replaces it."""

import errno
import os

import pytest

from crush_trio import nofollow
from crush_trio.nofollow import (
    NotRegular,
    is_regular,
    make_directories,
    open_by_steps,
    open_path,
    open_regular,
    remove_directories,
)

READ, LOOK, FOLDER = os.O_RDONLY | os.O_NONBLOCK, os.O_PATH, os.O_PATH | os.O_DIRECTORY


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "dir" / "deep").mkdir(parents=True)
    (tmp_path / "dir" / "file").write_text("content")
    (tmp_path / "inward").symlink_to("dir")
    (tmp_path / "dir" / "link").symlink_to("file")
    (tmp_path / "nowhere").symlink_to("missing")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path.resolve()


def walked(path, flags, mode=0o666, *, at=None):
    return open_by_steps(os.fspath(path), flags, mode, at=at)


def outcome(function, *arguments, **options):
    """Return "open", or the number of the error."""
    try:
        os.close(function(*arguments, **options))
    except OSError as error:
        return errno.errorcode[error.errno]
    return "open"


@pytest.mark.parametrize("how", [open_path, walked])
@pytest.mark.parametrize(
    ("path", "flags", "expected"),
    [
        ("dir/file", READ, "open"),
        ("dir/file", LOOK, "open"),
        ("dir/file", FOLDER, "ENOTDIR"),
        ("dir", FOLDER, "open"),
        ("dir/", FOLDER, "open"),
        ("pipe", READ, "open"),
        ("missing", READ, "ENOENT"),
        ("dir/file/below", READ, "ENOTDIR"),
        ("inward/file", READ, "ELOOP"),
        ("inward/file", LOOK, "ELOOP"),
        ("inward/deep", FOLDER, "ELOOP"),
        ("inward", FOLDER, "ELOOP"),
        ("inward", LOOK, "ELOOP"),
        ("dir/link", READ, "ELOOP"),
        ("nowhere", os.O_WRONLY | os.O_CREAT, "ELOOP"),
        ("nowhere/x", os.O_WRONLY | os.O_CREAT, "ELOOP"),
    ],
)
def test_a_path_is_opened_without_a_link_in_it(tree, how, path, flags, expected):
    assert outcome(how, f"{tree}/{path}", flags) == expected
    with nofollow.opened_directory(tree) as folder:
        assert outcome(how, path, flags, at=folder) == expected
    assert not (tree / "missing").exists()


@pytest.mark.parametrize("how", [open_path, walked])
def test_a_relative_path_stays_beneath_its_directory(tree, how):
    with nofollow.opened_directory(tree / "dir") as folder:
        assert outcome(how, "../dir/file", READ, at=folder) == "EXDEV"
        assert outcome(how, "..", FOLDER, at=folder) == "EXDEV"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EAGAIN])
def test_without_the_system_call_the_path_is_walked(tree, monkeypatch, number):
    monkeypatch.setattr(nofollow, "_openat2", lambda: lambda *_: (number, -1))
    with os.fdopen(open_regular(tree / "dir" / "file"), "rb") as file:
        assert file.read() == b"content"
    assert outcome(open_path, tree / "inward" / "file", READ) == "ELOOP"


def test_only_a_regular_file_is_opened_and_a_pipe_does_not_block(tree):
    for name, kind in (("dir", "a directory"), ("pipe", "a device or pipe")):
        with pytest.raises(NotRegular, match=f"it is {kind}, not a regular file"):
            open_regular(tree / name)
    assert is_regular(tree / "dir" / "file")
    assert [is_regular(tree / name) for name in ("dir", "pipe", "dir/link", "gone")] == [False] * 4


def test_directories_are_made_below_no_link_and_removed_again(tree):
    made = []
    os.close(make_directories(tree / "dir" / "a" / "b", made))
    assert made == [f"{tree}/dir/a", f"{tree}/dir/a/b"]
    with pytest.raises(OSError, match="symbolic links"):
        make_directories(tree / "inward" / "c" / "d", [])
    (tree / "dir" / "a" / "kept").touch()
    remove_directories(made)
    assert sorted(path.name for path in (tree / "dir").iterdir()) == ["a", "deep", "file", "link"]
    assert [path.name for path in (tree / "dir" / "a").iterdir()] == ["kept"]
