"""What people install: the wheel, in an environment that has nothing else.

The wheel is built and installed once for the whole file; that takes the package index, like any install.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from subprocess import PIPE

import pytest
import trio

import crush_trio
from crush_trio.client import open_client

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

ROOT = Path(__file__).parents[1]
TRIES = 10
SECONDS = 0.35

HEAVY = {
    *("quart", "quart_trio", "hypercorn", "httpx", "rich", "click"),
    *("openai", "anthropic", "sqlite3", "asyncio", "pytest"),
}


def run(*command, **more):
    """Run a command that has to succeed; return what it prints."""
    ran = subprocess.run(
        [*map(str, command)], check=False, stdout=PIPE, stderr=subprocess.STDOUT, text=True, **more
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel):
    """The directory with the programs of an environment that has the wheel and what it needs."""
    place = wheel.parent / "environment"
    run(sys.executable, "-m", "venv", place)
    pip = (place / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", wheel)
    run(*pip, "check")
    return place / "bin"


def outside(home):
    """Return the surroundings of a program that knows nothing of this checkout."""
    return {"cwd": home, "env": {"HOME": str(home), "PATH": os.environ["PATH"]}}


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    files = (path for path in (ROOT / "crush_trio").rglob("*") if path.is_file())
    wanted = {str(path.relative_to(ROOT)) for path in files if path.parent.name != "__pycache__"}
    assert wanted >= {
        "crush_trio/agent/turn/coder.md",
        "crush_trio/providers/catalog.json",
        "crush_trio/py.typed",
        "crush_trio/store/sqlite/schema/0001_initial.sql",
        "crush_trio/store/sqlite/schema/0002_endings.sql",
        "crush_trio/tools/shell/bash.md",
        *(
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / "crush_trio" / "web").rglob("*")
            if path.is_file()
        ),
    }
    assert wanted - set(zipfile.ZipFile(wheel).namelist()) == set()


@pytest.mark.long
def test_the_command_is_there_and_says_its_version(programs, tmp_path):
    printed = run(programs / "crush-trio", "--version", **outside(tmp_path))
    assert crush_trio.__version__ in printed


@pytest.mark.long
def test_importing_the_library_is_quick_and_loads_nothing_heavy(programs, tmp_path):
    """The time is that of the processor, so that a busy machine does not count."""
    program = (
        "import time; began = time.process_time(); import crush_trio; ended = time.process_time()\n"
        "import sys; print(ended - began, *sys.modules)"
    )
    for _ in range(TRIES):
        seconds, *loaded = run(programs / "python", "-c", program, **outside(tmp_path)).split()
        assert HEAVY & set(loaded) == set()
        if float(seconds) < SECONDS:
            return
    pytest.fail(f"importing crush_trio takes {seconds} s")


LIBRARY = """
import trio
from crush_trio import Completion, Submission, open_workspace
from crush_trio.testing import open_test_server

async def turn(run):
    return Completion(text=f"done: {run.prompt}")

async def main():
    async with open_workspace(turn) as workspace, open_test_server():
        print((await workspace.accept(Submission(session_id="s", prompt="it")).wait()).text)

trio.run(main)
"""


@pytest.mark.long
def test_a_plain_install_has_the_command_line_the_library_and_the_harness(programs, tmp_path):
    assert not (programs / "pytest").exists()
    answer = run(programs / "crush-trio", "run", "--demo", "hello", **outside(tmp_path))
    assert "You asked: “hello”" in answer
    assert run(programs / "python", "-c", LIBRARY, **outside(tmp_path)) == "done: it\n"


SERVERS = {
    "own": ("crush-trio serve --host unix://{}", "stdout", b"Listening on"),
    "hypercorn": ("hypercorn -k trio -b unix:{} crush_trio.asgi:app", "stderr", b"Running on"),
}


@pytest.mark.long
@pytest.mark.parametrize("server", SERVERS)
async def test_a_server_that_was_installed_answers_and_ends_in_order(programs, tmp_path, server):
    address = f"unix://{tmp_path}/s.sock"
    words, stream, greeting = SERVERS[server]
    program, *arguments = words.format(tmp_path / "s.sock").split()
    command = [str(programs / program), *arguments]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def serve(task_status):
                await trio.run_process(
                    command, stdout=PIPE, stderr=PIPE, task_status=task_status, **outside(tmp_path)
                )

            process = await nursery.start(serve)
            assert greeting in await getattr(process, stream).receive_some()
            async with open_client(address, environ={}) as client:
                await client.health()
                assert (await client.version()).version == crush_trio.__version__
                async with client.open_workspace(tmp_path) as workspace:
                    session = await workspace.sessions.create("first")
                    run_of_ours = await workspace.submit("long 5", session=session.id)
                    assert len((await run_of_ours.result_text()).split()) == 5
            process.terminate()
    assert process.returncode == 0
