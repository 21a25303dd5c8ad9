"""The program of docs/javascript.md runs, and prints what the page says."""

import os
import shutil
from pathlib import Path
from subprocess import STDOUT

import pytest
import trio

import crush_trio
from tests.client.test_over_sockets import ANYWHERE, serving
from tests.test_docs import ROOT, blocks_of

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.needs("node")]

WEB = Path(crush_trio.__file__).parent / "web"


async def test_the_program_of_the_page_prints_what_it_says(tmp_path):
    blocks = [b for b in blocks_of(ROOT / "docs" / "javascript.md") if b.language in {"js", "text"}]
    [program, output] = blocks
    (tmp_path / "page.mjs").write_text(
        program.text.replace("./client.js", f"{WEB.as_uri()}/client.js")
    )
    async with serving(ANYWHERE, token="secret") as bound:
        places = {"SERVER_URL": f"http://127.0.0.1:{bound.port}", "SERVER_TOKEN": "secret"}
        with trio.fail_after(30):
            ran = await trio.run_process(
                [shutil.which("node"), "page.mjs"],
                capture_stdout=True,
                stderr=STDOUT,
                check=False,
                cwd=tmp_path,
                env={**os.environ, **places},
            )
    assert ran.stdout.decode() == output.text
    assert ran.returncode == 0
    assert (tmp_path / "greeting.txt").read_text() == "good morning"
