"""What docs/lsp.md says is so."""

import re
import sys
from pathlib import Path

import orjson
import pytest

from crush_trio.agent.turn.planner import TASK_TOOLS
from crush_trio.integrations.lsp import (
    connection,
    diagnostics,
    documents,
    edit_tools,
    server,
    session,
)
from crush_trio.integrations.lsp.diagnostics import MAX_SHOWN
from crush_trio.integrations.lsp.known_servers import KNOWN
from crush_trio.integrations.lsp.server import RETRY_PAUSE
from crush_trio.wire.integrations import LspState
from tests.config.homes import Home
from tests.integrations.lsp_workspace import TOY, lsp, open_place

PAGE = (Path(__file__).parents[3] / "docs" / "lsp.md").read_text("utf-8")
PROSE = " ".join(PAGE.split())


def block(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def rows(first):
    """Return the cells of the table whose first heading that is."""
    table = PAGE.partition(f"\n| {first} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.split("\n")[2:]]


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.item("H7", "I.4")
async def test_the_server_of_the_page_does_what_the_page_says(tmp_path):
    [program], [config] = block("py"), block("json")
    home = Home(tmp_path, {"HOME": str(tmp_path), "PATH": str(Path(sys.executable).parent)})
    (tmp_path / "todo-server").write_text(program)
    async with open_place(home, orjson.loads(config), real=True) as place:
        said = await place.said("write", file_path="notes.md", content="TODO: everything\n")
        assert place.servers.states()["todo"].state is LspState.READY
    quoted = PAGE.partition("ends with\n\n")[2].partition("\n\nA real one")[0]
    assert said.endswith("\n\n" + re.sub(r"^> ?", "", quoted, flags=re.MULTILINE))


@pytest.mark.real_clock
async def test_the_tools_of_the_page_are_the_tools(tmp_path):
    listed = [name for row in rows("Tool") for name in re.findall(r"`(\w+)`", row[0])]
    async with open_place(Home(tmp_path), lsp(toy=TOY)) as place:
        assert sorted(listed) == sorted(place.tools())
    task = PROSE.partition("A task of the `agent` tool has ")[2].partition(".")[0]
    assert set(re.findall(r"`(\w+)`", task)) == {name for name in TASK_TOOLS if "lsp" in name}


def test_the_known_servers_of_the_page_are_those():
    for name, program, files, markers in rows("Name"):
        known = KNOWN[name.strip("`")]
        assert program.strip("`") == " ".join(known.programs[-1])
        assert tuple(files.split(", ")) == known.filetypes
        assert tuple(markers.split(", ")) == known.root_markers
    assert len(rows("Name")) == len(KNOWN)
    assert KNOWN["pyright"].programs[0][0] == "basedpyright-langserver"


def test_the_states_of_the_page_are_those():
    found = {row[0]: int(row[1]) for row in rows("State")}
    assert found == {state.name.lower(): state.value for state in LspState}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (r"have up to (\d+) seconds to say", diagnostics.CHANGED_LIMIT),
        (r"says nothing for (\d+) second ", documents.FIRST_WAIT),
        (r"silent for ([\d.]+) seconds", documents.QUIET_WAIT),
        (r"waits for ([\d.]+) seconds at most", diagnostics.VIEWED_LIMIT),
        (r"is starting is waited for (\d+) second ", diagnostics.STARTING_LIMIT),
        (r"up to (\d+) seconds for their work to end", documents.LOADING_LIMIT),
        (r"grow with every (\d+) files", session.FILES_PER_PACE),
        (r"handles, up to (\d+) times", session.MAX_PACE),
        (r"Answers may take (\d+) seconds", session.REQUEST_LIMIT),
        (r"and (\d+) for a rename", session.LONG_REQUEST_LIMIT),
        (r"up to (\d+) of them", edit_tools.MAX_FILES),
        (r"get ready; (\d+) unless told", server.START_LIMIT),
        (r"first use after (\d+) seconds", RETRY_PAUSE),
        (r"up to (\d+) of a file", documents.MAX_PER_FILE),
        (r"messages of up to (\d+) MB", connection.MESSAGE_LIMIT / 2**20),
    ],
)
def test_the_numbers_of_the_page_are_those(words, value):
    assert float(re.search(words, PROSE)[1]) == value


def test_so_are_the_ones_in_words():
    assert MAX_SHOWN == 10
    assert session.SHUTDOWN_WAIT == 1
    assert f"{documents.MAX_TOTAL:,} in all" in PROSE
