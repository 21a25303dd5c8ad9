"""Response times of a server's health route, requested all the time by another process.

The driver itself would send requests late whenever it is busy. `python -m benchmarks.driver.pulse
HOST PORT` sends requests until its input ends and then prints the seconds of each. Times without a
server, while it is restarted, are left out.
"""

import http.client
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import orjson
import trio
from attrs import define, field

from benchmarks.driver.http import Place

PAUSE: Final = 0.005
"""Seconds between an answer and the next request."""

_LIMIT: Final = 60.0


@define(eq=False)
class Pulse:
    """The response times, after the block of `open_pulse`."""

    seconds: list[float] = field(factory=list, init=False)


@asynccontextmanager
async def open_pulse(place: Place) -> AsyncIterator[Pulse]:
    """Send health requests to the server at *place* during the block."""
    argv = (sys.executable, "-m", "benchmarks.driver.pulse", place.host, str(place.port))
    pulse = Pulse()
    with subprocess.Popen(  # noqa: ASYNC220 - the driver has nothing else to do meanwhile
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield pulse
        finally:
            with trio.CancelScope(shield=True):
                out, _ = await trio.to_thread.run_sync(process.communicate)
            pulse.seconds.extend(orjson.loads(out))


def main(host: str, port: int) -> None:
    """Send requests until the input ends."""
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    connection, taken = http.client.HTTPConnection(host, port, timeout=_LIMIT), []
    while not over.wait(PAUSE):
        try:
            if connection.sock is None:
                connection.connect()
            began = time.perf_counter()
            connection.request("GET", "/v1/health")
            connection.getresponse().read()
            taken.append(time.perf_counter() - began)
        except (OSError, http.client.HTTPException):
            connection.close()
    sys.stdout.buffer.write(orjson.dumps(taken))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
