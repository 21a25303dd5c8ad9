"""Which processes belong to a command of this server, and which sockets they have."""

import json
import os
import subprocess
import sys

import pytest
import trio

from crush_trio.clock import SystemClock
from crush_trio.tools.shell.guard.descendants import GUARDS, RECENT, Family, LiveGuards, new_mark
from crush_trio.tools.shell.guard.orphans import with_mark
from crush_trio.tools.shell.process import open_process_group
from tests.tools.process_probe import Probe

GONE = 1 << 30
"""A process that there is not: Linux has smaller ids."""


@pytest.fixture
def probe(tmp_path):
    probe = Probe(tmp_path)
    yield probe
    probe.kill_all()


def test_connections_are_suspicious_while_there_are_commands_and_a_while_after():
    now = 0.0
    guards = LiveGuards(lambda: now)
    assert not guards.active
    guards.add(7)
    guards.add(8)
    guards.remove(7, clean=True)
    now = 10 * RECENT
    assert guards.active
    guards.remove(8, clean=True)
    assert guards.active
    now += RECENT
    assert not guards.active


def test_after_a_guard_that_was_killed_connections_are_always_suspicious():
    now = 0.0
    guards = LiveGuards(lambda: now)
    guards.add(7)
    guards.remove(7, clean=False)
    now = 10 * RECENT
    assert guards.active
    assert guards.family() == Family(os.getpid(), frozenset(), escaped=True)


@pytest.mark.slow
@pytest.mark.real_clock
async def test_whatever_a_command_starts_is_of_the_family_and_nothing_else(probe):
    pipe = probe.directory / "pids"
    os.mkfifo(pipe)
    script = (
        f"{probe.sleep} & echo $$ $! > one; setsid -f sh -c 'echo $$ > two; exec {probe.sleep}';"
        f" (env -i setsid sh -c 'echo $$ > three; exec {probe.sleep}' &) ;"
        " until [ -s two ] && [ -s three ]; do :; done; cat one two three > pids; wait"
    )
    outside = subprocess.Popen(probe.sleep.split())  # noqa: ASYNC220 - it returns at once
    try:
        async with open_process_group(probe.command(script), clock=SystemClock()) as group:
            pids = [int(word) for word in (await trio.Path(pipe).read_text()).split()]
            family = GUARDS.family()
            assert len(pids) == 4
            assert group.pid in pids
            assert [pid for pid in pids if not family.has(pid)] == []
            others = [os.getpid(), os.getppid(), 1, outside.pid]
            assert [pid for pid in others if family.has(pid)] == []
            assert family.has(GONE)
    finally:
        outside.kill()
        outside.wait()
    assert not GUARDS.family().watchers & family.watchers


@pytest.mark.slow
def test_a_process_that_lost_its_guard_is_recognised_by_its_mark(probe):
    family = Family(os.getpid(), frozenset(), escaped=True)
    found = {}
    for name, env in (("marked", with_mark({}, new_mark())), ("other", with_mark({}, "other"))):
        # `Popen` returns in the middle of exec, when the new environment cannot be read yet.
        script = ["/bin/sh", "-c", "echo; read -r line", probe.token]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(script, env=env, **pipes) as process:
            assert process.stdout.readline()
            found[name] = family.has(process.pid)
            process.kill()
    assert found == {"marked": True, "other": False}


SOCKETS = """
import ctypes, encodings.idna, json, os, signal, socket, sys, threading
from crush_trio.tools.shell.guard.descendants import Family

def dumpable(value):
    ctypes.CDLL(None).prctl(4, value, 0, 0, 0)

def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)

def child(work):
    '''Start a process that does *work*, says its socket, and waits for the end of this one.'''
    said, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        end_with_parent()
        os.write(say, b"%d" % work())
        signal.pause()
    os.close(say)
    return pid, int(os.read(said, 99))

def connected():
    sockets.append(socket.create_connection(server.getsockname()))
    return os.fstat(sockets[-1].fileno()).st_ino

def below(work):
    '''Do *work* in a process below this one.'''
    return child(work)[1]

def hidden():
    inode = connected()
    dumpable(0)
    return inode

def on_its_way():
    inode = connected()
    with sockets.pop() as sock:
        ends = socket.socketpair()
        socket.send_fds(ends[0], [b"x"], [sock.fileno()])
    sockets.extend(ends)
    return inode

def in_thread():
    found, done = [], threading.Event()
    def work():
        ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES
        found.append(connected())
        done.set()
        signal.pause()
    threading.Thread(target=work, daemon=True).start()
    done.wait()
    return found[0]

if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    dumpable(1)
sockets = []
server = socket.create_server(("127.0.0.1", 0))
outside, others = child(connected)
watcher, plain = child(lambda: below(connected))
family = Family(os.getpid(), frozenset({watcher}), escaped=False)
found = {"plain": family.holds(plain), "others": family.holds(others), "mine": family.holds(connected())}
watcher, secret = child(lambda: below(hidden))
family = Family(os.getpid(), frozenset({watcher}), escaped=False)
found["hidden"] = family.holds(secret)
found["others beside a hidden one"] = family.holds(others)
found["mine beside a hidden one"] = family.holds(connected())
for way in (on_its_way, in_thread):
    watcher, secret = child(lambda: below(way))
    family = Family(os.getpid(), frozenset({watcher}), escaped=False)
    found[way.__name__] = family.holds(secret)
    found["others beside " + way.__name__] = family.holds(others)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_socket_is_found_also_if_its_process_hides_its_open_files():
    """Not as root, which sees everything."""
    done = subprocess.run(
        [sys.executable, "-c", SOCKETS], capture_output=True, text=True, timeout=30, check=True
    )
    assert json.loads(done.stdout) == {
        "plain": True,
        "others": False,
        "mine": False,
        "hidden": True,
        "others beside a hidden one": False,
        "mine beside a hidden one": False,
        "on_its_way": True,
        "others beside on_its_way": False,
        "in_thread": True,
        "others beside in_thread": False,
    }
