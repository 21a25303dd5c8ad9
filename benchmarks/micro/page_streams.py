"""What the streams of ten pages cost a server, compared with ten plain native streams.

A server in a process of its own writes an answer word by word. Ten clients read it, in turn as plain
native streams and as pages with the roster and one session. The processor time of the server counts.
Run it with `python -m benchmarks.micro.page_streams`; it needs /proc.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import orjson
import trio

from benchmarks.micro.timing import Ratio, report
from crush_trio.backend.settings import WorkspaceSettings
from crush_trio.clock import RandomIds
from crush_trio.net.address import parse_address
from crush_trio.server.run import run_server
from crush_trio.testing.server.config import no_commands, open_fixed_config
from crush_trio.testing.server.server import WrittenTurns
from crush_trio.testing.server.turns import Say, Sleep

STREAMS: Final = 10
WORDS: Final = 150
PAUSE: Final = 0.02
ROUNDS: Final = 7
TARGET: Final = 1.3

_HOST: Final = b"host: localhost\r\n"


# ── The server ──────────────────────────────────────────────────────────────────────────────────


def serve(path: str) -> None:
    """Serve on a Unix socket until the process is ended."""
    script = [step for number in range(WORDS) for step in (Say(f"word {number} "), Sleep(PAUSE))]
    workspaces = WorkspaceSettings(
        make_turn=WrittenTurns(default=script), open_config=open_fixed_config, opens=no_commands
    )

    async def run() -> None:
        await run_server(
            [parse_address(f"unix://{path}")], workspaces=workspaces, whole_process=True
        )

    trio.run(run)


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text("ascii").split()[0]) for thread in threads) / 1e9


# ── The clients ─────────────────────────────────────────────────────────────────────────────────


def request(path: str, method: str, target: str, body: object = None) -> Any:  # noqa: ANN401
    """Send one request and return the JSON of its answer."""
    data = b"" if body is None else orjson.dumps(body)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        head = f"{method} {target} HTTP/1.1\r\ncontent-length: {len(data)}\r\nconnection: close\r\n"
        sock.sendall(head.encode() + _HOST + b"\r\n" + data)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    payload = answer.partition(b"\r\n\r\n")[2]
    return orjson.loads(payload) if payload else None


def read_to_ending(sock: socket.socket) -> None:
    """Read a stream until the run has ended."""
    rest = b""
    while piece := sock.recv(65536):
        rest = rest[-200:] + piece
        if b'"state":"completed"' in rest:
            return


def one_answer(path: str, pid: int, place: str, *, pages: bool) -> float:
    """Return the processor time of the server while ten clients read an answer."""
    session = request(path, "POST", f"/v1/workspaces/{place}/sessions", {"title": "one"})["id"]
    with ExitStack() as stack:
        readers = []
        for _ in range(STREAMS):
            client = RandomIds().new()
            target = f"/v1/workspaces/{place}/events?form=native&client_id={client}"
            if pages:
                target = f"/v1/events?workspace={place}&session={session}&client_id={client}"
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(path)
            sock.sendall(f"GET {target} HTTP/1.1\r\n".encode() + _HOST + b"\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.1 200"), "the stream was refused"
            readers.append(threading.Thread(target=read_to_ending, args=(sock,)))
        for reader in readers:
            reader.start()
        began = processor_seconds(pid)
        body = {"session_id": session, "prompt": "go"}
        request(path, "POST", f"/v1/workspaces/{place}/agent", body)
        for reader in readers:
            reader.join()
        return processor_seconds(pid) - began


def main() -> int:
    """Print both costs and their ratio; return whether it is within the target."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/socket"
        command = [sys.executable, "-m", "benchmarks.micro.page_streams", path]
        server = subprocess.Popen(command, env={**os.environ, "HOME": folder})
        try:
            wait_for(path)
            place = request(
                path, "POST", "/v1/workspaces", {"path": folder, "client_id": RandomIds().new()}
            )["id"]
            costs: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(ROUNDS):
                for pages in costs:
                    costs[pages].append(one_answer(path, server.pid, place, pages=pages))
        finally:
            server.terminate()
            server.wait()
    ratio = Ratio(name="streams", small=costs[False], large=costs[True], target=TARGET)
    return report(f"{STREAMS} plain native streams against {STREAMS} pages", [ratio])


def wait_for(path: str) -> None:
    """Wait until the server answers."""
    for _ in range(200):
        with socket.socket(socket.AF_UNIX) as sock:
            try:
                sock.connect(path)
            except OSError:
                threading.Event().wait(0.05)
            else:
                return
    raise TimeoutError(path)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1])
    else:
        sys.exit(main())
