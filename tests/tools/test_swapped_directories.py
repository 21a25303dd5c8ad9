"""Directories that another process swaps for links out of the workspace, all the time.

Each tool works meanwhile, hundreds of times in all. What it does is done inside the workspace, or
refused, or asked for with the path outside; here every such question is denied.
"""

import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import define, evolve

from crush_trio.tools.base import ToolError
from crush_trio.tools.search.grep import GrepTool
from crush_trio.tools.search.listing import GlobTool, LsTool
from crush_trio.tools.web.download import Partial
from tests.tools.file_bench import open_bench
from tests.tools.search_bench import search_bench

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.real_clock]

SWAP = """
import ctypes, os, sys
os.chdir(sys.argv[1])
swap, here, exchange = ctypes.CDLL(None).renameat2, -100, 2
print("ready", flush=True)
while os.getppid() != 1:
    if swap(here, b"sub", here, b"trap", exchange):
        sys.exit("not swapped")
"""
SECRET = "SECRET of somebody else"


@contextmanager
def swapping(root):
    """Let a process swap `sub` for a link to the directory `outside` beside the workspace."""
    outside = root.parent / "outside"
    outside.mkdir()
    for name in ("file", "other", "only-outside"):
        (outside / name).write_text(f"{SECRET}\n")
    (root / "sub").mkdir()
    (root / "sub" / "file").write_text("inside\n")
    (root / "trap").symlink_to(outside)
    with subprocess.Popen(
        [sys.executable, "-c", SWAP, str(root)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield outside
            assert process.poll() is None
        finally:
            process.kill()
    assert {path.name: path.read_text() for path in outside.iterdir()} == dict.fromkeys(
        ("file", "other", "only-outside"), f"{SECRET}\n"
    )


@define(eq=False)
class Warden:
    """Allows what is inside, and denies what is outside."""

    root: Path

    async def __call__(self, wanted):
        if not wanted.path.is_relative_to(self.root):
            raise ToolError("denied")


async def attempt(call, *arguments, **options):
    """Return what the model is told, whether it worked or not."""
    try:
        return (await call(*arguments, **options)).content
    except ToolError as error:
        return error.result.content


async def test_reading_and_writing_stay_inside(tmp_path):
    async with open_bench(tmp_path) as bench:
        warden = Warden(bench.root)
        with swapping(bench.root):
            for number in range(200):
                said = await attempt(bench.view, "sub/file", person=warden)
                assert SECRET not in said
                name = f"sub/deep/new{number}" if number % 2 else f"sub/new{number}"
                await attempt(bench.write, name, "ours", person=warden)
                said = await attempt(bench.edit, "sub/file", "inside", "inside", person=warden)
                assert SECRET not in said


async def test_downloads_stay_inside(tmp_path):
    root = (tmp_path / "workspace").resolve()
    root.mkdir()
    with swapping(root):
        for number in range(200):
            try:
                partial = Partial.create(root / "sub" / "made" / f"new{number}")
            except ToolError:
                continue
            if number % 2:
                partial._complete()
            partial.discard()


@pytest.mark.parametrize("program", ["own", pytest.param("rg", marks=pytest.mark.needs("rg"))])
async def test_searching_stays_inside(tmp_path, program):
    env = {} if program == "own" else {"PATH": str(Path(shutil.which("rg")).parent)}
    bench = search_bench(tmp_path, env=env)
    bench = evolve(bench, asked=Warden(bench.root))
    with swapping(bench.root):
        for _ in range(15):
            for path in (".", "sub"):
                said = await attempt(bench.run, GrepTool(bench.bench), pattern="SECRET", path=path)
                assert "somebody" not in said
                said = await attempt(bench.run, GlobTool(bench.bench), pattern="**/*", path=path)
                assert "only-outside" not in said
        for _ in range(100):
            assert "only-outside" not in await attempt(bench.run, LsTool(bench.bench), path=".")
            assert "only-outside" not in await attempt(bench.run, LsTool(bench.bench), path="sub")
