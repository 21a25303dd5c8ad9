"""The real guard, altered: it halts for ever at one stage of its work, or has no time for it.

As a program: `python -I -S altered_guard.py <alteration> <token> <program of the guard> <its arguments>`.
The alteration `hasty` leaves it no time to kill anything. The others name the stage at which one of its
processes does not get on:

* `boot`: before it does anything;
* `request`: it has the request;
* `fork <n>`: before the n-th fork; the first makes the guard, the second the command;
* `say <word>`, `said <word>`: before and after a line that begins with this word;
* `exec`: in the command's process, before it becomes the command;
* `exit`: before the watcher and the guard exit.

The token is for a `Probe`, which finds altered guards by it.
"""

import os
import runpy
import signal
import sys
from types import ModuleType

FOR_EVER = (
    "boot",
    "request",
    "fork 1",
    "fork 2",
    "say forked",
    "said forked",
    "exec",
    "say started",
    "said started",
    "say stopped",
    "said stopped",
    "exit",
)


def altered(guard, alteration, token):
    """Return how an altered guard is started, given how the real one is."""
    *python, program = guard
    return (*python, __file__, alteration, token, program)


def reach(stage):
    """Halt if this is the stage. Only SIGKILL gets a process out of here."""
    while stage == ALTERATION:
        signal.pause()


def fork(fork=os.fork, forks=[0]):  # noqa: B006  # a counter that the copies take along
    forks[0] += 1
    reach(f"fork {forks[0]}")
    return fork()


def write(descriptor, data, write=os.write):
    word = data.partition(b" ")[0].strip().decode()
    reach(f"say {word}")
    written = write(descriptor, data)
    reach(f"said {word}")
    return written


def read(descriptor, size, read=os.read):
    data = read(descriptor, size)
    if size > 4096:
        reach("request")
    return data


def execvp(*args, execvp=os.execvp):
    reach("exec")
    execvp(*args)


def exit_process(code, exit_process=os._exit):
    reach("exit")
    exit_process(code)


def hurry(program):
    """Give the guard no time. Its modules are imported as its program does, and found by it."""
    package = ModuleType("crush_trio.tools.shell.guard")
    package.__path__ = [os.path.dirname(program)]  # noqa: PTH120
    sys.modules[package.__name__] = package
    from crush_trio.tools.shell.guard.subreaper import Subreaper

    sys.modules[Subreaper.__module__].KILL_LIMIT = 0.0


if __name__ == "__main__":
    _, ALTERATION, _, program, *arguments = sys.argv
    reach("boot")
    if ALTERATION == "hasty":
        hurry(program)
    os.fork, os.write, os.read, os.execvp, os._exit = fork, write, read, execvp, exit_process
    sys.argv[:] = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
