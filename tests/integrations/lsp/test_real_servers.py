"""Real language servers: what they report is complete, or is said not to be."""

import os
from pathlib import Path

import pytest
import trio

from tests.config.homes import Home
from tests.integrations.lsp_workspace import lsp, open_place

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.item("H7", "I.4")]

GO = "package a\n\nfunc F() int { return %s }\n"


def home_of(tmp_path):
    """Return a home whose programs are those of the machine, and whose caches are its own."""
    programs = Path(__file__).parents[3] / ".programs" / "bin"
    search = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return Home(tmp_path, {"PATH": search, "HOME": str(tmp_path), "GOFLAGS": "-modcacherw"})


async def checked(place, name, content):
    """Write a file, and return what the servers say of it when they have ended their work."""
    if (place.root / name).exists():
        await place.said("view", file_path=name)
    said = await place.said("write", file_path=name, content=content)
    if "Not complete" in said:  # a busy machine: the server is still starting
        said = await place.said("lsp_diagnostics", file_path=name)
    assert "Not complete" not in said
    return said


@pytest.mark.needs("pylsp")
async def test_pylsp(tmp_path):
    config = lsp(pylsp={"command": "pylsp", "filetypes": ["py"]})
    async with open_place(home_of(tmp_path), config, real=True) as place:
        said = await checked(place, "a.py", "import os\n\n\ndef f():\n    return missing\n")
        assert "error: a.py:5:12: undefined name 'missing' (pyflakes)" in said
        assert "warning: a.py:1:1: 'os' imported but unused (pyflakes)" in said
        assert "Diagnostics" not in await checked(place, "a.py", "def f():\n    return 1\n")
        assert "Diagnostics" not in await checked(place, "a.py", "def f():\n    return 2\n")
        await checked(place, "b.py", "from a import f\n\nf()\n")
        assert "a.py:1:5: def f():" in await place.said("lsp_definition", symbol="f", path="b.py")


@pytest.mark.needs("gopls")
@pytest.mark.parametrize("pull", [False, True])
async def test_gopls(tmp_path, pull):
    """As it is, it publishes diagnostics when it has loaded the module; it can also be asked for them."""
    config = lsp(gopls={"init_options": {"pullDiagnostics": pull}})
    async with open_place(home_of(tmp_path), config, real=True) as place:
        place.put("go.mod", "module example.org/a\n\ngo 1.20\n")
        assert "a.go:3:23: undefined: missing" in await checked(place, "a.go", GO % "missing")
        session = place.servers.named("gopls").session
        assert session.can("diagnosticProvider") is pull
        for number in range(2):
            assert "Diagnostics" not in await checked(place, "a.go", GO % number)
        assert "function F (line 3)" in await place.said("lsp_symbols", file_path="a.go")
        await checked(place, "b.go", "package a\n\nvar X = F()\n")
        assert "b.go:3:9: var X = F()" in await place.said("lsp_references", symbol="F")


@pytest.mark.needs("pylsp")
async def test_a_write_does_not_wait_for_a_server_that_is_slow_to_start(tmp_path):
    slow = {"command": "sh", "args": ["-c", "sleep 2; exec pylsp"], "filetypes": ["py"]}
    async with open_place(home_of(tmp_path), lsp(pylsp=slow), real=True) as place:
        before = trio.current_time()
        said = await place.said("write", file_path="a.py", content="missing\n")
        assert trio.current_time() - before < 2
        assert said.endswith("pylsp is still starting.")
        assert "undefined name" in await place.said("lsp_diagnostics", file_path="a.py")
