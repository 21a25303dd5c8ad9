"""Commands under Landlock: what its rules and the filter of system calls refuse, in the real kernel."""

import os
import socket
from pathlib import Path

import pytest

from crush_trio.tools.sandbox.confinement import Confinement, Network, NotConfined, SandboxKind
from crush_trio.tools.sandbox.enforcement import reduced
from tests.tools.sandbox_runs import PYTHON, contents, needs_landlock, output, sandboxed, tries

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, needs_landlock]

KIND = SandboxKind.LANDLOCK


async def test_a_command_without_writable_directories_can_change_nothing(tmp_path):
    (tmp_path / "file").write_text("text\n")
    before = (tmp_path / "file").stat()
    attempts = [
        "echo x > file",
        "truncate -s 0 file",
        "touch new",
        "mkdir d",
        "mv file other",
        "rm file",
        "ln file other",
        "ln -s file other",
        "mkfifo f",
        "chmod 777 file",
        "touch file",
        "chown 1:1 file",
        'python3 -c \'import os; os.setxattr("file", "user.a", b"")\'',
        "echo x > /proc/self/oom_score_adj",
    ]
    fine = ["cat file", "ls -l", "echo x > /dev/null", "sh -c 'cat < file | wc -l'"]
    assert await tries([*attempts, *fine], tmp_path, KIND) == fine
    assert contents(tmp_path) == {"file": "text\n"}
    after = (tmp_path / "file").stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


async def test_only_writable_directories_can_be_written(tmp_path):
    for name in ("work", "other", "cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "work/link").symlink_to(tmp_path / "other")
    fine = ["touch a", "mkdir b && mv a b/c", "rm -r b", "chmod 700 .", "mv link moved"]
    attempts = ["touch ../other/x", "touch ../x", "mv ../other ../y", "touch moved/x"]
    done = await tries(
        [*fine, *attempts],
        tmp_path / "work",
        KIND,
        writable=[tmp_path / "work", tmp_path / "work/link", tmp_path / "missing"],
    )
    assert done == fine


async def test_hidden_paths_cannot_be_read_and_their_neighbours_can(tmp_path):
    for name in ("hidden/deep/work", "shown"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("text\n")
    (tmp_path / "hidden/secret").write_text("secret\n")
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "shown/link").symlink_to("../token")
    work = tmp_path / "hidden/deep/work"
    hidden = [tmp_path / "hidden", tmp_path / "token"]
    fine = ["cat file", "touch new", f"cat {tmp_path}/shown/file", "ls /usr"]
    attempts = [
        "cat ../../secret",
        "ls ../..",
        f"cat {tmp_path}/token",
        f"cat {tmp_path}/shown/link",
    ]
    done = await tries([*fine, *attempts], work, KIND, writable=[work], hidden=hidden)
    assert done == fine
    shown = {"writable": [work], "protected": [work], "hidden": hidden}
    assert await tries(["cat file", "touch newer"], work, KIND, **shown) == ["cat file"]


async def test_no_socket_can_be_made_if_the_network_is_off(tmp_path):
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        made = PYTHON + "'import socket; socket.socket(socket.{})'"
        attempts = [made.format(family) for family in ("AF_INET", "AF_UNIX", "AF_INET6")]
        pair = PYTHON + "'import socket; socket.socketpair()'"
        done = await tries([*attempts, pair], tmp_path, KIND, network=Network.OFF)
        assert done == [pair]
        assert await tries(attempts, tmp_path, KIND) == attempts


async def test_the_server_can_be_neither_read_nor_signalled(tmp_path):
    server = os.getpid()
    attempts = [
        f"cat /proc/{server}/environ",
        f"head -c 1 /proc/{server}/mem",
        f"ls /proc/{server}/cwd/",
        f"kill -0 {server}",
        "kill -9 $PPID",
        "mount -t tmpfs none /mnt",
        "unshare -m true",
    ]
    assert await tries(attempts, tmp_path, KIND) == []
    assert "NoNewPrivs:\t1" in await output(sandboxed("cat /proc/self/status", tmp_path, KIND))


@pytest.mark.parametrize(
    ("more", "lost"),
    [
        ({"protected": [Path("/srv/.git/hooks")]}, "/srv/.git/hooks is not protected"),
        ({"hidden": [Path("/srv/.crush")]}, "/srv/.crush is not hidden"),
        ({"network": Network.LOOPBACK}, "cannot be limited to loopback"),
    ],
)
async def test_what_landlock_cannot_enforce_is_refused_and_can_be_left_out(tmp_path, more, lost):
    wanted = Confinement(writable=[Path("/srv")], **more)
    less, sentences = reduced(wanted, KIND)
    assert [lost in each for each in sentences] == [True]
    with pytest.raises(NotConfined, match=lost):
        await output(sandboxed("true", tmp_path, KIND, writable=[Path("/srv")], **more))
    assert reduced(less, KIND) == (less, ())
    assert reduced(wanted, SandboxKind.BUBBLEWRAP) == (wanted, ())
    assert reduced(wanted, SandboxKind.NONE)[1]
