"""A server under test as a process: started, measured from outside, and stopped.

CPU time is the kernel's clock of the process, which counts all threads, also ended ones, in
nanoseconds; `/proc` has the same number in ticks of 10 ms, which is too coarse. Memory is the
resident set size.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from attrs import define, frozen

from benchmarks.driver.http import Place

START_LIMIT: Final = 30.0
"""Seconds that a server may take to answer."""

STOP_LIMIT: Final = 10.0
"""Seconds that a server may take to end once it was asked to."""

_LOOK_EVERY: Final = 0.002
_HEALTH: Final = b"GET /v1/health HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n"
_CPUCLOCK_SCHED: Final = 2
_TAIL: Final = 2000


class NoAnswer(Exception):
    """A server did not start to answer, or ended."""


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@frozen
class Gauge:
    """Reads the CPU time and memory of a process."""

    pid: int

    def cpu(self) -> float:
        """Seconds of processor time that the process has used so far, in all its threads."""
        return time.clock_gettime(cpu_clock(self.pid))

    def rss(self) -> int:
        """Bytes of the process that are in memory."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace")
        return resident(status)


def cpu_clock(pid: int) -> int:
    """Return the id of a process's CPU clock, like `clock_getcpuclockid`."""
    return (~pid << 3) | _CPUCLOCK_SCHED


def resident(status: str) -> int:
    """Return the resident bytes in the text of a `/proc/<pid>/status`."""
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


@define(eq=False)
class ServerProcess:
    """A server that this driver has started."""

    place: Place
    gauge: Gauge
    started_in: float
    """Seconds from the start of the process to its first answer."""


@asynccontextmanager
async def open_process(
    argv: Sequence[str], place: Place, folder: Path, environment: Mapping[str, str]
) -> AsyncIterator[ServerProcess]:
    """Run a server during the block, which begins after its first answer.

    Its output goes to a file in *folder*, and into the error if it does not start.
    """
    output = folder / f"server-{place.port}.log"
    with output.open("wb") as out:
        began = trio.current_time()
        process = subprocess.Popen(  # noqa: ASYNC220 - the driver does nothing else meanwhile
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(environment)
        )
    try:
        await _answers(place, process, output)
        started_in = trio.current_time() - began
        yield ServerProcess(place, Gauge(process.pid), started_in)
    finally:
        with trio.CancelScope(shield=True):
            await _end(process)


async def _answers(place: Place, process: "subprocess.Popen[bytes]", output: Path) -> None:
    """Wait until the server answers a health request."""
    with trio.move_on_after(START_LIMIT):
        while process.poll() is None:
            if await _healthy(place):
                return
            await trio.sleep(_LOOK_EVERY)
    raise NoAnswer(_last_words(output))


def _last_words(output: Path) -> str:
    """Return the last output of a server that does not answer."""
    return output.read_text(encoding="utf-8", errors="replace")[-_TAIL:]


async def _healthy(place: Place) -> bool:
    sock = trio.socket.socket()
    try:
        await sock.connect((place.host, place.port))
        await sock.send(_HEALTH % place.authority.encode())
        return (await sock.recv(64)).startswith((b"HTTP/1.1 2", b"HTTP/1.0 2"))
    except OSError:
        return False
    finally:
        sock.close()


async def _end(process: "subprocess.Popen[bytes]") -> None:
    """Terminate the process; kill it if it does not end."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_LIMIT):
            while process.poll() is None:  # noqa: ASYNC110 - the end of a process sets no event
                await trio.sleep(_LOOK_EVERY)
    if process.poll() is None:
        process.kill()
    process.wait()


def plain_environment(home: Path) -> dict[str, str]:
    """Return an environment in which nothing of the user's configuration is found."""
    kept = {
        name: os.environ[name] for name in ("PATH", "LANG", "VIRTUAL_ENV") if name in os.environ
    }
    return {**kept, "HOME": str(home), "PYTHONUNBUFFERED": "1"}
