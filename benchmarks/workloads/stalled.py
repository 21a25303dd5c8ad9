"""(j) Memory for attached clients that do not read, when a large event comes.

Two hundred clients, half in each form, and one prompt with a file of 5 MiB. The server's memory is
compared with its maximum for such a prompt without them; the connections are part of the
difference. Meanwhile another process requests the server's health. The baseline is not measured: it
has no attachments.
"""

import base64
import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import trio

from benchmarks.bench import Bench
from benchmarks.driver.http import Place, UnexpectedStatus
from benchmarks.driver.pulse import open_pulse
from benchmarks.driver.stage import RUN_LIMIT, Stage, events_target, open_stage, run_name
from benchmarks.driver.targets import Started
from benchmarks.figures import BYTES, MS, Figure, at_most, percentile

LETTER: Final = "j"
TITLE: Final = "Clients that do not read"

CLIENTS: Final = 200
FILE: Final = 5 * 2**20
WARM: Final = 6
"""Prompts of the same kind that come first, so that the event log is filled with them already."""

MEMORY: Final = "memory per client that does not read, with an event of 7 MB"
HEALTH: Final = "answer to a request meanwhile, p99"

_WINDOW: Final = 4096
"""The receive buffer of a client that does not read, in bytes."""

_REST: Final = 1.0


async def measure(bench: Bench) -> list[Figure]:
    """Attach clients that do not read, send a large prompt, and measure the server."""
    notes = bench.notes(LETTER)
    async with open_stage(_with_eager_allocator(bench.own), bench.provider) as stage:
        usual = 0
        for _ in range(bench.size(WARM, 2)):
            await _send_file(stage)
            usual = max(usual, stage.rss() or 0)
        for _ in range(bench.rounds):
            clients = bench.size(CLIENTS, 20)
            async with _not_reading(stage, clients), open_pulse(stage.served.place) as pulse:
                await trio.sleep(_REST / 2)
                await _send_file(stage)
                rss = stage.rss()
            if rss is not None:
                notes.add(MEMORY, stage.name, (rss - usual) / clients)
            notes.add(HEALTH, stage.name, percentile(pulse.seconds, 0.99) * 1e3)
    return [*notes.figure(MEMORY, BYTES, at_most(65536)), *notes.figure(HEALTH, MS, at_most(50))]


def _with_eager_allocator(server: Started) -> Started:
    """Return *server* with an allocator that gives large blocks back as soon as they are freed.

    As shipped it keeps some of them, more or fewer in each process: up to 150 MB for this workload.
    """
    options = ("MALLOC_ARENA_MAX=1", "MALLOC_MMAP_THRESHOLD_=131072")
    return Started(server.name, ("env", *options, *server.argv))


async def _send_file(stage: Stage) -> None:
    """Send a prompt with a file, wait for its ending, and wait a little longer."""
    session, run_id = await stage.warm_session(), run_name()
    content = base64.b64encode(random.randbytes(FILE)).decode()
    file = {"file_path": "a.bin", "file_name": "a.bin", "mime_type": "application/octet-stream"}
    body = {
        "session_id": session,
        "prompt": "say 20",
        "run_id": run_id,
        "attachments": [{**file, "content": content}],
    }
    with trio.fail_after(RUN_LIMIT):
        await stage.caller.ask("POST", f"{stage.base}/agent", body, expect=202)
        await stage.witness.ended(run_id)
    await trio.sleep(_REST)


@asynccontextmanager
async def _not_reading(stage: Stage, clients: int) -> AsyncIterator[None]:
    """Attach clients, half in each form, that read only the head of the answer."""
    async with AsyncExitStack() as stack:
        for number in range(clients):
            target = events_target(stage.base, stage.forms[number % len(stage.forms)])
            stack.push_async_callback((await _attach(stage.served.place, target)).aclose)
        yield


async def _attach(place: Place, target: str) -> trio.SocketStream:
    sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _WINDOW)
    await sock.connect((place.host, place.port))
    stream = trio.SocketStream(sock)
    asked = f"GET {target} HTTP/1.1\r\nHost: {place.authority}\r\n\r\n"
    await stream.send_all(asked.encode())
    head = bytes(await stream.receive_some(512))
    if b" 200 " not in head.partition(b"\r\n")[0]:
        await stream.aclose()
        raise UnexpectedStatus(f"GET {target}: {head[:100]!r}")
    return stream
