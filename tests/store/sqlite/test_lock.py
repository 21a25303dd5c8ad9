"""The lock on the data directory, within one process and between two."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from crush_trio.store.errors import DiskFailed, StoreLocked
from crush_trio.store.sqlite.directory import LOCK_NAME, SKIP_VARIABLE, Owner, take_lock

OURS = Owner(pid=os.getpid(), version="1.2.3", started=1_700_000_000)

HOLD_LOCK = """
import os, sys
from pathlib import Path
from crush_trio.store.sqlite.directory import Owner, take_lock
take_lock(Path(sys.argv[1]), Owner(pid=os.getpid(), version="9.8.7", started=86_400))
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked_by_another_process(directory):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "locked\n"
        yield process


@pytest.mark.slow
@pytest.mark.item("J3")
def test_a_second_process_is_told_who_has_the_directory(tmp_path):
    with locked_by_another_process(tmp_path) as process:
        with pytest.raises(StoreLocked) as caught:
            take_lock(tmp_path, OURS)
    message = str(caught.value)
    assert str(tmp_path) in message
    assert f"process {process.pid}, version 9.8.7, started 1970-01-02 00:00:00 UTC" in message
    take_lock(tmp_path, OURS)()


@pytest.mark.slow
@pytest.mark.item("J3")
def test_a_killed_process_leaves_no_lock_behind(tmp_path):
    with locked_by_another_process(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        take_lock(tmp_path, OURS)()


@pytest.mark.item("J3")
def test_the_lock_also_holds_within_one_process(tmp_path):
    release = take_lock(tmp_path, OURS)
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}, version 1.2.3"):
        take_lock(tmp_path, OURS)
    release()
    take_lock(tmp_path, OURS)()


@pytest.mark.item("J3")
def test_the_lock_file_names_its_owner_and_is_never_removed(tmp_path):
    path = tmp_path / LOCK_NAME
    path.write_text("signed by somebody with a much longer name than ours" * 10)
    release = take_lock(tmp_path, OURS)
    assert json.loads(path.read_text()) == {
        "pid": os.getpid(),
        "version": "1.2.3",
        "started": 1_700_000_000,
    }
    inode = path.stat().st_ino
    release()
    assert path.stat().st_ino == inode
    assert path.read_text() == ""


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"started": "x"}'])
def test_an_owner_that_cannot_be_read_is_still_an_owner(tmp_path, content):
    release = take_lock(tmp_path, OURS)
    (tmp_path / LOCK_NAME).write_text(content)
    with pytest.raises(StoreLocked, match="an unknown process"):
        take_lock(tmp_path, OURS)
    release()


@pytest.mark.item("J3")
def test_the_lock_can_be_turned_off(tmp_path):
    release = take_lock(tmp_path, OURS)
    take_lock(tmp_path, OURS, environ={SKIP_VARIABLE: "1"})()
    with pytest.raises(StoreLocked):
        take_lock(tmp_path, OURS, environ={SKIP_VARIABLE: ""})
    release()


def test_a_directory_that_is_not_there_cannot_be_locked(tmp_path):
    with pytest.raises(DiskFailed, match="No such file"):
        take_lock(tmp_path / "missing", OURS)


LEAVE_LOCK = (
    HOLD_LOCK.replace("sys.stdin.read()", "")
    + """
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
sys.stdin.close()
import signal
signal.pause()
"""
)


@pytest.mark.slow
@pytest.mark.item("J3")
def test_a_lock_that_a_killed_process_has_left_to_a_child_is_waited_for(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", LEAVE_LOCK, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "locked\n"
        process.kill()
        process.wait()
        with ThreadPoolExecutor() as pool:
            taking = pool.submit(take_lock, tmp_path, OURS)
            process.stdin.close()
            taking.result()()
