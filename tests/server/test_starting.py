"""What a server has imported when it answers probes, and when it is ready: nothing that comes later.

The imports that follow the listening wait for the probes. The clock of the server under test stands
still, so the import ahead of the first workspace never begins, and what is imported is what answering takes.
"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from pathlib import Path

import trio
from trio.testing import MockClock

import crush_trio.cli.main
import crush_trio.cli.commands.serve
import crush_trio.server.run

CREATE = b'{"path": "%b", "client_id": "11111111-1111-4111-8111-111111111111"}'


async def ask(folder, method, path, body=b"", status=200):
    async with await trio.open_unix_socket(f"{folder}/s.sock") as stream:
        head = f"{method} /v1{path} HTTP/1.1\\r\\nHost: test\\r\\nConnection: close\\r\\n"
        await stream.send_all(f"{head}Content-Length: {len(body)}\\r\\n\\r\\n".encode() + body)
        answer = b"".join([piece async for piece in stream])
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer


async def main(folder):
    go_on = crush_trio.server.run.import_beside

    async def probe_first(name):
        await ask(folder, "GET", "/health")
        await ask(folder, "GET", "/version")
        await ask(folder, "GET", "/ready", status=503)
        print(*sys.modules)
        await go_on(name)

    crush_trio.server.run.import_beside = probe_first
    async with crush_trio.server.run.open_server(f"unix://{folder}/s.sock"):
        await ask(folder, "GET", "/ready")
        print(*sys.modules)
        await ask(folder, "POST", "/workspaces", CREATE % folder.encode())
        print(*sys.modules)


trio.run(main, sys.argv[1], clock=MockClock())
"""

OF_THE_APPLICATION = {
    "cattrs",
    "crush_trio.config.files",
    "crush_trio.server.app",
    "crush_trio.server.routes",
    "crush_trio.store.base",
    "crush_trio.wire.codec",
    "hypercorn",
    "quart",
    "quart_trio",
    "werkzeug",
}
"""Imported once the server listens: the codec, the routes and Quart, with what that brings along."""

OF_A_WORKSPACE = {
    "crush_trio.agent.coordinator",
    "crush_trio.backend.open",
    "crush_trio.providers.registry",
    "crush_trio.store.sqlite.store",
    "crush_trio.tools.shell.bash",
    "sqlite3",
}

OF_OTHER_COMMANDS = {"crush_trio.client", "crush_trio.testing", "httpx", "rich"}


def test_a_server_answers_before_it_imports_what_its_workspaces_need(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    probed, answering, working = (set(line.split()) for line in ran.stdout.splitlines())
    assert "crush_trio.server.hosting.front" in probed
    assert probed & (OF_THE_APPLICATION | OF_A_WORKSPACE | OF_OTHER_COMMANDS) == set()
    assert answering >= OF_THE_APPLICATION
    assert answering & (OF_A_WORKSPACE | OF_OTHER_COMMANDS) == set()
    assert working >= OF_A_WORKSPACE
