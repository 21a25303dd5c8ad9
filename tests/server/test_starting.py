"""What a server has imported when it answers for the first time: nothing that only a workspace needs.

The clock of the server under test stands still, so the import ahead of the first workspace never
begins, and what is imported is what answering takes.
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
from crush_trio.server.run import open_server

CREATE = b'{"path": "%b", "client_id": "11111111-1111-4111-8111-111111111111"}'


async def ask(folder, method, path, body=b""):
    async with await trio.open_unix_socket(f"{folder}/s.sock") as stream:
        head = f"{method} /v1{path} HTTP/1.1\\r\\nHost: test\\r\\nConnection: close\\r\\n"
        await stream.send_all(f"{head}Content-Length: {len(body)}\\r\\n\\r\\n".encode() + body)
        answer = b"".join([piece async for piece in stream])
        assert answer.startswith(b"HTTP/1.1 200 "), answer


async def main(folder):
    async with open_server(f"unix://{folder}/s.sock"):
        await ask(folder, "GET", "/health")
        print(*sys.modules)
        await ask(folder, "POST", "/workspaces", CREATE % folder.encode())
        print(*sys.modules)


trio.run(main, sys.argv[1], clock=MockClock())
"""

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
    answering, working = (set(line.split()) for line in ran.stdout.splitlines())
    assert "crush_trio.server.app" in answering
    assert answering & (OF_A_WORKSPACE | OF_OTHER_COMMANDS) == set()
    assert working >= OF_A_WORKSPACE
