"""Asks a server for its health all the time, over restarts too, in a process of its own.

`python -m benchmarks.soak.health HOST PORT` prints a line per answer, the seconds that it took, until its
input ends. Times in which there is no server are left out; the soak itself sees to those.
"""

import http.client
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from benchmarks.driver.http import Place

PAUSE: Final = 0.02
"""Seconds between an answer and the next question."""

_LIMIT: Final = 60.0


@asynccontextmanager
async def open_health(place: Place, seconds: list[float]) -> AsyncIterator[None]:
    """Ask the server at *place* for the length of the block; *seconds* gets what each answer took."""
    argv = (sys.executable, "-m", "benchmarks.soak.health", place.host, str(place.port))
    with subprocess.Popen(  # noqa: ASYNC220 - a moment, at the very beginning
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                out, _ = await trio.to_thread.run_sync(process.communicate)
            seconds.extend(float(line) for line in out.split())


def main(host: str, port: int) -> None:
    """Ask until the input ends."""
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    connection = http.client.HTTPConnection(host, port, timeout=_LIMIT)
    taken = []
    while not over.wait(PAUSE):
        try:
            connection.connect() if connection.sock is None else None
            began = time.perf_counter()
            connection.request("GET", "/v1/health")
            connection.getresponse().read()
            taken.append(time.perf_counter() - began)
        except (OSError, http.client.HTTPException):
            connection.close()
    print("\n".join(map(str, taken)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
