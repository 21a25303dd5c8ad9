"""Ends a test that hangs: names it, prints where its threads are, and kills its processes.

A test hangs when it has waited or computed for too long. Both are measured for the test process and
its descendants together, and neither is wall time: a second in which one of them was ready to run
but other programs had the processor counts as neither, so a busy machine cannot make a test hang.

* Waiting: no thread was running, ready to run or in disk I/O when looked at, once a second. The
  seconds add up, because a test that polls in vain is awake now and then.
* Computing: seconds of CPU. No test of this suite needs more than a tenth of what is allowed.

A worker of pytest-xdist that is ended this way is replaced and the suite goes on; the test counts
as failed. Without xdist the whole run ends.

The plugin is loaded by `tests/conftest.py`; `-p tests.watchdog` loads it elsewhere.
"""

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

WAITING: Final = 120.0
"""Seconds that a test may wait; the longest wait of the suite is a few seconds."""
COMPUTING: Final = 240.0
"""Seconds of CPU that a test and its processes may use."""
DEAF: Final = 600
"""Seconds after which a thread that never releases the GIL is taken to hang.

The watchdog is a thread: it cannot look as long as C code holds the GIL. Then a timer inside the
interpreter ends the process. It is set back each second, so it fires only if no Python code has run
in any thread for that long.
"""
INTERVAL: Final = 1.0
FIRST_LOOK: Final = 10.0
"""Seconds that a test has run before it is looked at.

Looking opens files in the test's process, and some tests count the open ones; they take less.
"""

_EXIT: Final = 70
_TICK: Final = os.sysconf("SC_CLK_TCK")
_WATCHDOG: Final = pytest.StashKey["Watchdog"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("watchdog")
    group.addoption("--hang-waiting", type=float, default=WAITING, metavar="SECONDS")
    group.addoption("--hang-computing", type=float, default=COMPUTING, metavar="SECONDS")
    group.addoption("--hang-first-look", type=float, default=FIRST_LOOK, metavar="SECONDS")


def pytest_configure(config: pytest.Config) -> None:
    # Output is not captured yet, so this is the stderr that the user sees.
    config.stash[_WATCHDOG] = Watchdog(
        waiting=config.getoption("--hang-waiting"),
        computing=config.getoption("--hang-computing"),
        first_look=config.getoption("--hang-first-look"),
        stderr=os.dup(2),
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_WATCHDOG].close()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch over one test, its setup and teardown included."""
    watchdog = item.config.stash[_WATCHDOG]
    if item.config.getoption("usepdb"):  # a person at the debugger is not a hanging test
        return (yield)
    watchdog.test = item.nodeid
    try:
        return (yield)
    finally:
        watchdog.test = None


class Watchdog:
    """One thread that looks at the test that runs, in the process that runs it."""

    def __init__(self, *, waiting: float, computing: float, first_look: float, stderr: int) -> None:
        self._limits = waiting, computing
        self._first_look = first_look
        self._stderr = stderr
        self._test: str | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def test(self) -> str | None:
        """The id of the test that runs."""
        return self._test

    @test.setter
    def test(self, nodeid: str | None) -> None:
        self._test = nodeid
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        os.close(self._stderr)

    def _watch(self) -> None:
        looks = None
        while not self._closed.wait(INTERVAL):
            faulthandler.dump_traceback_later(DEAF, exit=True, file=self._stderr)
            test = self._test
            if looks is None or looks.test is not test:
                looks = Looks(test)
            elif test is not None and time.monotonic() - looks.began >= self._first_look:
                looks.look()
                if looks.waited > self._limits[0]:
                    self._end(test, f"it has waited for {looks.waited:.0f} seconds")
                if looks.computed > self._limits[1]:
                    self._end(test, f"it has used {looks.computed:.0f} seconds of CPU")
        faulthandler.cancel_dump_traceback_later()

    def _end(self, test: str, reason: str) -> None:
        text = f"\n\nHanging test ended, {reason}: {test}\nThe threads of its process:\n"
        os.write(self._stderr, text.encode())
        faulthandler.dump_traceback(file=self._stderr, all_threads=True)
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        os._exit(_EXIT)


class Looks:
    """What one test was seen to do since it was first looked at; used by the watchdog's thread."""

    def __init__(self, test: str | None) -> None:
        self.test = test
        self.began = time.monotonic()
        self.waited = self.computed = 0.0
        self._before: tuple[float, float] | None = None

    def look(self) -> None:
        now, tree = time.monotonic(), [os.getpid(), *descendants(os.getpid())]
        cpu = sum(map(cpu_seconds, tree))
        if self._before is not None:
            # Less than before if a process has left the tree. A suspended machine counts once.
            used = max(0.0, cpu - self._before[1])
            passed = min(now - self._before[0], 2 * INTERVAL)
            me = threading.get_native_id()
            self.computed += used
            if used < passed / 10 and not any(is_ready(pid, me) for pid in tree):
                self.waited += passed
        self._before = now, cpu


def descendants(pid: int) -> Iterator[int]:
    """The processes below *pid*, save those that have detached themselves."""
    for task in _entries(Path(f"/proc/{pid}/task")):
        for child in _read(task / "children").split():
            yield int(child)
            yield from descendants(int(child))


def cpu_seconds(pid: int) -> float:
    """What *pid* and those of its children that it has waited for have used."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return sum(map(int, fields[11:15])) / _TICK


def is_ready(pid: int, but: int) -> bool:
    """Whether a thread of *pid*, other than *but*, runs, could run, or is in disk I/O."""
    tasks = (task for task in _entries(Path(f"/proc/{pid}/task")) if task.name != str(but))
    return any(_stat(task / "stat")[:1] in (["R"], ["D"]) for task in tasks)


def _stat(path: Path) -> list[str]:
    """The fields of a stat file after the name of the program, which may contain anything."""
    return _read(path).rpartition(")")[2].split()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended
        return ""


def _entries(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []
