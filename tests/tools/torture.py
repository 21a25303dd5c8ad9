"""Commands that do all they can to leave a process behind.

As a program: `python -I -S torture.py <name> <token>`. Each writes `ready` when it has begun, and does not
end by itself unless its name says so; whatever it starts has the token among its arguments, and ends
after some seconds at the latest. `NAMES` are all of them.
"""

import ctypes
import os
import signal
import sys
import time

LIFE = 12.0
"""Seconds that any of these processes lives, if a test fails to end it."""

PR_SET_PDEATHSIG = 1


def sleep():
    """Live on. A process that was forked has its parent's arguments, and with them the token."""
    while time.monotonic() < END:
        time.sleep(0.5)
    os._exit(0)


def ready():
    os.write(1, b"ready\n")


def spawn(function, *args):
    """Have a child do something that does not return; return its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            function(*args)
        finally:
            os._exit(0)
    return pid


def spawn_twice(function, *args):
    """Have a grandchild do something whose parent has gone, in a session of its own."""

    def daemon():
        os.setsid()
        spawn(function, *args)

    os.waitpid(spawn(daemon), 0)


def bare():
    """Live on without an environment, as another program."""
    script = f"import time; time.sleep({LIFE})"
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", script, TOKEN], {})


def chain():
    """Fork, leave the session and exit, over and over; each process is there for an instant."""
    while time.monotonic() < END:
        if os.fork():
            os._exit(0)
        os.setsid()


def tree(permits):
    """Fork for a second as fast as it goes, in all processes, as long as there are permits."""
    stop = time.monotonic() + 1.0
    while time.monotonic() < stop and os.read(permits, 1):
        if os.fork() == 0 and os.getpid() % 3 == 0:
            os.setsid()
    sleep()


def stubborn():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def above(pid):
    """Return the parent of a process."""
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return int(file.read().rpartition(")")[2].split()[1])


def family():
    """Start children, daemons and a daemon that cannot be recognised by its environment."""
    for _ in range(2):
        spawn(sleep)
        spawn_twice(sleep)
    spawn_twice(bare)


def survive_parent():
    """Take back the order to the kernel to kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)


# ── The commands ────────────────────────────────────────────────────────────────────────────────


def respawns():
    """Have chains of processes that are gone before a search of all processes finds them."""
    stubborn()
    for _ in range(2):
        spawn(chain)
    ready()
    sleep()


def respawns_and_ends():
    stubborn()
    spawn(chain)
    ready()


def many_generations():
    """Have a child fork, leave the session and exit, 100 times; the last process stays."""

    def generations():
        for _ in range(100):
            if os.fork():
                os._exit(0)
            os.setsid()
        ready()
        sleep()

    stubborn()
    spawn(generations)
    sleep()


def forks_for_a_second():
    stubborn()
    permits, permit = os.pipe()
    os.write(permit, b"." * 120)
    os.close(permit)
    ready()
    tree(permits)


def ignores_signals():
    stubborn()
    family()
    ready()
    sleep()


def changes_groups():
    """Have children in groups of their own, of each other, and of other sessions."""
    leader = spawn(sleep)
    os.setpgid(leader, leader)
    for _ in range(3):
        member = spawn(sleep)
        os.setpgid(member, leader)
    spawn_twice(lambda: (os.setpgid(0, 0), stubborn(), sleep()))
    ready()
    sleep()


def kills_its_guard():
    stubborn()
    family()
    ready()
    os.kill(os.getppid(), signal.SIGKILL)
    sleep()


def survives_its_guard():
    """Kill the guard, live on, and go on forking."""
    survive_parent()
    stubborn()
    family()
    ready()
    os.kill(os.getppid(), signal.SIGKILL)
    spawn_twice(chain)
    sleep()


def kills_its_watcher():
    stubborn()
    family()
    ready()
    os.kill(above(os.getppid()), signal.SIGKILL)
    sleep()


def kills_both():
    """Kill guard and watcher at once. What has neither environment nor session would not be found."""
    survive_parent()
    stubborn()
    for _ in range(2):
        spawn(sleep)
        spawn_twice(sleep)
    spawn(bare)
    guard = os.getppid()
    watcher = above(guard)
    ready()
    os.kill(watcher, signal.SIGSTOP)
    os.kill(guard, signal.SIGKILL)
    os.kill(watcher, signal.SIGKILL)
    sleep()


def kills_both_and_respawns():
    """Kill guard and watcher at once, and be a chain of processes from then on."""
    survive_parent()
    stubborn()
    guard = os.getppid()
    watcher = above(guard)
    ready()
    os.kill(watcher, signal.SIGSTOP)
    os.kill(guard, signal.SIGKILL)
    os.kill(watcher, signal.SIGKILL)
    chain()


NAMES = (
    respawns,
    respawns_and_ends,
    many_generations,
    forks_for_a_second,
    ignores_signals,
    changes_groups,
    kills_its_guard,
    survives_its_guard,
    kills_its_watcher,
    kills_both,
    kills_both_and_respawns,
)

if __name__ == "__main__":
    TOKEN = sys.argv[2]
    END = time.monotonic() + LIFE
    {each.__name__: each for each in NAMES}[sys.argv[1]]()
