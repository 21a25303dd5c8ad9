"""A data directory that came with a checkout: links, pipes and other users' files in it."""

import os
from pathlib import Path

import pytest
import trio

from crush_trio.store.errors import StoreFileForeign
from crush_trio.store.sqlite.database import COMPANIONS, DATABASE_NAME, open_database
from crush_trio.store.sqlite.directory import LOCK_NAME

NAMES = (LOCK_NAME, DATABASE_NAME, *(DATABASE_NAME + ending for ending in COMPANIONS))


async def refused(directory):
    """Return why the store is not opened; nothing may block."""
    with trio.fail_after(10), pytest.raises(StoreFileForeign) as caught:
        async with open_database(directory):
            pass
    return str(caught.value)


@pytest.mark.item("J3")
@pytest.mark.parametrize("name", NAMES)
async def test_a_link_is_not_followed(tmp_path, name):
    keys, data = tmp_path / "authorized_keys", tmp_path / "data"
    keys.write_text("ssh-ed25519 AAAA me")
    data.mkdir()
    (data / name).symlink_to("../authorized_keys")
    assert f"{data / name} is a symbolic link" in await refused(data)
    assert keys.read_text() == "ssh-ed25519 AAAA me"


async def test_a_hard_link_to_another_file_is_not_emptied(tmp_path):
    """A lock of ours may have two names: a backup can consist of hard links."""
    keys, data = tmp_path / "authorized_keys", tmp_path / "data"
    keys.write_text("ssh-ed25519 AAAA me")
    data.mkdir()
    (data / LOCK_NAME).hardlink_to(keys)
    assert f"{data / LOCK_NAME} is a hard link" in await refused(data)
    assert keys.read_text() == "ssh-ed25519 AAAA me"
    keys.write_text("")
    async with open_database(data):
        pass


@pytest.mark.parametrize("name", NAMES)
async def test_a_link_to_nothing_creates_nothing(tmp_path, name):
    data = tmp_path / "data"
    data.mkdir()
    (data / name).symlink_to("../new")
    await refused(data)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_pipe_or_a_directory_is_refused_at_once(tmp_path, name):
    for number, make in enumerate((os.mkfifo, Path.mkdir)):
        data = tmp_path / str(number)
        data.mkdir()
        make(data / name)
        assert f"{data / name} is a d" in await refused(data)


async def test_a_file_of_another_user_is_refused(tmp_path, monkeypatch):
    (tmp_path / LOCK_NAME).touch()
    real = os.fstat

    def strange(handle):
        found = list(real(handle))
        found[4] = 12345
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", strange)
    assert "belongs to the user 12345" in await refused(tmp_path)


async def test_the_ignore_file_is_not_written_through_a_link(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / ".gitignore").symlink_to("../new")
    async with open_database(data):
        pass
    assert not (tmp_path / "new").exists()
