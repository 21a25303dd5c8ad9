"""Clients that other people's generators make of our OpenAPI document: their types hold, and they work.

Each sends a prompt, answers a permission and cancels a run of a real server on a real socket, and
prints what it saw.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import trio

from crush_trio import __version__
from crush_trio.backend.settings import WorkspaceSettings
from crush_trio.server.openapi import openapi_document
from crush_trio.server.run import open_server
from crush_trio.server.settings import GuardSettings, ServerSettings
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Pause, Say, text_of
from crush_trio.wire.messages import Role
from tests.server.test_run_models import CONFIG

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.real_clock]

HERE = Path(__file__).parent
TOKEN = "token-of-the-test"
SEEN = {
    "health": 200,
    "submit": [202, None, True],
    "permission": ["write", True],
    "text": "Done.",
    "cancel": [True, ["cancelled"]],
    "runs": ["cancelled", "run_not_found"],
}


def answer(request):
    """Write a file when told to, wait when told to, and be done otherwise."""
    if not request.tools:
        return [Say("A title")]
    if any(message.role is Role.TOOL for message in request.messages[-1:]):
        return [Say("Done.")]
    if text_of(request) == "wait":
        return [Say("Well"), Pause(Gate())]
    return [CallTool("write", {"file_path": "a.txt", "content": "A"}, id="c1")]


async def seen_by(tmp_path, *program):
    """Run *program* with the address of a server, a token and a directory; return what it printed."""
    user_file = tmp_path / ".config" / "crush" / "crush.json"
    user_file.parent.mkdir(parents=True)
    user_file.write_bytes(orjson.dumps(CONFIG))
    (tmp_path / "work").mkdir()
    settings = ServerSettings(guard=GuardSettings(token=TOKEN))
    workspaces = WorkspaceSettings(home=tmp_path, providers={"p1": ScriptedProvider(answer)})
    with trio.fail_after(30):
        async with open_server("tcp://127.0.0.1:0", settings=settings, workspaces=workspaces) as [
            address
        ]:
            command = [*program, f"http://127.0.0.1:{address.port}", TOKEN, str(tmp_path / "work")]
            done = await trio.run_process(
                command, capture_stdout=True, capture_stderr=True, check=False, env=ENVIRON
            )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


ENVIRON = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}


def check(*command, cwd):
    """Run a program that must find nothing wrong."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(openapi_document(__version__)))
    return path


# ── Python ──────────────────────────────────────────────────────────────────────────────────────

MYPY = """
[mypy]
strict = True
# Its own types are not strict: it passes the arguments of `__exit__` on as objects.
[mypy-generated.client]
ignore_errors = True
"""


@pytest.fixture
def python_program(tmp_path, document):
    """Generate the client, check its types and those of a program that uses it; return the program."""
    generator = Path(shutil.which("openapi-python-client"))
    python = generator.readlink().with_name("python")
    options = tmp_path / "options.json"
    options.write_text('{"post_hooks": []}')
    said = check(
        *(generator, "generate", "--path", document, "--output-path", tmp_path / "generated"),
        *("--meta", "none", "--config", options),
        cwd=tmp_path,
    )
    assert "warning" not in said.lower()
    shutil.copy(HERE / "python_client.py", tmp_path)
    (tmp_path / "mypy.ini").write_text(MYPY)
    check(
        *(sys.executable, "-m", "mypy", "--python-executable", python, "--no-incremental"),
        *("--config-file", "mypy.ini", "python_client.py", "generated"),
        cwd=tmp_path,
    )
    return python, tmp_path / "python_client.py"


@pytest.mark.needs("openapi-python-client")
async def test_a_generated_python_client_has_types_and_works(tmp_path, python_program):
    assert await seen_by(tmp_path, *python_program) == SEEN


# ── TypeScript ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def typescript_program(tmp_path, document):
    """Generate the types, compile them with a program that uses them; return the program."""
    generator = Path(shutil.which("openapi-typescript"))
    modules = generator.readlink().parents[1]
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    check(generator, document, "--output", "generated.ts", cwd=tmp_path)
    shutil.copy(HERE / "typescript_client.ts", tmp_path)
    check(
        *(modules / ".bin" / "tsc", "--strict", "--noUncheckedIndexedAccess", "--skipLibCheck"),
        *("--target", "es2022", "--module", "nodenext", "--lib", "es2023,dom,dom.asynciterable"),
        "typescript_client.ts",
        cwd=tmp_path,
    )
    return "node", tmp_path / "typescript_client.js"


@pytest.mark.needs("openapi-typescript")
async def test_a_generated_typescript_client_has_types_and_works(tmp_path, typescript_program):
    assert await seen_by(tmp_path, *typescript_program) == SEEN
